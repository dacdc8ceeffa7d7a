//! The header `Retry-After`.

use super::http_date::parse_http_date_s;

/// The longest wait that a destination may ask for: 24 hours. A larger one (a mistake, or a date far away) is cut to
/// this, so that a command is looked at again within a day.
pub const MAX_RETRY_AFTER_MS: i64 = 86_400_000;

/// Longer headers are not read.
const MAX_HEADER_BYTES: usize = 64;

/// How long a `Retry-After` asks to wait from now: seconds, or an HTTP date (IMF-fixdate, RFC 850, asctime).
/// 0 for a date in the past, never more than [`MAX_RETRY_AFTER_MS`], `None` for anything else (signs, fractions,
/// impossible dates).
pub fn parse_retry_after(text: &str, now_us: i64) -> Option<i64> {
    let text = text.trim_matches([' ', '\t']);
    if text.is_empty() || text.len() > MAX_HEADER_BYTES {
        return None;
    }
    if text.bytes().all(|b| b.is_ascii_digit()) {
        // Only overflow can fail here: more seconds than an i64 holds.
        let seconds = text.parse::<i64>().unwrap_or(i64::MAX);
        return Some(seconds.saturating_mul(1_000).min(MAX_RETRY_AFTER_MS));
    }
    let date_us = parse_http_date_s(text, now_us.div_euclid(1_000_000))?.saturating_mul(1_000_000);
    let wait_us = date_us.saturating_sub(now_us).max(0);
    // Rounded up: not a moment before the date.
    Some((wait_us / 1_000 + i64::from(wait_us % 1_000 > 0)).min(MAX_RETRY_AFTER_MS))
}
