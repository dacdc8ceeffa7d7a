//! The destinations of a run: what each does with a repeated key, and how the ledger is told of it.

use serde_json::{Value, json};

/// The longest that the relay waits for an answer.
pub const TIMEOUT_MS: u64 = 700;
/// An effect comes at most this long after its request was read.
pub const LATEST_EFFECT_MS: u64 = 1_100;
/// A new record is found by searches after this time.
pub const SEARCH_LAG_MS: u64 = 300;
/// What the operator states as settle delay: more than the two above, and a second for clocks that step.
const SETTLE_DELAY: &str = "3s";
/// Attempts of a command.
pub const MAX_ATTEMPTS: usize = 4;
/// Requests at once.
pub const IN_FLIGHT: usize = 8;

const MINUTE_US: i64 = 60_000_000;
const HOUR_US: i64 = 60 * MINUTE_US;

/// What a destination does with a repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Profile {
    /// Keeps the first answer for a day, errors as well.
    Pins,
    /// Executes again after half an hour; keeps no errors.
    Redrives,
    /// Answers with what the operation is at by now; for ever.
    Latest,
    /// Keeps the first answer for half an hour, whatever the body of the repeat says.
    IgnoresBody,
    /// Keeps answers of the 200s only, for a day.
    OnlySuccess,
    /// Deduplicates for a few seconds, and does not say so.
    WindowUnknown,
    /// Refuses a second record with the same reference.
    Reference,
    /// Makes a record each time; can be searched.
    Searchable,
    /// The same, with a record that a search must find before its silence counts.
    Sentinel,
    /// Makes a record each time; cannot be asked.
    Bare,
    /// Workers call it; makes a record each time.
    Desk,
    /// Workers call it; refuses a second record with the same reference.
    Shelf,
}

impl Profile {
    /// All of them.
    pub const ALL: [Profile; 12] = [
        Profile::Pins,
        Profile::Redrives,
        Profile::Latest,
        Profile::IgnoresBody,
        Profile::OnlySuccess,
        Profile::WindowUnknown,
        Profile::Reference,
        Profile::Searchable,
        Profile::Sentinel,
        Profile::Bare,
        Profile::Desk,
        Profile::Shelf,
    ];

    /// Its name, which is its destination's and its plain command type's.
    pub const fn name(self) -> &'static str {
        match self {
            Profile::Pins => "pins",
            Profile::Redrives => "redrives",
            Profile::Latest => "latest",
            Profile::IgnoresBody => "ignores_body",
            Profile::OnlySuccess => "only_success",
            Profile::WindowUnknown => "window_unknown",
            Profile::Reference => "reference",
            Profile::Searchable => "searchable",
            Profile::Sentinel => "sentinel",
            Profile::Bare => "bare",
            Profile::Desk => "desk",
            Profile::Shelf => "shelf",
        }
    }

    /// How long it really knows a key, in microseconds; `None`: for ever, or not at all.
    pub const fn memory_us(self) -> Option<i64> {
        match self {
            Profile::Pins | Profile::OnlySuccess => Some(24 * HOUR_US),
            Profile::Redrives | Profile::IgnoresBody => Some(30 * MINUTE_US),
            Profile::WindowUnknown => Some(5_000_000),
            _ => None,
        }
    }

    /// It keeps answers by key.
    pub const fn remembers(self) -> bool {
        matches!(
            self,
            Profile::Pins
                | Profile::Redrives
                | Profile::Latest
                | Profile::IgnoresBody
                | Profile::OnlySuccess
                | Profile::WindowUnknown
        )
    }

    /// It refuses a second record of a reference.
    pub const fn is_unique(self) -> bool {
        matches!(self, Profile::Reference | Profile::Shelf)
    }

    /// The ledger may repeat to it without a look.
    pub const fn deduplicates(self) -> bool {
        self.remembers() && !matches!(self, Profile::WindowUnknown) || self.is_unique()
    }

    /// Pull workers do its work.
    pub const fn is_pulled(self) -> bool {
        matches!(self, Profile::Desk | Profile::Shelf)
    }

    /// Its search has a sentinel.
    pub const fn has_sentinel(self) -> bool {
        matches!(self, Profile::Sentinel)
    }

    fn has_lookup(self) -> bool {
        matches!(
            self,
            Profile::Redrives
                | Profile::Latest
                | Profile::OnlySuccess
                | Profile::Reference
                | Profile::Searchable
                | Profile::Sentinel
        )
    }

    /// The document of its destination.
    pub fn destination(self, url: &str) -> Value {
        if self.is_pulled() {
            let mode = if self.is_unique() { json!({"mode": "reference", "window": "unlimited"}) } else { json!({}) };
            return json!({"transport": "pull", "idempotency": mode});
        }
        let mut config = json!({
            "transport": "http",
            "request": {"url": url, "body": {"reference": "{{ destination_key }}", "params": "{{ params }}"},
                        "timeout": format!("{TIMEOUT_MS}ms"), "connect_timeout": "500ms"},
            "success": {"statuses": [200, 201], "record_id": "$.id", "when": "!exists($.error)"},
            "limits": {"in_flight": IN_FLIGHT, "retries_in_flight": IN_FLIGHT - 2},
        });
        let key = |window: &str, margin: &str| json!({"mode": "key", "window": window, "margin": margin});
        match self {
            Profile::Pins => {
                config["idempotency"] = key("24h", "5m");
                let busy = json!({"status": 409, "when": "$.code == \"IN_PROGRESS\"", "outcome": "transient"});
                config["rules"] = json!([busy]);
            }
            Profile::OnlySuccess => config["idempotency"] = key("24h", "5m"),
            Profile::Redrives | Profile::IgnoresBody => config["idempotency"] = key("30m", "2m"),
            Profile::Latest => config["idempotency"] = key("unlimited", "5m"),
            Profile::WindowUnknown => config["idempotency"] = json!({"mode": "key"}),
            Profile::Reference => config["idempotency"] = json!({"mode": "reference", "window": "unlimited"}),
            _ => {}
        }
        if self.has_lookup() {
            config["lookup"] = json!({
                "url": format!("{url}?reference={{{{ destination_key }}}}"),
                "records": "$[*]", "match": "$.reference", "record_id": "$.id",
                "settle_delay": SETTLE_DELAY, "agreeing": 2, "interval": "400ms", "max_lookups": 20});
        }
        if self.has_sentinel() {
            config["lookup"]["sentinel"] = json!({"url": format!("{url}?reference=SENTINEL"), "equals": "SENTINEL"});
        }
        config
    }
}

/// A command type of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Where it goes.
    pub profile: Profile,
    /// What is special.
    pub form: Form,
}

/// What is special about a command type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Nothing.
    Plain,
    /// It needs an approval.
    Gated,
    /// It has a deadline.
    Timed,
    /// A person decides about every second send.
    Single,
}

impl Kind {
    /// All of them.
    pub fn all() -> Vec<Kind> {
        let plain = Profile::ALL.into_iter().map(|profile| Kind { profile, form: Form::Plain });
        let gated = [Profile::Pins, Profile::Reference, Profile::Searchable, Profile::Bare, Profile::Desk];
        let gated = gated.into_iter().map(|profile| Kind { profile, form: Form::Gated });
        let timed = [Profile::OnlySuccess, Profile::Sentinel].map(|profile| Kind { profile, form: Form::Timed });
        let single = [Profile::Searchable, Profile::Redrives].map(|profile| Kind { profile, form: Form::Single });
        plain.chain(gated).chain(timed).chain(single).collect()
    }

    /// Its name.
    pub fn name(self) -> String {
        let name = self.profile.name();
        match self.form {
            Form::Plain => name.to_owned(),
            Form::Gated => format!("{name}_gated"),
            Form::Timed => format!("{name}_timed"),
            Form::Single => format!("{name}_single"),
        }
    }

    /// Its policy.
    pub fn policy(self) -> Value {
        let mut policy = json!({
            "destination": self.profile.name(),
            "retry": {"base": "50ms", "cap": "400ms", "max_attempts": MAX_ATTEMPTS},
        });
        match self.form {
            Form::Plain => {}
            Form::Gated => policy["approval"] = json!({"ttl": "1h"}),
            Form::Timed => policy["retry"]["deadline"] = json!("15s"),
            Form::Single => policy["retry"]["auto"] = json!(false),
        }
        policy
    }
}
