//! Who may do what. A superuser may do everything; anybody else needs a row in `access` (for itself or a role whose
//! rights it has) for the capability, the tenant and the command type.

use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::role::{self, ActingAs};
use crate::pg::spi::{self, Arg, Connection, Mode, OID, Statement, TEXT};
use crate::pg::watch;
use crate::settings;
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::key;
use pgrx::pg_sys::{Datum, Oid};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::CStr;

/// What a grant allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Capability {
    Propose,
    Approve,
    Execute,
    Operate,
    Administer,
    Audit,
}

impl Capability {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Propose, Self::Approve, Self::Execute, Self::Operate, Self::Administer, Self::Audit];

    /// The word in `access` and in grant_access().
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Propose => "propose",
            Self::Approve => "approve",
            Self::Execute => "execute",
            Self::Operate => "operate",
            Self::Administer => "administer",
            Self::Audit => "audit",
        }
    }

    /// The capability of a word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.as_str() == word)
    }
}

/// The role that called, and the owner whose rights the ledger's statements use.
#[derive(Clone, Copy)]
pub struct Caller {
    pub role: Oid,
    pub owner: Oid,
    superuser: bool,
}

const GRANTS: &CStr = c"access";

/// Most answers kept per session; beyond, they are asked anew.
const GRANTED_LIMIT: usize = 1_000;

/// A question of [`Caller::may`].
type Asked = (Oid, Capability, String, Option<String>);

/// Questions that were answered with yes, good until a grant is written or a role changes. A no is never kept.
#[derive(Default)]
struct Granted {
    generation: u64,
    yes: HashSet<Asked>,
}

impl Granted {
    fn holds(&self, generation: u64, asked: &Asked) -> bool {
        self.generation == generation && self.yes.contains(asked)
    }

    fn keep(&mut self, generation: u64, asked: Asked) {
        if self.generation != generation || self.yes.len() >= GRANTED_LIMIT {
            self.yes.clear();
            self.generation = generation;
        }
        self.yes.insert(asked);
    }
}

/// The tenant that a role works in when it names none, by the role and the tenant that its session asks for.
#[derive(Default)]
struct Tenants {
    generation: u64,
    of: HashMap<(Oid, Option<String>), String>,
}

impl Tenants {
    fn known(&self, generation: u64, asked: &(Oid, Option<String>)) -> Option<String> {
        if self.generation == generation { self.of.get(asked).cloned() } else { None }
    }

    fn keep(&mut self, generation: u64, asked: (Oid, Option<String>), tenant: &str) {
        if self.generation != generation || self.of.len() >= GRANTED_LIMIT {
            self.of.clear();
            self.generation = generation;
        }
        self.of.insert(asked, tenant.to_owned());
    }
}

thread_local! {
    static GRANTED: RefCell<Granted> = RefCell::default();
    static TENANT_OF: RefCell<Tenants> = RefCell::default();
}

/// What every writer of grants says when it has written.
pub fn grants_changed() {
    watch::changed(GRANTS);
}

static ALLOWED: Statement = Statement::new(
    Mode::Latest,
    &[OID, TEXT, TEXT, TEXT],
    "SELECT 1 FROM command_ledger.access a \
      WHERE ($2 IS NULL OR a.capability = $2) AND (a.tenant IS NULL OR a.tenant = $3) \
        AND ($4 IS NULL OR a.command_types IS NULL OR $4 = ANY (a.command_types)) \
        AND pg_catalog.pg_has_role($1, a.role::oid, 'USAGE') LIMIT 1",
);

static ALL_TENANTS: Statement = Statement::new(
    Mode::Snapshot,
    &[OID, TEXT],
    "SELECT 1 FROM command_ledger.access a \
      WHERE a.capability = $2 AND a.tenant IS NULL AND pg_catalog.pg_has_role($1, a.role::oid, 'USAGE') LIMIT 1",
);

static TENANTS: Statement = Statement::new(
    Mode::Latest,
    &[OID],
    "SELECT DISTINCT a.tenant FROM command_ledger.access a \
      WHERE a.tenant IS NOT NULL AND pg_catalog.pg_has_role($1, a.role::oid, 'USAGE') LIMIT 2",
);

/// What lets a role read the views: those who audit, operate or approve.
static MAY_READ: Statement = Statement::new(
    Mode::Snapshot,
    &[OID, TEXT, TEXT],
    "SELECT 1 FROM command_ledger.access a \
      WHERE a.capability = ANY ('{audit,operate,approve}'::text[]) AND (a.tenant IS NULL OR a.tenant = $2) \
        AND (a.command_types IS NULL OR $3 = ANY (a.command_types)) \
        AND pg_catalog.pg_has_role($1, a.role::oid, 'USAGE') LIMIT 1",
);

static MAY_READ_ALL: Statement = Statement::new(
    Mode::Snapshot,
    &[OID],
    "SELECT 1 FROM command_ledger.access a \
      WHERE a.capability = ANY ('{audit,operate,approve}'::text[]) AND a.tenant IS NULL AND a.command_types IS NULL \
        AND pg_catalog.pg_has_role($1, a.role::oid, 'USAGE') LIMIT 1",
);

impl Caller {
    /// The caller of a SQL function.
    pub fn of(call: &Call) -> Result<Self, LedgerError> {
        let role = role::current();
        Ok(Self { role, owner: call.owner()?, superuser: role::is_superuser(role) })
    }

    /// The role's name, for the journal.
    pub fn name(&self) -> String {
        role::name(self.role)
    }

    /// Whether no grant is needed.
    pub fn is_superuser(&self) -> bool {
        self.superuser
    }

    /// Whether the caller has the capability in the tenant, for one command type or (None) for any.
    pub fn may(
        &self,
        connection: &Connection,
        capability: Capability,
        tenant: &str,
        command_type: Option<&str>,
    ) -> Result<bool, LedgerError> {
        if self.superuser {
            return Ok(true);
        }
        let asked = (self.role, capability, tenant.to_owned(), command_type.map(str::to_owned));
        let generation = watch::generation(&[GRANTS]);
        if generation.is_some_and(|generation| GRANTED.with_borrow(|g| g.holds(generation, &asked))) {
            return Ok(true);
        }
        let args = [
            Arg::Oid(self.role),
            Arg::Text(capability.as_str()),
            Arg::Text(tenant),
            Arg::or_null(command_type, Arg::Text),
        ];
        let allowed = ALLOWED.first(connection, &args)?.is_some();
        if let (true, Some(generation)) = (allowed, generation) {
            GRANTED.with_borrow_mut(|granted| granted.keep(generation, asked));
        }
        Ok(allowed)
    }

    /// As [`Caller::may`], or 42501. The message is the same whether or not the tenant or the key exists.
    pub fn require(
        &self,
        connection: &Connection,
        capability: Capability,
        tenant: &str,
        command_type: Option<&str>,
    ) -> Result<(), LedgerError> {
        if self.may(connection, capability, tenant, command_type)? {
            return Ok(());
        }
        let what = match command_type {
            None => "in this tenant".to_owned(),
            Some(_) => "for this command type in this tenant".to_owned(),
        };
        Err(LedgerError::new(
            Code::InsufficientPrivilege,
            format!("role {} may not {} {what}", self.name(), capability.as_str()),
        )
        .hint(format!(
            "An administrator can allow it: SELECT command_ledger.grant_access(role, '{}', tenant, command_types).",
            capability.as_str()
        )))
    }

    /// As [`Caller::require`], for whoever has one of several capabilities; the refusal names the last.
    pub fn require_any(
        &self,
        connection: &Connection,
        capabilities: &[Capability],
        tenant: &str,
        command_type: Option<&str>,
    ) -> Result<(), LedgerError> {
        let Some((last, others)) = capabilities.split_last() else { return Ok(()) };
        for capability in others {
            if self.may(connection, *capability, tenant, command_type)? {
                return Ok(());
            }
        }
        self.require(connection, *last, tenant, command_type)
    }

    /// Whether the caller has the capability for all tenants (destinations and types are global).
    pub fn require_everywhere(&self, connection: &Connection, capability: Capability) -> Result<(), LedgerError> {
        if self.superuser
            || ALL_TENANTS.first(connection, &[Arg::Oid(self.role), Arg::Text(capability.as_str())])?.is_some()
        {
            return Ok(());
        }
        Err(LedgerError::new(
            Code::InsufficientPrivilege,
            format!("role {} may not {} for all tenants", self.name(), capability.as_str()),
        )
        .hint(format!(
            "An administrator can allow it: SELECT command_ledger.grant_access(role, '{}').",
            capability.as_str()
        )))
    }

    /// Whether any grant names the tenant for this caller.
    fn uses(&self, connection: &Connection, tenant: &str) -> Result<bool, LedgerError> {
        Ok(self.superuser
            || ALLOWED.first(connection, &[Arg::Oid(self.role), Arg::Null, Arg::Text(tenant), Arg::Null])?.is_some())
    }
}

/// Runs `work` for the caller: SPI connected, with the owner's rights.
pub fn as_owner<T>(
    call: &Call,
    work: impl FnOnce(&Caller, &Connection) -> Result<T, LedgerError>,
) -> Result<T, LedgerError> {
    let caller = Caller::of(call)?;
    let _owner = ActingAs::new(caller.owner);
    spi::connect(|connection| work(&caller, connection))
}

/// The tenant argument of a function, checked.
pub fn tenant_of(call: &Call, argument: usize) -> Result<&str, LedgerError> {
    let tenant = call.required_text(argument, "tenant")?;
    key::check_tenant(tenant)?;
    Ok(tenant)
}

/// The key argument of a function, checked.
pub fn key_of(call: &Call, argument: usize) -> Result<&str, LedgerError> {
    let key = call.required_text(argument, "idempotency_key")?;
    key::check_idempotency_key(key)?;
    Ok(key)
}

/// `current_tenant()`
pub fn current_tenant(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let wanted = settings::text(&settings::TENANT).filter(|t| key::check_tenant(t).is_ok());
    let caller = Caller::of(call)?;
    if caller.superuser {
        return Ok(Some(datum::text(wanted.as_deref().unwrap_or(key::DEFAULT_TENANT))));
    }
    let asked = (caller.role, wanted);
    let generation = watch::generation(&[GRANTS]);
    if let Some(tenant) = generation.and_then(|generation| TENANT_OF.with_borrow(|t| t.known(generation, &asked))) {
        return Ok(Some(datum::text(&tenant)));
    }
    let tenant = {
        let _owner = ActingAs::new(caller.owner);
        spi::connect(|connection| {
            if let Some(tenant) = &asked.1
                && caller.uses(connection, tenant)?
            {
                return Ok(tenant.clone());
            }
            let own = TENANTS.run(connection, &[Arg::Oid(caller.role)], 2)?;
            Ok(match (own.len(), own.row(0).and_then(|r| r.text(0))) {
                (1, Some(tenant)) => tenant,
                _ => key::DEFAULT_TENANT.to_owned(),
            })
        })?
    };
    if let Some(generation) = generation {
        TENANT_OF.with_borrow_mut(|tenants| tenants.keep(generation, asked, &tenant));
    }
    Ok(Some(datum::text(&tenant)))
}

/// `may_read(tenant, command_type)`: the predicate of the views. A command without a type is read by nobody who is
/// limited to some types.
pub fn may_read(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let caller = Caller::of(call)?;
    if caller.superuser {
        return Ok(Some(Datum::from(true)));
    }
    let (Some(tenant), command_type) = (call.text(0), call.text(1)) else { return Ok(Some(Datum::from(false))) };
    let _owner = ActingAs::new(caller.owner);
    spi::connect(|connection| {
        let args = [Arg::Oid(caller.role), Arg::Text(tenant), Arg::or_null(command_type, Arg::Text)];
        Ok(Some(Datum::from(MAY_READ.first(connection, &args)?.is_some())))
    })
}

/// `may_read_all()`: whether may_read() would be true for every row, so that the views ask once per query.
pub fn may_read_all(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let caller = Caller::of(call)?;
    if caller.superuser {
        return Ok(Some(Datum::from(true)));
    }
    let _owner = ActingAs::new(caller.owner);
    spi::connect(|connection| {
        Ok(Some(Datum::from(MAY_READ_ALL.first(connection, &[Arg::Oid(caller.role)])?.is_some())))
    })
}

crate::sql_function!(ledger_current_tenant, pg_finfo_ledger_current_tenant, current_tenant);
crate::sql_function!(ledger_may_read, pg_finfo_ledger_may_read, may_read);
crate::sql_function!(ledger_may_read_all, pg_finfo_ledger_may_read_all, may_read_all);
