//! The digest of everything in a definition that decides what is sent; an approval covers it.

use sha2::{Digest, Sha256};

use super::body::{Body, Tree};
use super::destination::{KeyFormat, Transport};
use super::effective::Effective;
use super::request::{Auth, User};
use crate::answer::IdempotencyMode;
use crate::template::json_string;

/// Writes JSON with sorted members. Unlike the canonical form of params, numbers keep their text, because a template
/// `1.0` sends other bytes than `1`.
enum Part {
    Text(String),
    Raw(String),
    List(Vec<Part>),
    Members(Vec<(String, Part)>),
}

impl Part {
    fn text(text: &str) -> Self {
        Part::Text(text.to_owned())
    }

    fn write(mut self, out: &mut Vec<u8>) {
        match &mut self {
            Part::Text(text) => json_string(text, out),
            Part::Raw(text) => out.extend_from_slice(text.as_bytes()),
            Part::List(items) => {
                out.push(b'[');
                for (index, item) in items.drain(..).enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    item.write(out);
                }
                out.push(b']');
            }
            Part::Members(members) => {
                members.sort_by(|(left, _), (right, _)| left.cmp(right));
                out.push(b'{');
                for (index, (name, value)) in members.drain(..).enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    json_string(&name, out);
                    out.push(b':');
                    value.write(out);
                }
                out.push(b'}');
            }
        }
    }
}

impl Effective {
    /// SHA-256 over everything that decides what is sent: transport and function, or method, URL, headers, content type,
    /// credentials by name, body, and how the idempotency key is written. The order of members does not matter;
    /// timeouts, limits, success, lookup and rules do not count.
    pub fn request_config_digest(&self) -> [u8; 32] {
        let mut members = vec![("version".to_owned(), Part::text("command_ledger.request_config.v1"))];
        let mut add = |name: &str, part: Part| members.push((name.to_owned(), part));
        match &self.transport {
            Transport::Http => add("transport", Part::text("http")),
            Transport::Pull => add("transport", Part::text("pull")),
            Transport::Function { function, .. } => {
                add("transport", Part::text("function"));
                add("function", Part::text(function));
            }
        }
        let mode = self.idempotency.mode.as_str();
        add("idempotency", Part::text(mode));
        if self.idempotency.mode == IdempotencyMode::Key {
            let format = match self.idempotency.format {
                KeyFormat::Raw => "raw",
                KeyFormat::Uuid => "uuid",
                KeyFormat::Quoted => "quoted",
            };
            add("idempotency_header", Part::text(&self.idempotency.header.to_ascii_lowercase()));
            add("idempotency_format", Part::text(format));
        }
        if let Some(request) = &self.request {
            add("method", Part::text(&request.method));
            add("url", Part::text(request.url.source()));
            add("content_type", Part::text(&request.content_type));
            let header = |(name, value): &(String, crate::template::Template)| {
                (name.to_ascii_lowercase(), Part::text(value.source()))
            };
            add("headers", Part::Members(request.headers.iter().map(header).collect()));
            add("auth", request.auth.as_ref().map_or_else(|| Part::Raw("null".into()), auth_part));
            add(
                "body",
                match &request.body {
                    Body::Params => Part::text("params"),
                    Body::Empty => Part::text("empty"),
                    Body::Tree(tree) => Part::List(vec![tree_part(tree)]),
                },
            );
        }
        let mut out = Vec::new();
        Part::Members(members).write(&mut out);
        Sha256::digest(&out).into()
    }
}

fn auth_part(auth: &Auth) -> Part {
    let list = |items: &[&str]| Part::List(items.iter().map(|item| Part::text(item)).collect());
    match auth {
        Auth::Bearer { secret } => list(&["bearer", secret]),
        Auth::Basic { user: User::Plain(user), password_secret } => list(&["basic", "plain", user, password_secret]),
        Auth::Basic { user: User::Secret(user), password_secret } => list(&["basic", "secret", user, password_secret]),
        Auth::Header { name, secret } => list(&["header", &name.to_ascii_lowercase(), secret]),
    }
}

fn tree_part(tree: &Tree) -> Part {
    match tree {
        Tree::Null => Part::Raw("null".into()),
        Tree::Bool(value) => Part::Raw(value.to_string()),
        Tree::Number(text) => Part::Raw(text.clone()),
        Tree::Leaf(leaf) => Part::text(leaf.source()),
        Tree::Array(items) => Part::List(items.iter().map(tree_part).collect()),
        Tree::Object(members) => {
            Part::Members(members.iter().map(|(name, value)| (name.clone(), tree_part(value))).collect())
        }
    }
}
