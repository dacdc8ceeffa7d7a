//! What the tests of function destinations share: a ledger, a role that owns the handlers, and a table of their effects.

#![allow(dead_code, reason = "each test file uses a part of it")]

use pg_test::desk;
use pg_test::prelude::*;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The functions worker of this database.
pub const FUNCTIONS: &str =
    "SELECT pid FROM pg_stat_activity WHERE backend_type = 'command_ledger functions' AND datname = current_database()";

/// A database with a ledger.
pub struct Bench {
    pub ledger: Ledger,
}

/// One cluster for all tests of a file that crash nothing.
pub fn shared() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| Cluster::builder().preload(true).fsync_off().setting("max_worker_processes", "40").start())
}

impl Bench {
    /// In a database of its own of the shared cluster.
    pub fn start() -> Bench {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Bench::in_database(shared(), &format!("app{}", NEXT.fetch_add(1, Relaxed)))
    }

    /// In a database of this cluster, made if it is missing.
    pub fn in_database(cluster: &Cluster, database: &str) -> Bench {
        let mut ledger = cluster.ledger(database);
        ledger.exec(
            "DO $$ BEGIN CREATE ROLE clerk LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN END $$;
             CREATE SCHEMA app AUTHORIZATION clerk;
             CREATE TABLE effect (key text, attempt int, what text);
             CREATE TABLE parent (id int PRIMARY KEY);
             CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
             GRANT ALL ON effect, parent, child TO clerk;
             GRANT USAGE ON SCHEMA command_ledger TO clerk",
        );
        Bench { ledger }
    }

    /// (Re)defines a handler that belongs to `clerk`; `d` is its argument.
    pub fn handler(&mut self, name: &str, body: &str) {
        let body = body.replace("INTO effect", "INTO public.effect").replace("INTO child", "INTO public.child");
        self.ledger.exec(&format!(
            "CREATE OR REPLACE FUNCTION app.{name}(d command_ledger.dispatch) RETURNS jsonb LANGUAGE plpgsql AS \
             $handler$ BEGIN {body} END $handler$; ALTER FUNCTION app.{name} OWNER TO clerk"
        ));
    }

    /// A destination that calls the handler of the same name, and a command type of the same name: two attempts, soon.
    pub fn destination(&mut self, name: &str, rest: Value) {
        self.destination_with(name, rest, json!({}));
    }

    /// The same with members for the command type.
    pub fn destination_with(&mut self, name: &str, rest: Value, policy: Value) {
        let mut config = json!({"transport": "function", "function": format!("app.{name}")});
        let mut whole = json!({"destination": name,
            "retry": {"max_attempts": 2, "base": "10ms", "cap": "20ms"}});
        for (document, more) in [(&mut config, rest), (&mut whole, policy)] {
            for (member, value) in more.as_object().cloned().unwrap_or_default() {
                document[member] = value;
            }
        }
        self.ledger.define_destination(name, config);
        self.ledger.define_type(name, whole);
    }

    /// A destination and a type of transport http.
    pub fn http(&mut self, name: &str, erp: &Destination) {
        self.ledger.define_http_destination(name, &erp.url("/records"), json!({}));
        self.ledger.define_type(name, json!({"destination": name}));
    }

    /// How many effects of a command are there.
    pub fn effects(&mut self, key: &str) -> i64 {
        self.ledger.one("SELECT count(*) FROM effect WHERE key = $1", &[&key])
    }

    /// The kinds of the journal's entries.
    pub fn journal(&mut self, key: &str) -> Vec<String> {
        desk::journal(&mut self.ledger, key)
    }

    /// Every journal is whole.
    pub fn assert_whole(&mut self) {
        desk::assert_journals(&mut self.ledger);
    }

    /// A new command of a new handler is confirmed, and every journal is whole.
    pub fn assert_works(&mut self) {
        self.handler("works", "INSERT INTO effect VALUES (d.idempotency_key, d.attempt, 'x'); RETURN '{\"id\": 1}';");
        self.destination("works", json!({}));
        self.ledger.register("works", "works", json!({}));
        self.ledger.wait_status("works", "confirmed");
        assert_eq!(self.effects("works"), 1);
        self.assert_whole();
    }

    /// The pid of the functions worker; waits until there is one.
    pub fn worker(&mut self) -> u32 {
        self.ledger.wait_until(&format!("SELECT EXISTS ({FUNCTIONS})"), 30);
        self.ledger.one::<i32>(FUNCTIONS, &[]).cast_unsigned()
    }

    /// A session that holds the advisory lock 1, which handlers wait for.
    pub fn gate(&mut self) -> Session {
        let mut session = self.ledger.another();
        session.exec("SELECT pg_advisory_lock(1)");
        session
    }

    /// Lets the handlers go on.
    pub fn open(&mut self, mut gate: Session) {
        gate.exec("SELECT pg_advisory_unlock_all()");
    }

    /// Waits until a handler waits at the gate.
    pub fn wait_at_gate(&mut self) {
        let waits = "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) \
                      WHERE l.locktype = 'advisory' AND NOT l.granted AND a.datname = current_database() \
                        AND a.backend_type = 'command_ledger functions')";
        self.ledger.wait_until(waits, 30);
    }
}
