//! Secrets: files in one directory, read when they are needed and again when they have changed. Never in a table, a log or
//! an error.

use std::collections::HashMap;
use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use zeroize::Zeroizing;

/// The largest file.
const FILE_MAX_BYTES: u64 = 64 * 1024;
/// The longest name: what a file name can have.
const NAME_MAX_BYTES: usize = 255;
/// Secrets that are kept in memory; beyond that all are forgotten and read again.
const KEPT_MAX: usize = 1024;
/// A file that changed less than this long before it was read could change again within the same tick of its timestamp;
/// it is read again next time.
const SETTLED: Duration = Duration::from_secs(2);

/// A secret's text. Wiped from memory when dropped; `Debug` does not show it.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// The text itself, for the header value that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

/// Why a secret cannot be had. Holds its name at most, never its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretError {
    /// No directory is configured.
    NoDirectory,
    /// The name is not made of `A-Z a-z 0-9 . _ -`, or is `.` or `..`, or too long.
    BadName,
    /// There is no such file.
    NotFound(String),
    /// The file is larger than 64 KiB.
    TooLarge(String),
    /// Not a regular file.
    NotAFile(String),
    /// The file is empty.
    Empty(String),
    /// The text is not UTF-8, or has a control character (a line break included, except one at the end).
    NotText(String),
    /// The file cannot be read.
    Unreadable {
        /// The secret's name.
        name: String,
        /// The kind of the system's error.
        kind: io::ErrorKind,
    },
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretError::NoDirectory => f.write_str("no secrets directory is configured"),
            SecretError::BadName => {
                f.write_str("a secret's name may have letters, digits, \".\", \"_\" and \"-\" only")
            }
            SecretError::NotFound(name) => write!(f, "there is no secret \"{name}\""),
            SecretError::TooLarge(name) => write!(f, "secret \"{name}\" is larger than {FILE_MAX_BYTES} bytes"),
            SecretError::NotAFile(name) => write!(f, "secret \"{name}\" is not a regular file"),
            SecretError::Empty(name) => write!(f, "secret \"{name}\" is empty"),
            SecretError::NotText(name) => write!(f, "secret \"{name}\" is not one line of UTF-8 text"),
            SecretError::Unreadable { name, kind } => write!(f, "secret \"{name}\" cannot be read: {kind}"),
        }
    }
}

impl std::error::Error for SecretError {}

/// What tells one version of a file from the next.
#[derive(Clone, PartialEq, Eq)]
struct Version {
    device: u64,
    inode: u64,
    size_bytes: u64,
    modified_ns: i128,
    changed_ns: i128,
}

impl Version {
    fn of(file: &Metadata) -> Version {
        let ns = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        Version {
            device: file.dev(),
            inode: file.ino(),
            size_bytes: file.size(),
            modified_ns: ns(file.mtime(), file.mtime_nsec()),
            changed_ns: ns(file.ctime(), file.ctime_nsec()),
        }
    }

    fn was_settled_at(&self, moment: SystemTime) -> bool {
        let moment_ns = moment.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i128);
        let newest_ns = self.modified_ns.max(self.changed_ns);
        newest_ns + (SETTLED.as_nanos() as i128) < moment_ns
    }
}

struct Kept {
    version: Version,
    settled: bool,
    secret: Secret,
}

/// The secrets of one directory.
pub struct SecretStore {
    directory: Option<PathBuf>,
    kept: HashMap<String, Kept>,
}

/// Shows the directory only.
impl fmt::Debug for SecretStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretStore").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl SecretStore {
    /// A store over a directory; without one, every read is an error.
    pub fn new(directory: Option<PathBuf>) -> SecretStore {
        SecretStore { directory, kept: HashMap::new() }
    }

    /// The secret of this name: the text of the file, without one line break at its end. Costs one `stat` when the file is
    /// known and unchanged. Links are followed (mounted secrets are links that are swapped).
    ///
    /// # Errors
    /// See [`SecretError`]. After an error the old text is not used any more.
    pub fn read(&mut self, name: &str) -> Result<Secret, SecretError> {
        let directory = self.directory.as_ref().ok_or(SecretError::NoDirectory)?;
        if !is_valid_name(name) {
            return Err(SecretError::BadName);
        }
        let path = directory.join(name);
        if let Some(kept) = self.kept.get(name)
            && kept.settled
            && std::fs::metadata(&path).is_ok_and(|now| Version::of(&now) == kept.version)
        {
            return Ok(kept.secret.clone());
        }
        self.kept.remove(name);
        // Not blocking: a named pipe must not stop the relay.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(&path)
            .map_err(|error| unreadable(name, &error))?;
        let before = file.metadata().map_err(|error| unreadable(name, &error))?;
        let read_at = SystemTime::now();
        let secret = text_of(name, file, &before)?;
        let version = Version::of(&before);
        let settled = version.was_settled_at(read_at);
        if self.kept.len() >= KEPT_MAX {
            self.kept.clear();
        }
        self.kept.insert(name.to_owned(), Kept { version, settled, secret: secret.clone() });
        Ok(secret)
    }
}

fn is_valid_name(name: &str) -> bool {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
    plain && !matches!(name, "" | "." | "..") && name.len() <= NAME_MAX_BYTES
}

fn unreadable(name: &str, error: &io::Error) -> SecretError {
    match error.kind() {
        io::ErrorKind::NotFound => SecretError::NotFound(name.to_owned()),
        kind => SecretError::Unreadable { name: name.to_owned(), kind },
    }
}

fn text_of(name: &str, file: File, metadata: &Metadata) -> Result<Secret, SecretError> {
    if !metadata.is_file() {
        return Err(SecretError::NotAFile(name.to_owned()));
    }
    if metadata.len() > FILE_MAX_BYTES {
        return Err(SecretError::TooLarge(name.to_owned()));
    }
    // Full size from the start: growing would leave copies of the text behind in freed memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_MAX_BYTES as usize + 1));
    file.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| unreadable(name, &error))?;
    if bytes.len() as u64 > FILE_MAX_BYTES {
        return Err(SecretError::TooLarge(name.to_owned()));
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| SecretError::NotText(name.to_owned()))?;
    let text = text.strip_suffix('\n').map_or(text, |line| line.strip_suffix('\r').unwrap_or(line));
    if text.is_empty() {
        return Err(SecretError::Empty(name.to_owned()));
    }
    if text.chars().any(char::is_control) {
        return Err(SecretError::NotText(name.to_owned()));
    }
    Ok(Secret(Zeroizing::new(text.to_owned())))
}
