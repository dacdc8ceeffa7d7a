//! Config documents: parsing never panics, refuses every field that it does not know, says why and where, and means the
//! same whatever the order of the members. An input is a destination, or a command type (what has `"destination"`).

use super::driver::{Target, Verdict, skeleton};
use command_ledger_domain::config::{CommandTypePolicy, DestinationConfig};
use command_ledger_domain::error::{Code, LedgerError};
use command_ledger_domain::json::Json;

const TARGET: Target = Target {
    name: "config",
    words: &[
        "\"transport\":\"http\"",
        "\"pull\"",
        "\"request\":{",
        "\"url\":\"https://x/\"",
        "\"timeout\":",
        "\"10s\"",
        "\"24h\"",
        "\"unlimited\"",
        "\"idempotency\":{\"mode\":\"key\"}",
        "\"lookup\":{",
        "\"rules\":[",
        "\"status\":400",
        "{{ params.a }}",
        "\"limits\":{\"in_flight\":0}",
        "\"destination\":\"erp\"",
        "\"approval\":{}",
        "\"retry\":{",
        "null",
        "-1",
        "99999999999",
    ],
    inputs: 12_000,
};

/// What is known of a document that was taken.
type Taken = Result<String, LedgerError>;

fn parse(document: &Json<'_>) -> Taken {
    if document.get("destination").is_some() {
        return CommandTypePolicy::parse(document).map(|policy| format!("{:?}", policy.jsonpaths().len()));
    }
    DestinationConfig::parse(document).map(|config| {
        let digest = config.alone().map(|effective| effective.request_config_digest());
        format!("{digest:?} {:?} {:?}", config.jsonpaths(), config.idempotency.check_key("k").is_ok())
    })
}

fn property(input: &[u8], parse: fn(&Json<'_>) -> Taken) -> Verdict {
    let Ok(text) = std::str::from_utf8(input) else { return Ok("not UTF-8".to_owned()) };
    let Ok(document) = Json::parse(text) else { return Ok("not JSON".to_owned()) };
    let meaning = match parse(&document) {
        Ok(meaning) => meaning,
        Err(error) if !matches!(error.code, Code::InvalidDefinition | Code::JsonOutOfBounds) => {
            return Err(format!("refused with {:?}: {error}", error.code));
        }
        Err(error) if error.message.is_empty() || error.detail.is_none() && error.hint.is_none() => {
            return Err(format!("refused without a reason: {error:?}"));
        }
        Err(error) => return Ok(skeleton(&error.to_string())),
    };
    let Json::Object(members) = &document else { return Err("taken, and no object".to_owned()) };
    let reversed = Json::Object(members.iter().rev().cloned().collect());
    if parse(&reversed).as_ref() != Ok(&meaning) {
        return Err("it depends on the order of the members".to_owned());
    }
    let mut more = members.clone();
    more.push(("no_such_field".into(), Json::Null));
    match parse(&Json::Object(more)) {
        Err(error) if error.code == Code::InvalidDefinition && format!("{error:?}").contains("no_such_field") => {}
        other => return Err(format!("an unknown field was met with {other:?}")),
    }
    let parts = ["idempotency", "lookup", "rules", "limits", "breaker", "approval", "retry", "success", "schema"];
    Ok(format!("taken {:?}", parts.map(|part| document.get(part).is_some())))
}

#[test]
fn config_documents_are_taken_or_refused_with_a_reason() {
    TARGET.holds(|input| property(input, parse));
}

#[test]
fn a_parser_that_overlooks_fields_is_found_out() {
    fn lenient(document: &Json<'_>) -> Taken {
        let Json::Object(members) = document else { return parse(document) };
        let known = members.iter().filter(|(name, _)| !name.starts_with("no_")).cloned();
        parse(&Json::Object(known.collect()))
    }
    TARGET.is_found_out("an unknown field", |input| property(input, lenient));
}
