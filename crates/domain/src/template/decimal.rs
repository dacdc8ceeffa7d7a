//! Decimal numbers as text: comparison and form, without a detour through binary floats.

use std::cmp::Ordering;

/// `0.d1d2d3… * 10^point`, with neither leading nor trailing zeros among the digits; zero has no digits.
struct Decimal {
    negative: bool,
    digits: String,
    point: i64,
}

/// Whether the text is a number of JSON.
pub(crate) fn is_number(text: &str) -> bool {
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
        Some(at) => (&unsigned[..at], Some(&unsigned[at + 1..])),
        None => (unsigned, None),
    };
    let (whole, fraction) = mantissa.split_once('.').map_or((mantissa, None), |(w, f)| (w, Some(f)));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(|e| digits(e.strip_prefix(['+', '-']).unwrap_or(e)))
}

fn parse(text: &str) -> Option<Decimal> {
    if !is_number(text) {
        return None;
    }
    let (negative, unsigned) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
        // An exponent that no i64 holds is no number that a jsonb could hold.
        Some(at) => (&unsigned[..at], unsigned[at + 1..].parse::<i64>().ok()?),
        None => (unsigned, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = [whole, fraction].concat();
    let significant = all.trim_start_matches('0');
    let leading_zeros = (all.len() - significant.len()) as i64;
    let digits = significant.trim_end_matches('0').to_owned();
    if digits.is_empty() {
        return Some(Decimal { negative: false, digits, point: 0 });
    }
    let point = (whole.len() as i64 - leading_zeros).checked_add(exponent)?;
    Some(Decimal { negative, digits, point })
}

/// The order of two numbers; `None` if one is not a number (or beyond any bound).
pub(crate) fn compare(left: &str, right: &str) -> Option<Ordering> {
    let (left, right) = (parse(left)?, parse(right)?);
    let sign = |number: &Decimal| match (number.digits.is_empty(), number.negative) {
        (true, _) => 0,
        (false, true) => -1,
        (false, false) => 1,
    };
    let by_sign = sign(&left).cmp(&sign(&right));
    if by_sign != Ordering::Equal || left.digits.is_empty() {
        return Some(by_sign);
    }
    let magnitude = left.point.cmp(&right.point).then_with(|| left.digits.cmp(&right.digits));
    Some(if left.negative { magnitude.reverse() } else { magnitude })
}

/// Whether the number is zero.
pub(crate) fn is_zero(text: &str) -> bool {
    parse(text).is_some_and(|number| number.digits.is_empty())
}

/// The plain text of a number whose value is whole: `12.00` and `1.2e1` give `12`.
pub(crate) fn whole(text: &str) -> Option<String> {
    let number = parse(text)?;
    let length = number.digits.len() as i64;
    if number.digits.is_empty() {
        return Some("0".into());
    }
    // The bound keeps an exponent from becoming a gigabyte of zeros.
    if number.point < length || number.point > 1000 {
        return None;
    }
    let zeros = "0".repeat((number.point - length) as usize);
    Some(format!("{}{}{zeros}", if number.negative { "-" } else { "" }, number.digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_compare_by_their_exact_value() {
        let table = [
            ("1", "1.0", Ordering::Equal),
            ("1", "1e0", Ordering::Equal),
            ("10e-1", "1", Ordering::Equal),
            ("-0", "0", Ordering::Equal),
            ("0.0", "0e9", Ordering::Equal),
            ("9007199254740993", "9007199254740992", Ordering::Greater),
            ("0.10000000000000001", "0.1", Ordering::Greater),
            ("0.10", "0.1", Ordering::Equal),
            ("-2", "-1", Ordering::Less),
            ("-1", "1", Ordering::Less),
            ("0.001", "0.0009", Ordering::Greater),
            ("1e400", "1e399", Ordering::Greater),
            ("99", "100", Ordering::Less),
            ("120", "12e1", Ordering::Equal),
        ];
        for (left, right, order) in table {
            assert_eq!(compare(left, right), Some(order), "{left} against {right}");
            assert_eq!(compare(right, left), Some(order.reverse()), "{right} against {left}");
        }
    }

    #[test]
    fn only_numbers_of_json_are_numbers() {
        for text in ["0", "-0", "12", "1.5", "1e5", "1E+5", "1.0e-5"] {
            assert!(is_number(text), "{text}");
        }
        for text in ["", "-", "01", "1.", ".5", "1e", "1e+", "+1", "NaN", "Infinity", "0x10", "1 ", "1_000"] {
            assert!(!is_number(text), "{text}");
            assert_eq!(compare(text, "0"), None, "{text}");
        }
        assert_eq!(compare("1e99999999999999999999", "1"), None);
    }

    #[test]
    fn a_whole_number_loses_its_empty_fraction_only() {
        assert_eq!(whole("12.00").as_deref(), Some("12"));
        assert_eq!(whole("1.2e1").as_deref(), Some("12"));
        assert_eq!(whole("-1200").as_deref(), Some("-1200"));
        assert_eq!(whole("-0.0").as_deref(), Some("0"));
        assert_eq!(whole("12.5"), None);
        assert_eq!(whole("1e100000000"), None);
    }
}
