//! Keys: the caller's name for an intent, what the destination sees of it, and the id that both can compute.
//!
//! Keys are compared byte by byte: case counts, nothing is folded, trimmed or normalised.

use std::fmt::Write as _;

use crate::error::{Code, LedgerError};
use crate::hash::{hex, open_array, push_next_string, sha256};

/// An idempotency key is 1 to this many bytes of UTF-8.
pub const MAX_KEY_BYTES: usize = 255;

/// A tenant name is 1 to this many bytes of UTF-8.
pub const MAX_TENANT_BYTES: usize = 63;

/// The tenant of whoever does not name one.
pub const DEFAULT_TENANT: &str = "default";

/// Is this a valid idempotency key?
///
/// | rule | broken by |
/// |---|---|
/// | 1 to 255 bytes of UTF-8 | the empty key, a longer one |
/// | no control character, anywhere | Unicode category Cc: U+0000 to U+001F, U+007F to U+009F |
/// | no blank at either end | Unicode White_Space: the space, U+00A0, U+2028, U+2029, U+3000 and others |
///
/// Blanks inside are the caller's business, U+2028 and U+2029 among them.
///
/// # Errors
/// `CL002` that names the rule and the length, never the key.
pub fn check_idempotency_key(key: &str) -> Result<(), LedgerError> {
    check_name("the idempotency key", key, MAX_KEY_BYTES)
}

/// Is this a valid tenant name? The rules of [`check_idempotency_key`], 1 to 63 bytes, and no `/`: it separates the
/// tenant from the key in a destination key.
///
/// # Errors
/// `CL002` that names the rule and the length, never the name.
pub fn check_tenant(tenant: &str) -> Result<(), LedgerError> {
    check_name("the tenant name", tenant, MAX_TENANT_BYTES)?;
    if tenant.contains('/') {
        return Err(invalid("the tenant name contains /", tenant.len(), MAX_TENANT_BYTES));
    }
    Ok(())
}

/// Is this a valid name of something else that a caller repeats (a consumer, a message id)? The rules of
/// [`check_idempotency_key`].
///
/// # Errors
/// `CL002` that names `what`, the rule and the length, never the name.
pub fn check_repeatable_name(what: &str, name: &str) -> Result<(), LedgerError> {
    check_name(what, name, MAX_KEY_BYTES)
}

fn check_name(what: &str, name: &str, max_bytes: usize) -> Result<(), LedgerError> {
    let broken = if name.is_empty() {
        "is empty"
    } else if name.len() > max_bytes {
        "is too long"
    } else if name.chars().any(char::is_control) {
        "contains a control character"
    } else if name.starts_with(char::is_whitespace) {
        "begins with a blank"
    } else if name.ends_with(char::is_whitespace) {
        "ends with a blank"
    } else {
        return Ok(());
    };
    Err(invalid(&format!("{what} {broken}"), name.len(), max_bytes))
}

fn invalid(message: &str, length_bytes: usize, max_bytes: usize) -> LedgerError {
    LedgerError::new(Code::InvalidKey, message).detail(format!("{length_bytes} bytes; 1 to {max_bytes} are allowed"))
}

/// What the destination sees of a key: for tenant `default` and a key without `/` the key itself, otherwise
/// `tenant/key`.
///
/// Injective over valid tenants and keys: a tenant holds no `/`, so text with a `/` splits at its first one, and text
/// without is a key of `default`.
pub fn destination_key(tenant: &str, key: &str) -> String {
    if tenant == DEFAULT_TENANT && !key.contains('/') {
        return key.to_owned();
    }
    let mut text = String::with_capacity(tenant.len() + 1 + key.len());
    text.push_str(tenant);
    text.push('/');
    text.push_str(key);
    text
}

/// Does a destination take this key? `max_bytes` is the destination's limit; `ascii_needed` when the key stands in a
/// header, where only the printable ASCII characters U+0020 to U+007E are safe.
///
/// # Errors
/// `CL002` that names the rule and the lengths, never the key.
pub fn check_destination_key(key: &str, max_bytes: usize, ascii_needed: bool) -> Result<(), LedgerError> {
    let refuse = |message: &str| {
        Err(invalid(message, key.len(), max_bytes).hint(
            "The destination sees the idempotency key, or tenant/key; derive_key() makes short keys of long parts.",
        ))
    };
    if key.is_empty() {
        refuse("the destination key is empty")
    } else if key.len() > max_bytes {
        refuse("the destination key is longer than the destination takes")
    } else if ascii_needed && !key.bytes().all(|byte| (0x20..=0x7e).contains(&byte)) {
        refuse("the destination key must be printable ASCII, because it is sent in a header")
    } else {
        Ok(())
    }
}

/// The id of a command, which any client can compute: the first 16 bytes of SHA-256 of the canonical JSON array
/// `["command_ledger.id.v1", tenant, key]`, with the version (8) and variant bits of a UUID set as RFC 9562 says.
pub fn command_id(tenant: &str, key: &str) -> [u8; 16] {
    let mut text = open_array("command_ledger.id.v1");
    push_next_string(tenant, &mut text);
    push_next_string(key, &mut text);
    text.push(']');
    let mut id = [0; 16];
    id.copy_from_slice(&sha256(text.as_bytes())[..16]);
    id[6] = id[6] & 0x0f | 0x80;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

/// A UUID in its usual text form, lower case.
pub fn uuid_text(id: &[u8; 16]) -> String {
    let mut text = hex(id);
    for place in [20, 16, 12, 8] {
        text.insert(place, '-');
    }
    text
}

/// One key out of several parts, the same for the same parts and different for different ones.
///
/// The parts are joined by `:`. In a part, `%`, `:`, control characters and blanks become `%` and two upper-case
/// hexadecimal digits for each byte of their UTF-8, so that the key can be read, and split again. When that is longer
/// than 255 bytes, the key is its beginning (at most 183 bytes, cut between characters and not inside an escape, so
/// that keys that grow with time stay in order), then `%sha256:` and the hexadecimal SHA-256 of the whole; no short
/// key looks like that.
///
/// # Errors
/// `CL002` for no parts at all and for an empty part: a value that is missing by mistake would make one intent of many.
pub fn derive_key(parts: &[&str]) -> Result<String, LedgerError> {
    if parts.is_empty() {
        return Err(LedgerError::new(Code::InvalidKey, "a key cannot be derived from no parts"));
    }
    let mut key = String::new();
    let mut beginning_bytes = 0;
    for (index, part) in parts.iter().enumerate() {
        if part.is_empty() {
            return Err(LedgerError::new(Code::InvalidKey, "a key cannot be derived from an empty part")
                .detail(format!("part {} of {}", index + 1, parts.len()))
                .hint("Two intents that lack this part would share one key. Leave the part out if that is meant."));
        }
        if index > 0 {
            key.push(':');
        }
        for c in part.chars() {
            push_escaped(c, &mut key);
            if key.len() <= MAX_BEGINNING_BYTES {
                beginning_bytes = key.len();
            }
        }
    }
    if key.len() > MAX_KEY_BYTES {
        let digest = hex(&sha256(key.as_bytes()));
        key.truncate(beginning_bytes);
        key.push_str(LONG_MARK);
        key.push_str(&digest);
    }
    Ok(key)
}

/// Stands before the digest of a long derived key; never part of a short one, because `s` is no hexadecimal digit.
const LONG_MARK: &str = "%sha256:";

/// How much of a long derived key stays readable.
const MAX_BEGINNING_BYTES: usize = MAX_KEY_BYTES - LONG_MARK.len() - 64;

fn push_escaped(c: char, key: &mut String) {
    if c != '%' && c != ':' && !c.is_control() && !c.is_whitespace() {
        key.push(c);
        return;
    }
    for byte in c.encode_utf8(&mut [0; 4]).bytes() {
        // Writing to a String cannot fail.
        let _ = write!(key, "%{byte:02X}");
    }
}
