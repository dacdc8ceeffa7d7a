//! The destination and its network: what is true, not what the ledger believes.

use crate::setup::{Recognises, Setup, TICK_US};
use crate::world::World;

/// What a destination does with a request that reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// Does it and says so, with the record's id.
    Done,
    /// Does it, and the answer proves nothing (500, 202, an error page).
    DoneUnproven(u16),
    /// Does it, and the answer is lost.
    DoneLost,
    /// Does nothing and answers this.
    Refused(u16),
}

/// What a lookup brings back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Looked {
    /// What the search finds now.
    Search,
    /// The search does not know the newest record yet.
    Lagging,
    /// No usable answer.
    Unusable,
}

/// A request on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Which attempt sent it.
    pub serial: u8,
    /// What it asks for.
    pub content: u8,
    /// After this moment it takes no effect any more.
    pub not_after_us: i64,
}

/// An effect: it stays for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Which attempt made it.
    pub serial: u8,
    /// What was asked for.
    pub content: u8,
    /// Since when.
    pub at_us: i64,
}

/// The id of a record, by its place in the list.
pub fn record_id(index: u8) -> &'static str {
    ["R0", "R1", "R2", "R3"].get(usize::from(index)).copied().unwrap_or("R")
}

/// What the sender hears, if anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Heard {
    /// Success, with a record.
    Success(u8),
    /// A status without proof.
    Status(u16),
}

/// Lets a request arrive: the effect, and what the sender hears.
pub fn arrive(setup: &Setup, world: &mut World, request: Request, answer: Answer) -> Option<Heard> {
    let known = match setup.truth.recognises {
        Recognises::Key { ticks } => world
            .records
            .iter()
            .position(|r| ticks.is_none_or(|ticks| world.now_us <= r.at_us.saturating_add(ticks * TICK_US))),
        Recognises::Reference => (!world.records.is_empty()).then_some(0),
        Recognises::Nothing => None,
    };
    let done = !matches!(answer, Answer::Refused(_));
    if done && known.is_some() && setup.truth.recognises == Recognises::Reference {
        return (answer != Answer::DoneLost).then_some(Heard::Status(409));
    }
    if done && known.is_none() {
        world.records.push(Record { serial: request.serial, content: request.content, at_us: world.now_us });
    }
    let index = known.unwrap_or(world.records.len().saturating_sub(1));
    match answer {
        Answer::Done => Some(Heard::Success(u8::try_from(index).unwrap_or(u8::MAX))),
        Answer::DoneUnproven(status) | Answer::Refused(status) => Some(Heard::Status(status)),
        Answer::DoneLost => None,
    }
}

/// The records that a search shows now.
pub fn search(setup: &Setup, world: &World, looked: Looked) -> Vec<u8> {
    let lag_us = if looked == Looked::Lagging { setup.truth.lag_ticks * TICK_US } else { 0 };
    let shown = world.records.iter().enumerate().filter(|(_, r)| r.at_us + lag_us <= world.now_us);
    shown.map(|(index, _)| u8::try_from(index).unwrap_or(u8::MAX)).collect()
}
