//! The parts of a definition that a command type may override: request, success, lookup, rules. Every field is an
//! option here; `effective` lays one over the other and fills in the defaults.

use super::body::{Body, body};
use super::reader::{Field, Read};
use super::values::{
    HOUR_MS, Zero, credential_header_name, duration, duration_up_to, header_name, is_header_text, is_token,
    is_url_byte, jsonpath, method, secret_name, url_authority_fault,
};
use crate::answer::RuleOutcome;
use crate::json::Json;
use crate::template::Template;

const MAX_HEADERS: usize = 64;
const MAX_RULES: usize = 64;

/// How a request proves who sends it. Secrets are named, never held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// `Authorization: Bearer <secret>`
    Bearer {
        /// Name of the secret.
        secret: String,
    },
    /// `Authorization: Basic <user:password>`
    Basic {
        /// The user.
        user: User,
        /// Name of the secret that is the password.
        password_secret: String,
    },
    /// A header whose whole value is the secret, `Authorization` with a scheme of its own among them.
    Header {
        /// Header name.
        name: String,
        /// Name of the secret.
        secret: String,
    },
}

/// The user of basic authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    /// As it stands in the definition.
    Plain(String),
    /// Name of a secret.
    Secret(String),
}

impl Auth {
    /// The names of all secrets that the request needs.
    pub fn secret_names(&self) -> Vec<&str> {
        match self {
            Auth::Bearer { secret } | Auth::Header { secret, .. } => vec![secret],
            Auth::Basic { user: User::Secret(user), password_secret } => vec![user, password_secret],
            Auth::Basic { user: User::Plain(_), password_secret } => vec![password_secret],
        }
    }
}

/// `request`, as far as it was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestPatch {
    /// HTTP method.
    pub method: Option<String>,
    /// Where to.
    pub url: Option<Template>,
    /// Headers; laid over the others by name.
    pub headers: Vec<(String, Template)>,
    /// Media type of the body.
    pub content_type: Option<String>,
    /// Credentials.
    pub auth: Option<Auth>,
    /// What is sent.
    pub body: Option<Body>,
    /// Longest duration of the whole exchange, in milliseconds.
    pub timeout_ms: Option<i64>,
    /// Longest duration of connecting, in milliseconds.
    pub connect_timeout_ms: Option<i64>,
}

/// `success`, as far as it was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SuccessPatch {
    /// Statuses that can mean success.
    pub statuses: Option<Vec<u16>>,
    /// jsonpath to the record's id.
    pub record_id: Option<String>,
    /// jsonpath predicate over the answer.
    pub when: Option<String>,
}

/// A read that shows whether a lookup with this credential finds anything at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentinel {
    /// Where to.
    pub url: Template,
    /// What the matching field of the one expected record equals.
    pub equals: String,
}

/// `lookup`, as far as it was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookupPatch {
    /// GET, or POST for searches.
    pub method: Option<String>,
    /// Where to.
    pub url: Option<Template>,
    /// Own headers; replace the request's as a whole.
    pub headers: Option<Vec<(String, Template)>>,
    /// Own credentials instead of the request's.
    pub auth: Option<Auth>,
    /// Body of a search; none by default.
    pub body: Option<Body>,
    /// jsonpath to the records.
    pub records: Option<String>,
    /// jsonpath, in a record, to the field that equals the destination key.
    pub match_field: Option<String>,
    /// jsonpath, in a record, to its id.
    pub record_id: Option<String>,
    /// jsonpath predicate over a record.
    pub when: Option<String>,
    /// The check that a lookup can see anything.
    pub sentinel: Option<Sentinel>,
    /// How long a request already received may still take effect, in milliseconds.
    pub settle_delay_ms: Option<i64>,
    /// How many absent answers in a row count.
    pub agreeing: Option<i64>,
    /// Pause between two lookups, in milliseconds.
    pub interval_ms: Option<i64>,
    /// How many lookups at most.
    pub max_lookups: Option<i64>,
}

/// One rule over answers; the first that fits decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The status it is about; `None` = every status.
    pub status: Option<u16>,
    /// jsonpath predicate over the answer; `None` = always.
    pub when: Option<String>,
    /// What it makes of the answer.
    pub outcome: RuleOutcome,
}

/// Compiles the template of a string field.
pub(super) fn template(field: &Field<'_>) -> Read<Template> {
    Template::compile(field.string()?).map_err(|fault| {
        field
            .invalid(fault.to_string())
            .hint("templates may use params, destination_key, command_id, tenant, command_type")
    })
}

fn url(field: &Field<'_>) -> Read<Template> {
    let compiled = template(field)?;
    let source = compiled.source();
    if source.len() > 4096 {
        return Err(field.invalid("the URL is longer than 4096 bytes"));
    }
    let fault = url_authority_fault(compiled.prefix(), compiled.constant().is_some()).or_else(|| {
        let text = compiled.constant().unwrap_or(compiled.prefix());
        if !text.bytes().all(|b| is_url_byte(b) || b == b'#') {
            Some("the URL holds characters that a URL cannot hold; percent-encode them")
        } else if text.contains('#') {
            Some("the URL has a fragment, which is never sent")
        } else {
            None
        }
    });
    match fault {
        Some(fault) => Err(field.invalid(fault).hint("for example https://erp.example/orders/{{ params.plant }}")),
        None => Ok(compiled),
    }
}

fn headers(field: &Field<'_>) -> Read<Vec<(String, Template)>> {
    let mut headers: Vec<(String, Template)> = Vec::new();
    for (name, value) in field.entries(MAX_HEADERS)? {
        header_name(&value, name)?;
        if headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
            return Err(value.invalid("this header is set twice").hint("header names differ in more than case"));
        }
        let compiled = template(&value)?;
        if compiled.constant().is_some_and(|text| !is_header_text(text)) {
            return Err(value.invalid("the header value holds a control character or one outside ASCII"));
        }
        headers.push((name.to_owned(), compiled));
    }
    Ok(headers)
}

fn secret(field: &Field<'_>) -> Read<String> {
    if let Json::String(_) = field.json {
        return Err(field
            .invalid("a credential stands in the definition")
            .hint("name a secret instead: {\"secret\": \"name\"}"));
    }
    secret_name(&field.object(&["secret"])?.required("secret")?)
}

fn auth(field: &Field<'_>) -> Read<Auth> {
    let kinds = ["bearer", "basic", "header"];
    let object = field.object(&kinds)?;
    let mut found = kinds.iter().filter_map(|kind| object.get(kind).map(|value| (*kind, value)));
    let (Some((kind, value)), None) = (found.next(), found.next()) else {
        return Err(field.invalid("exactly one kind of credential is needed").hint("allowed: bearer, basic, header"));
    };
    match kind {
        "bearer" => Ok(Auth::Bearer { secret: secret(&value)? }),
        "basic" => {
            let basic = value.object(&["user", "password"])?;
            let user = basic.required("user")?;
            let user = match user.json {
                Json::String(text) if text.contains(':') || !is_header_text(text) || text.is_empty() => {
                    return Err(user.invalid("not a user name of basic authentication").hint("no colon, ASCII only"));
                }
                Json::String(text) => User::Plain(text.clone().into_owned()),
                _ => User::Secret(secret(&user)?),
            };
            Ok(Auth::Basic { user, password_secret: secret(&basic.required("password")?)? })
        }
        _ => {
            let header = value.object(&["name", "value"])?;
            let name = header.required("name")?;
            credential_header_name(&name, name.string()?)?;
            Ok(Auth::Header { name: name.string()?.to_owned(), secret: secret(&header.required("value")?)? })
        }
    }
}

fn content_type(field: &Field<'_>) -> Read<String> {
    let text = field.string()?;
    let is_json = text == "application/json"
        || text.strip_prefix("application/").and_then(|rest| rest.strip_suffix("+json")).is_some_and(is_token);
    if is_json || text == super::FORM {
        return Ok(text.to_owned());
    }
    Err(field
        .invalid("this content type cannot be sent")
        .hint("allowed: application/json, application/…+json, application/x-www-form-urlencoded"))
}

impl RequestPatch {
    pub(super) fn parse(field: &Field<'_>) -> Read<Self> {
        let object = field.object(&[
            "method",
            "url",
            "headers",
            "content_type",
            "auth",
            "body",
            "timeout",
            "connect_timeout",
        ])?;
        Ok(Self {
            method: object.read("method", method)?,
            url: object.read("url", url)?,
            headers: object.read("headers", headers)?.unwrap_or_default(),
            content_type: object.read("content_type", content_type)?,
            auth: object.read("auth", auth)?,
            body: object.read("body", body)?,
            timeout_ms: object.read("timeout", |f| duration_up_to(f, Zero::Refused, HOUR_MS))?,
            connect_timeout_ms: object.read("connect_timeout", |f| duration_up_to(f, Zero::Refused, HOUR_MS))?,
        })
    }
}

fn status(field: &Field<'_>) -> Read<u16> {
    field.int(100, 599).map(|value| u16::try_from(value).unwrap_or(599))
}

impl SuccessPatch {
    pub(super) fn parse(field: &Field<'_>) -> Read<Self> {
        let object = field.object(&["statuses", "record_id", "when"])?;
        let statuses = |list: &Field<'_>| {
            let items = list.array(64)?;
            if items.is_empty() {
                return Err(list.invalid("no status can mean success").hint("for example [200, 201]"));
            }
            items.iter().map(status).collect::<Read<Vec<_>>>()
        };
        Ok(Self {
            statuses: object.read("statuses", statuses)?,
            record_id: object.read("record_id", jsonpath)?,
            when: object.read("when", jsonpath)?,
        })
    }
}

impl LookupPatch {
    pub(super) fn parse(field: &Field<'_>) -> Read<Self> {
        let object = field.object(&[
            "method",
            "url",
            "headers",
            "auth",
            "body",
            "records",
            "match",
            "record_id",
            "when",
            "sentinel",
            "settle_delay",
            "agreeing",
            "interval",
            "max_lookups",
        ])?;
        let sentinel = |field: &Field<'_>| {
            let object = field.object(&["url", "equals"])?;
            let equals = object.required("equals")?;
            let text = equals.string()?;
            if text.is_empty() {
                return Err(equals.invalid("the sentinel must have a value"));
            }
            Ok(Sentinel { url: url(&object.required("url")?)?, equals: text.to_owned() })
        };
        let lookup_method = |field: &Field<'_>| field.word(&[("GET", "GET"), ("POST", "POST")]).map(str::to_owned);
        Ok(Self {
            method: object.read("method", lookup_method)?,
            url: object.read("url", url)?,
            headers: object.read("headers", headers)?,
            auth: object.read("auth", auth)?,
            body: object.read("body", body)?,
            records: object.read("records", jsonpath)?,
            match_field: object.read("match", jsonpath)?,
            record_id: object.read("record_id", jsonpath)?,
            when: object.read("when", jsonpath)?,
            sentinel: object.read("sentinel", sentinel)?,
            settle_delay_ms: object.read("settle_delay", |f| duration(f, Zero::Allowed))?,
            agreeing: object.read("agreeing", |f| f.int(1, 100))?,
            interval_ms: object.read("interval", |f| duration(f, Zero::Refused))?,
            max_lookups: object.read("max_lookups", |f| f.int(1, 10_000))?,
        })
    }
}

/// Reads `rules`.
pub(super) fn rules(field: &Field<'_>) -> Read<Vec<Rule>> {
    field.array(MAX_RULES)?.iter().map(rule).collect()
}

fn rule(field: &Field<'_>) -> Read<Rule> {
    let object = field.object(&["status", "when", "outcome"])?;
    let outcome = object.required("outcome")?.word(&[
        ("confirmed", RuleOutcome::Confirmed),
        ("transient", RuleOutcome::Transient),
        ("permanent", RuleOutcome::Permanent),
        ("permission", RuleOutcome::Permission),
        ("uncertain", RuleOutcome::Uncertain),
        ("lookup", RuleOutcome::Lookup),
    ])?;
    let rule = Rule { status: object.read("status", status)?, when: object.read("when", jsonpath)?, outcome };
    if rule.status.is_none() && rule.when.is_none() {
        return Err(field.invalid("the rule would decide every answer").hint("give it a status, a when, or both"));
    }
    Ok(rule)
}
