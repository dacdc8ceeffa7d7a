//! What the destination does with one request: whether the effect happens, when, and what (if anything) it answers.

use serde_json::Value;
use std::time::Duration;

use crate::http::Headers;

/// How the answer looks on the wire.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// What the profile says: the record that was made, the stored answer, a refusal of the repeat.
    OfProfile,
    /// Status, headers, body.
    Fixed(u16, Headers, Vec<u8>),
    /// These bytes and nothing else, then the connection is closed.
    Raw(Vec<u8>),
    /// The connection is closed without a byte.
    Close,
    /// The connection is reset (RST) without a byte.
    Reset,
    /// Head and half of the body, then RST.
    ResetMidBody,
    /// The profile's answer, one byte each time this has passed.
    Slow(Duration),
    /// Head without a length, then body without an end.
    Endless,
}

/// When a request waits for `Destination::release()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    No,
    BeforeEffect,
    AfterEffect,
}

/// One scripted behaviour; see the functions of this module, and the methods that refine it.
#[derive(Clone, Debug)]
pub struct Behaviour {
    pub(super) effect: bool,
    pub(super) delay: Duration,
    pub(super) hold: Hold,
    pub(super) headers: Headers,
    pub(super) reply: Reply,
}

fn behaviour(effect: bool, reply: Reply) -> Behaviour {
    Behaviour { effect, delay: Duration::ZERO, hold: Hold::No, headers: Headers::new(), reply }
}

fn json_headers() -> Headers {
    vec![("Content-Type".to_owned(), "application/json".to_owned())]
}

/// Does the effect and answers as the profile does: what an honest destination does by default.
pub fn accept() -> Behaviour {
    behaviour(true, Reply::OfProfile)
}

/// No effect; this status and JSON body.
pub fn answer(status: u16, body: Value) -> Behaviour {
    behaviour(false, Reply::Fixed(status, json_headers(), body.to_string().into_bytes()))
}

/// No effect; this status and body with a content type of its own.
pub fn answer_text(status: u16, content_type: &str, body: &str) -> Behaviour {
    let headers = vec![("Content-Type".to_owned(), content_type.to_owned())];
    behaviour(false, Reply::Fixed(status, headers, body.as_bytes().to_vec()))
}

/// No effect; exactly these bytes, then the connection is closed.
pub fn answer_raw(bytes: &[u8]) -> Behaviour {
    behaviour(false, Reply::Raw(bytes.to_vec()))
}

/// The effect happens, the answer is lost: the connection is closed.
pub fn drop_after_commit() -> Behaviour {
    behaviour(true, Reply::Close)
}

/// Nothing happens, the connection is closed.
pub fn drop_before_commit() -> Behaviour {
    behaviour(false, Reply::Close)
}

/// Nothing happens, the connection is reset (RST) after the request was read. With `.after_commit()` the effect
/// happens first.
pub fn reset() -> Behaviour {
    behaviour(false, Reply::Reset)
}

/// The effect happens; the answer breaks off in the middle of its body with a reset.
pub fn reset_mid_body() -> Behaviour {
    behaviour(true, Reply::ResetMidBody)
}

/// Silence, until `Destination::release()`; then the connection is closed and nothing has happened.
pub fn hang() -> Behaviour {
    Behaviour { hold: Hold::BeforeEffect, ..behaviour(false, Reply::Close) }
}

/// The effect happens, then silence until `Destination::release()`; then the answer comes, late.
pub fn hang_after_commit() -> Behaviour {
    Behaviour { hold: Hold::AfterEffect, ..behaviour(true, Reply::OfProfile) }
}

/// The effect happens; the answer arrives byte by byte.
pub fn slow_body(per_byte_ms: u64) -> Behaviour {
    behaviour(true, Reply::Slow(Duration::from_millis(per_byte_ms)))
}

/// The effect happens; the body of the answer never ends (it stops when the client leaves, or after a gigabyte).
pub fn endless_body() -> Behaviour {
    behaviour(true, Reply::Endless)
}

impl Behaviour {
    /// Waits before anything happens.
    #[must_use]
    pub fn delay(mut self, ms: u64) -> Behaviour {
        self.delay = Duration::from_millis(ms);
        self
    }

    /// The effect happens, whatever is answered.
    #[must_use]
    pub fn after_commit(mut self) -> Behaviour {
        self.effect = true;
        self
    }

    /// A further header of the answer: `.header("Retry-After", "1")`.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Behaviour {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// This, then that.
    #[must_use]
    pub fn then(self, next: impl Into<Script>) -> Script {
        Script::from(self).then(next)
    }

    /// The same for so many requests.
    #[must_use]
    pub fn times(self, n: usize) -> Script {
        Script(vec![self; n])
    }
}

/// Behaviours for the next requests, in order.
#[derive(Clone, Debug, Default)]
pub struct Script(pub(super) Vec<Behaviour>);

impl Script {
    /// This, then that.
    #[must_use]
    pub fn then(mut self, next: impl Into<Script>) -> Script {
        self.0.extend(next.into().0);
        self
    }
}

impl From<Behaviour> for Script {
    fn from(behaviour: Behaviour) -> Script {
        Script(vec![behaviour])
    }
}
