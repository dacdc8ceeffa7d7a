//! Whether this ledger may send from here: a copy must not repeat what the original did (I11).

/// Which ledger this is. A dump restored elsewhere, a template copy and a new CREATE EXTENSION differ in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The cluster.
    pub system_identifier: u64,
    /// The database.
    pub database_oid: u32,
    /// The row of the extension.
    pub extension_oid: u32,
}

/// Where it runs. A promotion changes the timeline; copied files and restored backups change the inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The timeline that WAL is inserted on.
    pub timeline: u32,
    /// The inode of `global/pg_control`.
    pub control_inode: u64,
}

/// What the setting `command_ledger.on_failover` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnFailover {
    /// Nothing is sent until a person adopts the ledger.
    Halt,
    /// Go on where the destination deduplicates; look up first elsewhere.
    Continue,
}

/// What the fence says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fence {
    /// The place that it was adopted in.
    Open,
    /// No identity is recorded, or another: this may be a copy. Nothing is sent.
    Unadopted,
    /// The same ledger in another place: a promotion, a restored backup, or copied files.
    Moved {
        /// Nothing is sent.
        halted: bool,
    },
}

/// Compares what is recorded with what is here. A person who adopts the ledger records what is here, and so opens the
/// fence; nothing else ever does.
///
/// | recorded | same identity, same place | same identity, another place | another identity |
/// |---|---|---|---|
/// | none | - | - | unadopted |
/// | some | open | moved (halted by the setting) | unadopted |
pub fn judge(recorded: Option<(Identity, Place)>, here: (Identity, Place), on_failover: OnFailover) -> Fence {
    match recorded {
        Some((identity, place)) if identity == here.0 => {
            if place == here.1 {
                Fence::Open
            } else {
                Fence::Moved { halted: on_failover == OnFailover::Halt }
            }
        }
        _ => Fence::Unadopted,
    }
}

/// What the fence needs to know of a command that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowFacts {
    /// The identity that wrote its outbox row.
    pub written_by: Identity,
    /// The destination deduplicates on its key, and the window is open, counted from its registration at the latest.
    pub deduplicates: bool,
    /// Since the ledger came to this place, a lookup or a person established that nothing was created for it.
    pub absence_established_here: bool,
    /// It counts as maybe sent already.
    pub maybe_sent: bool,
    /// A lookup is configured.
    pub has_lookup: bool,
}

/// Whether a command may be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimAllowed {
    /// Yes.
    Yes,
    /// Yes, as a command that the other place may have sent: marked so first, its window counted from registration.
    AsRepeat,
    /// Not before a lookup found nothing.
    LookupFirst,
    /// Not before a person looked.
    Case,
    /// No; the reason in words.
    No(&'static str),
}

/// Whether the fence lets a command be claimed.
///
/// | fence | row of this identity | row of another |
/// |---|---|---|
/// | open | yes | no |
/// | unadopted | no | no |
/// | moved, halted | no | no |
/// | moved, continue | absence established here: yes; deduplicates: yes, as a repeat; else lookup first, else case | no |
///
/// In a moved ledger this holds for old commands and new ones: the other place may still be alive and know the same
/// keys, or may have sent what this place never learned of. What it found out before it came here counts no more: the
/// other place may have acted on it since.
pub fn claim_allowed(fence: Fence, here: Identity, row: &RowFacts) -> ClaimAllowed {
    match fence {
        Fence::Unadopted => ClaimAllowed::No(
            "this ledger is not adopted: it may be a copy whose original is alive; adopt_relay() after checking",
        ),
        Fence::Moved { halted: true } => ClaimAllowed::No(
            "this ledger runs in another place than the one it was adopted in; adopt_relay() after checking that the \
             other is gone",
        ),
        _ if row.written_by != here => {
            ClaimAllowed::No("another ledger wrote this outbox row; adopt_relay() takes it over")
        }
        Fence::Open => ClaimAllowed::Yes,
        Fence::Moved { halted: false } if row.absence_established_here => ClaimAllowed::Yes,
        Fence::Moved { halted: false } if row.deduplicates && row.maybe_sent => ClaimAllowed::Yes,
        Fence::Moved { halted: false } if row.deduplicates => ClaimAllowed::AsRepeat,
        Fence::Moved { halted: false } if row.has_lookup => ClaimAllowed::LookupFirst,
        Fence::Moved { halted: false } => ClaimAllowed::Case,
    }
}

/// Whether a command that is not in flight from here counts as maybe sent before anybody ends or rewrites it (cancel,
/// reject, revise, a deadline): I5 holds for what another place may have done, too.
///
/// | fence | absence established here | else |
/// |---|---|---|
/// | open | no | no |
/// | unadopted, moved | no | yes |
pub fn sent_elsewhere(fence: Fence, absence_established_here: bool) -> bool {
    fence != Fence::Open && !absence_established_here
}

#[cfg(test)]
mod tests;
