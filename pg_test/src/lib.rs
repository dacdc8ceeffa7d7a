//! The harness of the acceptance suite: throwaway PostgreSQL clusters that can be killed at any point, sessions, a
//! scriptable HTTP destination that knows exactly what reached it, and helpers over the SQL surface of the ledger.
//!
//! Everything is seen from outside: a test knows the SQL surface, the wire and the processes, never the code.
//!
//! ```no_run
//! use pg_test::prelude::*;
//!
//! let cluster = Cluster::builder().preload(true).start();
//! let erp = Destination::start(Profile::Plain);
//! let mut ledger = cluster.ledger("shop");
//! ledger.define_http_destination("erp", &erp.url("/records"), json!({}));
//! ledger.define_type("create_record", json!({ "destination": "erp" }));
//! ledger.register("create_record", "order-1", json!({ "reference": "order-1" }));
//! ledger.wait_status("order-1", "confirmed");
//! assert_eq!(erp.effects_for("order-1"), 1);
//! ```
//!
//! Helpers panic with everything a person needs to see why: this is test code, and a panic is how a test fails.

pub mod catalog;
pub mod cluster;
pub mod desk;
pub mod destination;
pub mod erp_like;
pub mod http;
pub mod kind;
pub mod ledger;
pub mod markdown;
pub mod process;
pub mod session;
pub mod torture;

/// Says that a test left something out that this server cannot do. The line goes past the harness's capture, and the
/// total of `scripts/test.sh` counts it.
pub fn skipped(what: &str, why: &str) {
    use std::io::Write;
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // Begins its own line: other tests write to the same stream.
    let _ = std::io::stdout().write_all(format!("\nskipped: {test}: {what}: {why}\n").as_bytes());
}

/// What nearly every test needs.
pub mod prelude {
    pub use crate::cluster::{Cluster, Dump, DumpFormat, Mode, Replication};
    pub use crate::destination::behaviour::*;
    pub use crate::destination::{Authority, Deaf, Destination, Profile, Search};
    pub use crate::ledger::{Ledger, Receipt};
    pub use crate::session::{Lit, Session, SqlError};
    pub use serde_json::{Value, json};
}
