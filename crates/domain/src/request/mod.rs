//! From an intent to the exact request: a pure function of the effective definition and of what the intent hash covers.

mod form;

use std::fmt;

use sha2::{Digest, Sha256};

use crate::config::{
    Auth, Body, Effective, FORM, IdempotencyMode, KeyFormat, RequestSpec, Tree, User, is_header_text, is_url_byte,
    member_path, url_authority_fault,
};
use crate::json::Json;
use crate::template::{Context, Escape, Fault, MAX_OUTPUT_BYTES, Template, Val, json_string, write_json};

/// The longest URL that is sent, in bytes.
pub const MAX_URL_BYTES: usize = 8192;
/// The longest header value that is sent, in bytes.
pub const MAX_HEADER_BYTES: usize = 8192;
/// All headers of a request together, names and values, in bytes; credentials come on top of it.
pub const MAX_HEADERS_BYTES: usize = 32_768;

/// What a request is made of.
#[derive(Clone, Copy, Debug)]
pub struct Intent<'a> {
    /// All params.
    pub params: &'a Json<'a>,
    /// The key that the destination sees.
    pub destination_key: &'a str,
    /// The command's id, as a UUID in text.
    pub command_id: &'a str,
    /// The tenant.
    pub tenant: &'a str,
    /// The command type's name.
    pub command_type: &'a str,
}

/// A request ready to be sent, but for the values of its secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedRequest {
    /// HTTP method.
    pub method: String,
    /// Absolute URL, http or https, without fragment and without dot segments.
    pub url: String,
    /// Headers, without content type and credentials; each name once, values are printable ASCII.
    pub headers: Vec<(String, String)>,
    /// Media type, if there is a body.
    pub content_type: Option<String>,
    /// The exact bytes.
    pub body: Vec<u8>,
    /// Credentials by the names of their secrets.
    pub auth: Option<Auth>,
    /// Longest duration of the whole exchange, in milliseconds.
    pub timeout_ms: i64,
    /// Longest duration of connecting, in milliseconds.
    pub connect_timeout_ms: i64,
}

/// A lookup ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedLookup {
    /// The read.
    pub request: RenderedRequest,
    /// The read that shows whether the credential can see anything.
    pub sentinel: Option<RenderedRequest>,
}

/// Why a request could not be made: the command is `failed` (`rejected`) before any send. No value of the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderError {
    /// JSON path, in the definition, of what failed.
    pub path: String,
    /// What failed.
    pub reason: String,
}

impl fmt::Display for RenderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason)
    }
}

impl std::error::Error for RenderError {}

type Render<T> = Result<T, RenderError>;

fn error(path: impl Into<String>, reason: impl Into<String>) -> RenderError {
    RenderError { path: path.into(), reason: reason.into() }
}

fn at(path: impl Into<String>) -> impl FnOnce(Fault) -> RenderError {
    |fault| error(path, fault.to_string())
}

/// Renders the command's request.
///
/// # Errors
/// A missing or unfit value, or a limit; also if the destination sends no requests.
pub fn render(effective: &Effective, intent: &Intent<'_>) -> Result<RenderedRequest, RenderError> {
    let Some(spec) = &effective.request else {
        return Err(error("$.request", "the destination sends no requests"));
    };
    let mut rendered = render_spec(spec, &spec.url, "$.request", intent)?;
    if effective.idempotency.mode == IdempotencyMode::Key {
        let value = match effective.idempotency.format {
            KeyFormat::Raw => intent.destination_key.to_owned(),
            KeyFormat::Uuid => intent.command_id.to_owned(),
            KeyFormat::Quoted => quoted(intent.destination_key),
        };
        check_header(&value, "$.idempotency.header")?;
        rendered.headers.push((effective.idempotency.header.clone(), value));
    }
    Ok(rendered)
}

/// Renders the lookup and, where one is configured, its sentinel.
///
/// # Errors
/// As [`render`]; also if no lookup is defined.
pub fn render_lookup(effective: &Effective, intent: &Intent<'_>) -> Result<RenderedLookup, RenderError> {
    let Some(lookup) = &effective.lookup else {
        return Err(error("$.lookup", "no lookup is defined"));
    };
    let request = render_spec(&lookup.request, &lookup.request.url, "$.lookup", intent)?;
    let sentinel = match &lookup.sentinel {
        None => None,
        Some(sentinel) => Some(render_spec(&lookup.request, &sentinel.url, "$.lookup.sentinel", intent)?),
    };
    Ok(RenderedLookup { request, sentinel })
}

fn render_spec(spec: &RequestSpec, url: &Template, part: &str, intent: &Intent<'_>) -> Render<RenderedRequest> {
    let mut context =
        Context::new(intent.params, intent.destination_key, intent.command_id, intent.tenant, intent.command_type);
    let url = render_url(url, &format!("{part}.url"), &mut context)?;
    let mut headers = Vec::with_capacity(spec.headers.len() + 1);
    for (name, template) in &spec.headers {
        let path = || format!("{part}.headers[\"{name}\"]");
        let value = template.text(&mut context, Escape::None).map_err(|fault| error(path(), fault.to_string()))?;
        check_header(&value, &path())?;
        headers.push((name.clone(), value));
    }
    if headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_HEADERS_BYTES {
        return Err(error(format!("{part}.headers"), "the headers together are too long"));
    }
    let body_path = format!("{part}.body");
    let is_form = spec.content_type == FORM;
    let body = match (&spec.body, is_form) {
        (Body::Empty, _) => None,
        (Body::Params, false) => {
            let mut out = Vec::new();
            write_json(intent.params, &mut out, MAX_OUTPUT_BYTES).map_err(at(&body_path))?;
            Some(out)
        }
        (Body::Params, true) => Some(form::of_value(&Val::of(intent.params)).map_err(|e| e.under(&body_path))?),
        (Body::Tree(tree), false) => {
            let mut out = Vec::new();
            write_tree(tree, &mut context, &mut out).map_err(|e| e.under(&body_path))?;
            Some(out)
        }
        (Body::Tree(tree), true) => Some(form::of_tree(tree, &mut context).map_err(|e| e.under(&body_path))?),
    };
    Ok(RenderedRequest {
        method: spec.method.clone(),
        url,
        headers,
        content_type: body.is_some().then(|| spec.content_type.clone()),
        body: body.unwrap_or_default(),
        auth: spec.auth.clone(),
        timeout_ms: spec.timeout_ms,
        connect_timeout_ms: spec.connect_timeout_ms,
    })
}

impl RenderError {
    /// The same error, seen from further up.
    fn under(mut self, prefix: &str) -> Self {
        self.path.insert_str(0, prefix);
        self
    }
}

fn render_url<'v>(template: &'v Template, path: &str, context: &mut Context<'v>) -> Render<String> {
    let url = template.text(context, Escape::Url).map_err(at(path))?;
    let fault = if url.len() > MAX_URL_BYTES {
        Some("the URL is too long")
    } else if !url.bytes().all(is_url_byte) || url.contains('#') {
        Some("the URL holds characters that a URL cannot hold")
    } else if has_dot_segment(&url) {
        Some("a path segment is . or .., which would change the path of the URL")
    } else {
        url_authority_fault(&url, true)
    };
    match fault {
        Some(fault) => Err(error(path, fault)),
        None => Ok(url),
    }
}

/// Whether a client that normalises URLs would climb: `.` and `..`, also percent-encoded, also after a backslash.
fn has_dot_segment(url: &str) -> bool {
    let after_scheme = url.split_once("://").map_or(url, |(_, rest)| rest);
    let path = after_scheme.split(['?', '#']).next().unwrap_or_default();
    path.split(['/', '\\']).skip(1).any(|segment| {
        let plain = segment.to_ascii_lowercase().replace("%2e", ".");
        plain == "." || plain == ".."
    })
}

fn check_header(value: &str, path: &str) -> Render<()> {
    if value.len() > MAX_HEADER_BYTES {
        return Err(error(path, "the header value is too long"));
    }
    if !is_header_text(value) {
        return Err(error(path, "the header value holds a line break, a control character or one outside ASCII"));
    }
    Ok(())
}

/// A string of structured headers (RFC 8941 3.3.3).
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        if c == '"' || c == '\\' {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
    out
}

/// The value of a leaf: of its own type if the leaf is one expression, else text.
pub(crate) fn leaf_value<'v>(leaf: &'v Template, context: &mut Context<'v>) -> Result<Val<'v>, Fault> {
    if let Some(text) = leaf.constant() {
        return Ok(Val::Text(text.into()));
    }
    match leaf.value(context) {
        Some(value) => value,
        None => leaf.text(context, Escape::None).map(|text| Val::Text(text.into())),
    }
}

/// The step of a JSON path to a member.
fn member_step(name: &str) -> String {
    member_path("", name)
}

fn write_tree<'v>(tree: &'v Tree, context: &mut Context<'v>, out: &mut Vec<u8>) -> Render<()> {
    match tree {
        Tree::Null => out.extend_from_slice(b"null"),
        Tree::Bool(value) => out.extend_from_slice(if *value { b"true" } else { b"false" }),
        Tree::Number(text) => out.extend_from_slice(text.as_bytes()),
        Tree::Leaf(leaf) => {
            let value = leaf_value(leaf, context).map_err(at(""))?;
            value.write(out, MAX_OUTPUT_BYTES).map_err(at(""))?;
        }
        Tree::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_tree(item, context, out).map_err(|e| e.under(&format!("[{index}]")))?;
            }
            out.push(b']');
        }
        Tree::Object(members) => {
            out.push(b'{');
            for (index, (name, value)) in members.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                json_string(name, out);
                out.push(b':');
                write_tree(value, context, out).map_err(|e| e.under(&member_step(name)))?;
            }
            out.push(b'}');
        }
    }
    if out.len() > MAX_OUTPUT_BYTES {
        return Err(error("", format!("the body is larger than {MAX_OUTPUT_BYTES} bytes")));
    }
    Ok(())
}

impl RenderedRequest {
    /// SHA-256 over method, URL, headers (names in lower case, sorted), content type, credentials by name, and body:
    /// stored at the first send, so that a repeat that would differ is found. Timeouts do not count.
    pub fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        // Every part goes in with its length, so that no two lists of parts give the same bytes.
        let mut add = |part: &[u8]| {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        };
        add(b"command_ledger.request.v1");
        add(self.method.as_bytes());
        add(self.url.as_bytes());
        let mut headers: Vec<(String, &str)> =
            self.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.as_str())).collect();
        headers.sort();
        add(&(headers.len() as u64).to_be_bytes());
        for (name, value) in &headers {
            add(name.as_bytes());
            add(value.as_bytes());
        }
        add(if self.content_type.is_some() { b"typed" } else { b"untyped" });
        add(self.content_type.as_deref().unwrap_or_default().as_bytes());
        let auth: Vec<&str> = match &self.auth {
            None => vec!["none"],
            Some(Auth::Bearer { secret }) => vec!["bearer", secret],
            Some(Auth::Basic { user: User::Plain(user), password_secret }) => {
                vec!["basic", "plain", user, password_secret]
            }
            Some(Auth::Basic { user: User::Secret(user), password_secret }) => {
                vec!["basic", "secret", user, password_secret]
            }
            Some(Auth::Header { name, secret }) => vec!["header", name, secret],
        };
        add(&(auth.len() as u64).to_be_bytes());
        for part in auth {
            add(part.as_bytes());
        }
        add(&self.body);
        hash.finalize().into()
    }
}

#[cfg(test)]
mod tests;
