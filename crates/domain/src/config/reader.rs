//! Walks a config document with the JSON path at hand, so that every refusal can say where and what is allowed.

use crate::error::{Code, LedgerError};
use crate::json::Json;

/// The result of reading a part of a config document.
pub(crate) type Read<T> = Result<T, LedgerError>;

/// One value of the document, with its JSON path.
#[derive(Clone)]
pub(crate) struct Field<'j> {
    pub(crate) path: String,
    pub(crate) json: &'j Json<'j>,
}

/// The members of an object whose names were checked against the allowed ones.
pub(crate) struct Object<'j> {
    path: String,
    members: &'j [(std::borrow::Cow<'j, str>, Json<'j>)],
}

/// A refusal (`CL012`): the message says what is wrong, DETAIL is the JSON path.
pub(crate) fn invalid(path: &str, message: impl Into<String>) -> LedgerError {
    LedgerError::new(Code::InvalidDefinition, message).detail(path)
}

/// The path of a member: `$.a.b`, or `$.a["X-B"]` where the name is not a plain word.
pub(crate) fn member_path(path: &str, name: &str) -> String {
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if plain { format!("{path}.{name}") } else { format!("{path}[\"{}\"]", shown(name)) }
}

/// A name as it may stand in a message: bounded and without control characters.
pub(crate) fn shown(name: &str) -> String {
    let mut text: String = name.chars().take(64).map(|c| if c.is_control() || c == '"' { '?' } else { c }).collect();
    if name.chars().nth(64).is_some() {
        text.push('…');
    }
    text
}

fn kind(json: &Json<'_>) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "an array",
        Json::Object(_) => "an object",
    }
}

impl<'j> Field<'j> {
    /// The root of a document.
    pub(crate) fn root(json: &'j Json<'j>) -> Self {
        Self { path: "$".into(), json }
    }

    pub(crate) fn invalid(&self, message: impl Into<String>) -> LedgerError {
        invalid(&self.path, message)
    }

    fn wrong_type(&self, wanted: &str) -> LedgerError {
        self.invalid(format!("wrong type in the definition: expected {wanted}, found {}", kind(self.json)))
            .hint(format!("allowed: {wanted}"))
    }

    /// An object with only these members.
    pub(crate) fn object(&self, allowed: &[&str]) -> Read<Object<'j>> {
        let Json::Object(members) = self.json else {
            return Err(self.wrong_type("an object"));
        };
        for (name, _) in members {
            if !allowed.contains(&name.as_ref()) {
                let list = if allowed.is_empty() { "none".into() } else { allowed.join(", ") };
                return Err(invalid(
                    &member_path(&self.path, name),
                    format!("unknown field \"{}\" in the definition", shown(name)),
                )
                .hint(format!("allowed here: {list}")));
            }
        }
        Ok(Object { path: self.path.clone(), members })
    }

    /// All members of an object whose names the author chooses.
    pub(crate) fn entries(&self, max: usize) -> Read<Vec<(&'j str, Field<'j>)>> {
        let Json::Object(members) = self.json else {
            return Err(self.wrong_type("an object"));
        };
        if members.len() > max {
            return Err(self.invalid(format!("too many members: {}", members.len())).hint(format!("at most {max}")));
        }
        Ok(members
            .iter()
            .map(|(name, json)| (name.as_ref(), Field { path: member_path(&self.path, name), json }))
            .collect())
    }

    /// The elements of an array of at most `max` elements.
    pub(crate) fn array(&self, max: usize) -> Read<Vec<Field<'j>>> {
        let Json::Array(items) = self.json else {
            return Err(self.wrong_type("an array"));
        };
        if items.len() > max {
            return Err(self.invalid(format!("too many elements: {}", items.len())).hint(format!("at most {max}")));
        }
        Ok(items
            .iter()
            .enumerate()
            .map(|(index, json)| Field { path: format!("{}[{index}]", self.path), json })
            .collect())
    }

    pub(crate) fn string(&self) -> Read<&'j str> {
        match self.json {
            Json::String(text) => Ok(text),
            _ => Err(self.wrong_type("a string")),
        }
    }

    pub(crate) fn bool(&self) -> Read<bool> {
        match self.json {
            Json::Bool(value) => Ok(*value),
            _ => Err(self.wrong_type("true or false")),
        }
    }

    /// A whole number between the bounds, both included.
    pub(crate) fn int(&self, min: i64, max: i64) -> Read<i64> {
        let Json::Number(text) = self.json else {
            return Err(self.wrong_type("a whole number"));
        };
        match text.parse::<i64>() {
            Ok(value) if (min..=max).contains(&value) => Ok(value),
            _ => Err(self
                .invalid("the number is not a whole number of the allowed range")
                .hint(format!("allowed: {min} to {max}"))),
        }
    }

    /// One of the given words.
    pub(crate) fn word<T: Copy>(&self, words: &[(&str, T)]) -> Read<T> {
        let text = self.string()?;
        words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| {
            let list: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.invalid("unknown word in the definition").hint(format!("allowed: {}", list.join(", ")))
        })
    }
}

impl<'j> Object<'j> {
    /// A member, if it is there.
    pub(crate) fn get(&self, name: &str) -> Option<Field<'j>> {
        let (_, json) = self.members.iter().find(|(member, _)| member == name)?;
        Some(Field { path: member_path(&self.path, name), json })
    }

    /// A member that must be there.
    pub(crate) fn required(&self, name: &str) -> Read<Field<'j>> {
        self.get(name)
            .ok_or_else(|| invalid(&member_path(&self.path, name), format!("the field \"{name}\" is required")))
    }

    /// A member read with `read`, if it is there.
    pub(crate) fn read<T>(&self, name: &str, read: impl FnOnce(&Field<'j>) -> Read<T>) -> Read<Option<T>> {
        self.get(name).map(|field| read(&field)).transpose()
    }
}
