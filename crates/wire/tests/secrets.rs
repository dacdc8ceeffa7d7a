//! Secrets are read from files, again when those change, and are never shown.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use command_ledger_wire::{SecretError, SecretStore, WireConfig};

fn store() -> (tempfile::TempDir, SecretStore) {
    let directory = tempfile::tempdir().expect("a directory");
    let store = SecretStore::new(Some(directory.path().to_owned()));
    (directory, store)
}

fn text(store: &mut SecretStore, name: &str) -> String {
    store.read(name).expect("a secret").reveal().to_owned()
}

#[test]
fn one_line_break_at_the_end_is_dropped() {
    let (directory, mut store) = store();
    for (content, expected) in
        [("s3cret\n", "s3cret"), ("s3cret", "s3cret"), ("s3cret\r\n", "s3cret"), (" a \n", " a ")]
    {
        fs::write(directory.path().join("erp_token"), content).expect("write");
        assert_eq!(text(&mut store, "erp_token"), expected);
    }
}

#[test]
fn a_changed_secret_is_read_again_even_with_the_same_size_and_a_fresh_timestamp() {
    let (directory, mut store) = store();
    let path = directory.path().join("token");
    for round in 0..200 {
        let content = format!("secret-{round:04}");
        fs::write(&path, &content).expect("write");
        assert_eq!(text(&mut store, "token"), content);
    }
}

#[test]
fn a_settled_secret_that_is_replaced_is_read_again() {
    let (directory, mut store) = store();
    let path = directory.path().join("token");
    fs::write(&path, "first").expect("write");
    assert_eq!(text(&mut store, "token"), "first");
    let next = directory.path().join("next");
    fs::write(&next, "other").expect("write");
    // The replacement claims to be as old as anything: only its inode tells.
    let long_ago = SystemTime::now() - Duration::from_secs(1_000_000);
    fs::File::options().write(true).open(&next).expect("open").set_modified(long_ago).expect("set");
    fs::rename(&next, &path).expect("rename");
    assert_eq!(text(&mut store, "token"), "other");
}

#[test]
fn a_mounted_secret_that_is_swapped_by_its_link_is_read_again() {
    let (directory, mut store) = store();
    for version in ["v1", "v2"] {
        fs::create_dir(directory.path().join(version)).expect("directory");
        fs::write(directory.path().join(version).join("token"), format!("secret of {version}")).expect("write");
    }
    symlink("v1", directory.path().join("data")).expect("link");
    symlink("data/token", directory.path().join("token")).expect("link");
    assert_eq!(text(&mut store, "token"), "secret of v1");
    symlink("v2", directory.path().join("data_next")).expect("link");
    fs::rename(directory.path().join("data_next"), directory.path().join("data")).expect("rename");
    assert_eq!(text(&mut store, "token"), "secret of v2");
}

#[test]
fn a_removed_secret_is_not_remembered() {
    let (directory, mut store) = store();
    let path = directory.path().join("token");
    fs::write(&path, "s3cret").expect("write");
    assert_eq!(text(&mut store, "token"), "s3cret");
    fs::remove_file(&path).expect("remove");
    assert_eq!(store.read("token").map(|_| ()), Err(SecretError::NotFound("token".to_owned())));
}

#[test]
fn names_that_could_leave_the_directory_are_refused() {
    let (directory, mut store) = store();
    fs::write(directory.path().join("token"), "s3cret").expect("write");
    for name in ["", ".", "..", "../token", "a/b", "/etc/passwd", "a b", "tok\0en", "t\u{f6}ken", &"a".repeat(256)] {
        assert_eq!(store.read(name).map(|_| ()), Err(SecretError::BadName), "{name:?}");
    }
    assert_eq!(SecretStore::new(None).read("token").map(|_| ()), Err(SecretError::NoDirectory));
}

#[test]
fn files_that_are_no_secret_are_refused_and_errors_never_show_the_content() {
    let (directory, mut store) = store();
    let cases: [(&str, Vec<u8>); 6] = [
        ("two-lines", b"top-secret\nX-Evil: 1".to_vec()),
        ("two-breaks", b"top-secret\n\n".to_vec()),
        ("nul", b"top-secret\0".to_vec()),
        ("binary", b"top-secret\xff".to_vec()),
        ("empty", b"\n".to_vec()),
        ("large", b"top-secret".repeat(7_000)),
    ];
    for (name, content) in cases {
        fs::write(directory.path().join(name), content).expect("write");
        let error = store.read(name).err().unwrap_or_else(|| panic!("{name} was accepted"));
        assert!(!format!("{error} {error:?}").contains("top-secret"), "{name}");
    }
    fs::create_dir(directory.path().join("directory")).expect("directory");
    assert_eq!(store.read("directory").map(|_| ()), Err(SecretError::NotAFile("directory".to_owned())));
    let pipe = std::ffi::CString::new(directory.path().join("pipe").to_str().expect("text")).expect("no NUL");
    // SAFETY: a C string that lives here.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    assert_eq!(store.read("pipe").map(|_| ()), Err(SecretError::NotAFile("pipe".to_owned())));
}

#[test]
fn debug_shows_neither_secrets_nor_the_proxys_password() {
    let (directory, mut store) = store();
    fs::write(directory.path().join("token"), "top-secret").expect("write");
    let secret = store.read("token").expect("a secret");
    assert!(!format!("{secret:?} {store:?}").contains("top-secret"));
    let config = WireConfig { proxy: Some("http://ann:top-secret@proxy".to_owned()), ..WireConfig::default() };
    assert!(!format!("{config:?}").contains("top-secret"));
    let broken = WireConfig { proxy: Some("https://ann:top-secret@proxy".to_owned()), ..WireConfig::default() };
    assert!(!format!("{:?}", broken.check()).contains("top-secret"));
}
