//! A dry run of registering: what policy says, what would be sent. Writes nothing, takes no lock and no transaction id.

use super::access::{Capability, as_owner, tenant_of};
use super::catalog::{self, Operation};
use super::lookalike;
use super::register::{judge, named};
use crate::pg::call::Call;
use crate::pg::datum;
use crate::pg::jsonb;
use crate::pg::spi::Connection;
use command_ledger_domain::config::{Auth, User};
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::hash::{hex, params_hash};
use command_ledger_domain::json::Json;
use command_ledger_domain::key;
use command_ledger_domain::policy;
use command_ledger_domain::request::{Intent, RenderedRequest, render};
use pgrx::pg_sys::Datum;

/// Stands where the caller's key would stand.
const SAMPLE_KEY: &str = "(key)";

fn text(value: impl Into<String>) -> Json<'static> {
    Json::String(value.into().into())
}

fn object<const N: usize>(members: [(&'static str, Json<'static>); N]) -> Json<'static> {
    Json::Object(members.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

fn or_null(value: Option<String>) -> Json<'static> {
    value.map_or(Json::Null, text)
}

/// An error that registering would raise, as a value.
fn reported(error: LedgerError) -> Json<'static> {
    object([
        ("sqlstate", text(error.code.sqlstate())),
        ("message", text(error.message)),
        ("detail", or_null(error.detail)),
        ("hint", or_null(error.hint)),
    ])
}

/// Whether an error is about the params; any other is raised.
fn about_params(error: &LedgerError) -> bool {
    matches!(error.code, Code::InvalidParams | Code::Denied | Code::JsonOutOfBounds | Code::LookalikeBlocked)
}

/// Credentials by the names of their secrets.
fn auth_json(auth: &Auth) -> Json<'static> {
    let secret = |name: &str| object([("secret", text(name))]);
    match auth {
        Auth::Bearer { secret: name } => object([("bearer", secret(name))]),
        Auth::Basic { user, password_secret } => {
            let user = match user {
                User::Plain(user) => text(user.clone()),
                User::Secret(name) => secret(name),
            };
            object([("basic", object([("user", user), ("password", secret(password_secret))]))])
        }
        Auth::Header { name, secret: value } => {
            object([("header", object([("name", text(name.clone())), ("value", secret(value))]))])
        }
    }
}

fn request_json(request: RenderedRequest) -> Json<'static> {
    let mut headers: Vec<(std::borrow::Cow<'static, str>, Json<'static>)> =
        request.headers.into_iter().map(|(name, value)| (name.into(), text(value))).collect();
    headers.extend(request.content_type.map(|value| ("Content-Type".into(), text(value))));
    let body = String::from_utf8(request.body).map_or(Json::Null, |body| match Json::parse(&body) {
        _ if body.is_empty() => Json::Null,
        Ok(tree) => tree.into_owned(),
        Err(_) => text(body),
    });
    object([
        ("method", text(request.method)),
        ("url", text(request.url)),
        ("headers", Json::Object(headers)),
        ("auth", request.auth.as_ref().map_or(Json::Null, auth_json)),
        ("body", body),
    ])
}

/// The request that would be sent, with the sample key; an error of the rendering makes a real command fail.
fn rendered(operation: &Operation, tenant: &str, params: &Json) -> Result<Json<'static>, LedgerError> {
    if operation.effective.request.is_none() {
        return Ok(Json::Null);
    }
    let (id, destination_key) =
        (key::uuid_text(&key::command_id(tenant, SAMPLE_KEY)), key::destination_key(tenant, SAMPLE_KEY));
    let intent = Intent {
        params,
        destination_key: &destination_key,
        command_id: &id,
        tenant,
        command_type: &operation.command_type,
    };
    render(&operation.effective, &intent).map(request_json).map_err(|error| {
        LedgerError::new(Code::InvalidParams, "the request cannot be built from these params")
            .detail(error.to_string())
            .hint("A registered command with these params would fail (rejected) before any send.")
    })
}

/// What there is to say about the params.
fn report(
    connection: &Connection,
    operation: &Operation,
    tenant: &str,
    params: &crate::pg::jsonb::JsonbArg,
    distinct_from: Option<&str>,
) -> Result<Json<'static>, LedgerError> {
    let tree = params.tree()?;
    let mut errors = Vec::new();
    let mut note = |error: LedgerError| {
        if !about_params(&error) {
            return Err(error);
        }
        errors.push(error);
        Ok(())
    };
    let (mut request, mut alike) = (Json::Null, Vec::new());
    let (hash, approvals) = match judge(operation, tenant, SAMPLE_KEY, params, &tree) {
        Ok(verdict) => (Some(verdict.params_hash), Some(verdict.approvals_required)),
        Err(error) => {
            note(error)?;
            // Where only policy objects, the content still has its identity.
            (params_hash(tenant, &operation.command_type, &tree, &operation.immaterial).ok(), None)
        }
    };
    if let Some(hash) = &hash {
        // No key is left out: the sample key is nobody's.
        alike = lookalike::commands_like(connection, operation, "", hash, datum::now_us())?;
    }
    if let Some(rule) = &operation.policy.lookalike {
        let others: Vec<&str> = alike.iter().map(String::as_str).collect();
        let named: Vec<&str> = distinct_from.into_iter().collect();
        if let policy::Lookalike::Block(keys) = policy::lookalike(rule.action, &others, &named) {
            note(lookalike::blocked(&keys))?;
        }
    }
    if approvals.is_some() {
        match rendered(operation, tenant, &tree) {
            Ok(shown) => request = shown,
            Err(error) => note(error)?,
        }
    }
    Ok(object([
        ("valid", Json::Bool(errors.is_empty())),
        ("errors", Json::Array(errors.into_iter().map(reported).collect())),
        ("command_type", text(operation.command_type.clone())),
        ("type_version", Json::Number(operation.version.to_string().into())),
        ("destination", text(operation.destination.clone())),
        ("params_hash", hash.map_or(Json::Null, |h| text(hex(&h)))),
        ("approvals_required", approvals.map_or(Json::Null, |n| Json::Number(n.to_string().into()))),
        ("lookalikes", Json::Array(alike.into_iter().map(text).collect())),
        ("request", request),
    ]))
}

/// `validate(command_type, params, tenant, distinct_from)`
///
/// There is no intent hash in the answer: it holds the command's id, and so the key, which is not known here.
pub fn validate(call: &Call) -> Result<Option<Datum>, LedgerError> {
    let command_type = call.required_text(0, "command_type")?;
    let params = call.required_jsonb(1, "params")?;
    let tenant = tenant_of(call, 2)?;
    let distinct_from = named(call, 3, "distinct_from")?;
    let report = as_owner(call, |caller, connection| {
        caller.require(connection, Capability::Propose, tenant, Some(command_type))?;
        let operation = catalog::newest(connection, command_type)?;
        report(connection, &operation, tenant, &params, distinct_from)
    })?;
    Ok(Some(jsonb::to_datum(&report)))
}

crate::sql_function!(ledger_validate, pg_finfo_ledger_validate, validate);
