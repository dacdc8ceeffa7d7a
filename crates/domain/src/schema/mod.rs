//! JSON Schema over params: compiled once, without network, files or backtracking, and exact on numbers.
//!
//! `$ref` reaches inside the document only. Patterns run on a linear-time engine, so look-around and back-references are
//! refused at definition. `format` is checked where the dialect says so (drafts 4 to 7) and an annotation otherwise.

mod references;

use std::fmt;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, Retrieve, Uri, ValidationError};
use serde_json::{Map, Number, Value};

use crate::error::{Code, LedgerError};
use crate::json::Json;
use crate::template::{MAX_OUTPUT_BYTES, is_number, write_json};

/// The largest schema, as compact JSON, in bytes.
pub const MAX_SCHEMA_BYTES: usize = 256 * 1024;
/// The deepest schema or document.
pub const MAX_DEPTH: usize = 128;
/// The longest number: above it, exact comparison would cost more than a command is worth.
const MAX_NUMBER_BYTES: usize = 1000;
const MAX_EXPONENT: u64 = 400;
/// The most memory that one compiled pattern may take, in bytes.
const MAX_PATTERN_BYTES: usize = 256 * 1024;

/// A compiled schema.
pub struct Validator {
    compiled: jsonschema::Validator,
}

impl fmt::Debug for Validator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Validator")
    }
}

/// Refuses every document but the schema itself.
struct NoRetrieval;

impl Retrieve for NoRetrieval {
    fn retrieve(&self, _: &Uri<String>) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        Err("references leave the document".into())
    }
}

impl Validator {
    /// Compiles a schema (an object or a boolean).
    ///
    /// # Errors
    /// `CL012`: not a schema, too large, a reference out of the document, a pattern that is not linear.
    pub fn compile(schema: &Json<'_>) -> Result<Self, LedgerError> {
        let refuse = |message: &str, detail: String| {
            LedgerError::new(Code::InvalidDefinition, message).detail(detail).hint(
                "a JSON Schema of at most 256 KiB; $ref inside the document; patterns without look-around and \
                 back-references",
            )
        };
        if !matches!(schema, Json::Object(_) | Json::Bool(_)) {
            return Err(refuse("the schema is neither an object nor a boolean", "$.schema".into()));
        }
        let mut text = Vec::new();
        if write_json(schema, &mut text, MAX_SCHEMA_BYTES.min(MAX_OUTPUT_BYTES)).is_err() {
            return Err(refuse("the schema is too large", "$.schema".into()));
        }
        let value =
            to_value(schema, 0).map_err(|fault| refuse("the schema holds what cannot be compiled", fault.into()))?;
        references::check(&value).map_err(|fault| refuse("the schema cannot be compiled", fault))?;
        let compiled = jsonschema::options()
            .with_retriever(NoRetrieval)
            .with_pattern_options(
                PatternOptions::regex().size_limit(MAX_PATTERN_BYTES).dfa_size_limit(MAX_PATTERN_BYTES),
            )
            .build(&value)
            .map_err(|error| {
                let place = bounded(error.instance_path().as_str());
                refuse(
                    "the schema cannot be compiled",
                    format!("$.schema at \"{place}\": {}", compile_reason(error.kind())),
                )
            })?;
        Ok(Self { compiled })
    }

    /// Checks a document.
    ///
    /// # Errors
    /// `CL004`: DETAIL holds the JSON pointer of the first place that fails and the keyword, never a value.
    pub fn validate(&self, params: &Json<'_>) -> Result<(), LedgerError> {
        let value = to_value(params, 0)
            .map_err(|fault| LedgerError::new(Code::JsonOutOfBounds, "the params are out of bounds").detail(fault))?;
        if self.compiled.is_valid(&value) {
            return Ok(());
        }
        let error = LedgerError::new(Code::InvalidParams, "the params do not fit the schema of the command type");
        Err(match self.compiled.validate(&value) {
            Ok(()) => error,
            Err(failure) => error.detail(detail(&failure)),
        })
    }
}

/// Pointer and keyword; the name of a missing property stands in the schema, so it is no payload value.
fn detail(failure: &ValidationError<'_>) -> String {
    let pointer = bounded(failure.instance_path().as_str());
    match failure.kind() {
        ValidationErrorKind::Required { property: Value::String(name) } => {
            format!("at \"{pointer}\": keyword required, property \"{}\"", bounded(name))
        }
        kind => format!("at \"{pointer}\": keyword {}", kind.keyword()),
    }
}

fn compile_reason(kind: &ValidationErrorKind) -> String {
    match kind {
        ValidationErrorKind::Format { format } => format!("not a valid {}", bounded(format)),
        kind => format!("breaks the keyword {} of the schema's own dialect", kind.keyword()),
    }
}

/// A text for a message: at most 256 characters, none of them a control character.
fn bounded(text: &str) -> String {
    let mut short: String = text.chars().take(256).map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.chars().nth(256).is_some() {
        short.push('…');
    }
    short
}

/// The one conversion per check. Numbers keep their text.
fn to_value(json: &Json<'_>, depth: usize) -> Result<Value, &'static str> {
    if depth > MAX_DEPTH {
        return Err("nested deeper than 128 levels");
    }
    Ok(match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(text) => Value::Number(number(text)?),
        Json::String(text) => Value::String(text.clone().into_owned()),
        Json::Array(items) => {
            Value::Array(items.iter().map(|item| to_value(item, depth + 1)).collect::<Result<_, _>>()?)
        }
        Json::Object(members) => {
            let mut map = Map::new();
            for (name, member) in members {
                map.insert(name.clone().into_owned(), to_value(member, depth + 1)?);
            }
            Value::Object(map)
        }
    })
}

fn number(text: &str) -> Result<Number, &'static str> {
    if text.len() > MAX_NUMBER_BYTES || !is_number(text) {
        return Err("a number is too long");
    }
    let exponent = text.find(['e', 'E']).map_or(Some(0), |at| text[at + 1..].parse::<i64>().ok());
    if exponent.is_none_or(|exponent| exponent.unsigned_abs() > MAX_EXPONENT) {
        return Err("the exponent of a number is beyond 400");
    }
    Ok(Number::from_string_unchecked(text.to_owned()))
}

#[cfg(test)]
mod tests;
