//! What holds for one command type at its destination: the two documents laid over each other, defaults filled in.

use super::body::{Body, Tree};
use super::command_type::CommandTypePolicy;
use super::destination::{Breaker, DestinationConfig, Idempotency, Limits, Transport};
use super::reader::{Read, invalid, member_path};
use super::request::{Auth, LookupPatch, RequestPatch, Rule, Sentinel};
use crate::answer::{IdempotencyMode, RuleOutcome};
use crate::error::LedgerError;
use crate::template::Template;

/// A request with every default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestSpec {
    /// HTTP method (default POST).
    pub method: String,
    /// Where to.
    pub url: Template,
    /// Headers, each name once.
    pub headers: Vec<(String, Template)>,
    /// Media type of the body (default application/json).
    pub content_type: String,
    /// Credentials.
    pub auth: Option<Auth>,
    /// What is sent (default: the params; nothing with GET and HEAD).
    pub body: Body,
    /// Longest duration of the whole exchange (default 10s), in milliseconds.
    pub timeout_ms: i64,
    /// Longest duration of connecting (default 3s, never beyond the timeout), in milliseconds.
    pub connect_timeout_ms: i64,
}

/// A success rule with every default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuccessSpec {
    /// Statuses that can mean success (default 200 and 201).
    pub statuses: Vec<u16>,
    /// jsonpath (lax) to the record's id; where declared it must be present and scalar.
    pub record_id: Option<String>,
    /// jsonpath predicate (lax) that must hold.
    pub when: Option<String>,
}

/// A lookup with every default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupSpec {
    /// The request: headers and credentials of the command's request unless the lookup has its own.
    pub request: RequestSpec,
    /// jsonpath (lax) to the records.
    pub records: String,
    /// jsonpath (lax), in a record, to the field that equals the destination key.
    pub match_field: String,
    /// jsonpath (lax), in a record, to its id.
    pub record_id: String,
    /// jsonpath predicate (lax) over a record.
    pub when: Option<String>,
    /// The check that a lookup can see anything.
    pub sentinel: Option<Sentinel>,
    /// How long a request already received may still take effect, in milliseconds; `None` = absence proves nothing.
    pub settle_delay_ms: Option<i64>,
    /// How many absent answers in a row count (default 2).
    pub agreeing: i64,
    /// Pause between two lookups (default 10s), in milliseconds.
    pub interval_ms: i64,
    /// How many lookups at most (default 10, never fewer than `agreeing`).
    pub max_lookups: i64,
}

/// What holds for one command type at its destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    /// How commands reach the destination.
    pub transport: Transport,
    /// The request; `None` unless the transport is http.
    pub request: Option<RequestSpec>,
    /// What a repeated key does.
    pub idempotency: Idempotency,
    /// What counts as success.
    pub success: SuccessSpec,
    /// How to find out what happened.
    pub lookup: Option<LookupSpec>,
    /// The type's rules, then the destination's.
    pub rules: Vec<Rule>,
    /// Limits of the destination.
    pub limits: Limits,
    /// When to rest.
    pub breaker: Option<Breaker>,
}

/// Lays a command type over its destination.
///
/// # Errors
/// `CL012` where the two contradict each other: DETAIL is the JSON path of the field.
pub fn effective(destination: &DestinationConfig, policy: &CommandTypePolicy) -> Result<Effective, LedgerError> {
    let found = effective_of(destination, Some(policy))?;
    require_reference(&found)?;
    Ok(found)
}

/// The same, also for a destination alone.
pub(super) fn effective_of(destination: &DestinationConfig, policy: Option<&CommandTypePolicy>) -> Read<Effective> {
    let own_request = policy.and_then(|policy| policy.request.as_ref());
    let request = match destination.transport {
        Transport::Http => Some(request_of(&destination.request, own_request, &destination.idempotency)?),
        _ if own_request.is_some() => {
            return Err(invalid("$.request", "the destination of this type sends no requests")
                .hint("only transport http has a request; leave out request"));
        }
        _ => None,
    };
    let success = [policy.map(|policy| &policy.success), Some(&destination.success)];
    let success: Vec<_> = success.into_iter().flatten().collect();
    let lookups = [policy.and_then(|policy| policy.lookup.as_ref()), destination.lookup.as_ref()];
    let lookups: Vec<_> = lookups.into_iter().flatten().collect();
    let lookup = if lookups.is_empty() { None } else { Some(lookup_of(&lookups, request.as_ref())?) };
    let mut rules = policy.map(|policy| policy.rules.clone()).unwrap_or_default();
    rules.extend(destination.rules.iter().cloned());
    if lookup.is_none()
        && let Some(index) = rules.iter().position(|rule| rule.outcome == RuleOutcome::Lookup)
    {
        return Err(invalid(&format!("$.rules[{index}].outcome"), "the rule asks for a lookup, but none is defined")
            .hint("define lookup, or use the outcome uncertain"));
    }
    Ok(Effective {
        transport: destination.transport.clone(),
        request,
        idempotency: destination.idempotency.clone(),
        success: SuccessSpec {
            statuses: first(&success, |part| part.statuses.clone()).unwrap_or_else(|| vec![200, 201]),
            record_id: first(&success, |part| part.record_id.clone()),
            when: first(&success, |part| part.when.clone()),
        },
        lookup,
        rules,
        limits: destination.limits.clone(),
        breaker: destination.breaker.clone(),
    })
}

/// The first layer that gives a field.
fn first<P, T>(layers: &[&P], field: impl Fn(&P) -> Option<T>) -> Option<T> {
    layers.iter().find_map(|layer| field(layer))
}

fn request_of(base: &RequestPatch, own: Option<&RequestPatch>, idempotency: &Idempotency) -> Read<RequestSpec> {
    let layers: Vec<&RequestPatch> = own.into_iter().chain([base]).collect();
    let method = first(&layers, |part| part.method.clone()).unwrap_or_else(|| "POST".into());
    let url = first(&layers, |part| part.url.clone())
        .ok_or_else(|| invalid("$.request.url", "transport http needs a URL"))?;
    let mut headers: Vec<(String, Template)> = Vec::new();
    for layer in &layers {
        for (name, value) in &layer.headers {
            if !headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
                headers.push((name.clone(), value.clone()));
            }
        }
    }
    let auth = first(&layers, |part| part.auth.clone());
    let by_key = idempotency.mode == IdempotencyMode::Key;
    let key_header = by_key.then_some(idempotency.header.as_str());
    refuse_header_conflicts("$.request", &headers, auth.as_ref(), key_header)?;
    let bodiless = ["GET", "HEAD"].contains(&method.as_str());
    let body = first(&layers, |part| part.body.clone()).unwrap_or(if bodiless { Body::Empty } else { Body::Params });
    let content_type = first(&layers, |part| part.content_type.clone()).unwrap_or_else(|| "application/json".into());
    if let Body::Tree(tree) = &body
        && content_type == super::FORM
    {
        let expression_or_object = match tree.as_ref() {
            Tree::Object(_) => true,
            Tree::Leaf(leaf) => leaf.constant().is_none(),
            _ => false,
        };
        if !expression_or_object {
            return Err(invalid("$.request.body", "a form body is an object").hint("{\"name\": \"{{ params.name }}\"}"));
        }
    }
    let (timeout_ms, connect_timeout_ms) = timeouts(&layers)?;
    Ok(RequestSpec { method, url, headers, content_type, auth, body, timeout_ms, connect_timeout_ms })
}

fn timeouts(layers: &[&RequestPatch]) -> Read<(i64, i64)> {
    let timeout_ms = first(layers, |part| part.timeout_ms).unwrap_or(10_000);
    match first(layers, |part| part.connect_timeout_ms) {
        Some(connect_ms) if connect_ms > timeout_ms => {
            Err(invalid("$.request.connect_timeout", "connecting may not take longer than the whole exchange")
                .hint("connect_timeout is at most timeout"))
        }
        Some(connect_ms) => Ok((timeout_ms, connect_ms)),
        None => Ok((timeout_ms, timeout_ms.min(3_000))),
    }
}

/// A header that two parts of the request would set.
fn refuse_header_conflicts(
    part: &str,
    headers: &[(String, Template)],
    auth: Option<&Auth>,
    key_header: Option<&str>,
) -> Read<()> {
    let auth_header = match auth {
        Some(Auth::Header { name, .. }) => Some(name.as_str()),
        _ => None,
    };
    let path = format!("{part}.headers");
    for (name, _) in headers {
        if key_header.is_some_and(|header| header.eq_ignore_ascii_case(name)) {
            return Err(invalid(&member_path(&path, name), "this header carries the idempotency key")
                .hint("leave it out of headers, or choose another idempotency.header"));
        }
        if auth_header.is_some_and(|header| header.eq_ignore_ascii_case(name)) {
            return Err(invalid(&member_path(&path, name), "this header carries the credential")
                .hint("leave it out of headers"));
        }
    }
    if let (Some(auth_header), Some(key_header)) = (auth_header, key_header)
        && auth_header.eq_ignore_ascii_case(key_header)
    {
        return Err(invalid(&format!("{part}.auth.header.name"), "this header carries the idempotency key")
            .hint("choose another header for one of the two"));
    }
    Ok(())
}

fn lookup_of(layers: &[&LookupPatch], request: Option<&RequestSpec>) -> Read<LookupSpec> {
    let required = |name: &str, value: Option<String>| {
        value.ok_or_else(|| {
            invalid(&format!("$.lookup.{name}"), format!("a lookup needs the field \"{name}\""))
                .hint("required: url, records, match, record_id")
        })
    };
    let url = first(layers, |part| part.url.clone())
        .ok_or_else(|| invalid("$.lookup.url", "a lookup needs the field \"url\""))?;
    let inherited = request.map(|request| request.headers.clone()).unwrap_or_default();
    let headers = first(layers, |part| part.headers.clone()).unwrap_or(inherited);
    let auth = first(layers, |part| part.auth.clone()).or_else(|| request.and_then(|request| request.auth.clone()));
    refuse_header_conflicts("$.lookup", &headers, auth.as_ref(), None)?;
    let method = first(layers, |part| part.method.clone()).unwrap_or_else(|| "GET".into());
    let body = first(layers, |part| part.body.clone()).unwrap_or(Body::Empty);
    if method == "GET" && body != Body::Empty {
        return Err(invalid("$.lookup.body", "a lookup with GET has no body").hint("use method POST for a search"));
    }
    let agreeing = first(layers, |part| part.agreeing).unwrap_or(2);
    let max_lookups = match first(layers, |part| part.max_lookups) {
        Some(max) if max < agreeing => {
            return Err(invalid("$.lookup.max_lookups", "fewer lookups than must agree")
                .hint("max_lookups is at least agreeing"));
        }
        Some(max) => max,
        None => agreeing.max(10),
    };
    Ok(LookupSpec {
        request: RequestSpec {
            method,
            url,
            headers,
            content_type: "application/json".into(),
            auth,
            body,
            timeout_ms: request.map_or(10_000, |request| request.timeout_ms),
            connect_timeout_ms: request.map_or(3_000, |request| request.connect_timeout_ms),
        },
        records: required("records", first(layers, |part| part.records.clone()))?,
        match_field: required("match", first(layers, |part| part.match_field.clone()))?,
        record_id: required("record_id", first(layers, |part| part.record_id.clone()))?,
        when: first(layers, |part| part.when.clone()),
        sentinel: first(layers, |part| part.sentinel.clone()),
        settle_delay_ms: first(layers, |part| part.settle_delay_ms),
        agreeing,
        interval_ms: first(layers, |part| part.interval_ms).unwrap_or(10_000),
        max_lookups,
    })
}

/// With mode reference the destination sees the key in the URL or the body: one of them must hold it, or a repeat would
/// be a second record.
fn require_reference(effective: &Effective) -> Read<()> {
    let Some(request) = &effective.request else { return Ok(()) };
    let in_body = match &request.body {
        Body::Tree(tree) => uses(tree, "destination_key"),
        Body::Params | Body::Empty => false,
    };
    if effective.idempotency.mode != IdempotencyMode::Reference || in_body || request.url.uses("destination_key") {
        return Ok(());
    }
    Err(invalid("$.request.body", "idempotency mode reference, but neither body nor URL holds the key")
        .hint("put {{ destination_key }} where the destination enforces uniqueness"))
}

fn uses(tree: &Tree, variable: &str) -> bool {
    match tree {
        Tree::Leaf(leaf) => leaf.uses(variable),
        Tree::Array(items) => items.iter().any(|item| uses(item, variable)),
        Tree::Object(members) => members.iter().any(|(_, value)| uses(value, variable)),
        Tree::Null | Tree::Bool(_) | Tree::Number(_) => false,
    }
}
