//! What an answer means: every row of the table, for the kinds of destination that it has as columns, through SQL and
//! HTTP. One command per cell, all at once; the journal's kinds tell the way that each went.

use pg_test::kind::{KINDS, Kind};
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
    fn play(&mut self) {
        for (name, scripts) in std::mem::take(&mut self.scripts) {
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
    for (row, word) in [("reset", "reset"), ("closed", "reset"), ("not http", "unreadable"), ("timeout", "timeout")] {
        let told: Vec<String> = scene.ledger.column(
            "select distinct transport from command_ledger.attempts where attempt = 1 and idempotency_key like $1",
            &[&format!("hidden {row} %")],
        );
        assert_eq!(told, [word], "{row}");
    }
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
fn an_answer_that_comes_after_lease_and_deadline_still_counts_while_its_relay_waits_for_it() {
    let mut ledger = ledger();
    for kind in KINDS {
        let (name, erp) = (format!("late_{}", kind.name()), Destination::start(kind.profile()));
        let mut config = kind.config(&erp);
        config["request"]["timeout"] = json!("60s");
        ledger.define_destination(&name, config);
        ledger.define_type(&name, json!({"destination": name, "retry": {"base": "10ms", "cap": "20ms"}}));
        // The first answer comes late, the second not at all.
        erp.next(hang_after_commit().then(hang()));
        let (answered, lost) = (format!("{name} answered"), format!("{name} lost"));
        for (n, key) in [&answered, &lost].into_iter().enumerate() {
            let deadline: String = ledger.one("select (clock_timestamp() + interval '1500 ms')::text", &[]);
            ledger.register_with(&name, key, json!({}), json!({"deadline": deadline}));
            erp.wait_for_held(n + 1);
        }
        let over = "select bool_and(clock_timestamp() > deadline and clock_timestamp() > lease_expires_at) \
                    from command_ledger.dispatch_queue where command_type = ";
        ledger.wait_until(&format!("{over} '{name}'"), 60);
        erp.release();
        let receipt = ledger.wait_status(&answered, "confirmed");
        assert_eq!((receipt.attempt, receipt.maybe_sent), (1, false), "{name}");
        let receipt = ledger.wait_status(&lost, "needs_reconciliation");
        assert!(receipt.maybe_sent, "{name}");
        assert_eq!(erp.writes().len(), 2, "{name}: nothing is sent after the deadline");
    }
}
