//! jsonpath by the server's own functions, called directly: a path is compiled once per backend and kept. All of them
//! run silent: an error of the path (a missing field in strict mode, a wrong type) is NULL.

use pgrx::pg_sys::{self, Datum};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CString;
use std::rc::Rc;

use super::report::defect;
use command_ledger_domain::error::LedgerError;

/// Most paths kept; beyond, the cache starts anew.
const CACHE_LIMIT: usize = 1_000;

/// A compiled path: a flat datum, copied out of the server's memory, aligned as the server wants it.
#[derive(Clone)]
pub struct Path(Rc<[u64]>);

thread_local! {
    static CACHE: RefCell<HashMap<String, Path>> = RefCell::new(HashMap::new());
}

impl Path {
    /// Compiles a path; the server raises an error for one that is none (definitions are checked when they are made).
    pub fn compile(text: &str) -> Result<Self, LedgerError> {
        if let Some(known) = CACHE.with_borrow(|cache| cache.get(text).cloned()) {
            return Ok(known);
        }
        let source = CString::new(text).map_err(|_| defect("NUL in a jsonpath"))?;
        // SAFETY: jsonpath_in reads a C string and returns a varlena of the length that its header says.
        let words = unsafe {
            let datum = pgrx::direct_function_call_as_datum(
                pg_sys::jsonpath_in,
                &[Some(Datum::from(source.as_ptr())), Some(Datum::from(0)), Some(Datum::from(-1i32))],
            );
            let path = datum.ok_or_else(|| defect("no jsonpath"))?.cast_mut_ptr::<pg_sys::varlena>();
            let bytes = pgrx::varsize(path);
            let mut words = vec![0u64; bytes.div_ceil(8)];
            std::ptr::copy_nonoverlapping(path.cast::<u8>(), words.as_mut_ptr().cast::<u8>(), bytes);
            words
        };
        let path = Self(words.into());
        CACHE.with_borrow_mut(|cache| {
            if cache.len() >= CACHE_LIMIT {
                cache.clear();
            }
            cache.insert(text.to_owned(), path.clone());
        });
        Ok(path)
    }

    fn datum(&self) -> Datum {
        Datum::from(self.0.as_ptr())
    }

    /// What a predicate says of a document; `None` when it cannot be decided.
    pub fn matches(&self, document: Datum) -> Option<bool> {
        // SAFETY: both arguments are of the declared types; with two arguments the function is silent.
        let verdict = unsafe {
            pgrx::direct_function_call_as_datum(pg_sys::jsonb_path_match_opr, &[Some(document), Some(self.datum())])
        };
        verdict.map(|d| d.value() as u8 != 0)
    }

    /// Whether it finds anything.
    pub fn exists(&self, document: Datum) -> bool {
        // SAFETY: as above.
        let verdict = unsafe {
            pgrx::direct_function_call_as_datum(pg_sys::jsonb_path_exists_opr, &[Some(document), Some(self.datum())])
        };
        verdict.is_some_and(|d| d.value() as u8 != 0)
    }
}
