//! jsonpath, evaluated by the server: policy predicates in strict mode (a missing field must not open a gate),
//! predicates over answers in lax mode, and the values that a path finds.

use crate::pg::jsonpath::Path;
use crate::pg::spi::{Arg, Connection, JSONB, Mode, Statement, TEXT};
use crate::pg::transaction::nested;
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::json::Json;
use command_ledger_domain::policy::Predicate;
use pgrx::pg_sys::Datum;

static FIRST: Statement = Statement::new(
    Mode::Snapshot,
    &[JSONB, TEXT],
    "SELECT pg_catalog.jsonb_path_query_first($1, $2::jsonpath, '{}', true)",
);

static ALL: Statement = Statement::new(
    Mode::Snapshot,
    &[JSONB, TEXT],
    "SELECT q.value FROM pg_catalog.jsonb_path_query($1, $2::jsonpath, '{}', true) AS q (value)",
);

static COMPILE: Statement = Statement::new(Mode::Snapshot, &[TEXT], "SELECT $1::jsonpath");

/// Most records of one lookup that are looked at.
pub const MAX_RECORDS: i64 = 10_000;

fn in_mode(path: &str, mode: &str) -> String {
    let trimmed = path.trim_start();
    if trimmed.starts_with("strict ") || trimmed.starts_with("lax ") {
        trimmed.to_owned()
    } else {
        format!("{mode} {trimmed}")
    }
}

/// A policy predicate over the params, in strict mode.
pub fn strict(document: Datum, path: &str) -> Result<Predicate, LedgerError> {
    Ok(Predicate::of(Path::compile(&in_mode(path, "strict"))?.matches(document)))
}

/// A predicate over an answer, in lax mode: true or not.
pub fn lax(document: Datum, path: &str) -> Result<bool, LedgerError> {
    Ok(Path::compile(&in_mode(path, "lax"))?.matches(document) == Some(true))
}

/// The first value that a path finds.
pub fn first(connection: &Connection, document: Datum, path: &str) -> Result<Option<Json<'static>>, LedgerError> {
    match FIRST.first(connection, &[Arg::Datum(document), Arg::Text(&in_mode(path, "lax"))])? {
        Some(row) => row.json(0),
        None => Ok(None),
    }
}

/// Whether a path finds anything, for a list that may be empty: in strict mode, a missing member is not an empty list.
pub fn list_present(document: Datum, records: &str) -> Result<bool, LedgerError> {
    // `$.items[*]` over {"items": []} finds nothing, and so does it over {}: what must exist is the list itself.
    let list = records.trim_end().strip_suffix("[*]").unwrap_or(records);
    Ok(Path::compile(&in_mode(list, "strict"))?.exists(document))
}

/// Every value that a path finds, with its datum, which is good while the connection is open.
pub fn all(connection: &Connection, document: Datum, path: &str) -> Result<Vec<(Datum, Json<'static>)>, LedgerError> {
    let rows = ALL.run(connection, &[Arg::Datum(document), Arg::Text(&in_mode(path, "lax"))], MAX_RECORDS)?;
    let mut found = Vec::with_capacity(rows.len());
    for row in rows.iter() {
        found.extend(row.datum(0).zip(row.json(0)?));
    }
    Ok(found)
}

/// The text of a scalar; `None` for null, arrays and objects.
pub fn scalar_text(value: &Json) -> Option<String> {
    match value {
        Json::String(s) => Some(s.clone().into_owned()),
        Json::Number(n) => Some(n.clone().into_owned()),
        Json::Bool(b) => Some(b.to_string()),
        Json::Null | Json::Array(_) | Json::Object(_) => None,
    }
}

/// The text of a record id as a person could give it, too: a scalar of 1 to 1000 bytes without control characters.
pub fn record_id_text(value: &Json) -> Option<String> {
    scalar_text(value).filter(|id| is_record_id(id))
}

/// Whether the text can be the id of a destination's record.
pub fn is_record_id(id: &str) -> bool {
    (1..=1_000).contains(&id.len()) && !id.chars().any(char::is_control)
}

/// Checks that the server can compile a path; CL012 names the field.
pub fn check(connection: &Connection, field: &str, path: &str) -> Result<(), LedgerError> {
    nested(|| COMPILE.first(connection, &[Arg::Text(&in_mode(path, "strict"))]).map(drop)).map_err(|error| {
        LedgerError::new(Code::InvalidDefinition, "a jsonpath of the definition cannot be compiled")
            .detail(format!("{field}: {}", error.message))
            .hint("See the SQL/JSON path language in the server's documentation; predicates look like $.amount > 1000.")
    })
}
