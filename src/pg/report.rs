//! Raising errors and writing log lines with SQLSTATEs of our own. pgrx knows only the server's own codes and would
//! turn ours into XX000, so the few error functions of the server are declared here and called directly.

use command_ledger_domain::error::{Code, LedgerError};
use pgrx::{PgLogLevel, pg_sys};
use std::ffi::{CString, c_char, c_int};

unsafe extern "C-unwind" {
    fn errstart(elevel: c_int, domain: *const c_char) -> bool;
    fn errcode(sqlerrcode: c_int) -> c_int;
    fn errmsg_internal(fmt: *const c_char, ...) -> c_int;
    fn errdetail_internal(fmt: *const c_char, ...) -> c_int;
    fn errhint(fmt: *const c_char, ...) -> c_int;
    fn errfinish(filename: *const c_char, lineno: c_int, funcname: *const c_char);
}

/// An error ready to be raised: only plain pointers into server memory, so that nothing is leaked when the server
/// jumps over our frames.
#[derive(Clone, Copy)]
pub struct Prepared {
    sqlstate: c_int,
    message: *mut c_char,
    detail: *mut c_char,
    hint: *mut c_char,
}

/// The server's packed form of a five-character SQLSTATE (six bits a character).
pub fn pack_sqlstate(code: &str) -> c_int {
    code.bytes().enumerate().fold(0, |packed, (i, c)| packed | ((c_int::from(c) - c_int::from(b'0')) & 0x3F) << (6 * i))
}

fn copy(text: &str) -> *mut c_char {
    let clean: String;
    let text = if text.contains('\0') {
        clean = text.replace('\0', "");
        &clean
    } else {
        text
    };
    let bytes = text.as_bytes();
    // SAFETY: palloc returns len + 1 writable bytes (or raises); both copies stay inside them.
    unsafe {
        let target = pg_sys::palloc(bytes.len() + 1).cast::<u8>();
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        *target.add(bytes.len()) = 0;
        target.cast()
    }
}

impl Prepared {
    /// Copies the error into server memory; the Rust value is gone afterwards.
    pub fn new(error: LedgerError) -> Self {
        let text = |t: Option<String>| t.map_or(std::ptr::null_mut(), |t| copy(&t));
        Self {
            sqlstate: pack_sqlstate(error.code.sqlstate()),
            message: copy(&error.message),
            detail: text(error.detail),
            hint: copy(error.hint.as_deref().unwrap_or(error.code.general_hint())),
        }
    }

    /// Raises the error. Must be the last thing a function does: no Rust value with a destructor may be alive.
    pub fn raise(self) -> ! {
        // SAFETY: the pointers are NUL-terminated copies in server memory; errfinish at ERROR jumps away.
        unsafe {
            self.report(PgLogLevel::ERROR as c_int);
        }
        unreachable!("the server returned from an error")
    }

    unsafe fn report(self, level: c_int) {
        // SAFETY: as above; "%s" keeps the texts from being read as formats.
        unsafe {
            if errstart(level, std::ptr::null()) {
                errcode(self.sqlstate);
                errmsg_internal(c"%s".as_ptr(), self.message);
                if !self.detail.is_null() {
                    errdetail_internal(c"%s".as_ptr(), self.detail);
                }
                if !self.hint.is_null() {
                    errhint(c"%s".as_ptr(), self.hint);
                }
                errfinish(c"command_ledger".as_ptr(), 0, std::ptr::null());
            }
        }
    }
}

/// Severity of a log line.
#[derive(Clone, Copy)]
pub enum Level {
    /// Ordinary operation.
    Log,
    /// Somebody should look.
    Warning,
}

/// Writes one line to the server log (and, for a warning in a session, to the client). Never hand a payload value or
/// a secret to it.
pub fn log(level: Level, message: &str) {
    let Ok(message) = CString::new(message.replace('\0', "")) else { return };
    let level = match level {
        Level::Log => PgLogLevel::LOG,
        Level::Warning => PgLogLevel::WARNING,
    } as c_int;
    // SAFETY: below ERROR errfinish returns; the message outlives the call. Interrupts are held off, because errfinish
    // serves them at its end, and a cancel would jump from here over all our frames and their destructors.
    unsafe {
        pg_sys::InterruptHoldoffCount += 1;
        if errstart(level, std::ptr::null()) {
            errmsg_internal(c"%s".as_ptr(), message.as_ptr());
            errfinish(c"command_ledger".as_ptr(), 0, std::ptr::null());
        }
        pg_sys::InterruptHoldoffCount -= 1;
    }
}

/// An error that means the ledger itself is defective (SQLSTATE XX000).
pub fn defect(what: impl Into<String>) -> LedgerError {
    LedgerError::new(Code::Internal, what).hint("This is a defect of command_ledger; please report it.")
}
