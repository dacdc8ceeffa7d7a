//! `define_destination(name, config)`: a system, how to reach it, and what it promises.

use super::effective::{Effective, effective_of};
use super::reader::{Field, Read};
use super::request::{LookupPatch, RequestPatch, Rule, SuccessPatch, rules};
use super::values::{DEFAULT_TIMEOUT_MS, HOUR_MS, Zero, duration, duration_up_to, header_name, qualified_function};
use crate::answer::IdempotencyMode;
use crate::error::{Code, LedgerError};
use crate::json::Json;
use crate::retry::Window;

/// How commands reach the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// The relay sends HTTP requests.
    Http,
    /// The functions worker calls a SQL function `(command_ledger.dispatch) -> jsonb`.
    Function {
        /// `schema.name`
        function: String,
        /// How long one call may take, with its confirmation (default 10s), in milliseconds.
        timeout_ms: i64,
    },
    /// Workers claim and make the call themselves.
    Pull,
}

/// How the key is written into the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFormat {
    /// The destination key as it is.
    Raw,
    /// The command id.
    Uuid,
    /// The destination key as a quoted string (a string of structured headers).
    Quoted,
}

/// `idempotency`, with its defaults: mode none, `Idempotency-Key`, raw, window 0, margin 5m, 255 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// What a repeat does.
    pub mode: IdempotencyMode,
    /// Header name (mode key).
    pub header: String,
    /// Header form (mode key).
    pub format: KeyFormat,
    /// How long a repeat is recognised.
    pub window: Window,
    /// How much earlier the ledger stops to rely on it, in milliseconds.
    pub margin_ms: i64,
    /// Longest destination key that the destination takes, in bytes.
    pub max_length: usize,
}

impl Default for Idempotency {
    fn default() -> Self {
        Self {
            mode: IdempotencyMode::None,
            header: "Idempotency-Key".into(),
            format: KeyFormat::Raw,
            window: Window::Ms(0),
            margin_ms: 300_000,
            max_length: 255,
        }
    }
}

/// `limits`, shared by all tenants, with defaults 16, half of it, none, 65536.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Commands under way at once.
    pub in_flight: i64,
    /// Of these, repeats.
    pub retries_in_flight: i64,
    /// Sends per second; `None` = no limit.
    pub per_second: Option<i64>,
    /// Bytes of an answer that are kept.
    pub response_bytes: i64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { in_flight: 16, retries_in_flight: 8, per_second: None, response_bytes: 65_536 }
    }
}

/// `breaker`: rest after failures in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// Failures in a row that open it.
    pub failures: i64,
    /// Rest before the next try, in milliseconds.
    pub cool_down_ms: i64,
}

/// A destination's config document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationConfig {
    /// How commands reach it.
    pub transport: Transport,
    /// The request, as far as it is common to all operations.
    pub request: RequestPatch,
    /// What a repeated key does.
    pub idempotency: Idempotency,
    /// What counts as success.
    pub success: SuccessPatch,
    /// How to find out what happened.
    pub lookup: Option<LookupPatch>,
    /// Exceptions from the table of answers.
    pub rules: Vec<Rule>,
    /// Limits of the destination.
    pub limits: Limits,
    /// When to rest.
    pub breaker: Option<Breaker>,
}

/// The fields of the document.
const FIELDS: &[&str] =
    &["transport", "function", "timeout", "request", "idempotency", "success", "lookup", "rules", "limits", "breaker"];

/// The limits and the breaker alone, for who claims: the rest of the document (templates among it) is not read.
///
/// # Errors
/// `CL012`; never for a config that [`DestinationConfig::parse`] returned.
pub fn pace(config: &Json<'_>) -> Result<(Limits, Option<Breaker>), LedgerError> {
    let root = Field::root(config);
    let object = root.object(FIELDS)?;
    Ok((object.read("limits", limits)?.unwrap_or_default(), object.read("breaker", breaker)?))
}

impl DestinationConfig {
    /// Reads and checks a config document.
    ///
    /// # Errors
    /// `CL012` for unknown fields, wrong types, words, durations and ranges, for templates that do not compile, and for
    /// fields that contradict each other; DETAIL is the JSON path, HINT what is allowed.
    pub fn parse(config: &Json<'_>) -> Result<Self, LedgerError> {
        let root = Field::root(config);
        let object = root.object(FIELDS)?;
        #[derive(Clone, Copy, PartialEq)]
        enum Kind {
            Http,
            Function,
            Pull,
        }
        let kind = object.required("transport")?.word(&[
            ("http", Kind::Http),
            ("function", Kind::Function),
            ("pull", Kind::Pull),
        ])?;
        let request = object.get("request");
        if let (Some(request), true) = (&request, kind != Kind::Http) {
            return Err(request.invalid("only transport http has a request").hint("leave out request"));
        }
        let function = object.get("function");
        if let (Some(timeout), true) = (object.get("timeout"), kind != Kind::Function) {
            return Err(timeout
                .invalid("only transport function has a timeout of its own")
                .hint("transport http has request.timeout; the worker of a pull destination chooses its lease"));
        }
        let transport = match (kind, &function) {
            (Kind::Function, _) => Transport::Function {
                function: qualified_function(&object.required("function")?)?,
                timeout_ms: object
                    .read("timeout", |f| duration_up_to(f, Zero::Refused, HOUR_MS))?
                    .unwrap_or(DEFAULT_TIMEOUT_MS),
            },
            (_, Some(function)) => {
                return Err(function.invalid("only transport function has a function").hint("leave out function"));
            }
            (Kind::Http, None) => Transport::Http,
            (Kind::Pull, None) => Transport::Pull,
        };
        let request = match (&transport, request) {
            (Transport::Http, request) => {
                let request = match request {
                    Some(request) => request,
                    None => object.required("request")?,
                };
                let patch = RequestPatch::parse(&request)?;
                if patch.url.is_none() {
                    return Err(super::reader::invalid("$.request.url", "transport http needs a URL")
                        .hint("for example https://erp.example/orders"));
                }
                patch
            }
            _ => RequestPatch::default(),
        };
        let config = Self {
            transport,
            request,
            idempotency: object.read("idempotency", idempotency)?.unwrap_or_default(),
            success: object.read("success", SuccessPatch::parse)?.unwrap_or_default(),
            lookup: object.read("lookup", LookupPatch::parse)?,
            rules: object.read("rules", rules)?.unwrap_or_default(),
            limits: object.read("limits", limits)?.unwrap_or_default(),
            breaker: object.read("breaker", breaker)?,
        };
        effective_of(&config, None)?;
        Ok(config)
    }

    /// The destination as it is without a command type's overrides.
    ///
    /// # Errors
    /// `CL012`; never for a config that [`Self::parse`] returned.
    pub fn alone(&self) -> Result<Effective, LedgerError> {
        effective_of(self, None)
    }

    /// Every jsonpath of the document with the JSON path of its field, for the server to compile.
    pub fn jsonpaths(&self) -> Vec<(String, String)> {
        jsonpaths_of(&self.success, self.lookup.as_ref(), &self.rules)
    }
}

/// The jsonpaths of the parts that destinations and command types share.
pub(super) fn jsonpaths_of(
    success: &SuccessPatch,
    lookup: Option<&LookupPatch>,
    rules: &[Rule],
) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut add = |path: String, text: &Option<String>| found.extend(text.clone().map(|text| (path, text)));
    add("$.success.record_id".into(), &success.record_id);
    add("$.success.when".into(), &success.when);
    if let Some(lookup) = lookup {
        add("$.lookup.records".into(), &lookup.records);
        add("$.lookup.match".into(), &lookup.match_field);
        add("$.lookup.record_id".into(), &lookup.record_id);
        add("$.lookup.when".into(), &lookup.when);
    }
    for (index, rule) in rules.iter().enumerate() {
        add(format!("$.rules[{index}].when"), &rule.when);
    }
    found
}

fn idempotency(field: &Field<'_>) -> Read<Idempotency> {
    let object = field.object(&["mode", "header", "format", "window", "margin", "max_length"])?;
    let mode = object
        .read("mode", |mode| {
            mode.word(&[
                ("none", IdempotencyMode::None),
                ("key", IdempotencyMode::Key),
                ("reference", IdempotencyMode::Reference),
            ])
        })?
        .unwrap_or(IdempotencyMode::None);
    for (name, needs, wanted) in [
        ("header", mode == IdempotencyMode::Key, "mode key"),
        ("format", mode == IdempotencyMode::Key, "mode key"),
        ("window", mode != IdempotencyMode::None, "mode key or reference"),
        ("margin", mode != IdempotencyMode::None, "mode key or reference"),
    ] {
        if let (Some(field), false) = (object.get(name), needs) {
            return Err(field
                .invalid(format!("the field \"{name}\" has no meaning here"))
                .hint(format!("needs {wanted}")));
        }
    }
    let header = |field: &Field<'_>| {
        let name = field.string()?;
        header_name(field, name)?;
        Ok(name.to_owned())
    };
    let window = |field: &Field<'_>| match field.json {
        Json::String(text) if text == "unlimited" => Ok(Window::Unlimited),
        _ => duration(field, Zero::Allowed).map(Window::Ms).map_err(|error| {
            let hint = error.hint.clone().unwrap_or_default();
            error.hint(format!("{hint}; or unlimited"))
        }),
    };
    let format = |field: &Field<'_>| {
        field.word(&[("raw", KeyFormat::Raw), ("uuid", KeyFormat::Uuid), ("quoted", KeyFormat::Quoted)])
    };
    let defaults = Idempotency::default();
    Ok(Idempotency {
        mode,
        header: object.read("header", header)?.unwrap_or(defaults.header),
        format: object.read("format", format)?.unwrap_or(defaults.format),
        window: object.read("window", window)?.unwrap_or(defaults.window),
        margin_ms: object.read("margin", |f| duration(f, Zero::Allowed))?.unwrap_or(defaults.margin_ms),
        max_length: object
            .read("max_length", |f| f.int(1, 1024))?
            .map_or(defaults.max_length, |value| usize::try_from(value).unwrap_or(255)),
    })
}

fn limits(field: &Field<'_>) -> Read<Limits> {
    let object = field.object(&["in_flight", "retries_in_flight", "per_second", "response_bytes"])?;
    let defaults = Limits::default();
    let in_flight = object.read("in_flight", |f| f.int(1, 10_000))?.unwrap_or(defaults.in_flight);
    let half = (in_flight / 2).max(1);
    Ok(Limits {
        in_flight,
        retries_in_flight: object.read("retries_in_flight", |f| f.int(1, in_flight))?.unwrap_or(half),
        per_second: object.read("per_second", |f| f.int(1, 1_000_000))?,
        response_bytes: object.read("response_bytes", |f| f.int(1, 1 << 20))?.unwrap_or(defaults.response_bytes),
    })
}

fn breaker(field: &Field<'_>) -> Read<Breaker> {
    let object = field.object(&["failures", "cool_down"])?;
    Ok(Breaker {
        failures: object.required("failures")?.int(1, 10_000)?,
        cool_down_ms: duration(&object.required("cool_down")?, Zero::Refused)?,
    })
}

impl Idempotency {
    /// Checks that the destination can take this key: its length, and that a header can hold it.
    ///
    /// # Errors
    /// `CL002`, without the key.
    pub fn check_key(&self, destination_key: &str) -> Result<(), LedgerError> {
        let in_header = self.mode == IdempotencyMode::Key && self.format != KeyFormat::Uuid;
        let fault = if self.mode == IdempotencyMode::None || (self.mode == IdempotencyMode::Key && !in_header) {
            None
        } else if destination_key.len() > self.max_length {
            Some(format!("the destination takes keys of at most {} bytes", self.max_length))
        } else if in_header && !destination_key.bytes().all(|b| (0x20..0x7f).contains(&b)) {
            Some("the destination takes the key in a header, which holds printable ASCII only".into())
        } else {
            None
        };
        match fault {
            None => Ok(()),
            Some(detail) => Err(LedgerError::new(Code::InvalidKey, "the destination cannot take this idempotency key")
                .detail(detail)
                .hint("choose another key, or the destination's idempotency format uuid")),
        }
    }
}
