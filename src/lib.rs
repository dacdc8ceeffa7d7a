//! command_ledger: commands to other systems, made idempotent, approved, durable and provable inside PostgreSQL.
//!
//! Rooms: `crates/domain` decides (pure), `ledger` is what SQL can call, `relay` delivers, `pg` is the server's C
//! interface. Arrows run one way: `ledger` and `relay` use `pg` and the domain; `relay` uses `ledger`; nothing uses
//! `relay` but this file and the commit hook in `relay::wake`.

#[cfg(all(feature = "failpoints", not(debug_assertions)))]
compile_error!("failpoints are for test builds; a release build must not have them");

mod failpoint;
mod ledger;
mod pg;
mod relay;
mod settings;

pgrx::pg_module_magic!();

pgrx::extension_sql_file!("../sql/types.sql", name = "types", bootstrap);
pgrx::extension_sql_file!("../sql/tables.sql", name = "tables", requires = ["types"]);
pgrx::extension_sql_file!("../sql/guard.sql", name = "guard", requires = ["tables"]);
pgrx::extension_sql_file!("../sql/functions.sql", name = "functions", requires = ["guard"]);
pgrx::extension_sql_file!("../sql/views/record.sql", name = "views_record", requires = ["functions"]);
pgrx::extension_sql_file!("../sql/views/queues.sql", name = "views_queues", requires = ["views_record"]);
pgrx::extension_sql_file!("../sql/views/audit.sql", name = "views_audit", requires = ["views_record"]);
pgrx::extension_sql_file!("../sql/views/destinations.sql", name = "views_destinations", requires = ["views_record"]);
pgrx::extension_sql_file!(
    "../sql/views/metrics.sql",
    name = "views_metrics",
    requires = ["views_queues", "views_audit", "views_destinations"]
);
pgrx::extension_sql_file!("../sql/grants.sql", name = "grants", requires = ["views_metrics"], finalize);

/// Called by the server when the library is loaded.
#[allow(non_snake_case)]
#[pgrx::pg_guard]
pub extern "C-unwind" fn _PG_init() {
    settings::define();
    relay::register();
}

#[cfg(any(test, feature = "pg_test"))]
mod tests;

/// Required by the in-database test runner.
#[cfg(test)]
pub mod pg_test {
    /// Nothing to set up.
    pub fn setup(_options: Vec<&str>) {}

    /// The server's settings for the tests.
    #[must_use]
    pub fn postgresql_conf_options() -> Vec<&'static str> {
        vec!["shared_preload_libraries = 'command_ledger'"]
    }
}
