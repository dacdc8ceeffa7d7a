//! The scalar forms of config documents: durations, HTTP names, URLs, secret names, pointers, paths.

use super::reader::{Field, Read};

/// The longest duration that a definition may state: 36,500 days, in milliseconds.
pub const MAX_DURATION_MS: i64 = 36_500 * 86_400_000;

/// The longest time that one request or one call of a function may take.
pub(crate) const HOUR_MS: i64 = 3_600_000;
/// How long one may take where the document does not say.
pub(crate) const DEFAULT_TIMEOUT_MS: i64 = 10_000;

/// Headers that the ledger or the HTTP layer sets, or that carry credentials: never from `headers`.
const RESERVED_HEADERS: [(&str, &str); 16] = [
    ("host", "it follows from the URL"),
    ("content-length", "it follows from the body"),
    ("transfer-encoding", "it belongs to the connection"),
    ("connection", "it belongs to the connection"),
    ("proxy-connection", "it belongs to the connection"),
    ("keep-alive", "it belongs to the connection"),
    ("upgrade", "it belongs to the connection"),
    ("te", "it belongs to the connection"),
    ("trailer", "it belongs to the connection"),
    ("expect", "it belongs to the connection"),
    ("content-encoding", "bodies are sent as they are"),
    ("content-type", "set it with the field content_type"),
    ("authorization", "set it with the field auth, which names a secret"),
    ("proxy-authorization", "credentials do not belong into a definition"),
    ("cookie", "credentials do not belong into a definition"),
    ("cookie2", "credentials do not belong into a definition"),
];

/// Whether zero is a meaningful value of a duration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zero {
    Allowed,
    Refused,
}

/// `250ms`, `10s`, `5m`, `24h`, `90d` in milliseconds; `None` if the text has another form or is over the maximum.
pub fn parse_duration_ms(text: &str) -> Option<i64> {
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = text.split_at(split);
    let unit_ms: i64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    let value_ms = digits.parse::<i64>().ok()?.checked_mul(unit_ms)?;
    (value_ms <= MAX_DURATION_MS).then_some(value_ms)
}

/// A duration of at most `max_ms`.
pub(crate) fn duration_up_to(field: &Field<'_>, zero: Zero, max_ms: i64) -> Read<i64> {
    let Some(value_ms) = parse_duration_ms(field.string()?) else {
        return Err(field
            .invalid("not a duration")
            .hint("a whole number and a unit: 250ms, 10s, 5m, 24h, 90d; at most 36500d"));
    };
    if value_ms == 0 && zero == Zero::Refused {
        return Err(field.invalid("the duration must not be zero").hint("for example 10s"));
    }
    if value_ms > max_ms {
        return Err(field.invalid("the duration is too long").hint(format!("at most {max_ms}ms")));
    }
    Ok(value_ms)
}

/// A duration of any allowed length.
pub(crate) fn duration(field: &Field<'_>, zero: Zero) -> Read<i64> {
    duration_up_to(field, zero, MAX_DURATION_MS)
}

/// Whether the text is a token of HTTP (RFC 9110 5.6.2).
pub(crate) fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 128
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// An HTTP method: a token in the case that the author wrote.
pub(crate) fn method(field: &Field<'_>) -> Read<String> {
    let text = field.string()?;
    if !is_token(text) {
        return Err(field.invalid("not an HTTP method").hint("a token such as POST, PUT, PATCH or DELETE"));
    }
    if ["CONNECT", "TRACE"].iter().any(|refused| refused.eq_ignore_ascii_case(text)) {
        return Err(field.invalid("this method cannot carry a command").hint("for example POST, PUT, PATCH, DELETE"));
    }
    Ok(text.to_owned())
}

/// Reserved ones that a credential is the meaning of: their whole value may be a secret.
const CREDENTIAL_HEADERS: [&str; 2] = ["authorization", "cookie"];

/// A header name that a definition may set.
pub(crate) fn header_name(field: &Field<'_>, name: &str) -> Read<()> {
    let reserved = RESERVED_HEADERS.iter().find(|(reserved, _)| name.eq_ignore_ascii_case(reserved));
    free_header_name(field, name, reserved)
}

/// A header name that may carry a credential: also `Authorization` with a scheme that is neither bearer nor basic.
pub(crate) fn credential_header_name(field: &Field<'_>, name: &str) -> Read<()> {
    let reserved = RESERVED_HEADERS
        .iter()
        .find(|(reserved, _)| name.eq_ignore_ascii_case(reserved) && !CREDENTIAL_HEADERS.contains(reserved));
    free_header_name(field, name, reserved)
}

fn free_header_name(field: &Field<'_>, name: &str, reserved: Option<&(&str, &str)>) -> Read<()> {
    if !is_token(name) {
        return Err(field.invalid("not a header name").hint("letters, digits and !#$%&'*+-.^_`|~, at most 128 bytes"));
    }
    if let Some((_, why)) = reserved {
        return Err(field.invalid("this header cannot be set here").hint(*why));
    }
    Ok(())
}

/// Whether the byte may stand in a URL (RFC 3986): printable ASCII without the nine that must be percent-encoded.
pub(crate) fn is_url_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() && !br#"<>"\^`{|}"#.contains(&byte)
}

/// Whether the text may stand in a header: printable ASCII and blanks.
pub(crate) fn is_header_text(text: &str) -> bool {
    text.bytes().all(|b| (0x20..0x7f).contains(&b) || b == b'\t')
}

/// The name of a secret: what a file in the secrets directory may be called.
pub(crate) fn secret_name(field: &Field<'_>) -> Read<String> {
    let text = field.string()?;
    let formed =
        !text.is_empty() && text.len() <= 128 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if !formed || text.starts_with('.') {
        return Err(field
            .invalid("not a secret name")
            .hint("letters, digits and ._- , not starting with a dot, at most 128 bytes"));
    }
    Ok(text.to_owned())
}

/// The text of a jsonpath; the server compiles it at definition. The mode is the ledger's choice, not the author's.
pub(crate) fn jsonpath(field: &Field<'_>) -> Read<String> {
    let text = field.string()?;
    if text.trim().is_empty() || text.len() > 4096 || text.contains('\0') {
        return Err(field.invalid("not a jsonpath").hint("for example $.id; at most 4096 bytes"));
    }
    let first = text.split_whitespace().next().unwrap_or_default();
    if first == "strict" || first == "lax" {
        return Err(field
            .invalid("the jsonpath states its own mode")
            .hint("leave out strict and lax: the ledger sets the mode per field"));
    }
    Ok(text.to_owned())
}

/// A JSON pointer (RFC 6901) to something below the root.
pub(crate) fn pointer(field: &Field<'_>) -> Read<String> {
    let text = field.string()?;
    let mut bytes = text.bytes().peekable();
    let mut formed = text.starts_with('/') && text.len() <= 1024;
    while let Some(byte) = bytes.next() {
        if byte == b'~' && !matches!(bytes.peek(), Some(b'0' | b'1')) {
            formed = false;
        }
    }
    if !formed {
        return Err(field
            .invalid("not a JSON pointer below the root")
            .hint("for example /note or /lines/0/text; ~ is written ~0 and / inside a name ~1"));
    }
    Ok(text.to_owned())
}

/// `schema.function`: two identifiers as SQL writes them without quotes.
pub(crate) fn qualified_function(field: &Field<'_>) -> Read<String> {
    let text = field.string()?;
    let is_identifier = |part: &str| {
        !part.is_empty()
            && part.len() <= 63
            && part
                .bytes()
                .enumerate()
                .all(|(at, b)| b.is_ascii_lowercase() || b == b'_' || (at > 0 && (b.is_ascii_digit() || b == b'$')))
    };
    match text.split_once('.') {
        Some((schema, name)) if is_identifier(schema) && is_identifier(name) => Ok(text.to_owned()),
        _ => Err(field
            .invalid("not a qualified function name")
            .hint("schema.function in lower case, for example billing.create_invoice")),
    }
}

/// The part of a URL that decides where the request goes: scheme, host and port, before the first template.
///
/// Returns what is wrong with it, or nothing.
pub(crate) fn url_authority_fault(prefix: &str, is_whole: bool) -> Option<&'static str> {
    let lower = prefix.to_ascii_lowercase();
    let rest = match (lower.strip_prefix("https://"), lower.strip_prefix("http://")) {
        (Some(rest), _) | (_, Some(rest)) => rest,
        _ => return Some("the URL must start with http:// or https://"),
    };
    let end = rest.find(['/', '?', '#']);
    if end.is_none() && !is_whole {
        return Some("scheme, host and port of a URL must not be templates");
    }
    let authority = &rest[..end.unwrap_or(rest.len())];
    if authority.contains('@') {
        return Some("the URL must not hold credentials");
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(inner) => {
            let Some((host, after)) = inner.split_once(']') else {
                return Some("the URL has a malformed IPv6 host");
            };
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Some("the URL has a malformed IPv6 host");
            }
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Some("the URL has a malformed IPv6 host"),
            }
        }
        None => {
            let (host, port) = authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)));
            let formed = !host.is_empty()
                && host.len() <= 253
                && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
            if !formed {
                return Some("the URL has no valid host (names outside ASCII in their xn-- form)");
            }
            (host, port)
        }
    };
    debug_assert!(!host.is_empty());
    match port {
        Some(port) if port.starts_with('+') || !port.parse::<u16>().is_ok_and(|port| port > 0) => {
            Some("the URL has no valid port")
        }
        _ => None,
    }
}
