//! Numbers of the canonical form: read as exact decimals, written so that equal values have equal text and different
//! values never do.

use std::fmt::Write as _;

use crate::json::fault::Fault;

/// How many significant digits a number may have, zeros at either end not counted.
pub const MAX_DIGITS: usize = 400;

/// How far from zero the exponent `e` of `d.ddd * 10^e` (`d` not zero) may be.
pub const MAX_EXPONENT: i64 = 400;

/// Decimals of up to this many digits each have a double of their own, so each is the shortest text of its double.
const SURE_DIGITS: usize = 15;

/// The exponents at which that holds for certain: normal doubles, neither subnormal nor near overflow.
const SURE_EXPONENT: i64 = 307;

/// No shortest text of a double has more digits.
const DOUBLE_DIGITS: usize = 17;

/// A decimal number, taken apart without copying: the digits `head` then `tail`, no zero at either end, stand after
/// the point of `0.ddd`, times `10^point`. No digits means zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decimal<'a> {
    negative: bool,
    head: &'a str,
    tail: &'a str,
    point: i64,
}

impl<'a> Decimal<'a> {
    /// Takes number text apart, in one pass and without memory, whatever its length.
    ///
    /// # Errors
    /// `CL004` when the text is not a JSON number, `CL014` beyond [`MAX_DIGITS`] or [`MAX_EXPONENT`]. Both bounds look
    /// at the value and not at its spelling: `10e-1` passes or fails as `1` does.
    pub(crate) fn read(text: &'a str) -> Result<Self, Fault> {
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (whole, rest) = split_digits(unsigned);
        let (fraction, rest) = match rest.strip_prefix('.') {
            Some(rest) => split_digits(rest),
            None => ("0", rest),
        };
        let leading_zero = whole.len() > 1 && whole.starts_with('0');
        if whole.is_empty() || leading_zero || fraction.is_empty() {
            return Err(Fault::invalid("a number is not written as JSON writes it"));
        }
        let exponent = read_exponent(rest)?;

        let tail = fraction.trim_end_matches('0');
        let head = if tail.is_empty() { whole.trim_end_matches('0') } else { whole };
        let head = head.trim_start_matches('0');
        let (tail, shift) = if head.is_empty() {
            let digits = tail.trim_start_matches('0');
            (digits, digits.len() as i64 - tail.len() as i64)
        } else {
            // `whole` has a leading zero only when it is zero, so its length counts the places before the point.
            (tail, whole.len() as i64)
        };
        if head.is_empty() && tail.is_empty() {
            return Ok(Self { negative: false, head, tail, point: 0 });
        }
        let point = shift.saturating_add(exponent);
        if head.len() + tail.len() > MAX_DIGITS {
            return Err(Fault::out_of_bounds("a number has more than 400 significant digits"));
        }
        if !(-MAX_EXPONENT..=MAX_EXPONENT).contains(&(point - 1)) {
            return Err(Fault::out_of_bounds("a number's exponent is beyond 400"));
        }
        Ok(Self { negative, head, tail, point })
    }

    fn digits(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    fn digit_bytes(&self) -> impl Iterator<Item = u8> + '_ {
        self.head.bytes().chain(self.tail.bytes())
    }

    /// Is this exactly the value that the shortest text of some double denotes?
    fn is_shortest_double(&self) -> bool {
        let exponent = self.point - 1;
        match self.digits() {
            0..=SURE_DIGITS if (-SURE_EXPONENT..=SURE_EXPONENT).contains(&exponent) => true,
            0..=DOUBLE_DIGITS => self.equals_shortest_of_nearest(),
            _ => false,
        }
    }

    /// Rounds to the nearest double and compares with its shortest text: of the fewest digits that read back as this
    /// double, the closest, and of two equally close the even one, which is what ECMA-262 and RFC 8785 ask for.
    fn equals_shortest_of_nearest(&self) -> bool {
        let exponent = self.point - self.digits() as i64;
        let mut text = Scratch::default();
        if write!(text, "{}{}e{exponent}", self.head, self.tail).is_err() {
            return false;
        }
        let Ok(double) = text.as_str().parse::<f64>() else { return false };
        if !double.is_finite() {
            return false;
        }
        let mut printer = ryu::Buffer::new();
        Decimal::read(printer.format_finite(double))
            .is_ok_and(|shortest| shortest.point == self.point && shortest.digit_bytes().eq(self.digit_bytes()))
    }

    /// Appends the canonical text.
    pub(crate) fn write(&self, out: &mut String) {
        let digits = self.digits();
        if digits == 0 {
            out.push('0');
            return;
        }
        if self.negative {
            out.push('-');
        }
        let plain = (-5..=21).contains(&self.point);
        if plain || !self.is_shortest_double() {
            self.write_plain(out);
            return;
        }
        self.push_digits(0, 1, out);
        if digits > 1 {
            out.push('.');
            self.push_digits(1, digits, out);
        }
        out.push('e');
        if self.point > 0 {
            out.push('+');
        }
        push_integer(self.point - 1, out);
    }

    /// Appends the digits with as many zeros as reach the point, and no exponent.
    fn write_plain(&self, out: &mut String) {
        let digits = self.digits();
        match usize::try_from(self.point) {
            Ok(point) if point >= digits => {
                self.push_digits(0, digits, out);
                out.extend(std::iter::repeat_n('0', point - digits));
            }
            Ok(point) if point > 0 => {
                self.push_digits(0, point, out);
                out.push('.');
                self.push_digits(point, digits, out);
            }
            _ => {
                out.push_str("0.");
                out.extend(std::iter::repeat_n('0', usize::try_from(-self.point).unwrap_or(0)));
                self.push_digits(0, digits, out);
            }
        }
    }

    /// Appends the digits from one place to another (exclusive).
    fn push_digits(&self, from: usize, to: usize, out: &mut String) {
        let split = self.head.len();
        out.push_str(&self.head[from.min(split)..to.min(split)]);
        out.push_str(&self.tail[from.saturating_sub(split)..to.saturating_sub(split)]);
    }
}

/// Appends the canonical text of number text.
pub(crate) fn push_number(text: &str, out: &mut String) -> Result<(), Fault> {
    if is_short_integer(text) {
        out.push_str(text);
    } else {
        Decimal::read(text)?.write(out);
    }
    Ok(())
}

/// Most numbers are counts and minor units: an integer of up to 15 digits is its own canonical text.
fn is_short_integer(text: &str) -> bool {
    let bytes = text.as_bytes();
    let digits = bytes.strip_prefix(b"-").unwrap_or(bytes);
    match digits.first() {
        Some(b'0') => bytes.len() == 1,
        Some(_) => digits.len() <= SURE_DIGITS && digits.iter().all(u8::is_ascii_digit),
        None => false,
    }
}

/// Appends an integer in decimal.
pub(crate) fn push_integer(value: i64, out: &mut String) {
    // Writing to a String cannot fail.
    let _ = write!(out, "{value}");
}

fn split_digits(text: &str) -> (&str, &str) {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

/// The exponent part (empty is 0), clamped to what no count of digits can bring back into bounds.
fn read_exponent(text: &str) -> Result<i64, Fault> {
    if text.is_empty() {
        return Ok(0);
    }
    let malformed = || Fault::invalid("a number is not written as JSON writes it");
    let rest = text.strip_prefix(['e', 'E']).ok_or_else(malformed)?;
    let (negative, digits) = match rest.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, rest.strip_prefix('+').unwrap_or(rest)),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(malformed());
    }
    let digits = digits.trim_start_matches('0');
    let size = match digits {
        "" => 0,
        digits if digits.len() > 18 => i64::MAX / 4,
        digits => digits.parse().unwrap_or(i64::MAX / 4),
    };
    Ok(if negative { -size } else { size })
}

/// Text on the stack, long enough for 17 digits and an exponent.
#[derive(Default)]
struct Scratch {
    bytes: [u8; 32],
    length: usize,
}

impl Scratch {
    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl std::fmt::Write for Scratch {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(std::fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}
