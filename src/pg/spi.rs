//! SQL statements: each stands once, is planned once per backend and kept, and runs with the rights of the ledger's
//! owner. A read takes no transaction id.
//!
//! Statement text is ordinary SQL with two rules that [`qualify`] turns into search_path-proof SQL: an operator with a
//! blank on both sides is pg_catalog's, and a cast to a built-in type is to pg_catalog's. `SET a=b` has no blanks.
//! Tables and functions are always written with their schema.

use super::datum;
use super::guard::WriteGuard;
use super::qualify::qualify;
use super::report::defect;
use super::row::last_rows;
pub use super::row::{Row, Rows};
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::json::Json;
use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::{self, Datum, Oid};
use std::any::Any;
use std::cell::Cell;
use std::ffi::CString;

/// What a statement may do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Reads with the caller's snapshot (for STABLE functions).
    Snapshot,
    /// Reads what is committed now; above READ COMMITTED, what was when the transaction began.
    Fresh,
    /// Reads what is committed now, whatever the isolation level. For checks under a lock that others held before.
    Latest,
    /// Writes the ledger's tables.
    Write,
}

/// A prepared statement, one per backend.
pub struct Statement {
    sql: &'static str,
    types: &'static [Oid],
    mode: Mode,
    plan: Cell<pg_sys::SPIPlanPtr>,
}

// SAFETY: a backend runs SQL on one thread only; pgrx refuses server calls from any other.
unsafe impl Sync for Statement {}

/// `text`
pub const TEXT: Oid = pg_sys::TEXTOID;
/// `int4`
pub const INT: Oid = pg_sys::INT4OID;
/// `int8`
pub const BIGINT: Oid = pg_sys::INT8OID;
/// `bool`
pub const BOOL: Oid = pg_sys::BOOLOID;
/// `bytea`
pub const BYTEA: Oid = pg_sys::BYTEAOID;
/// `jsonb`
pub const JSONB: Oid = pg_sys::JSONBOID;
/// `timestamptz`
pub const TIME: Oid = pg_sys::TIMESTAMPTZOID;
/// `uuid`
pub const UUID: Oid = pg_sys::UUIDOID;
/// `oid`
pub const OID: Oid = pg_sys::OIDOID;
/// `text[]`
pub const TEXTS: Oid = pg_sys::TEXTARRAYOID;

/// An argument of a statement.
pub enum Arg<'a> {
    /// NULL
    Null,
    /// text
    Text(&'a str),
    /// int4
    Int(i32),
    /// int8
    Big(i64),
    /// bool
    Bool(bool),
    /// bytea
    Bytes(&'a [u8]),
    /// timestamptz, Unix microseconds
    Time(i64),
    /// uuid
    Uuid(&'a [u8; 16]),
    /// oid
    Oid(Oid),
    /// jsonb from a tree
    Json(&'a Json<'a>),
    /// text[]
    Texts(&'a [String]),
    /// any datum of the declared type
    Datum(Datum),
}

impl<'a> Arg<'a> {
    /// The value, or NULL.
    pub fn or_null<T>(value: Option<T>, make: impl FnOnce(T) -> Arg<'a>) -> Arg<'a> {
        value.map_or(Arg::Null, make)
    }

    /// The datum, in the memory of the current context; `None` for NULL.
    pub fn value(&self) -> Option<Datum> {
        Some(match self {
            Arg::Null => return None,
            Arg::Text(t) => datum::text(t),
            Arg::Int(i) => Datum::from(*i),
            Arg::Big(i) => Datum::from(*i),
            Arg::Bool(b) => Datum::from(*b),
            Arg::Bytes(b) => datum::bytea(b),
            Arg::Time(t) => datum::time(*t),
            Arg::Uuid(u) => datum::uuid(u),
            Arg::Oid(o) => Datum::from(*o),
            Arg::Json(j) => super::jsonb::to_datum(j),
            Arg::Texts(t) => array(t.iter().map(|t| Some(datum::text(t))), pg_sys::TEXTOID),
            Arg::Datum(d) => *d,
        })
    }
}

/// An array datum of a built-in element type; `None` elements are NULL.
pub fn array(items: impl Iterator<Item = Option<Datum>>, element: Oid) -> Datum {
    let (mut values, mut nulls) = (Vec::new(), Vec::new());
    for item in items {
        values.push(item.unwrap_or(Datum::from(0)));
        nulls.push(item.is_none());
    }
    let mut dims = [i32::try_from(values.len()).unwrap_or(i32::MAX)];
    let mut lower = [1i32];
    // SAFETY: length, by-value flag and alignment are those of the element type in the catalog; both arrays hold as
    // many entries as the one dimension says.
    unsafe {
        if values.is_empty() {
            return Datum::from(pg_sys::construct_empty_array(element));
        }
        let (mut len, mut by_value, mut align) = (0i16, false, 0 as std::ffi::c_char);
        pg_sys::get_typlenbyvalalign(element, &mut len, &mut by_value, &mut align);
        Datum::from(pg_sys::construct_md_array(
            values.as_mut_ptr(),
            nulls.as_mut_ptr(),
            1,
            dims.as_mut_ptr(),
            lower.as_mut_ptr(),
            element,
            i32::from(len),
            by_value,
            align,
        ))
    }
}

/// An open SPI connection; every value read from its rows is copied out before it closes.
pub struct Connection {
    caller_context: pg_sys::MemoryContext,
}

impl Connection {
    /// Runs `make` in the memory of the calling function, for what must outlive the connection (a result).
    pub fn for_caller<T>(&self, make: impl FnOnce() -> T) -> T {
        // SAFETY: the caller's context outlives the connection; the switch is undone on the way out, and an error
        // resets it anyway.
        unsafe {
            let inner = pg_sys::MemoryContextSwitchTo(self.caller_context);
            let made = make();
            pg_sys::MemoryContextSwitchTo(inner);
            made
        }
    }
}

/// Runs `work` with SPI connected.
pub fn connect<T>(work: impl FnOnce(&Connection) -> Result<T, LedgerError>) -> Result<T, LedgerError> {
    // SAFETY: the connection is closed on the ordinary way out; on an error the server closes it at abort.
    unsafe {
        let caller_context = pg_sys::CurrentMemoryContext;
        if pg_sys::SPI_connect() != pg_sys::SPI_OK_CONNECT as i32 {
            return Err(defect("SPI_connect failed"));
        }
        let result = work(&Connection { caller_context });
        pg_sys::SPI_finish();
        pg_sys::MemoryContextSwitchTo(caller_context);
        result
    }
}

impl Statement {
    /// A statement with the types of its arguments.
    pub const fn new(mode: Mode, types: &'static [Oid], sql: &'static str) -> Self {
        Self { sql, types, mode, plan: Cell::new(std::ptr::null_mut()) }
    }

    fn plan(&self) -> Result<pg_sys::SPIPlanPtr, LedgerError> {
        let known = self.plan.get();
        if !known.is_null() {
            return Ok(known);
        }
        let sql = CString::new(qualify(self.sql)).map_err(|_| defect("NUL in a statement"))?;
        // SAFETY: the types array has as many entries as is said; a kept plan lives as long as the backend.
        let plan = unsafe {
            let plan = pg_sys::SPI_prepare(
                sql.as_ptr(),
                i32::try_from(self.types.len()).unwrap_or(0),
                self.types.as_ptr().cast_mut(),
            );
            if plan.is_null() || pg_sys::SPI_keepplan(plan) != 0 {
                return Err(defect(format!("a statement could not be prepared: {}", self.sql)));
            }
            plan
        };
        self.plan.set(plan);
        Ok(plan)
    }

    /// Runs the statement; `limit` 0 means all rows.
    pub fn run(&self, _connection: &Connection, args: &[Arg], limit: i64) -> Result<Rows, LedgerError> {
        if args.len() != self.types.len() {
            return Err(defect(format!("{} arguments for {} in: {}", args.len(), self.types.len(), self.sql)));
        }
        let plan = self.plan()?;
        let mut values = Vec::with_capacity(args.len());
        let mut nulls = Vec::with_capacity(args.len());
        for arg in args {
            let datum = arg.value();
            nulls.push(if datum.is_none() { b'n' } else { b' ' } as std::ffi::c_char);
            values.push(datum.unwrap_or(Datum::from(0)));
        }
        let guard = (self.mode == Mode::Write).then(WriteGuard::open);
        // SAFETY: values and nulls have one entry per declared argument.
        let code = unsafe {
            let limit = std::ffi::c_long::from(limit);
            if self.mode == Mode::Latest {
                let (now, none) = (pg_sys::GetLatestSnapshot(), std::ptr::null_mut());
                pg_sys::SPI_execute_snapshot(plan, values.as_mut_ptr(), nulls.as_ptr(), now, none, true, false, limit)
            } else {
                let reads_snapshot = self.mode == Mode::Snapshot;
                pg_sys::SPI_execute_plan(plan, values.as_mut_ptr(), nulls.as_ptr(), reads_snapshot, limit)
            }
        };
        drop(guard);
        if code < 0 {
            return Err(defect(format!("SPI error {code} in: {}", self.sql)));
        }
        Ok(last_rows())
    }

    /// Runs and returns the first row, if any.
    pub fn first(&self, connection: &Connection, args: &[Arg]) -> Result<Option<Row>, LedgerError> {
        let rows = self.run(connection, args, 1)?;
        Ok(rows.row(0))
    }

    /// Runs, hands the first row to `read`, and gives the memory of the result back: for what runs many times on one
    /// connection.
    pub fn read_first<T>(
        &self,
        connection: &Connection,
        args: &[Arg],
        read: impl FnOnce(Option<Row>) -> T,
    ) -> Result<T, LedgerError> {
        let rows = self.run(connection, args, 1)?;
        let value = read(rows.row(0));
        rows.free();
        Ok(value)
    }

    /// Runs for the effect; says how many rows were touched.
    pub fn execute(&self, connection: &Connection, args: &[Arg]) -> Result<usize, LedgerError> {
        Ok(self.run(connection, args, 0)?.len())
    }
}

/// Runs a utility statement (GRANT and the like) on the open connection. Its text holds names quoted by the server only.
pub fn utility(sql: &str) -> Result<(), LedgerError> {
    let sql = CString::new(sql).map_err(|_| defect("NUL in a statement"))?;
    // SAFETY: a NUL-terminated statement; an error unwinds.
    let code = unsafe { pg_sys::SPI_execute(sql.as_ptr(), false, 0) };
    if code < 0 { Err(defect(format!("SPI error {code} in a utility statement"))) } else { Ok(()) }
}

/// Runs a statement that calls foreign code, planned for this one call; the first value of its first row, good while the
/// connection is open. Its text holds names quoted by the server only.
pub fn call_foreign(sql: &str, types: &[Oid], args: &[Arg]) -> Result<Option<Datum>, LedgerError> {
    let count = i32::try_from(types.len()).unwrap_or(i32::MAX);
    if args.len() != types.len() {
        return Err(defect(format!("{} arguments for {count} in: {sql}", args.len())));
    }
    let sql = CString::new(sql).map_err(|_| defect("NUL in a statement"))?;
    let given: Vec<Option<Datum>> = args.iter().map(Arg::value).collect();
    let mut values: Vec<Datum> = given.iter().map(|a| a.unwrap_or(Datum::from(0))).collect();
    let nulls: Vec<std::ffi::c_char> = given.iter().map(|a| if a.is_none() { b'n' } else { b' ' } as _).collect();
    let mut types = types.to_vec();
    // SAFETY: types, values and nulls have one entry per argument; an error unwinds.
    let code = unsafe {
        pg_sys::SPI_execute_with_args(
            sql.as_ptr(),
            count,
            types.as_mut_ptr(),
            values.as_mut_ptr(),
            nulls.as_ptr(),
            false,
            1,
        )
    };
    if code < 0 {
        return Err(defect(format!("SPI error {code} in a call of a function")));
    }
    Ok(last_rows().row(0).and_then(|row| row.datum(0)))
}

/// What a caught panic (a server error that unwound, or a Rust panic) means as an error of ours. The server's own
/// code is kept where it decides something: a cancel.
pub fn error_from_panic(panic: Box<dyn Any + Send>) -> LedgerError {
    use pgrx::pg_sys::panic::CaughtError;
    match panic.downcast::<CaughtError>() {
        Ok(caught) => match *caught {
            CaughtError::PostgresError(report) | CaughtError::ErrorReport(report) => {
                let canceled = report.sql_error_code() == PgSqlErrorCode::ERRCODE_QUERY_CANCELED;
                let code = if canceled { Code::Canceled } else { Code::Internal };
                let mut error = LedgerError::new(code, report.message().to_owned());
                error.detail = report.detail().map(str::to_owned);
                error.hint = report.hint().map(str::to_owned);
                error
            }
            CaughtError::RustPanic { ereport, .. } => LedgerError::new(Code::Internal, ereport.message().to_owned()),
        },
        Err(_) => defect("a panic inside the ledger"),
    }
}
