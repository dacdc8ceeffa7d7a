//! Keys, canonical form and hashes as SQL sees them: the same under every setting, distinct for distinct content.

use pg_test::desk::desk;
use pg_test::prelude::*;

fn canonical(ledger: &mut Ledger, document: &str) -> String {
    ledger.one("SELECT command_ledger.canonical($1)", &[&Lit(document)])
}

#[test]
fn the_canonical_form_is_jcs_and_exact_where_jcs_is_not() {
    let (_cluster, mut ledger) = desk(json!({}));
    for (document, expected) in [
        (r#"{"b": 1, "a": [1.0, 1e0, 10e-1, -0]}"#, r#"{"a":[1,1,1,0],"b":1}"#),
        ("[9007199254740993, 0.10000000000000001]", "[9007199254740993,0.10000000000000001]"),
        ("[1e21, 1e-7, 123456789.25]", "[1e+21,1e-7,123456789.25]"),
        (r#"["\u20ac", "\n", "\u0001", "/"]"#, "[\"€\",\"\\n\",\"\\u0001\",\"/\"]"),
        (r#"{"\uff5e": 1, "\ud83d\ude00": 2}"#, "{\"\u{1f600}\":2,\"\u{ff5e}\":1}"),
        ("null", "null"),
        ("{}", "{}"),
    ] {
        assert_eq!(canonical(&mut ledger, document), expected, "{document}");
    }
    for (out_of_bounds, what) in [
        ("('1e401')::jsonb", "exponent"),
        ("(repeat('9', 401))::jsonb", "digits"),
        ("(repeat('[', 129) || repeat(']', 129))::jsonb", "depth"),
        ("to_jsonb(repeat('x', 1048576))", "size"),
    ] {
        let error = ledger.expect_sqlstate("CL014", &format!("SELECT command_ledger.canonical({out_of_bounds})"));
        assert!(!error.hint.is_empty() || !error.detail.is_empty(), "{what}: {error:?}");
    }
}

#[test]
fn strict_json_refuses_what_a_cast_would_drop() {
    let (_cluster, mut ledger) = desk(json!({}));
    let strict = "SELECT command_ledger.strict_json($1)::text";
    assert_eq!(ledger.one::<String>(strict, &[&r#"{"a": 1.10, "b": [null]}"#]), r#"{"a": 1.10, "b": [null]}"#);
    for broken in [r#"{"a": 1, "a": 2}"#, r#"{"a": {"b": 1, "b": 1}}"#, r#""\ud800""#, "{", "", "01", "nul"] {
        let error = ledger.try_rows(strict, &[&broken]).err().unwrap_or_else(|| panic!("{broken} passes"));
        assert_eq!(error.sqlstate, "CL004", "{broken}: {error}");
    }
    let deep = "[".repeat(100_000);
    let error = ledger.try_rows(strict, &[&deep]).expect_err("too deep");
    assert!(["CL004", "CL014"].contains(&error.sqlstate.as_str()), "{error}");
}

#[test]
fn derived_keys_are_the_same_for_the_same_parts_and_different_for_different_ones() {
    let (_cluster, mut ledger) = desk(json!({}));
    let derive = |ledger: &mut Ledger, parts: &str| ledger.text(&format!("SELECT command_ledger.derive_key({parts})"));
    let keys: Vec<String> = ["'a', 'b'", "'a:b'", "'a', '', 'b'", "'ab'", "'a b'", "'a%20b'", "'b', 'a'"]
        .iter()
        .filter(|parts| !parts.contains("''"))
        .map(|parts| derive(&mut ledger, parts))
        .collect();
    let mut distinct = keys.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), keys.len(), "{keys:?}");
    assert_eq!(derive(&mut ledger, "'a', 'b'"), keys[0]);
    let long = derive(&mut ledger, "repeat('x', 1000), 'y'");
    assert!(long.len() <= 255);
    assert_eq!(ledger.register("task", &long, json!({})).idempotency_key, long);
    ledger.expect_sqlstate("CL002", "SELECT command_ledger.derive_key('a', '')");
    ledger.expect_sqlstate("22004", "SELECT command_ledger.derive_key('a', NULL)");
}

#[test]
fn any_client_can_compute_the_command_id() {
    let (_cluster, mut ledger) = desk(json!({}));
    let receipt = ledger.register_with("task", "kö\"y", json!({}), json!({"tenant": "acme"}));
    let sql = "SELECT (encode(overlay(overlay(substr(h, 1, 16) placing set_byte('\\x00', 0, get_byte(h, 6) & 15 | 128) \
                 from 7) placing set_byte('\\x00', 0, get_byte(h, 8) & 63 | 128) from 9), 'hex'))::uuid::text \
                 FROM sha256(convert_to('[\"command_ledger.id.v1\",\"acme\",\"kö\\\"y\"]', 'UTF8')) AS h";
    assert_eq!(ledger.text(sql), receipt.command_id);
    assert_eq!(ledger.text("SELECT command_ledger.command_id('kö\"y', 'acme')"), receipt.command_id);
}

#[test]
fn hashes_do_not_depend_on_session_settings() {
    let (_cluster, mut ledger) = desk(json!({"immaterial": ["/note"]}));
    let params = r#"{"at": "2026-01-01T00:00:00+02", "amount": 0.1, "big": 9007199254740993, "note": 1}"#;
    let sql = format!(
        "SELECT encode(params_hash, 'hex') || encode(intent_hash, 'hex') || command_id::text || outcome \
           FROM command_ledger.register('task', 'k', '{params}')"
    );
    ledger.exec(&sql);
    let expected = ledger.text(&sql);
    for setting in [
        "TimeZone = 'Asia/Kathmandu'",
        "DateStyle = 'German, DMY'",
        "IntervalStyle = 'sql_standard'",
        "extra_float_digits = -15",
        "bytea_output = 'escape'",
        "search_path = ''",
        "standard_conforming_strings = on",
        "quote_all_identifiers = on",
        "lc_numeric = 'C'",
        "row_security = off",
        "default_transaction_isolation = 'serializable'",
        "enable_seqscan = off",
        "client_encoding = 'LATIN1'",
        "jit_above_cost = 0",
    ] {
        let mut session = ledger.another();
        session.exec(&format!("SET {setting}"));
        assert_eq!(session.text(&sql), expected, "{setting}");
    }
}

#[test]
fn operators_and_functions_of_the_caller_do_not_stand_in_for_the_servers() {
    let (_cluster, mut ledger) = desk(json!({}));
    ledger.exec(
        "CREATE SCHEMA evil; \
         CREATE FUNCTION evil.yes(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true'; \
         CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.yes); \
         CREATE FUNCTION evil.max(bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'; \
         SET search_path = evil, pg_catalog",
    );
    ledger.register_with("task", "a", json!({"n": 1}), json!({"ordering_key": "lane"}));
    let second = ledger.register_with("task", "b", json!({"n": 2}), json!({"ordering_key": "lane"}));
    assert_eq!((second.outcome.as_deref(), second.idempotency_key.as_str()), (Some("created"), "b"));
    assert_eq!(ledger.status("a").params_hash, ledger.register("task", "a", json!({"n": 1})).params_hash);
}

#[test]
fn any_client_can_compute_the_params_hash_whatever_the_servers_version_and_the_databases_collation() {
    let (cluster, mut ledger) = desk(json!({"immaterial": ["/note"]}));
    // Written by hand from the rules: members by UTF-16 units, shortest numbers, the immaterial member left out.
    let canonical = r#"["command_ledger.v1","acme","task",{"B":1.5,"a":9007199254740993,"z":[100,null],"ä":"ß"}]"#;
    let expected: String = ledger.one("SELECT encode(sha256(convert_to($1, 'UTF8')), 'hex')", &[&canonical]);
    let params = r#"{"ä": "ß", "z": [1e2, null], "a": 9007199254740993, "B": 1.50, "note": "x"}"#;
    let databases = [
        "LC_COLLATE 'C' LC_CTYPE 'C'",
        "LC_COLLATE 'C.UTF-8' LC_CTYPE 'C.UTF-8'",
        "LOCALE_PROVIDER icu ICU_LOCALE 'sv'",
    ];
    for (i, locale) in databases.iter().enumerate() {
        match ledger.try_exec(&format!("CREATE DATABASE other{i} TEMPLATE template0 ENCODING 'UTF8' {locale}")) {
            Err(e) if e.sqlstate == "0A000" && e.message.contains("ICU") => {
                pg_test::skipped("a database with an ICU locale", "this server is built without ICU");
                continue;
            }
            made => made.expect("made"),
        }
        let mut other = cluster.ledger(&format!("other{i}"));
        pg_test::desk::define_desk(&mut other, json!({}));
        pg_test::desk::define_task(&mut other, json!({"immaterial": ["/note"]}));
        let receipt =
            "SELECT encode(params_hash, 'hex') FROM command_ledger.register('task', 'k', $1, tenant => 'acme')";
        assert_eq!(other.one::<String>(receipt, &[&Lit(params)]), expected, "{locale}");
        let dry = "SELECT encode(command_ledger.params_hash('task', $1, 'acme'), 'hex')";
        assert_eq!(other.one::<String>(dry, &[&Lit(params)]), expected, "{locale}");
    }
}
