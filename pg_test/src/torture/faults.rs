//! The faults, each with a name and a count.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! faults {
    ($($(#[$doc:meta])+ $name:ident = $word:literal,)+) => {
        /// Something that goes wrong on purpose.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault { $($(#[$doc])+ $name,)+ }

        impl Fault {
            /// All of them.
            pub const ALL: &'static [Fault] = &[$(Fault::$name,)+];

            /// Its name.
            pub const fn word(self) -> &'static str {
                match self { $(Fault::$name => $word,)+ }
            }
        }
    };
}

faults! {
    /// The connection closes; nothing has happened.
    DropBefore = "answer dropped, no effect",
    /// The effect happens; the connection closes.
    DropAfter = "answer dropped after the effect",
    /// A reset; nothing has happened.
    ResetBefore = "reset, no effect",
    /// The effect happens; a reset.
    ResetAfter = "reset after the effect",
    /// The answer breaks off in its body.
    CutBody = "answer cut in its body after the effect",
    /// The answer comes, slowly.
    Delay = "answer delayed",
    /// The effect happens after the caller has given up.
    LateEffect = "effect after the caller's timeout",
    /// The effect happens; silence until after the timeout.
    LateAnswer = "answer after the caller's timeout",
    /// 502, and yet the effect is there.
    Lying502 = "502 after the effect",
    /// 503, and yet the effect is there.
    Lying503 = "503 after the effect",
    /// 504, and yet the effect is there.
    Lying504 = "504 after the effect",
    /// 500, nothing has happened.
    Honest500 = "500, no effect",
    /// 503, nothing has happened.
    Honest503 = "503, no effect",
    /// 429 with Retry-After.
    Throttled = "429",
    /// 400, nothing has happened.
    Refused400 = "400",
    /// 401, nothing has happened.
    Refused401 = "401",
    /// 200 with an error in it; nothing has happened.
    ErrorIn200 = "200 with an error body, no effect",
    /// 200 with an error in it, and yet the effect is there.
    LyingErrorIn200 = "200 with an error body after the effect",
    /// 200 and a login page.
    Html200 = "200 with a login page, no effect",
    /// 202 without a record.
    Accepted202 = "202 after the effect",
    /// Bytes that are not HTTP.
    Garbage = "answer that is not HTTP after the effect",
    /// The answer arrives twice on one connection.
    AnsweredTwice = "answer duplicated",
    /// The request is delivered twice by the network, to destinations that deduplicate.
    DeliveredTwice = "request duplicated",
    /// A search is not answered.
    LookupDropped = "lookup: answer dropped",
    /// A search answers 500.
    Lookup500 = "lookup: 500",
    /// A search answers a login page.
    LookupHtml = "lookup: login page",
    /// A search does not find the sentinel.
    LookupBlind = "lookup: sentinel not found",
    /// A search ignores its filter.
    LookupUnfiltered = "lookup: filter ignored",
    /// A search is slow.
    LookupSlow = "lookup: slow",
    /// Connections to a destination are refused for a while.
    Outage = "destination refuses connections",
    /// All connections to a destination are closed.
    Disconnected = "open connections closed",
    /// A worker takes work and is never heard of again.
    WorkerVanishes = "pull worker vanished",
    /// A worker reports after its lease.
    WorkerLate = "pull worker reported late",
    /// A worker reports twice.
    WorkerTwice = "pull worker reported twice",
    /// A worker does not know.
    WorkerUnsure = "pull worker unsure",
    /// A session is ended by an administrator.
    BackendTerminated = "session terminated",
    /// A caller leaves with a transaction open.
    CallerLeaves = "caller left its transaction",
    /// A caller rolls back.
    RolledBack = "registration rolled back",
    /// kill -9 of a session's process: the server recovers.
    BackendKilled = "kill -9 of a session",
    /// kill -9 of the relay: the server recovers.
    RelayKilled = "kill -9 of the relay",
    /// SIGTERM of the relay.
    RelayTerminated = "relay terminated",
    /// kill -9 of the postmaster, and a start.
    PostmasterKilled = "kill -9 of the postmaster",
    /// kill -9 of everything at one moment, and a start.
    EverythingKilled = "kill -9 of all processes at once",
    /// The relay is slowed at one of its steps, as by a slow disk.
    SlowStep = "relay slowed at a step",
    /// The relay panics at one of its steps.
    StepPanics = "relay panicked at a step",
    /// The ledger's clock jumps by a second.
    ClockJitter = "clock stepped by a second",
    /// The server is down for hours or days of its clock.
    ClockJump = "clock jumped by hours while the server was down",
    /// A destination is paused and resumed.
    Paused = "destination paused",
    /// The database moves by dump and restore while the relay sends.
    DumpRestored = "moved by dump and restore",
    /// A synchronous standby is promoted after the primary's death.
    PromotedSync = "synchronous standby promoted",
    /// A standby that may lack the last commits is promoted.
    PromotedAsync = "asynchronous standby promoted",
}

impl Fault {
    fn index(self) -> usize {
        Fault::ALL.iter().position(|fault| *fault == self).unwrap_or(0)
    }
}

/// How often each happened.
#[derive(Debug)]
pub struct Counts(Vec<AtomicU64>);

impl Default for Counts {
    fn default() -> Counts {
        Counts(Fault::ALL.iter().map(|_| AtomicU64::new(0)).collect())
    }
}

impl Counts {
    /// It happened once more.
    pub fn add(&self, fault: Fault) {
        self.0[fault.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// How often this one.
    pub fn of(&self, fault: Fault) -> u64 {
        self.0[fault.index()].load(Ordering::Relaxed)
    }

    /// How many in all.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Those that happened, by name.
    pub fn by_name(&self) -> BTreeMap<&'static str, u64> {
        Fault::ALL.iter().map(|f| (f.word(), self.of(*f))).filter(|(_, n)| *n > 0).collect()
    }
}
