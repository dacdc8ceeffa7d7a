//! What the relay has in hand: the wire, the calls that are out and what each is for, secrets, and how fast each
//! destination may be sent to.

use super::throttles;
use crate::pg::datum;
use crate::pg::report::{Level, defect, log};
use crate::settings;
use command_ledger_domain::config::{Auth, Breaker, Limits, User};
use command_ledger_domain::error::LedgerError;
use command_ledger_domain::request::RenderedRequest;
use command_ledger_domain::throttle::{Held, SendEnd, Throttle, ThrottleLimits};
use command_ledger_wire::{Call, Cause, Outcome, Reply, SecretStore, Wire, WireConfig, basic_authorization};
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Connections that the wire may hold at most.
const MAX_CONNECTIONS: usize = 512;

/// The attempt that a call is.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub tenant: String,
    pub key: String,
    pub token: [u8; 16],
    pub attempt: i32,
    pub destination: String,
    /// What the destination's throttle gave this send to bring back.
    pub throttle_mark: u64,
    /// When its claim began.
    pub claimed_us: i64,
}

/// The lookup that a call belongs to.
#[derive(Clone, Debug)]
pub struct LookupRound {
    pub tenant: String,
    pub key: String,
    pub token: [u8; 16],
    pub started_us: i64,
    pub sentinel_expected: bool,
}

/// What a call is for.
#[derive(Clone, Debug)]
pub enum Purpose {
    Attempt(Attempt),
    Lookup(LookupRound),
    Sentinel(LookupRound),
}

/// How a call ended, and what it was for.
pub struct Ended {
    pub purpose: Purpose,
    pub outcome: Outcome,
    pub ended_us: i64,
    /// How often it could not be settled.
    pub failed: u32,
}

/// The first and the longest wait before an answer that could not be settled is tried again.
const KEPT_FOR_US: (i64, i64) = (500_000, 10_000_000);

/// A lookup round whose answers come in.
pub struct OpenRound {
    pub round: LookupRound,
    pub answer: Option<Outcome>,
    pub sentinel: Option<Outcome>,
}

/// How fast one destination may be sent to, and what was last shown of it.
struct Pace {
    limits: ThrottleLimits,
    throttle: Throttle,
    shown: Held,
}

impl Pace {
    /// For people; most destinations have nothing to show.
    fn show(&mut self, destination: &str, now_us: i64) {
        let held = self.throttle.held(&self.limits, now_us);
        if held != self.shown {
            self.shown = held;
            throttles::publish(destination, &held);
        }
    }
}

/// The relay's desk.
pub struct Desk {
    wire: Option<Wire>,
    secrets: SecretStore,
    epoch: i64,
    next_id: u64,
    out: HashMap<u64, Purpose>,
    /// Ended before the wire saw them.
    refused: Vec<Ended>,
    /// Could not be settled, and when to try again.
    kept: Vec<(i64, Ended)>,
    pub rounds: HashMap<[u8; 16], OpenRound>,
    throttles: HashMap<String, Pace>,
    began_us: i64,
}

fn wire_config() -> WireConfig {
    let hosts = settings::text(&settings::ALLOWED_HOSTS).unwrap_or_default();
    WireConfig {
        ca_file: settings::text(&settings::CA_FILE).map(PathBuf::from),
        proxy: settings::text(&settings::PROXY),
        allowed_hosts: hosts.split(',').map(str::trim).filter(|h| !h.is_empty()).map(str::to_owned).collect(),
        max_connections: MAX_CONNECTIONS,
    }
}

fn secrets() -> SecretStore {
    SecretStore::new(settings::text(&settings::SECRETS_DIRECTORY).map(PathBuf::from))
}

impl Desk {
    /// Starts the wire.
    pub fn open(epoch: i64) -> Result<Self, LedgerError> {
        throttles::forget();
        let wire = Wire::start(wire_config()).map_err(|e| defect(format!("the wire cannot start: {e}")))?;
        Ok(Self {
            wire: Some(wire),
            secrets: secrets(),
            epoch,
            next_id: 1,
            out: HashMap::new(),
            refused: Vec::new(),
            kept: Vec::new(),
            rounds: HashMap::new(),
            throttles: HashMap::new(),
            began_us: datum::now_us(),
        })
    }

    /// This run's number.
    pub fn epoch(&self) -> i64 {
        self.epoch
    }

    /// Readable when answers are there.
    pub fn wire_fd(&self) -> Option<RawFd> {
        self.wire.as_ref().map(Wire::fd)
    }

    /// How many more calls the wire takes.
    pub fn room(&self) -> usize {
        self.wire.as_ref().map_or(0, Wire::room)
    }

    /// Takes changed settings on. A wire that refuses them keeps the old ones; the log says so.
    pub fn reload(&mut self) {
        self.secrets = secrets();
        if let Some(wire) = &self.wire
            && let Err(error) = wire.reconfigure(wire_config())
        {
            let what = "settings for connections are not usable, the old ones stay";
            log(Level::Warning, &format!("command_ledger relay: {what}: {error}"));
        }
    }

    /// Hands a request to the wire. What cannot even start ends at once, as not sent.
    pub fn send(&mut self, purpose: Purpose, request: RenderedRequest, response_limit: usize, not_after: Instant) {
        let headers = match self.headers(&request) {
            Ok(headers) => headers,
            Err(reason) => return self.refuse(purpose, Cause::NoSecret, reason),
        };
        let id = self.next_id;
        self.next_id += 1;
        let call = Call {
            id,
            method: request.method,
            url: request.url,
            headers,
            body: request.body,
            timeout_ms: request.timeout_ms.max(1).unsigned_abs(),
            connect_timeout_ms: request.connect_timeout_ms.max(1).unsigned_abs(),
            response_limit,
            not_after,
        };
        if self.wire.as_ref().is_some_and(|wire| wire.send(call).is_ok()) {
            self.out.insert(id, purpose);
        } else {
            self.refuse(purpose, Cause::Late, "the relay has too many calls in hand".to_owned());
        }
    }

    /// Ends a call that was never handed to the wire, as not sent.
    pub fn refuse(&mut self, purpose: Purpose, cause: Cause, reason: String) {
        let outcome = Outcome::NotSent { cause, reason };
        self.refused.push(Ended { purpose, outcome, ended_us: datum::now_us(), failed: 0 });
    }

    /// The headers with the secrets in them; the error names the secret, never its value.
    fn headers(&mut self, request: &RenderedRequest) -> Result<Vec<(String, String)>, String> {
        let mut headers = request.headers.clone();
        if let Some(content_type) = &request.content_type {
            headers.push(("content-type".to_owned(), content_type.clone()));
        }
        let mut read = |name: &str| {
            self.secrets.read(name).map(|s| s.reveal().to_owned()).map_err(|e| format!("secret {name:?}: {e}"))
        };
        match &request.auth {
            None => {}
            Some(Auth::Bearer { secret }) => {
                headers.push(("authorization".to_owned(), format!("Bearer {}", read(secret)?)));
            }
            Some(Auth::Basic { user, password_secret }) => {
                let user = match user {
                    User::Plain(user) => user.clone(),
                    User::Secret(name) => read(name)?,
                };
                let pair = format!("{user}:{}", read(password_secret)?);
                headers.push(("authorization".to_owned(), basic_authorization(pair.as_bytes())));
            }
            Some(Auth::Header { name, secret }) => headers.push((name.clone(), read(secret)?)),
        }
        Ok(headers)
    }

    /// Up to `max` calls that have ended.
    pub fn collect(&mut self, max: usize) -> Vec<Ended> {
        let mut ended = std::mem::take(&mut self.refused);
        let now_us = datum::now_us();
        ended.extend(self.kept.extract_if(.., |(at_us, _)| *at_us <= now_us).map(|(_, ended)| ended));
        let replies = self.wire.as_ref().map(|w| w.take(max)).unwrap_or_default();
        ended.extend(replies.into_iter().filter_map(|reply| self.ended(reply)));
        ended
    }

    /// Keeps an answer that could not be settled (somebody holds the command's row, say): it is the only one there will be.
    pub fn keep(&mut self, mut ended: Ended) {
        let (first_us, longest_us) = KEPT_FOR_US;
        let wait_us = (first_us << ended.failed.min(16)).min(longest_us);
        ended.failed += 1;
        self.kept.push((datum::now_us().saturating_add(wait_us), ended));
    }

    /// When an answer that was kept is to be tried again.
    pub fn kept_until_us(&self) -> Option<i64> {
        self.kept.iter().map(|(at_us, _)| *at_us).min()
    }

    fn ended(&mut self, reply: Reply) -> Option<Ended> {
        let purpose = self.out.remove(&reply.id)?;
        Some(Ended { purpose, outcome: reply.outcome, ended_us: datum::now_us(), failed: 0 })
    }

    /// How many of `wanted` sends the destination's rate and breaker permit.
    pub fn permitted(&mut self, destination: &str, limits: ThrottleLimits, wanted: i64) -> i64 {
        let (now_us, began_us) = (datum::now_us(), self.began_us);
        let pace = self.throttles.entry(destination.to_owned()).or_insert_with(|| Pace {
            limits,
            throttle: Throttle::new(&limits, began_us),
            shown: Held::default(),
        });
        if pace.limits != limits {
            pace.limits = limits;
            pace.throttle.limits_changed();
        }
        let permitted = pace.throttle.permitted(&limits, wanted, now_us);
        pace.show(destination, now_us);
        permitted
    }

    /// So many sends were started; each brings the answer back when it ends.
    pub fn sent(&mut self, destination: &str, count: usize) -> u64 {
        let Some(pace) = self.throttles.get_mut(destination) else { return 0 };
        let now_us = datum::now_us();
        let mark = pace.throttle.sent(&pace.limits, i64::try_from(count).unwrap_or(i64::MAX), now_us);
        pace.show(destination, now_us);
        mark
    }

    /// A send ended.
    pub fn sent_ended(&mut self, attempt: &Attempt, end: SendEnd) {
        if let Some(pace) = self.throttles.get_mut(&attempt.destination) {
            let now_us = datum::now_us();
            pace.throttle.ended(&pace.limits, attempt.throttle_mark, end, now_us);
            pace.show(&attempt.destination, now_us);
        }
    }

    /// When the destination may be sent to again, if its rate or breaker holds it back.
    pub fn again_at_us(&self, destination: &str) -> Option<i64> {
        let pace = self.throttles.get(destination)?;
        pace.throttle.again_at_us(&pace.limits, datum::now_us())
    }

    /// Stops the wire within the grace; hands back what it still answered.
    pub fn close(&mut self, grace: Duration) -> Vec<Ended> {
        throttles::forget();
        let mut ended = std::mem::take(&mut self.refused);
        ended.extend(self.kept.drain(..).map(|(_, ended)| ended));
        if let Some(wire) = self.wire.take() {
            let report = wire.shutdown(grace);
            ended.extend(report.replies.into_iter().filter_map(|reply| self.ended(reply)));
        }
        ended
    }
}

/// The limits of a destination as the throttle reads them.
pub fn throttle_limits(limits: &Limits, breaker: Option<&Breaker>) -> ThrottleLimits {
    ThrottleLimits { per_second: limits.per_second, breaker: breaker.map(|b| (b.failures, b.cool_down_ms)) }
}
