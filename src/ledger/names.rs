//! Keys, ids, canonical form and hashes as SQL functions.

use super::access::{Capability, as_owner, key_of, tenant_of};
use super::catalog;
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::jsonb;
use command_ledger_domain::canonical;
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::hash;
use command_ledger_domain::json::Json;
use command_ledger_domain::key;
use pgrx::pg_sys::Datum;

/// `command_id(key, tenant)`
pub fn command_id(call: &Call) -> Result<Option<Datum>, LedgerError> {
    Ok(Some(datum::uuid(&key::command_id(tenant_of(call, 1)?, key_of(call, 0)?))))
}

/// `derive_key(VARIADIC parts)`
pub fn derive_key(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let parts = call.texts(0, "parts")?.ok_or_else(|| {
        LedgerError::new(Code::NullArgument, "parts must not be NULL").hint("Give at least one part.")
    })?;
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    Ok(Some(datum::text(&key::derive_key(&parts)?)))
}

/// `canonical(document)`
pub fn canonical(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let document = call.required_jsonb(0, "document")?;
    Ok(Some(datum::text(&canonical::canonical(&document.tree()?)?)))
}

/// `strict_json(source)`
pub fn strict_json(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let source = call.required_text(0, "source")?;
    let tree = Json::parse(source)?;
    // The bounds of the canonical form hold here too, so that no document is taken that can never be registered.
    canonical::canonical(&tree)?;
    Ok(Some(jsonb::to_datum(&tree)))
}

/// `params_hash(type, params, tenant)`
pub fn params_hash(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let command_type = call.required_text(0, "command_type")?;
    let params = call.required_jsonb(1, "params")?;
    let tenant = tenant_of(call, 2)?;
    let hash = as_owner(call, |caller, connection| {
        caller.require(connection, Capability::Propose, tenant, Some(command_type))?;
        let operation = catalog::newest(connection, command_type)?;
        hash::params_hash(tenant, command_type, &params.tree()?, &operation.immaterial)
    })?;
    Ok(Some(datum::bytea(&hash)))
}

crate::sql_function!(ledger_command_id, pg_finfo_ledger_command_id, command_id);
crate::sql_function!(ledger_derive_key, pg_finfo_ledger_derive_key, derive_key);
crate::sql_function!(ledger_canonical, pg_finfo_ledger_canonical, canonical);
crate::sql_function!(ledger_strict_json, pg_finfo_ledger_strict_json, strict_json);
crate::sql_function!(ledger_params_hash, pg_finfo_ledger_params_hash, params_hash);
