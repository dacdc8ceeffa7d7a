//! The four kinds of destination that the table of answers tells apart, each with short times.

use crate::destination::{Destination, Profile};
use serde_json::{Value, json};

/// The columns of the table of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Deduplicates on a header; cannot be asked.
    Key,
    /// Enforces a unique reference; can be asked.
    Reference,
    /// Can be asked.
    LookupOnly,
    /// None of it.
    Neither,
}

/// All of them.
pub const KINDS: [Kind; 4] = [Kind::Key, Kind::Reference, Kind::LookupOnly, Kind::Neither];

impl Kind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Key => "key",
            Kind::Reference => "reference",
            Kind::LookupOnly => "lookup_only",
            Kind::Neither => "neither",
        }
    }

    /// Whether it can be asked.
    pub fn has_lookup(self) -> bool {
        matches!(self, Kind::Reference | Kind::LookupOnly)
    }

    /// What the destination does with a repeat.
    pub fn profile(self) -> Profile {
        match self {
            Kind::Key => Profile::deduplicating("Idempotency-Key"),
            Kind::Reference => Profile::unique_reference("reference"),
            Kind::LookupOnly | Kind::Neither => Profile::Plain,
        }
    }

    /// The destination's document; its body is the reference alone.
    pub fn config(self, erp: &Destination) -> Value {
        let mut config = json!({
            "transport": "http",
            "request": {"url": erp.url("/records"), "body": {"reference": "{{ destination_key }}"},
                        "timeout": "2s", "connect_timeout": "2s"},
            "success": {"statuses": [200, 201], "record_id": "$.id", "when": "!exists($.error)"},
            "limits": {"in_flight": 64, "retries_in_flight": 64},
        });
        match self {
            Kind::Key => config["idempotency"] = json!({"mode": "key", "window": "24h"}),
            Kind::Reference => config["idempotency"] = json!({"mode": "reference", "window": "24h"}),
            Kind::LookupOnly | Kind::Neither => {}
        }
        if self.has_lookup() {
            config["lookup"] = json!({
                "url": format!("{}?reference={{{{ destination_key }}}}", erp.url("/records")),
                "records": "$[*]", "match": "$.reference", "record_id": "$.id",
                "settle_delay": "200ms", "agreeing": 2, "interval": "100ms",
            });
        }
        config
    }
}
