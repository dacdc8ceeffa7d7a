//! A JSON value whose numbers keep every digit: what a jsonb holds, without a detour through binary floats.
//!
//! [`Json::parse`] is the strict reader (RFC 8259, nothing beside it), [`Json::write_json`] the writer that keeps the
//! members' order and the numbers' text. The form that is hashed is made in [`crate::canonical`].

use std::borrow::Cow;

mod convert;
pub(crate) mod fault;
mod parse;
mod write;

pub(crate) use write::push_string;

/// How deep arrays and objects may nest; a scalar alone has depth 0, `[]` has depth 1.
///
/// Whoever builds a [`Json`] otherwise than by [`Json::parse`] refuses deeper input too: the tree is written, copied
/// and dropped by recursion, and a stack overflow ends the whole server.
pub const MAX_DEPTH: usize = 128;

/// How many bytes of JSON text are read or hashed at most: 1 MiB.
pub const MAX_TEXT_BYTES: usize = 1 << 20;

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

impl<'a> Json<'a> {
    /// The member of this name; `None` when there is none or this is no object.
    pub fn get(&self, name: &str) -> Option<&Json<'a>> {
        match self {
            Json::Object(members) => members.iter().find(|(known, _)| known == name).map(|(_, value)| value),
            _ => None,
        }
    }

    /// The value that an RFC 6901 pointer names (`""` is the whole, `/a/0/b` goes through an array); `None` when
    /// there is none, or when the text is no pointer.
    pub fn pointer(&self, pointer: &str) -> Option<&Json<'a>> {
        if pointer.is_empty() {
            return Some(self);
        }
        pointer.strip_prefix('/')?.split('/').try_fold(self, |at, token| match at {
            Json::Array(elements) => elements.get(token.parse::<usize>().ok().filter(|_| is_array_index(token))?),
            Json::Object(_) => at.get(&unescape_token(token)?),
            _ => None,
        })
    }

    /// The text, if this is a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::String(text) => Some(text),
            _ => None,
        }
    }

    /// The elements, if this is an array.
    pub fn as_array(&self) -> Option<&[Json<'a>]> {
        match self {
            Json::Array(elements) => Some(elements),
            _ => None,
        }
    }

    /// The members, if this is an object.
    pub fn as_object(&self) -> Option<&[(Cow<'a, str>, Json<'a>)]> {
        match self {
            Json::Object(members) => Some(members),
            _ => None,
        }
    }

    /// The same value, borrowing nothing.
    pub fn into_owned(self) -> Json<'static> {
        match self {
            Json::Null => Json::Null,
            Json::Bool(value) => Json::Bool(value),
            Json::Number(text) => Json::Number(Cow::Owned(text.into_owned())),
            Json::String(text) => Json::String(Cow::Owned(text.into_owned())),
            Json::Array(elements) => Json::Array(elements.into_iter().map(Json::into_owned).collect()),
            Json::Object(members) => Json::Object(
                members.into_iter().map(|(name, value)| (Cow::Owned(name.into_owned()), value.into_owned())).collect(),
            ),
        }
    }
}

/// Is this RFC 6901 token written as an array index: `0`, or digits without a leading zero?
pub(crate) fn is_array_index(token: &str) -> bool {
    match token.as_bytes() {
        [] => false,
        [b'0', rest @ ..] => rest.is_empty(),
        digits => digits.iter().all(u8::is_ascii_digit),
    }
}

/// The member name that an RFC 6901 token means; `None` when a `~` is followed by neither 0 nor 1.
pub(crate) fn unescape_token(token: &str) -> Option<Cow<'_, str>> {
    if !token.contains('~') {
        return Some(Cow::Borrowed(token));
    }
    let mut name = String::with_capacity(token.len());
    let mut chars = token.chars();
    while let Some(c) = chars.next() {
        name.push(match c {
            '~' => match chars.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            other => other,
        });
    }
    Some(Cow::Owned(name))
}

/// Appends `/` and the RFC 6901 token of a member name.
pub(crate) fn push_token(pointer: &mut String, name: &str) {
    pointer.push('/');
    for c in name.chars() {
        match c {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            other => pointer.push(other),
        }
    }
}
