//! From binary jsonb to the exact tree of the core, in one walk: no text, no floats.

use super::datum;
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::json::Json;
use pgrx::pg_sys::{self, Datum};
use std::borrow::Cow;
use std::ffi::CStr;

/// Deepest nesting that is read; the canonical form has the same bound.
const MAX_DEPTH: usize = 128;
/// Most text that one document may unfold to (numbers can be far longer as text than in binary).
const MAX_TEXT_BYTES: usize = 4 << 20;
/// Longest number that is unfolded: enough for 400 digits on both sides of the point.
const MAX_WEIGHT_DIGITS: i32 = 1_000;

/// A jsonb argument, kept as the datum so that exactly these bytes are stored.
#[derive(Clone, Copy)]
pub struct JsonbArg {
    datum: Datum,
}

impl JsonbArg {
    /// # Safety
    /// `datum` is a non-null jsonb.
    pub unsafe fn new(datum: Datum) -> Self {
        // SAFETY: by contract; detoasted once so that storing and walking use the same copy.
        Self { datum: unsafe { Datum::from(pg_sys::pg_detoast_datum(datum.cast_mut_ptr())) } }
    }

    /// A document of the core as it is stored; it lives as long as the current memory.
    pub fn of(json: &Json) -> Self {
        Self { datum: to_datum(json) }
    }

    /// A copy in the current memory.
    pub fn copied(self) -> Self {
        // SAFETY: `new` made sure that this is a jsonb.
        Self { datum: unsafe { Datum::from(pg_sys::pg_detoast_datum_copy(self.datum.cast_mut_ptr())) } }
    }

    /// The datum, to be stored as it is.
    pub fn datum(&self) -> Datum {
        self.datum
    }

    /// The document as the core reads it; texts borrow from the datum, which lives as long as the call.
    pub fn tree(&self) -> Result<Json<'_>, LedgerError> {
        // SAFETY: `new` made sure that this is a detoasted jsonb.
        unsafe { Walk::new(self.datum).document() }
    }
}

struct Walk<'a> {
    iterator: *mut pg_sys::JsonbIterator,
    budget: usize,
    life: std::marker::PhantomData<&'a ()>,
}

fn too_big(what: &str) -> LedgerError {
    LedgerError::new(Code::JsonOutOfBounds, format!("the JSON document is too large: {what}"))
        .detail(format!(
            "Bounds: depth {MAX_DEPTH}, 1 MiB of canonical text, numbers of 400 significant digits, exponent within 400."
        ))
        .hint("Send less, or send a reference to the data instead of the data.")
}

impl<'a> Walk<'a> {
    unsafe fn new(jsonb: Datum) -> Self {
        // SAFETY: the root container follows the varlena header of a detoasted jsonb.
        let iterator = unsafe {
            let jsonb = jsonb.cast_mut_ptr::<pg_sys::Jsonb>();
            pg_sys::JsonbIteratorInit(&raw mut (*jsonb).root)
        };
        Self { iterator, budget: MAX_TEXT_BYTES, life: std::marker::PhantomData }
    }

    unsafe fn next(&mut self, value: &mut pg_sys::JsonbValue) -> pg_sys::JsonbIteratorToken::Type {
        // SAFETY: the iterator is the server's own; `value` is written when a scalar, key or container is met.
        unsafe { pg_sys::JsonbIteratorNext(&mut self.iterator, value, false) }
    }

    unsafe fn document(mut self) -> Result<Json<'a>, LedgerError> {
        // SAFETY: an all-zero JsonbValue is a valid null.
        let mut value: pg_sys::JsonbValue = unsafe { std::mem::zeroed() };
        // SAFETY: first token of the iterator.
        let token = unsafe { self.next(&mut value) };
        // A scalar document is wrapped in an array that says so.
        // SAFETY: at WJB_BEGIN_ARRAY the array member of the union is the one that is set.
        let scalar = token == pg_sys::JsonbIteratorToken::WJB_BEGIN_ARRAY && unsafe { value.val.array.rawScalar };
        // SAFETY: the token that was just read opens the root container.
        let tree = unsafe { self.container(token, 1)? };
        match (scalar, tree) {
            (true, Json::Array(mut items)) if items.len() == 1 => Ok(items.remove(0)),
            (_, tree) => Ok(tree),
        }
    }

    unsafe fn container(
        &mut self,
        opening: pg_sys::JsonbIteratorToken::Type,
        depth: usize,
    ) -> Result<Json<'a>, LedgerError> {
        use pg_sys::JsonbIteratorToken::*;
        if depth > MAX_DEPTH {
            return Err(too_big("nested too deeply"));
        }
        // SAFETY: as in `document`; every union access follows the token that says which member is set.
        unsafe {
            let mut value: pg_sys::JsonbValue = std::mem::zeroed();
            if opening == WJB_BEGIN_OBJECT {
                let mut members = Vec::new();
                loop {
                    match self.next(&mut value) {
                        WJB_KEY => {
                            let name = self.string(&value)?;
                            let token = self.next(&mut value);
                            let member = self.value(token, &value, depth)?;
                            members.push((name, member));
                        }
                        _ => return Ok(Json::Object(members)),
                    }
                }
            }
            let mut items = Vec::new();
            loop {
                match self.next(&mut value) {
                    WJB_END_ARRAY | WJB_DONE => return Ok(Json::Array(items)),
                    token => items.push(self.value(token, &value, depth)?),
                }
            }
        }
    }

    unsafe fn value(
        &mut self,
        token: pg_sys::JsonbIteratorToken::Type,
        value: &pg_sys::JsonbValue,
        depth: usize,
    ) -> Result<Json<'a>, LedgerError> {
        use pg_sys::JsonbIteratorToken::*;
        // SAFETY: the token and the type tag say which member of the union is set.
        unsafe {
            if token == WJB_BEGIN_OBJECT || token == WJB_BEGIN_ARRAY {
                return self.container(token, depth + 1);
            }
            Ok(match value.type_ {
                pg_sys::jbvType::jbvString => Json::String(self.string(value)?),
                pg_sys::jbvType::jbvNumeric => Json::Number(self.number(value.val.numeric)?),
                pg_sys::jbvType::jbvBool => Json::Bool(value.val.boolean),
                _ => Json::Null,
            })
        }
    }

    fn spend(&mut self, bytes: usize) -> Result<(), LedgerError> {
        self.budget = self.budget.checked_sub(bytes + 1).ok_or_else(|| too_big("too much text"))?;
        Ok(())
    }

    unsafe fn string(&mut self, value: &pg_sys::JsonbValue) -> Result<Cow<'a, str>, LedgerError> {
        // SAFETY: a string value points into the jsonb datum, which outlives the tree.
        let bytes = unsafe {
            let string = value.val.string;
            std::slice::from_raw_parts(string.val.cast::<u8>(), usize::try_from(string.len).unwrap_or(0))
        };
        self.spend(bytes.len())?;
        std::str::from_utf8(bytes)
            .map(Cow::Borrowed)
            .map_err(|_| LedgerError::new(Code::InvalidParams, "the JSON document holds text that is not UTF-8"))
    }

    unsafe fn number(&mut self, numeric: pg_sys::Numeric) -> Result<Cow<'a, str>, LedgerError> {
        // SAFETY: a numeric value points to a numeric in the jsonb datum; its first two bytes after the length word
        // say where the leading digit stands (see numeric.c: short form 7 bits of weight, long form a second int16).
        unsafe {
            let raw = numeric.cast::<u8>();
            let header = raw.add(4).cast::<u16>().read_unaligned();
            let weight = if header & 0x8000 != 0 {
                let weight = i32::from(header & 0x3F);
                if header & 0x40 != 0 { weight - 64 } else { weight }
            } else {
                i32::from(raw.add(6).cast::<i16>().read_unaligned())
            };
            if (weight.saturating_add(1)).saturating_mul(4) > MAX_WEIGHT_DIGITS {
                return Err(too_big("a number with too many digits"));
            }
            let text =
                pgrx::direct_function_call_as_datum(pg_sys::numeric_out, &[Some(Datum::from(numeric.cast::<u8>()))]);
            let Some(text) = text else { return Ok(Cow::Borrowed("0")) };
            let bytes = CStr::from_ptr(text.cast_mut_ptr::<std::ffi::c_char>()).to_bytes();
            self.spend(bytes.len())?;
            Ok(Cow::Borrowed(std::str::from_utf8(bytes).unwrap_or("0")))
        }
    }
}

/// A tree as a jsonb datum.
pub fn to_datum(json: &Json) -> Datum {
    let mut text = String::new();
    json.write_json(&mut text);
    datum::jsonb(&text)
}
