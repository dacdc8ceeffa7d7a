//! Administer: who may do what. A grant is a row in `access` and the EXECUTE and SELECT rights that go with it.

use super::access::{self, Capability, as_owner};
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::role;
use crate::pg::spi::{Arg, Connection, Mode, OID, Statement, TEXT, TEXTS, TIME, utility};
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::key;
use pgrx::pg_sys::{Datum, Oid};

/// What everybody with any grant may call: names, reading, and the predicates of the views.
const COMMON: &[&str] = &[
    "canonical",
    "command_id",
    "current_tenant",
    "derive_key",
    "may_read",
    "may_read_all",
    "reason_in_words",
    "status",
    "strict_json",
    "wait_for",
];
/// What proves and tells what happened, for whoever audits, operates or approves.
const PROOF: &[&str] = &["explain", "evidence", "verify_journal"];
const VIEWS: &[&str] = &[
    "timeline",
    "reconciliation_queue",
    "approval_queue",
    "dispatch_queue",
    "attempts",
    "runs",
    "duplicate_records",
    "lookalikes",
    "destination_status",
    "metrics",
    "measures",
];

/// What the views call: a view's functions are called with the reader's own rights.
const CALLED_BY_VIEWS: &[&str] = &["fence_state", "ledger_identity", "counters", "held_back"];

/// The functions of a capability.
const fn functions(capability: Capability) -> &'static [&'static str] {
    match capability {
        Capability::Propose => &["register", "validate", "revise", "cancel", "params_hash", "register_and_claim"],
        Capability::Approve => &["approve", "reject", "revoke_approval"],
        Capability::Execute => &[
            "claim",
            "register_and_claim",
            "extend_lease",
            "confirm",
            "confirm_many",
            "fail",
            "uncertain",
            "release",
            "consume",
        ],
        Capability::Operate => &[
            "reconcile",
            "retry",
            "assign_case",
            "pause",
            "resume",
            "redact",
            "purge",
            "adopt_relay",
            "cancel",
            "health",
            "counters",
        ],
        Capability::Administer => &[
            "define_destination",
            "define_command_type",
            "grant_access",
            "revoke_access",
            "start_relay",
            "stop_relay",
            "health",
        ],
        Capability::Audit => &["health", "counters"],
    }
}

/// All functions that a capability needs, those of its views included.
fn called(capability: Capability) -> impl Iterator<Item = &'static str> {
    let (by_views, proof): (&[&str], &[&str]) =
        if reads_views(capability) { (CALLED_BY_VIEWS, PROOF) } else { (&[], &[]) };
    functions(capability).iter().chain(by_views).chain(proof).copied()
}

/// Whether the views and the proof belong to a capability.
const fn reads_views(capability: Capability) -> bool {
    matches!(capability, Capability::Audit | Capability::Operate | Capability::Approve)
}

/// Two GRANTs on one function at the same moment would meet in its catalog row, and one would fail.
static LOCK_GRANTS: Statement =
    Statement::new(Mode::Fresh, &[], "SELECT pg_catalog.pg_advisory_xact_lock(5492010533047314)");

static UPSERT: Statement = Statement::new(
    Mode::Write,
    &[OID, TEXT, TEXT, TEXTS, TIME, TEXT],
    "INSERT INTO command_ledger.access AS a (role, capability, tenant, command_types, granted_at, granted_by) \
     VALUES ($1::regrole, $2, $3, $4, $5, $6) \
     ON CONFLICT (role, capability, (coalesce(tenant, '/'))) DO UPDATE \
        SET command_types=excluded.command_types, granted_at=excluded.granted_at, granted_by=excluded.granted_by",
);

static DELETE: Statement = Statement::new(
    Mode::Write,
    &[OID, TEXT, TEXT],
    "DELETE FROM command_ledger.access a WHERE a.role = $1::regrole AND a.capability = $2 \
        AND coalesce(a.tenant, '/') = coalesce($3, '/')",
);

static REMAINING: Statement = Statement::new(
    Mode::Fresh,
    &[OID],
    "SELECT DISTINCT a.capability FROM command_ledger.access a WHERE a.role = $1::regrole",
);

static FUNCTIONS: Statement = Statement::new(
    Mode::Fresh,
    &[TEXTS],
    "SELECT pg_catalog.string_agg(p.oid::pg_catalog.regprocedure::text, ', ' ORDER BY p.proname) FROM pg_catalog.pg_proc p \
      WHERE p.pronamespace = 'command_ledger'::pg_catalog.regnamespace AND p.proname::text = ANY ($1)",
);

static RELATIONS: Statement = Statement::new(
    Mode::Fresh,
    &[TEXTS],
    "SELECT pg_catalog.string_agg(c.oid::pg_catalog.regclass::text, ', ' ORDER BY c.relname) FROM pg_catalog.pg_class c \
      WHERE c.relnamespace = 'command_ledger'::pg_catalog.regnamespace AND c.relkind = 'v' AND c.relname::text = ANY ($1)",
);

static QUOTE: Statement = Statement::new(Mode::Fresh, &[TEXT], "SELECT pg_catalog.quote_ident($1)");

fn capability_of(call: &Call) -> Result<Capability, LedgerError> {
    Capability::parse(call.required_text(1, "capability")?).ok_or_else(|| {
        let known: Vec<&str> = Capability::ALL.iter().map(|c| c.as_str()).collect();
        LedgerError::new(Code::InvalidDefinition, "no such capability").hint(format!("One of {}.", known.join(", ")))
    })
}

fn role_of(call: &Call) -> Result<Oid, LedgerError> {
    call.oid(0).ok_or_else(|| LedgerError::new(Code::NullArgument, "role must not be NULL"))
}

fn one_text(connection: &Connection, statement: &Statement, names: &[&str]) -> Result<Option<String>, LedgerError> {
    let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    Ok(statement.first(connection, &[Arg::Texts(&names)])?.and_then(|r| r.text(0)))
}

/// GRANT or REVOKE of everything that these names stand for.
fn rights(connection: &Connection, role: Oid, give: bool, called: &[&str], viewed: &[&str]) -> Result<(), LedgerError> {
    let name =
        QUOTE.first(connection, &[Arg::Text(&role::name(role))])?.map(|r| r.text_or_empty(0)).unwrap_or_default();
    let (verb, to) = if give { ("GRANT", "TO") } else { ("REVOKE", "FROM") };
    if let Some(list) = one_text(connection, &FUNCTIONS, called)? {
        utility(&format!("{verb} EXECUTE ON FUNCTION {list} {to} {name}"))?;
    }
    if let Some(list) = one_text(connection, &RELATIONS, viewed)? {
        utility(&format!("{verb} SELECT ON {list} {to} {name}"))?;
    }
    Ok(())
}

fn usage(connection: &Connection, role: Oid, give: bool) -> Result<(), LedgerError> {
    let name =
        QUOTE.first(connection, &[Arg::Text(&role::name(role))])?.map(|r| r.text_or_empty(0)).unwrap_or_default();
    let (verb, to) = if give { ("GRANT", "TO") } else { ("REVOKE", "FROM") };
    utility(&format!("{verb} USAGE ON SCHEMA command_ledger {to} {name}"))
}

/// `grant_access(role, capability, tenant, command_types)`
pub fn grant_access(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (role, capability) = (role_of(call)?, capability_of(call)?);
    let tenant = call.text(2);
    if let Some(tenant) = tenant {
        key::check_tenant(tenant)?;
    }
    let types = call.texts(3, "command_types")?;
    if types.as_ref().is_some_and(Vec::is_empty) {
        return Err(
            LedgerError::new(Code::InvalidDefinition, "command_types is empty").hint("Leave it out for all types.")
        );
    }
    as_owner(call, |caller, connection| {
        caller.require_everywhere(connection, Capability::Administer)?;
        LOCK_GRANTS.first(connection, &[])?;
        UPSERT.execute(
            connection,
            &[
                Arg::Oid(role),
                Arg::Text(capability.as_str()),
                Arg::or_null(tenant, Arg::Text),
                Arg::or_null(types.as_deref(), Arg::Texts),
                Arg::Time(datum::now_us()),
                Arg::Text(&caller.name()),
            ],
        )?;
        access::grants_changed();
        usage(connection, role, true)?;
        let called: Vec<&str> = COMMON.iter().copied().chain(called(capability)).collect();
        rights(connection, role, true, &called, if reads_views(capability) { VIEWS } else { &[] })
    })?;
    Ok(Some(Datum::from(0)))
}

/// `revoke_access(role, capability, tenant)`
pub fn revoke_access(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let (role, capability) = (role_of(call)?, capability_of(call)?);
    let tenant = call.text(2);
    as_owner(call, |caller, connection| {
        caller.require_everywhere(connection, Capability::Administer)?;
        LOCK_GRANTS.first(connection, &[])?;
        let args = [Arg::Oid(role), Arg::Text(capability.as_str()), Arg::or_null(tenant, Arg::Text)];
        if DELETE.execute(connection, &args)? == 0 {
            return Err(LedgerError::new(Code::InvalidDefinition, "there is no such grant").hint(
                "Name the tenant that the grant named, or none if it named none; the table access lists the grants.",
            ));
        }
        access::grants_changed();
        let remaining: Vec<Capability> = REMAINING
            .run(connection, &[Arg::Oid(role)], 0)?
            .iter()
            .filter_map(|row| Capability::parse(&row.text_or_empty(0)))
            .collect();
        if !role::exists(role) {
            // Its rights went with it.
            return Ok(());
        }
        let needed = |name: &str| remaining.iter().any(|c| called(*c).any(|n| n == name));
        let unneeded: Vec<&str> = called(capability).filter(|name| !needed(name)).collect();
        let views = if remaining.iter().any(|c| reads_views(*c)) { &[] } else { VIEWS };
        rights(connection, role, false, &unneeded, views)?;
        if remaining.is_empty() {
            rights(connection, role, false, COMMON, &[])?;
            usage(connection, role, false)?;
        }
        Ok(())
    })?;
    Ok(Some(Datum::from(0)))
}

crate::sql_function!(ledger_grant_access, pg_finfo_ledger_grant_access, grant_access);
crate::sql_function!(ledger_revoke_access, pg_finfo_ledger_revoke_access, revoke_access);
