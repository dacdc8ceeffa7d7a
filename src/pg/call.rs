//! The frame around every SQL-callable function: typed access to its arguments, and the one place where an inner
//! `Err` becomes a PostgreSQL error, after every Rust value is gone.

use super::datum;
use super::jsonb::JsonbArg;
use super::report::{Prepared, defect};
use command_ledger_domain::error::{Code, LedgerError};
use pgrx::pg_sys::{self, Datum};

/// One running call of a SQL function.
pub struct Call {
    fcinfo: pg_sys::FunctionCallInfo,
}

enum Done {
    Value(Datum),
    Null,
    Error(Prepared),
}

/// Runs the body of a SQL function. An inner error is raised here, when nothing is left to be dropped; a server error
/// or a Rust panic inside becomes an ordinary ERROR through pgrx's guard.
pub fn enter(fcinfo: pg_sys::FunctionCallInfo, body: fn(&Call) -> Result<Option<Datum>, LedgerError>) -> Datum {
    // SAFETY: fcinfo is handed in by the function manager; `Done` holds plain values only.
    let done = unsafe {
        pgrx::pg_sys::submodules::panic::pgrx_extern_c_guard(|| match body(&Call { fcinfo }) {
            Ok(Some(value)) => Done::Value(value),
            Ok(None) => Done::Null,
            Err(error) => Done::Error(Prepared::new(error)),
        })
    };
    match done {
        Done::Value(value) => value,
        Done::Null => {
            // SAFETY: as above.
            unsafe { (*fcinfo).isnull = true };
            Datum::from(0)
        }
        Done::Error(error) => error.raise(),
    }
}

/// Declares the C symbol (and its version record) of a SQL function: `sql_function!(symbol, info_symbol, body)`.
#[macro_export]
macro_rules! sql_function {
    ($symbol:ident, $info:ident, $body:path) => {
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub extern "C-unwind" fn $info() -> &'static pgrx::pg_sys::Pg_finfo_record {
            const RECORD: pgrx::pg_sys::Pg_finfo_record = pgrx::pg_sys::Pg_finfo_record { api_version: 1 };
            &RECORD
        }

        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $symbol(fcinfo: pgrx::pg_sys::FunctionCallInfo) -> pgrx::pg_sys::Datum {
            $crate::pg::call::enter(fcinfo, $body)
        }
    };
}

impl Call {
    /// The raw call, for the few places that need it.
    pub fn fcinfo(&self) -> pg_sys::FunctionCallInfo {
        self.fcinfo
    }

    /// The object id of the SQL function itself.
    pub fn function_oid(&self) -> pg_sys::Oid {
        // SAFETY: the function manager always fills flinfo for a SQL call.
        unsafe { (*(*self.fcinfo).flinfo).fn_oid }
    }

    /// Argument `i`, or `None` when NULL (or not given by an older signature).
    pub fn datum(&self, i: usize) -> Option<Datum> {
        // SAFETY: the argument array holds nargs entries.
        unsafe {
            if i >= usize::try_from((*self.fcinfo).nargs).unwrap_or(0) {
                return None;
            }
            let arg = (*self.fcinfo).args.as_slice((*self.fcinfo).nargs as usize).get(i)?;
            if arg.isnull { None } else { Some(arg.value) }
        }
    }

    fn required(&self, i: usize, name: &str) -> Result<Datum, LedgerError> {
        self.datum(i).ok_or_else(|| {
            LedgerError::new(Code::NullArgument, format!("{name} must not be NULL"))
                .hint(format!("Give a value for {name}."))
        })
    }

    /// A text argument.
    pub fn text(&self, i: usize) -> Option<&str> {
        // SAFETY: declared text in SQL.
        self.datum(i).map(|d| unsafe { datum::text_str(d) })
    }

    /// A text argument that must be given.
    pub fn required_text(&self, i: usize, name: &str) -> Result<&str, LedgerError> {
        // SAFETY: declared text in SQL.
        self.required(i, name).map(|d| unsafe { datum::text_str(d) })
    }

    /// A bytea argument that must be given.
    pub fn required_bytea(&self, i: usize, name: &str) -> Result<&[u8], LedgerError> {
        // SAFETY: declared bytea in SQL.
        self.required(i, name).map(|d| unsafe { datum::varlena_bytes(d) })
    }

    /// A jsonb argument.
    pub fn jsonb(&self, i: usize) -> Option<JsonbArg> {
        // SAFETY: declared jsonb in SQL.
        self.datum(i).map(|d| unsafe { JsonbArg::new(d) })
    }

    /// A jsonb argument that must be given.
    pub fn required_jsonb(&self, i: usize, name: &str) -> Result<JsonbArg, LedgerError> {
        // SAFETY: declared jsonb in SQL.
        self.required(i, name).map(|d| unsafe { JsonbArg::new(d) })
    }

    /// A timestamptz argument in Unix microseconds.
    pub fn time_us(&self, i: usize) -> Option<i64> {
        self.datum(i).map(|d| datum::from_pg_time(d.value() as i64))
    }

    /// An interval argument in microseconds.
    pub fn interval_us(&self, i: usize) -> Option<i64> {
        // SAFETY: declared interval in SQL.
        self.datum(i).map(|d| unsafe { datum::interval_us(d) })
    }

    /// An integer argument.
    pub fn int(&self, i: usize) -> Option<i32> {
        self.datum(i).map(|d| d.value() as i32)
    }

    /// A boolean argument.
    pub fn bool(&self, i: usize) -> Option<bool> {
        self.datum(i).map(|d| d.value() as u8 != 0)
    }

    /// A uuid argument that must be given.
    pub fn required_uuid(&self, i: usize, name: &str) -> Result<[u8; 16], LedgerError> {
        // SAFETY: declared uuid in SQL.
        self.required(i, name).map(|d| unsafe { datum::uuid_bytes(d) })
    }

    /// An oid-like argument (regrole).
    pub fn oid(&self, i: usize) -> Option<pg_sys::Oid> {
        self.datum(i).map(|d| pg_sys::Oid::from(d.value() as u32))
    }

    /// The elements of a one-dimensional array argument of any type; `None` for a NULL among them.
    pub fn elements(&self, i: usize) -> Option<Vec<Option<Datum>>> {
        // SAFETY: declared as an array in SQL.
        self.datum(i).map(|array| unsafe { datum::elements(array) })
    }

    /// A text[] argument; NULL elements are an error.
    pub fn texts(&self, i: usize, name: &str) -> Result<Option<Vec<String>>, LedgerError> {
        let Some(array) = self.datum(i) else { return Ok(None) };
        // SAFETY: declared text[] in SQL.
        let elements = unsafe { datum::text_elements(array) };
        let texts = elements.into_iter().map(|text| {
            text.map(str::to_owned)
                .ok_or_else(|| LedgerError::new(Code::NullArgument, format!("{name} must not contain NULL")))
        });
        texts.collect::<Result<_, _>>().map(Some)
    }

    /// The owner of the function: the role whose rights the ledger's own statements use.
    pub fn owner(&self) -> Result<pg_sys::Oid, LedgerError> {
        super::role::function_owner(self.function_oid()).ok_or_else(|| defect("the function has no catalog entry"))
    }
}
