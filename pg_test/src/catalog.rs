//! What an extension made, as the catalog says it: one line per fact, so that two installations can be compared.

use std::collections::BTreeSet;

use crate::session::Session;

/// Each query answers lines of text: what it is, and everything that somebody could rely on.
const FACTS: [(&str, &str); 13] = [
    (
        "member",
        "SELECT concat_ws(' ', d.deptype, pg_describe_object(d.classid, d.objid, d.objsubid)) FROM pg_depend d \
          WHERE d.refclassid = 'pg_extension'::regclass AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'command_ledger')",
    ),
    (
        "in dumps",
        "SELECT c::regclass || ' ' || coalesce(w, '') FROM pg_extension x, unnest(x.extconfig, x.extcondition) AS u(c, w) \
          WHERE x.extname = 'command_ledger'",
    ),
    (
        "schema",
        "SELECT concat_ws(' ', nspname, (SELECT array_agg(a::text ORDER BY a::text) FROM unnest(nspacl) a), obj_description(oid, 'pg_namespace')) \
           FROM pg_namespace WHERE nspname = 'command_ledger'",
    ),
    (
        "relation",
        "SELECT concat_ws(' ', c.oid::regclass, c.relkind, c.relpersistence, am.amname, c.reloptions::text, t.reloptions::text, \
                'row security', c.relrowsecurity, c.relforcerowsecurity, 'identity', c.relreplident, \
                (SELECT array_agg(a::text ORDER BY a::text) FROM unnest(c.relacl) a), obj_description(c.oid, 'pg_class')) \
           FROM pg_class c LEFT JOIN pg_am am ON am.oid = c.relam LEFT JOIN pg_class t ON t.oid = c.reltoastrelid \
          WHERE c.relnamespace = 'command_ledger'::regnamespace",
    ),
    (
        // Some servers mark every column with a number of their own (pg_attver), another in each database.
        "column",
        "SELECT concat_ws(' ', c.oid::regclass, row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum), a.attname, \
                format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NOT NULL' END, \
                'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), nullif(a.attcollation, 0)::regcollation, a.attstorage, a.attcompression, \
                a.attgenerated, a.attidentity, \
                (SELECT array_agg(o ORDER BY o) FROM unnest(a.attoptions) o WHERE o NOT LIKE 'pg_attver=%'), a.attacl::text, col_description(c.oid, a.attnum)) \
           FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum \
          WHERE c.relnamespace = 'command_ledger'::regnamespace AND c.relkind <> 'i' AND a.attnum > 0 AND NOT a.attisdropped",
    ),
    (
        "constraint",
        "SELECT concat_ws(' ', conrelid::regclass, contypid::regtype, conname, contype, pg_get_constraintdef(oid), convalidated, condeferrable, \
                obj_description(oid, 'pg_constraint')) \
           FROM pg_constraint WHERE connamespace = 'command_ledger'::regnamespace",
    ),
    (
        "index",
        "SELECT concat_ws(' ', pg_get_indexdef(i.indexrelid), i.indisprimary, i.indisvalid, i.indisreplident) \
           FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relnamespace = 'command_ledger'::regnamespace",
    ),
    (
        "trigger",
        "SELECT concat_ws(' ', pg_get_triggerdef(t.oid), t.tgenabled, obj_description(t.oid, 'pg_trigger')) \
           FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = 'command_ledger'::regnamespace AND NOT t.tgisinternal",
    ),
    (
        "function",
        "SELECT concat_ws(' ', CASE WHEN p.prokind = 'a' THEN p.oid::regprocedure::text ELSE pg_get_functiondef(p.oid) END, \
                (SELECT array_agg(a::text ORDER BY a::text) FROM unnest(p.proacl) a), obj_description(p.oid, 'pg_proc')) \
           FROM pg_proc p WHERE p.pronamespace = 'command_ledger'::regnamespace",
    ),
    (
        "type",
        "SELECT concat_ws(' ', t.oid::regtype, t.typtype, t.typlen, t.typalign, \
                (SELECT array_agg(a::text ORDER BY a::text) FROM unnest(t.typacl) a), obj_description(t.oid, 'pg_type'), \
                (SELECT string_agg(e.enumlabel, ', ' ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid)) \
           FROM pg_type t WHERE t.typnamespace = 'command_ledger'::regnamespace",
    ),
    (
        "view",
        "SELECT c.oid::regclass || ' ' || pg_get_viewdef(c.oid) FROM pg_class c \
          WHERE c.relnamespace = 'command_ledger'::regnamespace AND c.relkind IN ('v', 'm')",
    ),
    (
        "policy",
        "SELECT concat_ws(' ', p.polrelid::regclass, p.polname, p.polcmd, p.polpermissive, p.polroles::regrole[]::text, \
                pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid)) \
           FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid WHERE c.relnamespace = 'command_ledger'::regnamespace",
    ),
    (
        // Without it, pg_dump would write the extension's own revocations as the user's.
        "first rights",
        "SELECT pg_describe_object(i.classoid, i.objoid, i.objsubid) || ' ' \
                || (SELECT array_agg(a::text ORDER BY a::text) FROM unnest(i.initprivs) a)::text \
           FROM pg_init_privs i WHERE i.privtype = 'e' AND EXISTS (SELECT FROM pg_depend d \
                 WHERE d.classid = i.classoid AND d.objid = i.objoid AND d.deptype = 'e' \
                   AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'command_ledger'))",
    ),
];

/// Everything that the extension is in this database, its version aside.
pub fn picture(session: &mut Session) -> BTreeSet<String> {
    // Names are written with their schema whatever the session's own search_path is.
    session.exec("SET search_path = ''");
    let mut lines = BTreeSet::new();
    for (what, sql) in FACTS {
        let found: Vec<String> = session.column(&sql.replace("'command_ledger'::regnamespace", OWN_SCHEMA), &[]);
        assert!(!found.is_empty(), "the catalog knows no {what} of the extension");
        lines.extend(found.into_iter().map(|line| format!("{what}: {line}")));
    }
    session.exec("RESET search_path");
    lines
}

const OWN_SCHEMA: &str = "(SELECT oid FROM pg_namespace WHERE nspname = 'command_ledger')";

/// What one has and the other has not, for a person; empty if they are the same.
pub fn difference(one: &BTreeSet<String>, other: &BTreeSet<String>, names: [&str; 2]) -> String {
    let only = |a: &BTreeSet<String>, b: &BTreeSet<String>, name: &str| -> String {
        a.difference(b).map(|line| format!("only in {name}: {line}\n")).collect()
    };
    only(one, other, names[0]) + &only(other, one, names[1])
}
