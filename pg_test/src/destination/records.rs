//! What the destination keeps: its records, what it does with a repeated key, and how its search answers.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::{Request, form_value};

/// What the destination does with a repeat.
#[derive(Clone, Debug)]
pub enum Profile {
    /// Every write makes a record.
    Plain,
    /// The first answer per value of this header is kept and replayed; the same key with another body is 422.
    Deduplicating {
        /// Where the key stands.
        header: String,
        /// How long an answer is kept (None: for ever); after it the key is new again.
        window: Option<Duration>,
    },
    /// A second record with the same value in this top-level member of the body is refused.
    UniqueReference {
        /// The member.
        field: String,
        /// The refusal's status (409, 400).
        status: u16,
        /// The refusal's body.
        body: Value,
    },
}

impl Profile {
    /// `Deduplicating` by a header, for ever.
    pub fn deduplicating(header: &str) -> Profile {
        Profile::Deduplicating { header: header.to_owned(), window: None }
    }

    /// `UniqueReference` that refuses with 409 and `{"code": "NOT_UNIQUE"}`.
    pub fn unique_reference(field: &str) -> Profile {
        Profile::UniqueReference { field: field.to_owned(), status: 409, body: json!({ "code": "NOT_UNIQUE" }) }
    }
}

/// How a search (any GET) answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Search {
    /// The records whose reference equals the query parameter; all of them when there is none.
    Exact,
    /// The records whose reference starts with the parameter.
    Prefix,
    /// All records, whatever is asked.
    Unfiltered,
    /// None, ever.
    Empty,
    /// A login page with status 200.
    Html,
}

/// One record that the destination made.
#[derive(Clone, Debug)]
pub struct Record {
    /// `R-1`, `R-2`, …
    pub id: String,
    /// The `reference` of the request's body (JSON or form), when it had one.
    pub reference: Option<String>,
    /// The key of the deduplicating header, when it had one.
    pub key: Option<String>,
    /// The request's body.
    pub body: Vec<u8>,
    made_at: Instant,
    seeded: bool,
}

impl Record {
    fn as_json(&self) -> Value {
        let mut record = match serde_json::from_slice(&self.body) {
            Ok(Value::Object(members)) => Value::Object(members),
            _ => json!({}),
        };
        record["id"] = json!(self.id);
        record["reference"] = json!(self.reference);
        record
    }
}

#[derive(Debug)]
struct StoredAnswer {
    at: Instant,
    body: Vec<u8>,
    answer: (u16, Value),
}

/// The store behind one destination.
#[derive(Debug)]
pub(super) struct Records {
    pub(super) profile: Profile,
    pub(super) search: Search,
    pub(super) search_parameter: String,
    /// A record is found by searches only when it is this old.
    pub(super) search_lag: Duration,
    /// Header and value without which searches answer 200 and an empty list, and writes 401.
    pub(super) api_key: Option<(String, String)>,
    pub(super) all: Vec<Record>,
    stored: HashMap<String, StoredAnswer>,
}

impl Records {
    pub(super) fn new(profile: Profile) -> Records {
        Records {
            profile,
            search: Search::Exact,
            search_parameter: "reference".to_owned(),
            search_lag: Duration::ZERO,
            api_key: None,
            all: Vec::new(),
            stored: HashMap::new(),
        }
    }

    /// The effect of a write, as the profile has it; status and body of its answer.
    pub(super) fn write(&mut self, request: &Request) -> (u16, Value) {
        if !self.authorised(request) {
            return (401, json!({ "error": "unknown API key" }));
        }
        match self.profile.clone() {
            Profile::Plain => self.make(request, request.header("idempotency-key")),
            Profile::Deduplicating { header, window } => self.write_once(request, &header, window),
            Profile::UniqueReference { field, status, body } => {
                let value = body_member(request, &field);
                let is_repeat = value.is_some() && self.all.iter().any(|known| member_of(&known.body, &field) == value);
                if is_repeat { (status, body) } else { self.make(request, value.as_deref()) }
            }
        }
    }

    fn write_once(&mut self, request: &Request, header: &str, window: Option<Duration>) -> (u16, Value) {
        let Some(key) = request.header(header).map(str::to_owned) else { return self.make(request, None) };
        if let Some(known) = self.stored.get(&key)
            && window.is_none_or(|window| known.at.elapsed() < window)
        {
            let same = known.body == request.body;
            return if same { known.answer.clone() } else { (422, json!({ "code": "KEY_REUSED" })) };
        }
        let answer = self.make(request, Some(&key));
        let stored = StoredAnswer { at: Instant::now(), body: request.body.clone(), answer: answer.clone() };
        self.stored.insert(key, stored);
        answer
    }

    fn make(&mut self, request: &Request, key: Option<&str>) -> (u16, Value) {
        let reference = body_member(request, "reference");
        self.push(reference, key, request.body.clone(), false);
        (201, self.all.last().map(Record::as_json).unwrap_or_default())
    }

    /// Puts a record there that no request made (a sentinel, somebody else's record).
    pub(super) fn seed(&mut self, reference: &str) -> String {
        self.push(Some(reference.to_owned()), None, Vec::new(), true)
    }

    fn push(&mut self, reference: Option<String>, key: Option<&str>, body: Vec<u8>, seeded: bool) -> String {
        let id = format!("R-{}", self.all.len() + 1);
        let key = key.map(str::to_owned);
        self.all.push(Record { id: id.clone(), reference, key, body, made_at: Instant::now(), seeded });
        id
    }

    /// The answer to a search.
    pub(super) fn find(&self, request: &Request) -> (u16, &'static str, Vec<u8>) {
        if self.search == Search::Html {
            return (200, "text/html", b"<html><body>Please log in</body></html>".to_vec());
        }
        let wanted = request.query(&self.search_parameter);
        let meets = |record: &Record| {
            let reference = record.reference.as_deref().unwrap_or_default();
            match (&self.search, wanted.as_deref()) {
                (Search::Empty | Search::Html, _) => false,
                (Search::Unfiltered, _) | (_, None) => true,
                (Search::Exact, Some(wanted)) => reference == wanted,
                (Search::Prefix, Some(wanted)) => reference.starts_with(wanted),
            }
        };
        let authorised = self.authorised(request);
        let visible = |record: &&Record| record.seeded || record.made_at.elapsed() >= self.search_lag;
        let found: Vec<Value> =
            self.all.iter().filter(|_| authorised).filter(visible).filter(|r| meets(r)).map(Record::as_json).collect();
        (200, "application/json", json!(found).to_string().into_bytes())
    }

    fn authorised(&self, request: &Request) -> bool {
        self.api_key.as_ref().is_none_or(|(name, value)| request.header(name) == Some(value))
    }

    /// Records that requests made.
    pub(super) fn effects(&self) -> impl Iterator<Item = &Record> {
        self.all.iter().filter(|record| !record.seeded)
    }
}

fn body_member(request: &Request, name: &str) -> Option<String> {
    member_of(&request.body, name)
}

/// A top-level member of a JSON body (text as it is, other values as JSON), or a value of a form.
fn member_of(body: &[u8], name: &str) -> Option<String> {
    match serde_json::from_slice::<Value>(body) {
        Ok(json) => match json.get(name)? {
            Value::String(text) => Some(text.clone()),
            Value::Null => None,
            other => Some(other.to_string()),
        },
        Err(_) => form_value(std::str::from_utf8(body).ok()?, name),
    }
}
