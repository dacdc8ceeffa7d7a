//! `define_command_type(name, policy)`: the contract of one operation.

use std::sync::Arc;

use super::destination::jsonpaths_of;
use super::reader::{Field, Read};
use super::request::{LookupPatch, RequestPatch, Rule, SuccessPatch, rules};
use super::values::{Zero, duration, jsonpath, pointer};
use crate::error::LedgerError;
use crate::json::Json;
use crate::policy::LookalikeAction;
use crate::schema::Validator;

/// `approval`; a type without it needs none. Defaults: one approver, 24h, not the proposer, in every case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalRule {
    /// jsonpath predicate over the params (strict); `None` = always. Anything but a clean false requires approval.
    pub when: Option<String>,
    /// How many different people.
    pub approvers: i64,
    /// How long an approval is valid, in milliseconds.
    pub ttl_ms: i64,
    /// Whether the proposer is excluded.
    pub separate_proposer: bool,
}

/// `retry`, with its defaults: auto, 5 attempts, base 1s, cap 5m, no deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryRule {
    /// Whether a second send may happen without a person.
    pub auto: bool,
    /// Attempts at most, released ones not counted.
    pub max_attempts: i64,
    /// First backoff, in milliseconds.
    pub base_ms: i64,
    /// Longest backoff, in milliseconds.
    pub cap_ms: i64,
    /// From the last approval (or registration), in milliseconds; `None` = none.
    pub deadline_ms: Option<i64>,
}

impl Default for RetryRule {
    fn default() -> Self {
        Self { auto: true, max_attempts: 5, base_ms: 1_000, cap_ms: 300_000, deadline_ms: None }
    }
}

/// `retention`, counted from the final state, in milliseconds; `None` = kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Params and results.
    pub payload_ms: Option<i64>,
    /// The key itself; never shorter than the payload's.
    pub key_ms: Option<i64>,
}

/// `lookalike`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookalike {
    /// How far back to look, in milliseconds.
    pub window_ms: i64,
    /// What to do (default flag).
    pub action: LookalikeAction,
}

/// What a failed command does to those behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneOnFailure {
    /// They wait (the default).
    Block,
    /// They go on.
    Skip,
}

/// A command type's policy document.
#[derive(Clone, Debug)]
pub struct CommandTypePolicy {
    /// Name of the destination.
    pub destination: String,
    /// Compiled schema of the params.
    pub schema: Option<Arc<Validator>>,
    /// JSON pointers to params that do not decide what happens.
    pub immaterial: Vec<String>,
    /// jsonpath predicate over the params (strict). Anything but a clean false denies.
    pub deny_when: Option<String>,
    /// Who must approve; `None` = nobody.
    pub approval: Option<ApprovalRule>,
    /// How often and how long to try.
    pub retry: RetryRule,
    /// How long to keep.
    pub retention: Retention,
    /// What about commands that look alike.
    pub lookalike: Option<Lookalike>,
    /// What a failure does to the lane.
    pub lane_on_failure: LaneOnFailure,
    /// Overrides of the destination's request.
    pub request: Option<RequestPatch>,
    /// Overrides of the destination's success rule.
    pub success: SuccessPatch,
    /// Overrides of the destination's lookup.
    pub lookup: Option<LookupPatch>,
    /// Rules that come before the destination's.
    pub rules: Vec<Rule>,
}

impl CommandTypePolicy {
    /// Reads and checks a policy document. Whether it fits its destination is checked by [`super::effective`].
    ///
    /// # Errors
    /// `CL012`; DETAIL is the JSON path, HINT what is allowed.
    pub fn parse(policy: &Json<'_>) -> Result<Self, LedgerError> {
        let root = Field::root(policy);
        let object = root.object(&[
            "destination",
            "schema",
            "immaterial",
            "deny_when",
            "approval",
            "retry",
            "retention",
            "lookalike",
            "lane_on_failure",
            "request",
            "success",
            "lookup",
            "rules",
        ])?;
        let destination = object.required("destination")?;
        let name = destination.string()?;
        if name.is_empty() || name.len() > 63 || name.chars().any(char::is_control) {
            return Err(destination
                .invalid("not the name of a destination")
                .hint("1 to 63 bytes, no control characters"));
        }
        let schema = |field: &Field<'_>| Validator::compile(field.json).map(Arc::new);
        let immaterial = |field: &Field<'_>| field.array(256)?.iter().map(pointer).collect::<Read<Vec<_>>>();
        let lane = |field: &Field<'_>| field.word(&[("block", LaneOnFailure::Block), ("skip", LaneOnFailure::Skip)]);
        Ok(Self {
            destination: name.to_owned(),
            schema: object.read("schema", schema)?,
            immaterial: object.read("immaterial", immaterial)?.unwrap_or_default(),
            deny_when: object.read("deny_when", jsonpath)?,
            approval: object.read("approval", approval)?,
            retry: object.read("retry", retry)?.unwrap_or_default(),
            retention: object.read("retention", retention)?.unwrap_or_default(),
            lookalike: object.read("lookalike", lookalike)?,
            lane_on_failure: object.read("lane_on_failure", lane)?.unwrap_or(LaneOnFailure::Block),
            request: object.read("request", RequestPatch::parse)?,
            success: object.read("success", SuccessPatch::parse)?.unwrap_or_default(),
            lookup: object.read("lookup", LookupPatch::parse)?,
            rules: object.read("rules", rules)?.unwrap_or_default(),
        })
    }

    /// Every jsonpath of the document with the JSON path of its field, for the server to compile.
    pub fn jsonpaths(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        found.extend(self.deny_when.clone().map(|text| ("$.deny_when".into(), text)));
        let approval_when = self.approval.as_ref().and_then(|approval| approval.when.clone());
        found.extend(approval_when.map(|text| ("$.approval.when".into(), text)));
        found.extend(jsonpaths_of(&self.success, self.lookup.as_ref(), &self.rules));
        found
    }
}

fn approval(field: &Field<'_>) -> Read<ApprovalRule> {
    let object = field.object(&["when", "approvers", "ttl", "separate_proposer"])?;
    Ok(ApprovalRule {
        when: object.read("when", jsonpath)?,
        approvers: object.read("approvers", |f| f.int(1, 100))?.unwrap_or(1),
        ttl_ms: object.read("ttl", |f| duration(f, Zero::Refused))?.unwrap_or(86_400_000),
        separate_proposer: object.read("separate_proposer", Field::bool)?.unwrap_or(true),
    })
}

fn retry(field: &Field<'_>) -> Read<RetryRule> {
    let object = field.object(&["auto", "max_attempts", "base", "cap", "deadline"])?;
    let defaults = RetryRule::default();
    let base = object.read("base", |f| duration(f, Zero::Refused))?;
    let cap = object.read("cap", |f| duration(f, Zero::Refused))?;
    if let (Some(base_ms), Some(cap_ms), Some(field)) = (base, cap, object.get("cap"))
        && cap_ms < base_ms
    {
        return Err(field.invalid("the longest backoff is shorter than the first").hint("cap is at least base"));
    }
    // One of the two given alone moves the other's default, so that base <= cap always holds.
    let base_ms = base.unwrap_or(defaults.base_ms.min(cap.unwrap_or(i64::MAX)));
    Ok(RetryRule {
        auto: object.read("auto", Field::bool)?.unwrap_or(defaults.auto),
        max_attempts: object.read("max_attempts", |f| f.int(1, 1_000))?.unwrap_or(defaults.max_attempts),
        base_ms,
        cap_ms: cap.unwrap_or(defaults.cap_ms.max(base_ms)),
        deadline_ms: object.read("deadline", |f| duration(f, Zero::Refused))?,
    })
}

fn retention(field: &Field<'_>) -> Read<Retention> {
    let object = field.object(&["payload", "key"])?;
    let found = Retention {
        payload_ms: object.read("payload", |f| duration(f, Zero::Refused))?,
        key_ms: object.read("key", |f| duration(f, Zero::Refused))?,
    };
    if let (Some(payload_ms), Some(key_ms), Some(field)) = (found.payload_ms, found.key_ms, object.get("key"))
        && key_ms < payload_ms
    {
        return Err(field.invalid("the key would go before its payload").hint("key is at least payload"));
    }
    Ok(found)
}

fn lookalike(field: &Field<'_>) -> Read<Lookalike> {
    let object = field.object(&["window", "action"])?;
    let action = |f: &Field<'_>| f.word(&[("flag", LookalikeAction::Flag), ("block", LookalikeAction::Block)]);
    Ok(Lookalike {
        window_ms: duration(&object.required("window")?, Zero::Refused)?,
        action: object.read("action", action)?.unwrap_or(LookalikeAction::Flag),
    })
}
