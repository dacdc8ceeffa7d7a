//! Where and why a JSON text or tree is refused, before it becomes the user's error.

use super::push_token;
use crate::error::{Code, LedgerError};

/// A DETAIL shows at most this much of a pointer: names come from outside and may be long.
const MAX_POINTER_BYTES: usize = 256;

/// A refusal that collects the path to its place while the reader or writer unwinds: success pays nothing for it.
#[derive(Debug)]
pub(crate) struct Fault(Box<Inner>);

#[derive(Debug)]
struct Inner {
    code: Code,
    reason: &'static str,
    byte: Option<usize>,
    /// Innermost token first.
    path: Vec<Token>,
}

#[derive(Debug)]
enum Token {
    Name(String),
    Index(usize),
}

impl Fault {
    /// The value is not JSON, or holds a member twice (`CL004`).
    #[cold]
    pub(crate) fn invalid(reason: &'static str) -> Self {
        Self::new(Code::InvalidParams, reason)
    }

    /// The value is JSON, but larger than the canonical form allows (`CL014`).
    #[cold]
    pub(crate) fn out_of_bounds(reason: &'static str) -> Self {
        Self::new(Code::JsonOutOfBounds, reason)
    }

    fn new(code: Code, reason: &'static str) -> Self {
        Self(Box::new(Inner { code, reason, byte: None, path: Vec::new() }))
    }

    /// The offset in the text, unless a more exact one is known.
    pub(crate) fn at_byte(mut self, byte: usize) -> Self {
        self.0.byte.get_or_insert(byte);
        self
    }

    /// The fault lies in the member of this name.
    pub(crate) fn in_member(mut self, name: &str) -> Self {
        self.0.path.push(Token::Name(name.to_owned()));
        self
    }

    /// The fault lies in the element of this index.
    pub(crate) fn in_element(mut self, index: usize) -> Self {
        self.0.path.push(Token::Index(index));
        self
    }

    fn pointer(&self) -> String {
        let mut pointer = String::new();
        for token in self.0.path.iter().rev() {
            match token {
                Token::Name(name) => push_token(&mut pointer, name),
                Token::Index(index) => push_token(&mut pointer, &index.to_string()),
            }
            if pointer.len() > MAX_POINTER_BYTES {
                let end = (0..=MAX_POINTER_BYTES).rev().find(|end| pointer.is_char_boundary(*end)).unwrap_or(0);
                pointer.truncate(end);
                pointer.push('…');
                break;
            }
        }
        pointer.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
    }
}

impl From<Fault> for LedgerError {
    fn from(fault: Fault) -> Self {
        let pointer = fault.pointer();
        let place = match fault.0.byte {
            Some(byte) => format!("at byte {byte} of the text, JSON pointer \"{pointer}\""),
            None => format!("at JSON pointer \"{pointer}\""),
        };
        let error = LedgerError::new(fault.0.code, fault.0.reason).detail(place);
        match fault.0.code {
            Code::JsonOutOfBounds => error.hint(
                "The ledger takes JSON of depth 128, 1 MiB of text, and numbers of 400 significant digits and exponents \
                 within 400.",
            ),
            _ => error,
        }
    }
}
