//! Conversions between datums of built-in types and Rust values. Times are microseconds since the Unix epoch
//! everywhere in Rust; the server counts from 2000-01-01.

use pgrx::pg_sys::{self, Datum};

/// Microseconds between the Unix epoch and the server's.
const EPOCH_SHIFT_US: i64 = 946_684_800_000_000;

/// A server timestamp as Unix microseconds; the infinities stay the extreme values.
pub fn from_pg_time(t: i64) -> i64 {
    if t == i64::MIN || t == i64::MAX { t } else { t.saturating_add(EPOCH_SHIFT_US) }
}

/// The inverse of [`from_pg_time`].
pub fn to_pg_time(us: i64) -> i64 {
    if us == i64::MIN || us == i64::MAX { us } else { us.saturating_sub(EPOCH_SHIFT_US) }
}

/// The wall clock, as the server reads it, in Unix microseconds. In a test build, days can be made to pass.
pub fn now_us() -> i64 {
    // SAFETY: reads the clock, touches nothing.
    let now_us = from_pg_time(unsafe { pg_sys::GetCurrentTimestamp() });
    #[cfg(feature = "failpoints")]
    let now_us = now_us.saturating_add(i64::from(crate::settings::CLOCK_OFFSET_S.get()) * 1_000_000);
    now_us
}

/// A `text` datum.
pub fn text(value: &str) -> Datum {
    // SAFETY: copies `len` bytes into server memory.
    unsafe {
        Datum::from(pg_sys::cstring_to_text_with_len(
            value.as_ptr().cast(),
            i32::try_from(value.len()).unwrap_or(i32::MAX),
        ))
    }
}

/// A `bytea` datum (the same layout as text).
pub fn bytea(value: &[u8]) -> Datum {
    // SAFETY: as in `text`; bytea and text share their layout and any byte is allowed in a bytea.
    unsafe {
        Datum::from(pg_sys::cstring_to_text_with_len(
            value.as_ptr().cast(),
            i32::try_from(value.len()).unwrap_or(i32::MAX),
        ))
    }
}

/// A `uuid` datum.
pub fn uuid(value: &[u8; 16]) -> Datum {
    // SAFETY: a uuid is sixteen bytes by reference; palloc gives them.
    unsafe {
        let target = pg_sys::palloc(16).cast::<u8>();
        std::ptr::copy_nonoverlapping(value.as_ptr(), target, 16);
        Datum::from(target)
    }
}

/// A `timestamptz` datum from Unix microseconds.
pub fn time(us: i64) -> Datum {
    Datum::from(to_pg_time(us))
}

/// A `jsonb` datum from JSON text that is known to be valid for the server (no NUL, bounded depth).
pub fn jsonb(json: &str) -> Datum {
    let Ok(source) = std::ffi::CString::new(json) else { return jsonb("null") };
    // SAFETY: jsonb_in reads a C string and returns a fresh datum, or raises.
    unsafe { pgrx::direct_function_call_as_datum(pg_sys::jsonb_in, &[Some(Datum::from(source.as_ptr()))]) }
        .unwrap_or(Datum::from(0))
}

/// The bytes of a varlena datum (text, bytea, varchar), detoasted.
///
/// # Safety
/// `datum` is a non-null datum of a varlena type.
pub unsafe fn varlena_bytes<'a>(datum: Datum) -> &'a [u8] {
    // SAFETY: by contract; detoasting copies where it must, into memory that lives as long as the call.
    unsafe {
        let packed = pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr());
        let len = pgrx::varsize_any_exhdr(packed);
        std::slice::from_raw_parts(pgrx::vardata_any(packed).cast::<u8>(), len)
    }
}

/// The text of a text datum. The database is UTF-8 (checked at CREATE EXTENSION), so this never loses anything.
///
/// # Safety
/// As [`varlena_bytes`].
pub unsafe fn text_str<'a>(datum: Datum) -> &'a str {
    // SAFETY: by contract.
    std::str::from_utf8(unsafe { varlena_bytes(datum) }).unwrap_or("")
}

/// The elements of an array datum; `None` for a NULL among them.
///
/// # Safety
/// `datum` is a non-null array.
pub unsafe fn elements(datum: Datum) -> Vec<Option<Datum>> {
    let (mut elements, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
    let (mut length, mut by_value, mut align) = (0, false, 0);
    // SAFETY: by contract; the two arrays that come back have `count` entries.
    unsafe {
        let array = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast::<pg_sys::ArrayType>();
        let element = (*array).elemtype;
        pg_sys::get_typlenbyvalalign(element, &mut length, &mut by_value, &mut align);
        let length = i32::from(length);
        pg_sys::deconstruct_array(array, element, length, by_value, align, &mut elements, &mut nulls, &mut count);
        let all = 0..usize::try_from(count).unwrap_or(0);
        all.map(|n| (!*nulls.add(n)).then(|| *elements.add(n))).collect()
    }
}

/// The elements of a text[] datum; `None` for a NULL among them.
///
/// # Safety
/// `datum` is a non-null text[].
pub unsafe fn text_elements<'a>(datum: Datum) -> Vec<Option<&'a str>> {
    // SAFETY: by contract.
    unsafe { elements(datum).into_iter().map(|element| element.map(|text| text_str(text))).collect() }
}

/// The sixteen bytes of a uuid datum.
///
/// # Safety
/// `datum` is a non-null uuid.
pub unsafe fn uuid_bytes(datum: Datum) -> [u8; 16] {
    let mut bytes = [0u8; 16];
    // SAFETY: a uuid datum points to sixteen bytes.
    unsafe { std::ptr::copy_nonoverlapping(datum.cast_mut_ptr::<u8>(), bytes.as_mut_ptr(), 16) };
    bytes
}

/// An interval datum in microseconds, months as 30 days and days as 24 hours, saturating.
///
/// # Safety
/// `datum` is a non-null interval.
pub unsafe fn interval_us(datum: Datum) -> i64 {
    // SAFETY: an interval datum points to an Interval.
    let interval = unsafe { &*datum.cast_mut_ptr::<pg_sys::Interval>() };
    let days = i64::from(interval.month) * 30 + i64::from(interval.day);
    interval.time.saturating_add(days.saturating_mul(86_400_000_000))
}
