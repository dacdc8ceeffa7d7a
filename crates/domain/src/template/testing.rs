//! Test support: documents from text. Members come sorted by name; numbers keep their text.

use serde_json::Value;

use crate::json::Json;

/// The document that the text stands for.
pub(crate) fn json(text: &str) -> Json<'static> {
    of(serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

fn of(value: Value) -> Json<'static> {
    match value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::Bool(value),
        Value::Number(number) => Json::Number(number.to_string().into()),
        Value::String(text) => Json::String(text.into()),
        Value::Array(items) => Json::Array(items.into_iter().map(of).collect()),
        Value::Object(members) => {
            Json::Object(members.into_iter().map(|(name, value)| (name.into(), of(value))).collect())
        }
    }
}
