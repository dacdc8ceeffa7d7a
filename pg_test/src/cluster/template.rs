//! Fresh data directories, quickly: initdb runs once a day per server build; every cluster is a copy of it with its
//! own system identifier, as if initdb had made it.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::programs::{Programs, run};

/// A template older than this is made anew: cleaners of temporary directories remove old files one by one.
const TEMPLATE_AGE_LIMIT: Duration = Duration::from_secs(12 * 3600);

/// Makes `data` a data directory that no other cluster shares its identity with.
pub fn make_data_directory(programs: &Programs, data: &Path) {
    let template = template_path(programs);
    let lock_path = template.with_extension("lock");
    let lock = File::options().create(true).truncate(false).write(true).open(&lock_path);
    let lock = lock.unwrap_or_else(|e| panic!("{}: {e}", lock_path.display()));
    // The server's user may run tests as well, and shares the template.
    programs.hand_over(&lock_path);
    lock.lock().unwrap_or_else(|e| panic!("lock {}: {e}", lock_path.display()));
    if !is_usable(&template) {
        build(programs, &template);
    }
    let base = data.parent().unwrap_or(data);
    run(programs.any_command(Path::new("cp"), base).args(["-R", "-p"]).arg(&template).arg(data));
    drop(lock);
    give_new_identity(programs, data);
}

fn template_path(programs: &Programs) -> PathBuf {
    let temp = std::env::temp_dir();
    let version = run(programs.command("postgres", &temp).arg("--version"));
    let mut hasher = DefaultHasher::new();
    (version, programs.directory()).hash(&mut hasher);
    temp.join(format!("ledger_template.{}.{:016x}", programs.user_id(), hasher.finish()))
}

fn is_usable(template: &Path) -> bool {
    let made = fs::metadata(template.join("made_by_harness")).and_then(|m| m.modified());
    made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age < TEMPLATE_AGE_LIMIT))
}

fn build(programs: &Programs, template: &Path) {
    let _ = fs::remove_dir_all(template);
    let _ = fs::remove_dir_all(template.with_extension("new"));
    let unfinished = template.with_extension("new");
    programs.make_directory(&unfinished);
    run(programs
        .command("initdb", &unfinished)
        .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D"])
        .arg(&unfinished));
    fs::write(unfinished.join("made_by_harness"), "").unwrap_or_else(|e| panic!("{}: {e}", unfinished.display()));
    programs.hand_over(&unfinished.join("made_by_harness"));
    fs::rename(&unfinished, template).unwrap_or_else(|e| panic!("{}: {e}", template.display()));
}

/// Two clusters with one system identifier would be "the same database in another place" to the ledger's fence. So
/// the copy gets its own: into the control file, and by pg_resetwal into a new WAL.
fn give_new_identity(programs: &Programs, data: &Path) {
    let path = data.join("global/pg_control");
    let mut control = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let crc_at = crc_position(&control).unwrap_or_else(|| panic!("{}: no checksum found", path.display()));
    control[..8].copy_from_slice(&new_system_identifier().to_ne_bytes());
    let crc = crc32c(&control[..crc_at]);
    control[crc_at..crc_at + 4].copy_from_slice(&crc.to_ne_bytes());
    fs::write(&path, control).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    run(programs.command("pg_resetwal", data).args(["-f", "-D"]).arg(data));
}

/// The layout of the control file differs between majors, but it always ends in the CRC of what stands before it.
fn crc_position(control: &[u8]) -> Option<usize> {
    (200..512).step_by(4).find(|&at| {
        control.get(at..at + 4).is_some_and(|stored| stored == crc32c(&control[..at]).to_ne_bytes().as_slice())
    })
}

/// Built the way the server does it: seconds, microseconds, and 12 bits that differ within one microsecond.
fn new_system_identifier() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let low = (u64::from(std::process::id()) + NEXT.fetch_add(1, Ordering::Relaxed)) & 0xFFF;
    (since_epoch.as_secs() << 32) | (u64::from(since_epoch.subsec_micros()) << 12) | low
}

/// CRC-32C (Castagnoli), bit by bit: a few hundred bytes once per cluster.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { (crc >> 1) ^ 0x82F6_3B78 } else { crc >> 1 })
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn crc32c_of_the_check_string_is_the_published_one() {
        assert_eq!(super::crc32c(b"123456789"), 0xE306_9283);
    }
}
