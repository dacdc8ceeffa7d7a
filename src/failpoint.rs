//! Named points at which a test build can be told to stop, be delayed or die; nothing at all in other builds.

/// Does what the setting `command_ledger.failpoint` (`name=action`) says for this point.
#[cfg(feature = "failpoints")]
pub fn hit(name: &str) {
    use crate::settings;
    loop {
        let Some(setting) = settings::text(&settings::FAILPOINT) else { return };
        let Some(action) = setting.split(',').find_map(|p| p.trim().strip_prefix(name)?.strip_prefix('=')) else {
            return;
        };
        match action {
            "crash" => std::process::abort(),
            "panic" => panic!("failpoint {name}"),
            "hang" => {
                // Wakes up to see a changed setting or a stop request; otherwise stays here.
                std::thread::sleep(std::time::Duration::from_millis(20));
                crate::relay::signals::reload_if_asked();
                if crate::relay::signals::stop_asked() {
                    return;
                }
            }
            other => {
                if let Some(ms) = other.strip_prefix("sleep:").and_then(|ms| ms.parse().ok()) {
                    std::thread::sleep(std::time::Duration::from_millis(ms));
                }
                return;
            }
        }
    }
}

/// No failpoints in this build.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn hit(_name: &str) {}
