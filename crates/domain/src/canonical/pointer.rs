//! Pointers to immaterial members: what a command type leaves out of the params hash.

use std::fmt;

use crate::error::{Code, LedgerError};
use crate::json::{MAX_DEPTH, is_array_index, push_token, unescape_token};

/// A pointer is a few names in a definition, not data: 1 KiB is plenty.
const MAX_BYTES: usize = 1024;

/// An RFC 6901 pointer to a member of an object inside objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pointer {
    names: Vec<String>,
}

impl Pointer {
    /// Reads the text form, `/note` or `/header/printed_at`; `~1` stands for `/` in a name and `~0` for `~`.
    ///
    /// | refused | because |
    /// |---|---|
    /// | the empty pointer | it would leave no content to compare |
    /// | text without `/` in front | it is no pointer |
    /// | `~` followed by neither 0 nor 1 | it is no pointer |
    /// | a token that is an array index (`0`, `17`) or `-` | an element cannot be left out: the others would move. (A member of an object that is named like a number cannot be left out either; the schema does not tell the two apart.) |
    /// | over 1024 bytes or 128 names | a bound |
    ///
    /// # Errors
    /// `CL012`, with the pointer in the DETAIL: it is part of a definition, not of a payload.
    pub fn parse(text: &str) -> Result<Self, LedgerError> {
        let refuse = |reason: &str| {
            let shown: String = text.chars().take(200).collect();
            LedgerError::new(Code::InvalidDefinition, format!("a pointer to an immaterial member {reason}"))
                .detail(format!("pointer {shown:?}"))
                .hint("Write it as in RFC 6901: \"/note\" or \"/header/printed_at\".")
        };
        if text.is_empty() {
            return Err(refuse("is empty: it would leave no content to compare"));
        }
        if text.len() > MAX_BYTES {
            return Err(refuse("is longer than 1024 bytes"));
        }
        let tokens = text.strip_prefix('/').ok_or_else(|| refuse("does not begin with /"))?;
        let mut names = Vec::new();
        for token in tokens.split('/') {
            if token == "-" || is_array_index(token) {
                return Err(refuse("names an array element, which cannot be left out"));
            }
            let name = unescape_token(token).ok_or_else(|| refuse("has a ~ that is followed by neither 0 nor 1"))?;
            names.push(name.into_owned());
        }
        if names.len() > MAX_DEPTH {
            return Err(refuse("has more than 128 names"));
        }
        Ok(Self { names })
    }

    /// The names on the way, outermost first; never empty.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        for name in &self.names {
            push_token(&mut text, name);
        }
        f.write_str(&text)
    }
}
