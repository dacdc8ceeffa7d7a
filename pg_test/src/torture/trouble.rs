//! What goes wrong with a request: it follows from the seed, the key and the number of the request alone.

use super::climate::Climate;
use super::faults::Fault;
use super::profile::Profile;

/// By weight.
const WRITE_FAULTS: &[(Option<Fault>, u64)] = &[
    (None, 52),
    (Some(Fault::DropBefore), 4),
    (Some(Fault::DropAfter), 5),
    (Some(Fault::ResetBefore), 3),
    (Some(Fault::ResetAfter), 4),
    (Some(Fault::CutBody), 3),
    (Some(Fault::Delay), 4),
    (Some(Fault::LateEffect), 3),
    (Some(Fault::LateAnswer), 3),
    (Some(Fault::Lying502), 3),
    (Some(Fault::Lying503), 2),
    (Some(Fault::Lying504), 2),
    (Some(Fault::Honest500), 2),
    (Some(Fault::Honest503), 2),
    (Some(Fault::Throttled), 2),
    (Some(Fault::Refused400), 1),
    (Some(Fault::Refused401), 1),
    (Some(Fault::ErrorIn200), 2),
    (Some(Fault::LyingErrorIn200), 2),
    (Some(Fault::Html200), 1),
    (Some(Fault::Accepted202), 2),
    (Some(Fault::Garbage), 2),
    (Some(Fault::AnsweredTwice), 3),
    (Some(Fault::DeliveredTwice), 3),
];
const LOOKUP_FAULTS: &[(Option<Fault>, u64)] = &[
    (None, 70),
    (Some(Fault::LookupDropped), 6),
    (Some(Fault::Lookup500), 6),
    (Some(Fault::LookupHtml), 4),
    (Some(Fault::LookupBlind), 4),
    (Some(Fault::LookupUnfiltered), 6),
    (Some(Fault::LookupSlow), 4),
];

/// With the n-th write of a key.
pub(super) fn with_write(climate: &Climate, profile: Profile, key: &str, nth: u64) -> Option<Fault> {
    if climate.is_calm() {
        return None;
    }
    let fault = climate.dice(key, nth).weighted(WRITE_FAULTS)?;
    // What no destination of this kind can know as a copy would be two intents.
    (fault != Fault::DeliveredTwice || profile.deduplicates()).then_some(fault)
}

/// With the n-th search for a key.
pub(super) fn with_search(climate: &Climate, key: &str, nth: u64, is_sentinel: bool) -> Option<Fault> {
    if climate.is_calm() {
        return None;
    }
    let fault = climate.dice(&format!("search {key}"), nth).weighted(LOOKUP_FAULTS)?;
    // Only where a sentinel shows it: elsewhere it is a lie that nobody can find out.
    (fault != Fault::LookupBlind || is_sentinel).then_some(fault)
}
