//! A JSON value whose numbers keep every digit: what a jsonb holds, without a detour through binary floats.

use std::borrow::Cow;

/// One JSON value. Numbers are decimal text as PostgreSQL's `numeric` prints it (or as the JSON source had it).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Json<'a> {
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// Decimal text, with an optional sign, fraction and exponent.
    Number(Cow<'a, str>),
    /// Text, unescaped.
    String(Cow<'a, str>),
    /// Elements in order.
    Array(Vec<Json<'a>>),
    /// Members, each name once, in any order.
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}
