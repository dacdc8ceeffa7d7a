//! Canonical form v1: one text per JSON value, the text that is hashed and signed.
//!
//! RFC 8785 (JCS) for everything that JCS represents exactly: members sorted by the UTF-16 code units of their names,
//! no insignificant space, the shortest string escapes, ES6 number text. No Unicode folding or normalisation; `null`,
//! an absent member, `{}` and `[]` are four different things.
//!
//! JCS itself rounds every number to an IEEE double, so two amounts could share a hash. Here no number is rounded.
//! Let `v` be the exact decimal value of the number text, and `s` the value that the ES6 text of the double nearest to
//! `v` denotes:
//!
//! | number | text |
//! |---|---|
//! | `v = 0`, whatever its sign and spelling | `0` |
//! | `v = s`: the double's shortest text says exactly this number | the ES6 text of that double |
//! | `v != s`, or no finite double is nearest | plain notation: all significant digits, the zeros that reach the point, no exponent, no zero at the end of a fraction |
//!
//! From 1e-6 up to, not including, 1e21 ES6 writes plain notation too and the rows coincide; beyond, exponents appear
//! only for decimals that are the shortest text of a double. The rule depends on the value alone, so `1`, `1.0`, `1e0`
//! and `10e-1` have one text; and every text denotes its value exactly, so two values never share one.
//!
//! | input | text | JCS alone |
//! |---|---|---|
//! | `9007199254740993` | `9007199254740993` | `9007199254740992` |
//! | `0.10000000000000001` | `0.10000000000000001` | `0.1` |
//! | `333333333.33333329` | `333333333.33333329` | `333333333.3333333` |
//! | `1E30` | `1e+30` | `1e+30` |
//! | `1000000000000000000000000000001` | the same | `1e+30` |

use std::borrow::Cow;
use std::cmp::Ordering;

use crate::error::LedgerError;
use crate::json::fault::Fault;
use crate::json::{Json, MAX_DEPTH, MAX_TEXT_BYTES, push_string};

pub(crate) mod number;
mod pointer;

pub(crate) use number::push_integer;
pub use number::{MAX_DIGITS, MAX_EXPONENT};
pub use pointer::Pointer;

/// Objects of up to this many members are sorted without memory of their own.
const FEW_MEMBERS: usize = 24;

type Member<'m> = (Cow<'m, str>, Json<'m>);

/// The canonical text of a value.
///
/// # Errors
/// `CL014` beyond depth 128, 1 MiB of canonical text, 400 significant digits or an exponent of +-400; `CL004` when an
/// object has two members of one name or a number's text is no JSON number (neither comes out of a jsonb or of
/// [`Json::parse`]). The DETAIL holds the JSON pointer.
pub fn canonical(value: &Json<'_>) -> Result<String, LedgerError> {
    let mut out = String::with_capacity(256);
    write_canonical(value, &[], &mut out)?;
    Ok(out)
}

/// Appends the canonical text of a value without the members that `skip` names.
///
/// A pointer that meets nothing drops nothing, and one never drops an array element or anything inside an array. What
/// held a dropped member stays: `/a/note` makes `{"a":{}}` of `{"a":{"note":1}}`. The bounds hold for what is
/// written; depth and size count from this value, wherever it is embedded. On an error `out` is as it was.
///
/// # Errors
/// As [`canonical`].
pub fn write_canonical(value: &Json<'_>, skip: &[Pointer], out: &mut String) -> Result<(), LedgerError> {
    let start = out.len();
    let paths: Vec<&[String]> = skip.iter().map(Pointer::names).collect();
    let mut writer = Writer { out, limit: start + MAX_TEXT_BYTES, depth: 0 };
    writer.value(value, &paths).map_err(|fault| {
        out.truncate(start);
        LedgerError::from(fault)
    })
}

struct Writer<'o> {
    out: &'o mut String,
    /// The length that `out` must not pass.
    limit: usize,
    depth: usize,
}

impl Writer<'_> {
    /// Writes one value; `skip` holds the rests of the pointers that lead into it.
    fn value(&mut self, value: &Json<'_>, skip: &[&[String]]) -> Result<(), Fault> {
        match value {
            Json::Null => self.out.push_str("null"),
            Json::Bool(true) => self.out.push_str("true"),
            Json::Bool(false) => self.out.push_str("false"),
            Json::Number(text) => number::push_number(text, self.out)?,
            Json::String(text) => self.string(text)?,
            Json::Array(elements) => self.array(elements)?,
            Json::Object(members) => self.object(members, skip)?,
        }
        self.room_for(0)
    }

    fn room_for(&self, bytes: usize) -> Result<(), Fault> {
        if self.out.len().saturating_add(bytes) > self.limit {
            return Err(Fault::out_of_bounds("the canonical text is longer than 1 MiB"));
        }
        Ok(())
    }

    fn string(&mut self, text: &str) -> Result<(), Fault> {
        self.room_for(text.len() + 2)?;
        push_string(text, self.out);
        Ok(())
    }

    fn enter(&mut self) -> Result<(), Fault> {
        if self.depth == MAX_DEPTH {
            return Err(Fault::out_of_bounds("the JSON nests deeper than 128 levels"));
        }
        self.depth += 1;
        Ok(())
    }

    fn array(&mut self, elements: &[Json<'_>]) -> Result<(), Fault> {
        self.enter()?;
        self.out.push('[');
        for (index, element) in elements.iter().enumerate() {
            if index > 0 {
                self.out.push(',');
            }
            self.value(element, &[]).map_err(|fault| fault.in_element(index))?;
        }
        self.out.push(']');
        self.depth -= 1;
        Ok(())
    }

    fn object(&mut self, members: &[Member<'_>], skip: &[&[String]]) -> Result<(), Fault> {
        self.enter()?;
        self.out.push('{');
        let ascending = |pair: &[Member<'_>]| utf16_order(&pair[0].0, &pair[1].0) == Ordering::Less;
        if members.windows(2).all(ascending) {
            self.members(members.iter(), skip)?;
        } else if members.len() <= FEW_MEMBERS {
            let mut order = [&members[0]; FEW_MEMBERS];
            for (slot, member) in order.iter_mut().zip(members) {
                *slot = member;
            }
            self.sorted(&mut order[..members.len()], skip)?;
        } else {
            self.sorted(&mut members.iter().collect::<Vec<_>>(), skip)?;
        }
        self.out.push('}');
        self.depth -= 1;
        Ok(())
    }

    fn sorted(&mut self, order: &mut [&Member<'_>], skip: &[&[String]]) -> Result<(), Fault> {
        order.sort_unstable_by(|a, b| utf16_order(&a.0, &b.0));
        if let Some(pair) = order.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(Fault::invalid("a member name stands twice in one object").in_member(&pair[0].0));
        }
        self.members(order.iter().copied(), skip)
    }

    fn members<'m>(&mut self, members: impl Iterator<Item = &'m Member<'m>>, skip: &[&[String]]) -> Result<(), Fault> {
        let mut first = true;
        for (name, value) in members {
            let Some(rests) = rests_below(skip, name) else { continue };
            if !first {
                self.out.push(',');
            }
            first = false;
            self.string(name)?;
            self.out.push(':');
            self.value(value, &rests).map_err(|fault| fault.in_member(name))?;
        }
        Ok(())
    }
}

/// What is left of the pointers that lead into the member of this name; `None` when one of them names it.
fn rests_below<'p>(skip: &[&'p [String]], name: &str) -> Option<Vec<&'p [String]>> {
    let mut rests = Vec::new();
    for path in skip {
        match path.split_first() {
            Some((head, [])) if head == name => return None,
            Some((head, rest)) if head == name => rests.push(rest),
            _ => {}
        }
    }
    Some(rests)
}

/// Compares as UTF-16 code units would (RFC 8785, section 3.2.3) without building them.
///
/// UTF-8 sorts as code points do. UTF-16 differs in one place: the surrogates of U+10000 and above (leading bytes F0
/// to F4 in UTF-8) come before U+E000 to U+FFFF (leading bytes EE and EF).
fn utf16_order(a: &str, b: &str) -> Ordering {
    let moved = |byte: u8| if matches!(byte, 0xee | 0xef) { byte + 0x10 } else { byte };
    match a.bytes().zip(b.bytes()).find(|(x, y)| x != y) {
        Some((x, y)) => moved(x).cmp(&moved(y)),
        None => a.len().cmp(&b.len()),
    }
}
