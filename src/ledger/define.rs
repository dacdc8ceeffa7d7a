//! Administer: destinations and command types.

use super::access::{Capability, as_owner};
use super::catalog;
use super::{approve, fence, predicate};
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::spi::{Arg, Connection, INT, JSONB, Mode, Statement, TEXT, TIME};
use crate::relay::wake;
use command_ledger_domain::config::{CommandTypePolicy, DestinationConfig, Transport};
use command_ledger_domain::error::{Code, LedgerError};
use pgrx::pg_sys::Datum;

static FIND_DESTINATION: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, JSONB],
    "SELECT d.revision, d.config = $2, d.config FROM command_ledger.destination d WHERE d.name = $1 FOR NO KEY UPDATE",
);

static INSERT_DESTINATION: Statement = Statement::new(
    Mode::Write,
    &[TEXT, JSONB, TIME, TEXT],
    "INSERT INTO command_ledger.destination (name, revision, config, defined_at, defined_by) VALUES ($1, 1, $2, $3, $4)",
);

static UPDATE_DESTINATION: Statement = Statement::new(
    Mode::Write,
    &[TEXT, JSONB, TIME, TEXT],
    "UPDATE command_ledger.destination d SET revision=(d.revision + 1), config=$2, defined_at=$3, defined_by=$4 \
      WHERE d.name = $1 RETURNING d.revision",
);

static TYPES_OF: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT],
    "SELECT DISTINCT ON (t.name) t.name, t.version, t.policy FROM command_ledger.command_type t WHERE t.destination = $1 \
      ORDER BY t.name, t.version DESC",
);

static NEWEST_TYPE: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT, JSONB],
    "SELECT t.version, t.policy = $2 FROM command_ledger.command_type t WHERE t.name = $1 ORDER BY t.version DESC LIMIT 1",
);

static INSERT_TYPE: Statement = Statement::new(
    Mode::Write,
    &[TEXT, INT, TEXT, JSONB, TIME, TEXT],
    "INSERT INTO command_ledger.command_type (name, version, destination, policy, defined_at, defined_by) \
     VALUES ($1, $2, $3, $4, $5, $6)",
);

static CONFIG: Statement = Statement::new(
    Mode::Fresh,
    &[TEXT],
    "SELECT d.config FROM command_ledger.destination d WHERE d.name = $1 FOR KEY SHARE",
);

static LOCK_DEFINITIONS: Statement =
    Statement::new(Mode::Fresh, &[], "SELECT pg_catalog.pg_advisory_xact_lock(5492010533047312)");

static PAUSE: Statement = Statement::new(
    Mode::Write,
    &[TEXT, TIME, TEXT],
    "UPDATE command_ledger.destination d SET paused_at=coalesce(d.paused_at, $2), paused_by=coalesce(d.paused_by, $3) \
      WHERE d.name = $1",
);

static RESUME: Statement = Statement::new(
    Mode::Write,
    &[TEXT],
    "UPDATE command_ledger.destination d SET paused_at=NULL, paused_by=NULL WHERE d.name = $1",
);

fn name_of<'a>(call: &'a Call, what: &str) -> Result<&'a str, LedgerError> {
    let name = call.required_text(0, what)?;
    if name.is_empty() || name.len() > 63 || name.chars().any(char::is_control) || name.trim() != name {
        return Err(LedgerError::new(Code::InvalidDefinition, format!("not a valid {what}"))
            .detail(format!("It has {} bytes.", name.len()))
            .hint("Names have 1 to 63 bytes, no control characters, no leading or trailing blank."));
    }
    Ok(name)
}

fn check_paths(connection: &Connection, paths: &[(String, String)]) -> Result<(), LedgerError> {
    paths.iter().try_for_each(|(field, path)| predicate::check(connection, field, path))
}

/// A function destination must name a function that exists with the agreed signature.
fn check_function(connection: &Connection, config: &DestinationConfig) -> Result<(), LedgerError> {
    static FIND: Statement = Statement::new(
        Mode::Fresh,
        &[TEXT],
        "SELECT pg_catalog.to_regprocedure($1 || '(command_ledger.dispatch)') IS NOT NULL",
    );
    let Transport::Function { function, .. } = &config.transport else { return Ok(()) };
    let quoted = function
        .split('.')
        .map(|part| format!("\"{}\"", part.trim_matches('"').replace('"', "\"\"")))
        .collect::<Vec<_>>()
        .join(".");
    if FIND.first(connection, &[Arg::Text(&quoted)])?.is_some_and(|r| r.bool(0)) {
        return Ok(());
    }
    Err(LedgerError::new(Code::InvalidDefinition, "the function of the destination does not exist")
        .detail("$.function")
        .hint("Create it first: schema.name(command_ledger.dispatch) RETURNS jsonb."))
}

/// `define_destination(name, config)`
pub fn define_destination(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let name = name_of(call, "name of a destination")?;
    let document = call.required_jsonb(1, "config")?;
    let config = DestinationConfig::parse(&document.tree()?)?;
    let revision = as_owner(call, |caller, connection| {
        caller.require_everywhere(connection, Capability::Administer)?;
        check_paths(connection, &config.jsonpaths())?;
        check_function(connection, &config)?;
        LOCK_DEFINITIONS.first(connection, &[])?;
        let (now_us, by) = (datum::now_us(), caller.name());
        fence::adopt_if_new(connection, now_us, &by)?;
        let stored = Arg::Datum(document.datum());
        let args = [Arg::Text(name), stored, Arg::Time(now_us), Arg::Text(&by)];
        let Some(known) = FIND_DESTINATION.first(connection, &[Arg::Text(name), Arg::Datum(document.datum())])? else {
            INSERT_DESTINATION.execute(connection, &args)?;
            catalog::changed();
            return Ok(1);
        };
        if known.bool(1) {
            return Ok(known.int(0).unwrap_or(1));
        }
        // Every type that uses it must still fit.
        for row in TYPES_OF.run(connection, &[Arg::Text(name)], 0)?.iter() {
            let (command_type, version) = (row.text_or_empty(0), row.int(1).unwrap_or(0));
            if let Some(policy) = row.json(2)? {
                catalog::build(&command_type, version, name, CommandTypePolicy::parse(&policy)?, &config).map_err(
                    |error| {
                        let detail = error.detail.clone().unwrap_or_default();
                        error.detail(format!("{detail} (with command type {command_type} version {version})"))
                    },
                )?;
            }
        }
        let revision = UPDATE_DESTINATION.first(connection, &args)?.and_then(|r| r.int(0)).unwrap_or(1);
        catalog::changed();
        approve::refresh_waiting(connection, name)?;
        Ok(revision)
    })?;
    wake::at_commit();
    Ok(Some(Datum::from(revision)))
}

/// `define_command_type(name, policy)`
pub fn define_command_type(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let name = name_of(call, "name of a command type")?;
    let document = call.required_jsonb(1, "policy")?;
    let policy = CommandTypePolicy::parse(&document.tree()?)?;
    let version = as_owner(call, |caller, connection| {
        caller.require_everywhere(connection, Capability::Administer)?;
        check_paths(connection, &policy.jsonpaths())?;
        LOCK_DEFINITIONS.first(connection, &[])?;
        let destination = policy.destination.clone();
        let config = CONFIG
            .first(connection, &[Arg::Text(&destination)])?
            .ok_or_else(|| catalog::unknown_destination().detail("$.destination"))?
            .json(0)?
            .ok_or_else(catalog::unknown_destination)?;
        let config = DestinationConfig::parse(&config)?;
        let newest = NEWEST_TYPE.first(connection, &[Arg::Text(name), Arg::Datum(document.datum())])?;
        if let Some(known) = &newest
            && known.bool(1)
        {
            return Ok(known.int(0).unwrap_or(1));
        }
        let version = newest.and_then(|r| r.int(0)).unwrap_or(0) + 1;
        catalog::build(name, version, &destination, policy.clone(), &config)?;
        INSERT_TYPE.execute(
            connection,
            &[
                Arg::Text(name),
                Arg::Int(version),
                Arg::Text(&destination),
                Arg::Datum(document.datum()),
                Arg::Time(datum::now_us()),
                Arg::Text(&caller.name()),
            ],
        )?;
        catalog::changed();
        Ok(version)
    })?;
    Ok(Some(Datum::from(version)))
}

fn switch(call: &Call, statement: &Statement, paused: bool) -> Result<Option<Datum>, LedgerError> {
    let name = call.required_text(0, "destination")?;
    as_owner(call, |caller, connection| {
        caller.require_everywhere(connection, Capability::Operate)?;
        let by = caller.name();
        let all = [Arg::Text(name), Arg::Time(datum::now_us()), Arg::Text(&by)];
        let touched = statement.execute(connection, if paused { &all } else { &all[..1] })?;
        catalog::changed();
        if touched == 0 { Err(catalog::unknown_destination()) } else { Ok(()) }
    })?;
    wake::at_commit();
    // A void result.
    Ok(Some(Datum::from(0)))
}

/// `pause(destination)`
pub fn pause(call: &Call) -> Result<Option<Datum>, LedgerError> {
    switch(call, &PAUSE, true)
}

/// `resume(destination)`
pub fn resume(call: &Call) -> Result<Option<Datum>, LedgerError> {
    switch(call, &RESUME, false)
}

crate::sql_function!(ledger_define_destination, pg_finfo_ledger_define_destination, define_destination);
crate::sql_function!(ledger_define_command_type, pg_finfo_ledger_define_command_type, define_command_type);
crate::sql_function!(ledger_pause, pg_finfo_ledger_pause, pause);
crate::sql_function!(ledger_resume, pg_finfo_ledger_resume, resume);
