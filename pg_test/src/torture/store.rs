//! What a destination remembers: its records, its answers by key, and a log of everything that it was asked.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::evidence::Request;
use super::profile::{Profile, SEARCH_LAG_MS};

/// What is known of a key.
#[derive(Debug, Default)]
struct Known {
    /// Requests of it so far.
    seen: u64,
    /// Searches for it so far.
    searched: u64,
    /// Requests that may still have an effect.
    pending: usize,
    /// Its records, and when they were made.
    records: Vec<(String, Instant)>,
    params: Value,
    /// The answer that a repeat gets, and since when.
    kept: Option<(i64, u16, Value)>,
    /// Places in the log.
    requests: Vec<usize>,
}

/// The store of one destination.
#[derive(Debug)]
pub struct Store {
    profile: Profile,
    keys: HashMap<String, Known>,
    log: Vec<Request>,
    made: usize,
    doubled: usize,
    newest: Vec<String>,
}

/// How a request begins.
#[derive(Clone, Debug, PartialEq)]
pub enum Start {
    /// It may have an effect: `finish` it.
    Fresh,
    /// It is a repeat, with this answer.
    Known(u16, Value),
}

impl Store {
    /// Empty.
    pub fn new(profile: Profile) -> Store {
        Store { profile, keys: HashMap::new(), log: Vec::new(), made: 0, doubled: 0, newest: Vec::new() }
    }

    /// How often this key was asked for so far.
    pub fn seen(&self, key: &str) -> u64 {
        self.keys.get(key).map_or(0, |known| known.seen)
    }

    /// Counts a search for this key; its number from 0.
    pub fn search(&mut self, key: &str) -> u64 {
        let known = self.keys.entry(key.to_owned()).or_default();
        known.searched += 1;
        known.searched - 1
    }

    /// A request was read: it is logged, and is now in progress unless it is a repeat. Its place in the log.
    pub fn arrive(&mut self, key: &str, params: &Value, duplicated: bool, now_us: i64) -> (usize, Start) {
        let place = self.log.len();
        let profile = self.profile;
        let known = self.keys.entry(key.to_owned()).or_default();
        known.seen += u64::from(!duplicated);
        known.requests.push(place);
        self.log.push(Request {
            key: key.to_owned(),
            at_us: now_us,
            params: params.clone(),
            duplicated,
            ..Request::default()
        });
        if profile.remembers() {
            if let Some(memory_us) = profile.memory_us()
                && known.kept.as_ref().is_some_and(|(since_us, _, _)| now_us - since_us >= memory_us)
            {
                known.kept = None;
            }
            if let Some((_, status, body)) = &known.kept {
                let other = known.params != *params && !matches!(profile, Profile::IgnoresBody | Profile::Latest);
                let answer = if other { (422, json!({"code": "KEY_REUSED"})) } else { (*status, body.clone()) };
                return (place, Start::Known(answer.0, answer.1));
            }
            if known.pending > 0 {
                let answer = match profile {
                    Profile::Latest => (202, json!({"state": "pending"})),
                    _ => (409, json!({"code": "IN_PROGRESS"})),
                };
                return (place, Start::Known(answer.0, answer.1));
            }
            known.params = params.clone();
        }
        known.pending += 1;
        (place, Start::Fresh)
    }

    /// A fresh request ends with its effect; the answer.
    pub fn effect(&mut self, place: usize, now_us: i64) -> (u16, Value) {
        let key = self.log[place].key.clone();
        let known = self.keys.entry(key.clone()).or_default();
        known.pending = known.pending.saturating_sub(1);
        if self.profile.is_unique() && !known.records.is_empty() {
            return (409, json!({"code": "NOT_UNIQUE"}));
        }
        self.made += 1;
        self.doubled += usize::from(!known.records.is_empty());
        let id = format!("{}-{}", self.profile.name(), self.made);
        known.records.push((id.clone(), Instant::now()));
        let body = json!({"id": id, "reference": key});
        known.kept = Some((now_us, 201, body.clone()));
        self.log[place].effect = Some(id);
        self.newest.push(key);
        (201, body)
    }

    /// A fresh request ends without an effect, with this answer (0: none).
    pub fn refuse(&mut self, place: usize, status: u16, body: &Value, now_us: i64) {
        let known = self.keys.entry(self.log[place].key.clone()).or_default();
        known.pending = known.pending.saturating_sub(1);
        if self.profile == Profile::Pins && matches!(status, 400 | 500) {
            known.kept = Some((now_us, status, body.clone()));
        }
    }

    /// What happened to a request, in words.
    pub fn tell(&mut self, place: usize, story: String) {
        self.log[place].story = story;
    }

    /// What a search for the key finds; `unfiltered`: and the newest records of other keys.
    pub fn find(&self, key: &str, unfiltered: bool) -> Value {
        let lag = Duration::from_millis(SEARCH_LAG_MS);
        let records = |key: &String| {
            let found = self.keys.get(key).map_or(&[][..], |known| &known.records[..]);
            let visible = found.iter().filter(|(_, made)| made.elapsed() >= lag);
            visible.map(|(id, _)| json!({"id": id, "reference": key})).collect::<Vec<_>>()
        };
        let mut found = records(&key.to_owned());
        if unfiltered {
            let others = self.newest.iter().rev().take(20).filter(|other| *other != key);
            found.extend(others.flat_map(records));
        }
        Value::Array(found)
    }

    /// The records of a key, and whether there may be one more soon.
    pub fn truth(&self, key: &str) -> (Vec<String>, bool) {
        self.keys.get(key).map_or((Vec::new(), false), |known| {
            (known.records.iter().map(|(id, _)| id.clone()).collect(), known.pending > 0)
        })
    }

    /// Records beyond the first of their key.
    pub fn doubled(&self) -> usize {
        self.doubled
    }

    /// The log.
    pub fn log(&self) -> &[Request] {
        &self.log
    }

    /// The requests of a key.
    pub fn log_of(&self, key: &str) -> Vec<Request> {
        let places = self.keys.get(key).map_or(&[][..], |known| &known.requests[..]);
        places.iter().map(|place| self.log[*place].clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_US: i64 = 3_600_000_000;

    fn made(store: &mut Store, at_us: i64) -> bool {
        let (place, start) = store.arrive("k", &json!({}), false, at_us);
        let fresh = start == Start::Fresh;
        if fresh {
            store.effect(place, at_us);
        }
        fresh && store.log()[place].effect.is_some()
    }

    #[test]
    fn each_profile_remembers_as_long_as_it_says() {
        for (profile, again_at_once, after_an_hour, after_two_days) in [
            (Profile::Pins, false, false, true),
            (Profile::Redrives, false, true, true),
            (Profile::Latest, false, false, false),
            (Profile::IgnoresBody, false, true, true),
            (Profile::OnlySuccess, false, false, true),
            (Profile::WindowUnknown, false, true, true),
            (Profile::Reference, false, false, false),
            (Profile::Searchable, true, true, true),
            (Profile::Bare, true, true, true),
        ] {
            for (later_us, expected) in [(1, again_at_once), (HOUR_US, after_an_hour), (48 * HOUR_US, after_two_days)] {
                let mut store = Store::new(profile);
                assert!(made(&mut store, 0), "{profile:?}");
                assert_eq!(made(&mut store, later_us), expected, "{profile:?} after {later_us} us");
            }
        }
    }

    #[test]
    fn only_one_of_them_pins_errors() {
        for profile in [Profile::Pins, Profile::OnlySuccess, Profile::Redrives] {
            let mut store = Store::new(profile);
            let (place, _) = store.arrive("k", &json!({}), false, 0);
            store.refuse(place, 500, &json!({"error": "boom"}), 0);
            let (_, again) = store.arrive("k", &json!({}), false, 1);
            assert_eq!(again != Start::Fresh, profile == Profile::Pins, "{profile:?}");
        }
    }

    #[test]
    fn a_repeat_while_the_first_is_in_progress_makes_nothing() {
        let mut store = Store::new(Profile::OnlySuccess);
        let (first, _) = store.arrive("k", &json!({}), false, 0);
        assert!(matches!(store.arrive("k", &json!({}), false, 1).1, Start::Known(409, _)));
        assert!(store.truth("k").1, "it may still come");
        store.effect(first, 2);
        assert!(matches!(store.arrive("k", &json!({}), false, 3).1, Start::Known(201, _)));
        assert!(matches!(store.arrive("k", &json!({"n": 1}), false, 4).1, Start::Known(422, _)));
        assert_eq!(store.truth("k").0.len(), 1);
    }
}
