//! The long run of the torture: `torture SEED MINUTES`. See docs/proof.md.

use std::process::ExitCode;
use std::time::Duration;

use pg_test::torture::{Plan, Run};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let (Some(Ok(seed)), Some(Ok(minutes)), None) = (arguments.next(), arguments.next(), arguments.next()) else {
        eprintln!("usage: torture SEED MINUTES");
        return ExitCode::FAILURE;
    };
    Run {
        seed,
        lasts: Duration::from_secs(minutes * 60),
        callers: 4,
        pause_ms: 240,
        plan: Plan { pause_ms: (1_000, 3_000), ..Plan::default() },
        fsync: true,
        misled: false,
    }
    .make();
    ExitCode::SUCCESS
}
