//! Every setting of the extension, with its meaning, unit, range and the reason for its context. None is
//! postmaster-only: all can be changed by a reload, or by a superuser in a session.

use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};
use std::ffi::CString;

/// What a ledger does that finds itself promoted or restored in another place.
#[derive(Clone, Copy, PartialEq, Eq, PostgresGucEnum)]
pub enum OnFailover {
    /// Send nothing until a person adopts the ledger.
    #[name = c"halt"]
    Halt,
    /// Go on with destinations that deduplicate; look everything else up first.
    #[name = c"continue"]
    Continue,
}

/// `command_ledger.relay`
pub static RELAY: GucSetting<bool> = GucSetting::<bool>::new(true);
/// `command_ledger.tenant`
pub static TENANT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
/// `command_ledger.secrets_directory`
pub static SECRETS_DIRECTORY: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
/// `command_ledger.ca_file`
pub static CA_FILE: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
/// `command_ledger.allowed_hosts`
pub static ALLOWED_HOSTS: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
/// `command_ledger.proxy`
pub static PROXY: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
/// `command_ledger.on_failover`
pub static ON_FAILOVER: GucSetting<OnFailover> = GucSetting::<OnFailover>::new(OnFailover::Halt);
/// `command_ledger.max_sleep`, milliseconds
pub static MAX_SLEEP_MS: GucSetting<i32> = GucSetting::<i32>::new(60_000);
/// `command_ledger.shutdown_grace`, milliseconds
pub static SHUTDOWN_GRACE_MS: GucSetting<i32> = GucSetting::<i32>::new(2_000);
/// `command_ledger.relay_batch`, commands
pub static RELAY_BATCH: GucSetting<i32> = GucSetting::<i32>::new(200);
/// `command_ledger.log_deliveries`
pub static LOG_DELIVERIES: GucSetting<bool> = GucSetting::<bool>::new(false);
/// `command_ledger.failpoint` (test builds only)
#[cfg(feature = "failpoints")]
pub static FAILPOINT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
/// `command_ledger.clock_offset`, seconds (test builds only)
#[cfg(feature = "failpoints")]
pub static CLOCK_OFFSET_S: GucSetting<i32> = GucSetting::<i32>::new(0);

/// Declares all settings. Called once when the library is loaded.
pub fn define() {
    GucRegistry::define_bool_guc(
        c"command_ledger.relay",
        c"Whether the relay sends commands to destinations.",
        c"Off: nothing is sent and nothing is lost; use it to start a copy or a snapshot of a server quietly. Reloadable.",
        &RELAY,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"command_ledger.tenant",
        c"The tenant that functions use when none is given.",
        c"Used only if the caller may act for that tenant. Set by the application per session or transaction.",
        &TENANT,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"command_ledger.secrets_directory",
        c"Directory with one file per secret that destinations name.",
        c"Readable by the server's user only. A changed file is read again. Secrets never stand in tables or logs.",
        &SECRETS_DIRECTORY,
        GucContext::Sighup,
        GucFlags::SUPERUSER_ONLY,
    );
    GucRegistry::define_string_guc(
        c"command_ledger.ca_file",
        c"PEM file with further certificate authorities for destinations.",
        c"Added to the system's roots. Reloadable.",
        &CA_FILE,
        GucContext::Sighup,
        GucFlags::SUPERUSER_ONLY,
    );
    GucRegistry::define_string_guc(
        c"command_ledger.allowed_hosts",
        c"Hosts, host:port pairs or networks that may be reached although they are refused by default.",
        c"Comma-separated. Refused by default: link-local and metadata addresses, unspecified, multicast. Reloadable.",
        &ALLOWED_HOSTS,
        GucContext::Sighup,
        GucFlags::SUPERUSER_ONLY,
    );
    GucRegistry::define_string_guc(
        c"command_ledger.proxy",
        c"URL of the HTTP proxy for all destinations; empty for none.",
        c"Taken from here only, never from the environment. The server logs changed settings: a password in it is shown there. Reloadable.",
        &PROXY,
        GucContext::Sighup,
        GucFlags::SUPERUSER_ONLY,
    );
    GucRegistry::define_enum_guc(
        c"command_ledger.on_failover",
        c"What to do when the ledger finds itself in another place: promoted, restored or copied.",
        c"halt: send nothing until adopt_relay(). continue: destinations that deduplicate go on, others are looked up first.",
        &ON_FAILOVER,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"command_ledger.max_sleep",
        c"Longest sleep of an idle relay.",
        c"Commits wake it; the sweep after this time catches what a lost wake-up left. 100 ms to 1 h.",
        &MAX_SLEEP_MS,
        100,
        3_600_000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"command_ledger.shutdown_grace",
        c"How long a stopping relay waits for answers to calls in flight.",
        c"What is unanswered then stays leased and is judged at the next start. 0 to 60 s.",
        &SHUTDOWN_GRACE_MS,
        0,
        60_000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"command_ledger.relay_batch",
        c"Most commands that the relay claims or settles in one transaction.",
        c"Larger batches share a flush; a batch is redone row by row when one of its rows fails. 1 to 2000.",
        &RELAY_BATCH,
        1,
        2_000,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"command_ledger.log_deliveries",
        c"Whether each delivery writes a log line.",
        c"Names the command, attempt, destination and answer class; never a payload. For diagnosis. Reloadable.",
        &LOG_DELIVERIES,
        GucContext::Sighup,
        GucFlags::default(),
    );
    #[cfg(feature = "failpoints")]
    GucRegistry::define_string_guc(
        c"command_ledger.failpoint",
        c"name=action at which the relay of a test build misbehaves.",
        c"Actions: hang, crash, panic, sleep:MS, off. Exists in test builds only.",
        &FAILPOINT,
        GucContext::Sighup,
        GucFlags::default(),
    );
    #[cfg(feature = "failpoints")]
    GucRegistry::define_int_guc(
        c"command_ledger.clock_offset",
        c"How far the ledger's clock is ahead of the server's.",
        c"Lets days pass in a test; views still read the server's clock. Exists in test builds only. Reloadable.",
        &CLOCK_OFFSET_S,
        i32::MIN,
        i32::MAX,
        GucContext::Sighup,
        GucFlags::UNIT_S,
    );
    // SAFETY: our prefix; unknown settings under it become errors from here on.
    unsafe { pgrx::pg_sys::MarkGUCPrefixReserved(c"command_ledger".as_ptr()) };
}

/// A string setting as text, `None` when unset or empty.
pub fn text(setting: &GucSetting<Option<CString>>) -> Option<String> {
    setting.get().map(|v| v.to_string_lossy().into_owned()).filter(|v| !v.is_empty())
}
