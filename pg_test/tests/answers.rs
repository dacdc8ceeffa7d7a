//! What an answer means: every row of the table, for the kinds of destination that it has as columns, through SQL and
//! HTTP. One command per cell, all at once; the journal's kinds tell the way that each went.

use pg_test::destination::TlsFront;
use pg_test::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::sync::{LazyLock, Mutex};

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    cluster.ledger("app");
    cluster
});

fn ledger() -> Ledger {
    Ledger::over(CLUSTER.connect("app"))
}

/// The columns. `Key` deduplicates on a header and cannot be asked, `Reference` enforces a unique reference and can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Key,
    Reference,
    LookupOnly,
    Neither,
}

const KINDS: [Kind; 4] = [Kind::Key, Kind::Reference, Kind::LookupOnly, Kind::Neither];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Key => "key",
            Kind::Reference => "reference",
            Kind::LookupOnly => "lookup_only",
            Kind::Neither => "neither",
        }
    }

    fn has_lookup(self) -> bool {
        matches!(self, Kind::Reference | Kind::LookupOnly)
    }

    fn profile(self) -> Profile {
        match self {
            Kind::Key => Profile::deduplicating("Idempotency-Key"),
            Kind::Reference => Profile::unique_reference("reference"),
            Kind::LookupOnly | Kind::Neither => Profile::Plain,
        }
    }

    fn config(self, erp: &Destination) -> Value {
        let mut config = json!({
            "transport": "http",
            "request": {"url": erp.url("/records"), "body": {"reference": "{{ destination_key }}"},
                        "timeout": "700ms", "connect_timeout": "300ms"},
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

/// What one command must come to.
struct Cell {
    key: String,
    kind: Kind,
    /// The kinds of its journal after the registration.
    path: &'static str,
    /// How a failed one failed, or why its last case was opened; empty where there was neither.
    word: &'static str,
}

/// The way of a command; how it failed, or why its case was opened.
type Way = (&'static str, &'static str);

const CONFIRMED: Way = ("claim confirm", "");
const AGAIN: Way = ("claim not_sent claim confirm", "");
const SAME_BYTES: Way = ("claim safe_repeat claim confirm", "");

fn looked_up(reason: &'static str) -> Way {
    ("claim uncertain lookup_found", reason)
}

fn case(reason: &'static str) -> Way {
    ("claim uncertain", reason)
}

fn failed(error: &'static str) -> Way {
    ("claim refused", error)
}

/// A fault of the answer: where the destination can be asked, the effect happened all the same.
fn fault(kind: Kind, behaviour: Behaviour) -> Behaviour {
    if kind.has_lookup() { behaviour.after_commit() } else { behaviour }
}

/// Four destinations in one ledger, and what each does with the next writes of a key.
struct Scene {
    name: &'static str,
    ledger: Ledger,
    erps: HashMap<&'static str, Destination>,
    scripts: HashMap<&'static str, HashMap<String, VecDeque<Behaviour>>>,
    cells: Vec<Cell>,
}

impl Scene {
    fn start(name: &'static str) -> Scene {
        let mut ledger = ledger();
        let mut erps = HashMap::new();
        for kind in KINDS {
            let (erp, type_name) = (Destination::start(kind.profile()), format!("{name}_{}", kind.name()));
            ledger.define_destination(&type_name, kind.config(&erp));
            let retry = json!({"base": "10ms", "cap": "20ms"});
            ledger.define_type(&type_name, json!({"destination": type_name, "retry": retry}));
            erps.insert(kind.name(), erp);
        }
        Scene { name, ledger, erps, scripts: HashMap::new(), cells: Vec::new() }
    }

    fn cell(&mut self, kind: Kind, row: &str, script: Vec<Behaviour>, (path, word): Way) {
        let key = format!("{} {row} {}", self.name, kind.name());
        self.scripts.entry(kind.name()).or_default().insert(key.clone(), script.into());
        self.cells.push(Cell { key, kind, path, word });
    }

    /// Registers all cells, waits until nothing moves any more, and compares.
    fn play(mut self) {
        for (name, scripts) in self.scripts.drain() {
            let scripts = Mutex::new(scripts);
            self.erps[name].otherwise_by(move |request, _| {
                let reference = request.json().unwrap_or_default()["reference"].as_str().unwrap_or_default().to_owned();
                let mut scripts = scripts.lock().expect("no thread died");
                scripts.get_mut(&reference).and_then(VecDeque::pop_front).unwrap_or_else(accept)
            });
        }
        for cell in &self.cells {
            self.ledger.register(&format!("{}_{}", self.name, cell.kind.name()), &cell.key, json!({}));
        }
        let ours = format!("command_type like '{}%'", self.name);
        self.ledger.wait_until(
            &format!(
                "select not exists (select from command_ledger.dispatch_queue where {ours}) and not exists \
                 (select from command_ledger.reconciliation_queue where {ours} and next_lookup_at is not null)"
            ),
            120,
        );
        let mut wrong = Vec::new();
        for cell in std::mem::take(&mut self.cells) {
            let (is, should) = (self.found(&cell), expected(&cell));
            if is != should {
                wrong.push(format!("{}:\n  is     {is:?}\n  should {should:?}", cell.key));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    fn found(&mut self, cell: &Cell) -> Found {
        let receipt = self.ledger.status(&cell.key);
        let path: String = self.ledger.one(
            "select string_agg(kind, ' ' order by seq) from command_ledger.timeline where idempotency_key = $1 and seq > 0",
            &[&cell.key],
        );
        let reasons: Vec<String> = self.ledger.column(
            "select reason::text from command_ledger.reconciliation_case where idempotency_key = $1 order by seq",
            &[&cell.key],
        );
        let erp = &self.erps[cell.kind.name()];
        let carries = |body: &Value| body["reference"] == json!(cell.key);
        let writes: Vec<_> = erp.writes().into_iter().filter(|w| carries(&w.json().unwrap_or_default())).collect();
        let lookups = erp.lookups().iter().filter(|l| l.query("reference").as_deref() == Some(&cell.key)).count();
        let same = |w: &[pg_test::destination::Received]| {
            w[0].body == w[1].body && w[0].header("idempotency-key") == w[1].header("idempotency-key")
        };
        let keyed = |w: &pg_test::destination::Received| w.header("idempotency-key") == Some(&cell.key);
        let made = erp.records().into_iter().find(|r| r.reference.as_deref() == Some(&cell.key)).map(|r| r.id);
        Found {
            path,
            status: receipt.status,
            error: receipt.error.unwrap_or_default(),
            maybe_sent: receipt.maybe_sent,
            record: match receipt.destination_record_id {
                None => "none".to_owned(),
                Some(id) if id == made.unwrap_or_else(|| "R-given".to_owned()) => "its own".to_owned(),
                Some(other) => other,
            },
            reason: reasons.last().cloned().unwrap_or_default(),
            writes: writes.len(),
            same_bytes_and_key: writes.windows(2).all(same)
                && writes.iter().all(|w| keyed(w) == (cell.kind == Kind::Key)),
            looked_up: lookups > 0,
            one_effect_at_most: erp.effects_for(&cell.key) <= 1,
            journal_whole: self.ledger.one("select command_ledger.verify_journal($1)", &[&cell.key]),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Found {
    path: String,
    status: String,
    error: String,
    maybe_sent: bool,
    record: String,
    reason: String,
    writes: usize,
    same_bytes_and_key: bool,
    looked_up: bool,
    one_effect_at_most: bool,
    journal_whole: bool,
}

fn expected(cell: &Cell) -> Found {
    let last = cell.path.rsplit(' ').next().unwrap_or_default();
    let (status, error) = match last {
        "confirm" | "lookup_found" => ("confirmed", ""),
        "refused" => ("failed", cell.word),
        _ => ("needs_reconciliation", "uncertain"),
    };
    Found {
        path: cell.path.to_owned(),
        status: status.to_owned(),
        error: error.to_owned(),
        maybe_sent: status == "needs_reconciliation",
        record: (if status == "confirmed" { "its own" } else { "none" }).to_owned(),
        reason: if last == "refused" { String::new() } else { cell.word.to_owned() },
        writes: cell.path.matches("claim").count(),
        same_bytes_and_key: true,
        looked_up: cell.path.contains("lookup"),
        one_effect_at_most: true,
        journal_whole: true,
    }
}

#[test]
fn every_first_answer_means_what_the_table_says_for_every_kind_of_destination() {
    let mut scene = Scene::start("first");
    for kind in KINDS {
        // 2xx that meets the rule; 429 and 425.
        scene.cell(kind, "200", vec![answer(200, json!({"id": "R-given"}))], CONFIRMED);
        scene.cell(kind, "201", vec![accept()], CONFIRMED);
        for status in [425, 429] {
            scene.cell(kind, &status.to_string(), vec![answer(status, json!({}))], AGAIN);
        }
        // 2xx that does not.
        let unproven = if kind.has_lookup() { looked_up("unproven_success") } else { case("unproven_success") };
        let login = "<html>Please log in</html>";
        for (row, behaviour) in [
            ("202", answer(202, json!({"id": "R-unproven"}))),
            ("204", answer_text(204, "text/plain", "")),
            ("error body", answer(200, json!({"id": "R-unproven", "error": "quota"}))),
            ("no record id", answer(201, json!({"ok": true}))),
            ("record id is no scalar", answer(201, json!({"id": {"n": 1}}))),
            ("html", answer_text(200, "text/html", login)),
            ("cut off", answer_raw(b"HTTP/1.1 201 Created\r\nContent-Length: 99\r\n\r\n{\"id\": \"R-")),
        ] {
            scene.cell(kind, row, vec![fault(kind, behaviour)], unproven);
        }
        // 409.
        let conflict = match kind {
            Kind::Neither => failed("permanent"),
            Kind::Key => case("key_conflict"),
            Kind::Reference | Kind::LookupOnly => looked_up("key_conflict"),
        };
        scene.cell(kind, "409", vec![fault(kind, answer(409, json!({})))], conflict);
        // Other refusals.
        for status in [400, 404, 410, 422, 451] {
            scene.cell(kind, &status.to_string(), vec![answer(status, json!({}))], failed("permanent"));
        }
        for status in [401, 403, 407] {
            scene.cell(kind, &status.to_string(), vec![answer(status, json!({}))], failed("permission"));
        }
    }
    scene.play();
}

#[test]
fn every_answer_that_may_hide_an_effect_is_repeated_looked_up_or_left_to_a_person() {
    let mut scene = Scene::start("hidden");
    for kind in KINDS {
        let way = |reason| match kind {
            Kind::Key => SAME_BYTES,
            // The effect is there: the repeat meets the destination's own refusal, and the lookup proves it.
            Kind::Reference => ("claim safe_repeat claim uncertain lookup_found", "key_conflict"),
            Kind::LookupOnly => looked_up(reason),
            Kind::Neither => case(reason),
        };
        for status in [301, 302, 307, 308, 304, 408, 500, 502, 503, 504, 599] {
            let behaviour = answer(status, json!({})).header("Location", "/elsewhere");
            scene.cell(kind, &status.to_string(), vec![fault(kind, behaviour)], way("uncertain_answer"));
        }
        for (row, behaviour) in [
            ("reset", reset()),
            ("closed", drop_before_commit()),
            ("not http", answer_raw(b"SSH-2.0-OpenSSH_9.2\r\n")),
            ("timeout", if kind.has_lookup() { hang_after_commit() } else { hang() }),
        ] {
            scene.cell(kind, row, vec![fault(kind, behaviour)], way("no_answer"));
        }
    }
    scene.play();
}

#[test]
fn a_refused_repeat_is_never_called_a_failure() {
    let mut scene = Scene::start("repeated");
    for kind in [Kind::Key, Kind::Reference, Kind::LookupOnly] {
        let (looks_up, asks_person) = match kind {
            Kind::Key => ("claim safe_repeat claim uncertain", "claim safe_repeat claim uncertain"),
            Kind::Reference => ("claim safe_repeat claim uncertain lookup_found", "claim safe_repeat claim uncertain"),
            _ => (
                "claim uncertain lookup_absent claim uncertain lookup_found",
                "claim uncertain lookup_absent claim uncertain",
            ),
        };
        for (status, path, reason) in [
            (409, looks_up, "key_conflict"),
            (400, looks_up, "refused_repeat"),
            (404, looks_up, "refused_repeat"),
            (422, looks_up, "refused_repeat"),
            (202, looks_up, "unproven_success"),
            (401, asks_person, "repeat_not_permitted"),
            (403, asks_person, "repeat_not_permitted"),
            (407, asks_person, "repeat_not_permitted"),
        ] {
            let script = vec![drop_before_commit(), fault(kind, answer(status, json!({})))];
            scene.cell(kind, &format!("{status} on repeat"), script, (path, reason));
        }
        // What had no effect leaves the flag, and the repeat goes on.
        let path = match kind {
            Kind::LookupOnly => "claim uncertain lookup_absent claim not_sent claim confirm",
            _ => "claim safe_repeat claim not_sent claim confirm",
        };
        let reason = if kind == Kind::LookupOnly { "no_answer" } else { "" };
        scene.cell(kind, "429 on repeat", vec![drop_before_commit(), answer(429, json!({}))], (path, reason));
    }
    scene.play();
}

#[test]
fn what_provably_never_left_is_tried_again_by_budget_for_every_kind_of_destination() {
    let mut ledger = ledger();
    let erp = Destination::start(Profile::Plain);
    let closed = Destination::start(Profile::Plain);
    closed.refuse_connections();
    let deaf = Deaf::start();
    let stranger = TlsFront::self_signed(&erp, &["127.0.0.1"]);
    let urls = [
        ("refused", closed.url("/records")),
        ("unresolved", "http://no-such-host.invalid/records".to_owned()),
        ("tls", stranger.url("127.0.0.1", "/records")),
        ("connect_timeout", deaf.url("/records")),
    ];
    for kind in KINDS {
        ledger.define_destination(kind.name(), kind.config(&erp));
        for (why, url) in &urls {
            let command_type = format!("{}_{why}", kind.name());
            let retry = json!({"base": "10ms", "cap": "20ms", "max_attempts": 2});
            let policy = json!({"destination": kind.name(), "request": {"url": url}, "retry": retry});
            ledger.define_type(&command_type, policy);
            ledger.register(&command_type, &command_type, json!({}));
        }
    }
    for kind in KINDS {
        for (why, _) in &urls {
            let key = format!("{}_{why}", kind.name());
            let receipt = ledger.wait_status(&key, "failed");
            assert_eq!(receipt.error.as_deref(), Some("budget_exhausted"), "{key}: {receipt:?}");
            assert_eq!((receipt.attempt, receipt.maybe_sent), (2, false), "{key}");
            let told: Vec<String> = ledger.column(
                "select kind || ' ' || transport from command_ledger.attempts where idempotency_key = $1 order by attempt",
                &[&key],
            );
            assert_eq!(told, [format!("not_sent {why}"), format!("budget_over {why}")]);
            let story: String = ledger.one("select command_ledger.explain($1)", &[&key]);
            assert!(story.contains(&format!("({})", why.replace('_', " "))), "{story}");
        }
    }
    assert_eq!(erp.requests().len(), 0);
    assert_eq!(erp.effects() + closed.effects(), 0);
}

#[test]
fn a_repeat_that_never_left_does_not_clear_what_the_first_may_have_done() {
    let mut ledger = ledger();
    let pay = Destination::start(Kind::Key.profile());
    let mut config = Kind::Key.config(&pay);
    config["request"]["timeout"] = json!("10s");
    ledger.define_destination("flag", config);
    let retry = json!({"base": "10ms", "cap": "20ms", "max_attempts": 3});
    ledger.define_type("flag", json!({"destination": "flag", "retry": retry}));
    pay.next(hang());
    ledger.register("flag", "P-1", json!({}));
    pay.wait_for_held(1);
    pay.refuse_connections();
    pay.release();
    let open = ledger.wait_status("P-1", "needs_reconciliation");
    assert!(open.maybe_sent);
    assert_eq!(open.attempt, 3);
    let reason: String =
        ledger.one("select reason::text from command_ledger.reconciliation_queue where idempotency_key = 'P-1'", &[]);
    assert_eq!(reason, "budget_exhausted");
    let told: Vec<String> = ledger
        .column("select transport from command_ledger.attempts where idempotency_key = 'P-1' order by attempt", &[]);
    assert_eq!(told, ["reset", "refused", "refused"]);
    assert_eq!(pay.writes().len(), 1);
}

#[test]
fn after_a_person_found_nothing_a_refusal_is_a_failure_again() {
    let mut ledger = ledger();
    let mail = Destination::start(Profile::Plain);
    ledger.define_destination("person", Kind::Neither.config(&mail));
    ledger.define_type("person", json!({"destination": "person"}));
    for (key, status, error) in [("M-1", 404, "permanent"), ("M-2", 409, "permanent"), ("M-3", 403, "permission")] {
        mail.next(drop_before_commit().then(answer(status, json!({}))));
        ledger.register("person", key, json!({}));
        assert!(ledger.wait_status(key, "needs_reconciliation").maybe_sent);
        ledger.call("reconcile", json!({"idempotency_key": key, "finding": "not_found", "expected_attempt": 1}));
        let receipt = ledger.wait_status(key, "failed");
        assert_eq!((receipt.error.as_deref(), receipt.maybe_sent, receipt.attempt), (Some(error), false, 2), "{key}");
    }
    assert_eq!((mail.writes().len(), mail.effects()), (6, 0));
}
