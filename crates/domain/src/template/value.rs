//! The values that templates handle, and the writer that turns them into JSON text.

use std::borrow::Cow;

use super::Fault;
use crate::json::Json;

/// The deepest document that is written.
const MAX_JSON_DEPTH: usize = 256;

/// A value during rendering; scalars and containers of the params are borrowed.
#[derive(Clone, Debug)]
pub enum Val<'v> {
    /// Nothing is there; the text says what was looked for.
    Missing(String),
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// A number, with the digits that it came with.
    Number(Cow<'v, str>),
    /// Text.
    Text(Cow<'v, str>),
    /// An array or object of the params.
    Tree(&'v Json<'v>),
    /// A list that the template made.
    List(Vec<Val<'v>>),
    /// The variable `loop`.
    Loop {
        /// Turns already taken.
        index0: usize,
        /// Turns in all.
        length: usize,
    },
}

impl<'v> Val<'v> {
    /// Borrows a value of the document.
    pub(crate) fn of(json: &'v Json<'v>) -> Self {
        match json {
            Json::Null => Val::Null,
            Json::Bool(value) => Val::Bool(*value),
            Json::Number(text) => Val::Number(Cow::Borrowed(text)),
            Json::String(text) => Val::Text(Cow::Borrowed(text)),
            Json::Array(_) | Json::Object(_) => Val::Tree(json),
        }
    }

    /// What the value is, in words.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Val::Missing(_) => "missing",
            Val::Null => "null",
            Val::Bool(_) => "a boolean",
            Val::Number(_) => "a number",
            Val::Text(_) => "text",
            Val::Tree(Json::Object(_)) | Val::Loop { .. } => "an object",
            Val::Tree(_) | Val::List(_) => "an array",
        }
    }

    /// The elements, if the value is a list.
    pub(crate) fn elements(&self) -> Option<Vec<Val<'v>>> {
        match self {
            Val::Tree(Json::Array(items)) => Some(items.iter().map(Val::of).collect()),
            Val::List(items) => Some(items.clone()),
            _ => None,
        }
    }

    /// Writes the value as JSON text. Missing values were refused before.
    pub(crate) fn write(&self, out: &mut Vec<u8>, max_bytes: usize) -> Result<(), Fault> {
        match self {
            Val::Missing(what) => return Err(Fault(what.clone())),
            Val::Null => out.extend_from_slice(b"null"),
            Val::Bool(value) => out.extend_from_slice(if *value { b"true" } else { b"false" }),
            Val::Number(text) => out.extend_from_slice(text.as_bytes()),
            Val::Text(text) => json_string(text, out),
            Val::Tree(json) => write_json(json, out, max_bytes)?,
            Val::List(items) => {
                out.push(b'[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    item.write(out, max_bytes)?;
                }
                out.push(b']');
            }
            Val::Loop { .. } => return Err(Fault("the variable loop is not a value".into())),
        }
        bounded(out, max_bytes)
    }
}

fn bounded(out: &[u8], max_bytes: usize) -> Result<(), Fault> {
    if out.len() > max_bytes { Err(Fault(format!("the result is larger than {max_bytes} bytes"))) } else { Ok(()) }
}

/// Writes a document as compact JSON: members in their order, numbers with their digits.
pub(crate) fn write_json(json: &Json<'_>, out: &mut Vec<u8>, max_bytes: usize) -> Result<(), Fault> {
    write_at(json, out, max_bytes, 0)
}

fn write_at(json: &Json<'_>, out: &mut Vec<u8>, max_bytes: usize, depth: usize) -> Result<(), Fault> {
    if depth > MAX_JSON_DEPTH {
        return Err(Fault(format!("the document is nested deeper than {MAX_JSON_DEPTH} levels")));
    }
    match json {
        Json::Null => out.extend_from_slice(b"null"),
        Json::Bool(value) => out.extend_from_slice(if *value { b"true" } else { b"false" }),
        Json::Number(text) => out.extend_from_slice(text.as_bytes()),
        Json::String(text) => json_string(text, out),
        Json::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_at(item, out, max_bytes, depth + 1)?;
            }
            out.push(b']');
        }
        Json::Object(members) => {
            out.push(b'{');
            for (index, (name, value)) in members.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                json_string(name, out);
                out.push(b':');
                write_at(value, out, max_bytes, depth + 1)?;
            }
            out.push(b'}');
        }
    }
    bounded(out, max_bytes)
}

/// Writes a JSON string: quotes, backslashes and control characters are escaped, everything else stands as it is.
pub(crate) fn json_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut clean_from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let short = match byte {
            b'"' => Some(b'"'),
            b'\\' => Some(b'\\'),
            b'\n' => Some(b'n'),
            b'\r' => Some(b'r'),
            b'\t' => Some(b't'),
            0x08 => Some(b'b'),
            0x0c => Some(b'f'),
            0..=0x1f => None,
            _ => continue,
        };
        out.extend_from_slice(&text.as_bytes()[clean_from..at]);
        clean_from = at + 1;
        match short {
            Some(letter) => out.extend_from_slice(&[b'\\', letter]),
            None => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                out.extend_from_slice(&[
                    b'\\',
                    b'u',
                    b'0',
                    b'0',
                    HEX[usize::from(byte >> 4)],
                    HEX[usize::from(byte & 15)],
                ]);
            }
        }
    }
    out.extend_from_slice(&text.as_bytes()[clean_from..]);
    out.push(b'"');
}
