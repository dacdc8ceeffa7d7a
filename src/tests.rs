//! Tests inside a backend: what the SQL surface answers without a relay.

#[pgrx::pg_schema]
mod tests {
    use pgrx::prelude::*;

    fn one<T: FromDatum + IntoDatum>(sql: &str) -> Option<T> {
        Spi::get_one::<T>(sql).ok().flatten()
    }

    fn run(sql: &str) {
        Spi::run(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// The SQLSTATE that a statement ends with, read inside the server.
    fn sqlstate(sql: &str) -> String {
        run("CREATE OR REPLACE FUNCTION pg_temp.sqlstate_of(statement text) RETURNS text LANGUAGE plpgsql AS $$ \
             BEGIN EXECUTE statement; RETURN '00000'; EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE; END $$");
        let literal = sql.replace('\'', "''");
        one::<String>(&format!("SELECT pg_temp.sqlstate_of('{literal}')")).unwrap_or_default()
    }

    fn pull_type(policy: &str) {
        run("SELECT command_ledger.define_destination('desk', '{\"transport\": \"pull\"}')");
        run(&format!("SELECT command_ledger.define_command_type('task', '{policy}')"));
    }

    #[pg_test]
    fn canonical_form_keeps_every_digit_and_sorts_members() {
        let text: Option<String> = one(
            "SELECT command_ledger.canonical('{\"b\": 9007199254740993, \"a\": 1.0, \"c\": [1e2, -0, 0.10000000000000001]}')",
        );
        assert_eq!(text.as_deref(), Some("{\"a\":1,\"b\":9007199254740993,\"c\":[100,0,0.10000000000000001]}"));
        assert_eq!(sqlstate("SELECT command_ledger.canonical('{\"n\": 1e131071}')"), "CL014");
        assert_eq!(sqlstate("SELECT command_ledger.strict_json('{\"a\": 1, \"a\": 2}')"), "CL004");
    }

    #[pg_test]
    fn hashes_do_not_depend_on_settings() {
        pull_type("{\"destination\": \"desk\"}");
        let hash =
            "SELECT encode(command_ledger.params_hash('task', '{\"amount\": 0.1, \"at\": \"2026-01-01\"}'), 'hex')";
        let before: Option<String> = one(hash);
        run(
            "SET extra_float_digits = -15; SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'German'; SET lc_messages = 'C'",
        );
        assert_eq!(one::<String>(hash), before);
    }

    #[pg_test]
    fn same_key_and_params_are_a_replay_other_params_a_conflict() {
        pull_type("{\"destination\": \"desk\", \"immaterial\": [\"/note\"]}");
        let register = "SELECT (command_ledger.register('task', 'k', '{\"a\": 1, \"note\": \"x\"}')).outcome";
        assert_eq!(one::<String>(register).as_deref(), Some("created"));
        let again = "SELECT (command_ledger.register('task', 'k', '{\"note\": \"y\", \"a\": 1.0}')).outcome";
        assert_eq!(one::<String>(again).as_deref(), Some("replayed"));
        assert_eq!(sqlstate("SELECT command_ledger.register('task', 'k', '{\"a\": 2}')"), "CL001");
        assert_eq!(one::<bool>("SELECT command_ledger.verify_journal('k')"), Some(true));
    }

    #[pg_test]
    fn a_claim_in_a_transaction_block_is_refused() {
        // A test function is part of a larger transaction.
        pull_type("{\"destination\": \"desk\"}");
        run("SELECT command_ledger.register('task', 'k', '{\"a\": 1}')");
        assert_eq!(sqlstate("SELECT * FROM command_ledger.claim('desk')"), "CL013");
    }

    #[pg_test]
    fn an_approval_binds_to_one_intent_and_a_revision_voids_it() {
        pull_type("{\"destination\": \"desk\", \"approval\": {\"separate_proposer\": false}}");
        run("SELECT command_ledger.register('task', 'k', '{\"amount\": 5}')");
        assert_eq!(sqlstate("SELECT command_ledger.approve('k', '\\x00')"), "CL007");
        let intent = "(SELECT intent_hash FROM command_ledger.status('k'))";
        let approved = one::<String>(&format!("SELECT (command_ledger.approve('k', {intent})).status::text"));
        assert_eq!(approved.as_deref(), Some("approved"));
        let revised =
            one::<String>(&format!("SELECT (command_ledger.revise('k', '{{\"amount\": 6}}', {intent})).status::text"));
        assert_eq!(revised.as_deref(), Some("planned"));
        let missing = one::<i32>("SELECT approvals_missing FROM command_ledger.status('k')");
        assert_eq!(missing, Some(1));
        assert_eq!(one::<bool>("SELECT command_ledger.verify_journal('k')"), Some(true));
    }

    #[pg_test]
    fn a_predicate_that_cannot_be_decided_denies() {
        pull_type("{\"destination\": \"desk\", \"deny_when\": \"$.amount > 100\"}");
        assert_eq!(sqlstate("SELECT command_ledger.register('task', 'a', '{\"amount\": 101}')"), "CL005");
        assert_eq!(sqlstate("SELECT command_ledger.register('task', 'b', '{}')"), "CL005");
        assert_eq!(sqlstate("SELECT command_ledger.register('task', 'c', '{\"amount\": 100}')"), "00000");
    }

    #[pg_test]
    fn params_are_checked_against_the_schema() {
        pull_type("{\"destination\": \"desk\", \"schema\": {\"type\": \"object\", \"required\": [\"plant\"]}}");
        assert_eq!(sqlstate("SELECT command_ledger.register('task', 'a', '{}')"), "CL004");
        assert_eq!(sqlstate("SELECT command_ledger.register('task', 'a', '{\"plant\": 1}')"), "00000");
    }

    #[pg_test]
    fn a_message_is_consumed_once() {
        let consume = "SELECT command_ledger.consume('billing', 'm1', '{\"a\": 1}')";
        assert_eq!(one::<bool>(consume), Some(true));
        assert_eq!(one::<bool>(consume), Some(false));
        assert_eq!(sqlstate("SELECT command_ledger.consume('billing', 'm1', '{\"a\": 2}')"), "CL001");
    }

    #[pg_test]
    fn a_hostile_search_path_gains_nothing() {
        pull_type("{\"destination\": \"desk\"}");
        run("CREATE SCHEMA evil; \
             CREATE FUNCTION evil.yes(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'hijacked'; END $$; \
             CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.yes); \
             CREATE DOMAIN evil.text AS pg_catalog.text CHECK (false); \
             SET search_path = evil, pg_catalog");
        run(
            "SELECT command_ledger.register('task'::pg_catalog.text, 'k'::pg_catalog.text, '{\"a\": 1}'::pg_catalog.jsonb)",
        );
        run("SELECT * FROM command_ledger.status('k'::pg_catalog.text)");
        run("SELECT command_ledger.cancel('k'::pg_catalog.text)");
        run("SELECT * FROM command_ledger.reconciliation_queue");
        run("SELECT command_ledger.explain('k'::pg_catalog.text)");
        run("RESET search_path");
    }

    #[pg_test]
    fn nothing_is_left_to_public() {
        let open: Option<i64> =
            one("SELECT count(*) FROM pg_proc p WHERE p.pronamespace = 'command_ledger'::regnamespace \
              AND has_function_privilege('public', p.oid, 'EXECUTE')");
        assert_eq!(open, Some(0));
    }

    #[pg_test]
    fn every_object_of_the_surface_is_explained_in_the_catalog() {
        let bare: Option<String> = one("SELECT string_agg(o, ', ') FROM ( \
               SELECT p.proname::text FROM pg_proc p WHERE p.pronamespace = 'command_ledger'::regnamespace \
                  AND obj_description(p.oid, 'pg_proc') IS NULL \
               UNION ALL SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = 'command_ledger'::regnamespace \
                  AND c.relkind IN ('r', 'v') AND obj_description(c.oid, 'pg_class') IS NULL) AS x (o)");
        assert_eq!(bare, None);
    }
}
