//! The memory of the relay while it delivers: `relay_memory [DELIVERIES]` (default 100000). Prints one line for every
//! tenth, and fails when the relay's own memory grows from the first tenth to the last by more than a tenth.

use pg_test::prelude::*;

const AT_ONCE: usize = 1_000;

/// A figure of /proc/PID/status, in kB.
fn kb(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

fn main() {
    let wanted: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let mut ledger = cluster.ledger("app");
    let erp = Destination::start(Profile::Plain);
    // Every twentieth has to be tried again: answers of all kinds pass through the relay.
    erp.otherwise_by(|_, n| if n % 20 == 0 { answer(429, json!({"busy": true})) } else { accept() });
    let request = json!({"body": {"reference": "{{ destination_key }}", "text": "{{ params.text }}"}});
    let limits = json!({"in_flight": 64, "retries_in_flight": 32});
    let config = json!({"request": request, "success": {"record_id": "$.id"}, "limits": limits});
    ledger.define_http_destination("erp", &erp.url("/records"), config);
    let retry = json!({"base": "1ms", "cap": "1ms", "max_attempts": 100});
    ledger.define_type("create", json!({"destination": "erp", "retry": retry}));
    let relay = ledger.relay_pid();
    println!("{:>10} {:>12} {:>12} {:>12}", "delivered", "RssAnon kB", "VmRSS kB", "VmHWM kB");
    let (mut done, mut shown, mut anonymous) = (0, 0, Vec::new());
    while done < wanted {
        let register = "SELECT command_ledger.register('create', $1 || i, pg_catalog.jsonb_build_object('text', \
                        pg_catalog.repeat('x', 500))) FROM pg_catalog.generate_series(1, $2::int) i";
        let prefix = format!("k{done:08}-");
        ledger.rows(register, &[&prefix, &i32::try_from(AT_ONCE).unwrap_or(i32::MAX)]);
        ledger.wait_until("SELECT NOT EXISTS (SELECT FROM command_ledger.outbox)", 300);
        done += AT_ONCE;
        if done * 10 / wanted > shown {
            shown = done * 10 / wanted;
            anonymous.push(kb(relay, "RssAnon"));
            println!("{done:>10} {:>12} {:>12} {:>12}", kb(relay, "RssAnon"), kb(relay, "VmRSS"), kb(relay, "VmHWM"));
        }
    }
    assert_eq!(erp.effects(), done, "every command had one effect");
    assert_eq!(ledger.relay_pid(), relay, "the same process from begin to end");
    let (first, last) = (anonymous[0], anonymous[anonymous.len() - 1]);
    assert!(last <= first + first / 10, "the relay grew from {first} kB to {last} kB");
}
