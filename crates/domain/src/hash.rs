//! The hashes that identify content, sign approvals and chain the journal. All are SHA-256, and each begins with a
//! tag of its own, so that no hash of one kind is ever one of another.

use sha2::{Digest, Sha256};

use crate::canonical::{Pointer, push_integer, write_canonical};
use crate::error::LedgerError;
use crate::json::{Json, push_string};

/// The version of the canonical form and of these hashes; stored with every row that holds one.
pub const HASH_VERSION: i16 = 1;

/// The identity of an intent's content: `SHA-256(canonical(["command_ledger.v1", tenant, command_type, params]))`,
/// the params without their immaterial members. It is compared on every repeat of a key.
///
/// # Errors
/// `CL014` (or `CL004`) when the material params have no canonical form, see [`crate::canonical::canonical`].
pub fn params_hash(
    tenant: &str,
    command_type: &str,
    params: &Json<'_>,
    immaterial: &[Pointer],
) -> Result<[u8; 32], LedgerError> {
    let mut text = open_array("command_ledger.v1");
    push_next_string(tenant, &mut text);
    push_next_string(command_type, &mut text);
    text.push(',');
    write_canonical(params, immaterial, &mut text)?;
    text.push(']');
    Ok(sha256(text.as_bytes()))
}

/// Everything that will be executed, as an approval signs it.
#[derive(Clone, Copy, Debug)]
pub struct IntentParts<'a> {
    /// The command id in the usual lower-case text form of a UUID, see [`crate::key::uuid_text`].
    pub command_id: &'a str,
    /// The name of the command type.
    pub command_type: &'a str,
    /// Its version.
    pub type_version: i32,
    /// The name of the destination.
    pub destination: &'a str,
    /// SHA-256 of the effective request config: an edited request voids approvals given for the old one.
    pub request_config_digest: &'a [u8; 32],
    /// All params, immaterial ones too: they are sent.
    pub params: &'a Json<'a>,
}

/// What an approval signs: `SHA-256(canonical(["command_ledger.intent.v1", command_id, command_type, type_version,
/// destination, request config digest in lower-case hexadecimal, params]))`.
///
/// # Errors
/// `CL014` (or `CL004`) when the params have no canonical form, see [`crate::canonical::canonical`].
pub fn intent_hash(intent: IntentParts<'_>) -> Result<[u8; 32], LedgerError> {
    let mut text = open_array("command_ledger.intent.v1");
    push_next_string(intent.command_id, &mut text);
    push_next_string(intent.command_type, &mut text);
    text.push(',');
    push_integer(i64::from(intent.type_version), &mut text);
    push_next_string(intent.destination, &mut text);
    push_next_string(&hex(intent.request_config_digest), &mut text);
    text.push(',');
    write_canonical(intent.params, &[], &mut text)?;
    text.push(']');
    Ok(sha256(text.as_bytes()))
}

/// One entry of a command's journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalEntry<'a> {
    /// Position in the command's journal, from 0.
    pub seq: i32,
    /// What happened.
    pub kind: &'a str,
    /// The status before; none for the first entry.
    pub from: Option<&'a str>,
    /// The status after.
    pub to: &'a str,
    /// The attempt that the entry speaks of; 0 when none was made yet.
    pub attempt: i32,
    /// The database role that acted.
    pub actor: &'a str,
    /// The person or agent that the actor says it acted for.
    pub stated_actor: Option<&'a str>,
    /// When, in microseconds since 1970-01-01 00:00:00 UTC.
    pub at_us: i64,
    /// The particulars as canonical text ([`crate::canonical::canonical`] of the stored jsonb).
    pub detail: Option<&'a str>,
}

/// What the first entry of a command's journal is chained to. It holds the command's identity, so that the journal of
/// one command cannot stand in for another's.
pub fn journal_start(command_id: &[u8; 16]) -> [u8; 32] {
    let mut hasher = Sha256::new_with_prefix(b"command_ledger.journal.v1:start");
    hasher.update(command_id);
    hasher.finalize().into()
}

/// The chain hash of an entry: SHA-256 over a binary record that can be read in one way only.
///
/// | part | bytes |
/// |---|---|
/// | the tag | `command_ledger.journal.v1:entry` in ASCII |
/// | hash of the entry before ([`journal_start`] for the first) | 32 |
/// | seq, attempt | 4 each, big-endian two's complement |
/// | at_us | 8, big-endian two's complement |
/// | kind, from, to, actor, stated_actor, detail, in this order | for each a byte 1, its length in bytes as 8 bytes big-endian, its UTF-8; or one byte 0 when it is absent |
pub fn journal_hash(prev: &[u8; 32], entry: &JournalEntry<'_>) -> [u8; 32] {
    let mut hasher = Sha256::new_with_prefix(b"command_ledger.journal.v1:entry");
    hasher.update(prev);
    hasher.update(entry.seq.to_be_bytes());
    hasher.update(entry.attempt.to_be_bytes());
    hasher.update(entry.at_us.to_be_bytes());
    for field in [Some(entry.kind), entry.from, Some(entry.to), Some(entry.actor), entry.stated_actor, entry.detail] {
        match field {
            None => hasher.update([0]),
            Some(text) => {
                hasher.update([1]);
                hasher.update((text.len() as u64).to_be_bytes());
                hasher.update(text);
            }
        }
    }
    hasher.finalize().into()
}

/// SHA-256 of some bytes, for digests of requests and answers.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// The first eight bytes of a SHA-256, as a number: for what tells things apart and need not resist anybody.
pub fn short(bytes: &[u8]) -> u64 {
    sha256(bytes)[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// The beginning of a canonical array whose first element is a tag.
pub(crate) fn open_array(tag: &str) -> String {
    let mut text = String::with_capacity(512);
    text.push('[');
    push_string(tag, &mut text);
    text
}

/// Appends the next element of an array, a string.
pub(crate) fn push_next_string(value: &str, text: &mut String) {
    text.push(',');
    push_string(value, text);
}
