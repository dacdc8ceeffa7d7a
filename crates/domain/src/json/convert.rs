//! To and from `serde_json::Value`, for libraries that read nothing else. Every digit survives (serde_json's
//! `arbitrary_precision`).
//!
//! With that feature serde_json reads an object whose only member is `$serde_json::private::Number` as a number.
//! Text from outside therefore goes through [`Json::parse`] and comes here as a tree, never through
//! `serde_json::from_str`.

use std::borrow::Cow;

use serde_json::Value;

use super::Json;
use super::fault::Fault;
use crate::canonical::number::Decimal;
use crate::error::LedgerError;

impl<'a> Json<'a> {
    /// The same value for a library that takes `serde_json::Value`; numbers keep their text.
    ///
    /// # Errors
    /// `CL014` for a number outside the canonical form's bounds: arithmetic on `1e131071` costs time and memory that
    /// its eight bytes do not show. `CL004` when a number's text is no JSON number.
    pub fn to_value(&self) -> Result<Value, LedgerError> {
        Ok(value(self)?)
    }

    /// The same value, borrowing its strings and numbers.
    pub fn from_value(value: &'a Value) -> Json<'a> {
        match value {
            Value::Null => Json::Null,
            Value::Bool(truth) => Json::Bool(*truth),
            Value::Number(number) => Json::Number(Cow::Borrowed(number.as_str())),
            Value::String(text) => Json::String(Cow::Borrowed(text)),
            Value::Array(elements) => Json::Array(elements.iter().map(Json::from_value).collect()),
            Value::Object(members) => Json::Object(
                members.iter().map(|(name, value)| (Cow::Borrowed(name.as_str()), Json::from_value(value))).collect(),
            ),
        }
    }
}

fn value(json: &Json<'_>) -> Result<Value, Fault> {
    Ok(match json {
        Json::Null => Value::Null,
        Json::Bool(truth) => Value::Bool(*truth),
        Json::Number(text) => {
            Decimal::read(text)?;
            Value::Number(text.parse().map_err(|_| Fault::invalid("a number is not written as JSON writes it"))?)
        }
        Json::String(text) => Value::String(text.clone().into_owned()),
        Json::Array(elements) => Value::Array(
            elements
                .iter()
                .enumerate()
                .map(|(index, element)| value(element).map_err(|fault| fault.in_element(index)))
                .collect::<Result<_, _>>()?,
        ),
        Json::Object(members) => Value::Object(
            members
                .iter()
                .map(|(name, member)| {
                    Ok((name.clone().into_owned(), value(member).map_err(|fault| fault.in_member(name))?))
                })
                .collect::<Result<_, Fault>>()?,
        ),
    })
}
