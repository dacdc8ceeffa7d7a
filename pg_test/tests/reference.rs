//! `docs/reference.md` is what the catalog of a running ledger says, and nothing in it is undocumented.
//!
//! `scripts/reference.sh` writes the page; without `LEDGER_WRITE_REFERENCE` this test compares it.

use std::fmt::Write;

use pg_test::markdown::{read, repository};
use pg_test::prelude::*;

const PAGE: &str = "docs/reference.md";
const CAPABILITIES: [&str; 6] = ["propose", "approve", "execute", "operate", "administer", "audit"];

/// Text of a table's cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn rows(ledger: &mut Ledger, sql: &str) -> Vec<Vec<String>> {
    let rows = ledger.table(sql);
    rows.into_iter().map(|row| row.into_iter().map(Option::unwrap_or_default).collect()).collect()
}

/// What the source says of every SQLSTATE: code, meaning, what to do.
fn sqlstates() -> Vec<[String; 3]> {
    let source = read("crates/domain/src/error.rs");
    let hints = source.split("fn general_hint").nth(1).expect("the hints");
    let mut states: Vec<[String; 3]> = Vec::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let Some((code, meaning)) = line.trim().strip_prefix("/// `").and_then(|l| l.split_once("`: ")) else {
            continue;
        };
        let variant = lines.next().expect("a variant").trim().trim_end_matches(',');
        let after = hints.split(&format!("Code::{variant} ")).nth(1).expect("a hint");
        let hint = after.replace("\\\"", "\u{1}").split('"').nth(1).expect("a hint").replace('\u{1}', "\"");
        states.push([code.to_owned(), meaning.to_owned(), hint]);
    }
    let declared =
        source.split("fn sqlstate").nth(1).and_then(|s| s.split("fn general_hint").next()).expect("the codes");
    let declared = declared.matches("=> \"").count();
    assert_eq!(states.len(), declared, "every code says in its comment what it means");
    states
}

fn columns(ledger: &mut Ledger, relation: &str) -> Vec<Vec<String>> {
    let sql = format!(
        "select a.attname, format_type(a.atttypid, a.atttypmod), col_description(a.attrelid, a.attnum) \
           from pg_attribute a where a.attrelid = 'command_ledger.{relation}'::regclass and a.attnum > 0 \
            and not a.attisdropped order by a.attnum"
    );
    rows(ledger, &sql)
}

fn relations(ledger: &mut Ledger, kind: &str) -> Vec<Vec<String>> {
    let sql = format!(
        "select relname, obj_description(oid, 'pg_class') from pg_class \
          where relnamespace = 'command_ledger'::regnamespace and relkind = '{kind}' order by relname"
    );
    rows(ledger, &sql)
}

fn write_relations(page: &mut String, ledger: &mut Ledger, kind: &str) {
    for relation in relations(ledger, kind) {
        let (name, comment) = (&relation[0], &relation[1]);
        if comment.starts_with("Internal") {
            continue;
        }
        let (text, example) = match comment.rsplit_once(": SELECT ") {
            Some((text, example)) => (format!("{text}:"), Some(format!("SELECT {example}"))),
            None => (comment.clone(), None),
        };
        writeln!(page, "### {name}\n\n{text}\n").expect("writes");
        if let Some(example) = example {
            writeln!(page, "```sql\n{example}\n```\n").expect("writes");
        }
        writeln!(page, "| column | type | |\n|---|---|---|").expect("writes");
        for column in columns(ledger, name) {
            writeln!(page, "| {} | {} | {} |", column[0], column[1], cell(&column[2])).expect("writes");
        }
        page.push('\n');
    }
}

fn write_functions(page: &mut String, ledger: &mut Ledger) {
    for capability in CAPABILITIES {
        ledger.exec(&format!(
            "create role can_{capability}; select command_ledger.grant_access('can_{capability}', '{capability}')"
        ));
    }
    let roles = CAPABILITIES.map(|c| format!("'{c}'")).join(", ");
    let sql = format!(
        "select p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), obj_description(p.oid, 'pg_proc'), \
                (select string_agg(c, ', ' order by n) from unnest(array[{roles}]) with ordinality as x (c, n) \
                  where has_function_privilege('can_' || c, p.oid, 'execute')) \
           from pg_proc p where p.pronamespace = 'command_ledger'::regnamespace order by 1, 2"
    );
    for function in rows(ledger, &sql) {
        let [name, arguments, result, comment, who] = &function[..] else { panic!("five columns") };
        let mut arguments = arguments.replace("command_ledger.current_tenant()", "current_tenant()");
        for cast in ["text[]", "text", "interval", "jsonb", "timestamp with time zone"] {
            arguments = arguments.replace(&format!("NULL::{cast}"), "NULL");
        }
        let who = if who.is_empty() { "nobody; called by the ledger itself".to_owned() } else { who.clone() };
        let who = if who == CAPABILITIES.join(", ") { "every capability".to_owned() } else { who };
        writeln!(page, "### {name}\n\n`{name}({arguments}) → {result}`\n\n{comment}\n\nFor: {who}.\n").expect("writes");
    }
}

fn write_types(page: &mut String, ledger: &mut Ledger) {
    let enums = "select t.typname, obj_description(t.oid, 'pg_type'), \
                        (select string_agg('`' || e.enumlabel || '`', ', ' order by e.enumsortorder) from pg_enum e where e.enumtypid = t.oid) \
                   from pg_type t where t.typnamespace = 'command_ledger'::regnamespace and t.typtype = 'e' order by 1";
    for one in rows(ledger, enums) {
        writeln!(page, "### {}\n\n{}\n\n{}.\n", one[0], one[1], one[2]).expect("writes");
    }
    let composites = "select t.typname, obj_description(t.oid, 'pg_type') from pg_type t join pg_class c on c.oid = t.typrelid \
                       where t.typnamespace = 'command_ledger'::regnamespace and c.relkind = 'c' order by 1";
    for one in rows(ledger, composites) {
        let members: Vec<String> = columns(ledger, &one[0]).iter().map(|c| format!("`{} {}`", c[0], c[1])).collect();
        writeln!(page, "### {}\n\n{}\n\n{}.\n", one[0], one[1], members.join(", ")).expect("writes");
    }
}

fn write_settings(page: &mut String, ledger: &mut Ledger) {
    ledger.exec("load 'command_ledger'");
    page.push_str("| setting | default | range | changed by | |\n|---|---|---|---|---|\n");
    let settings = "select name, coalesce(nullif(boot_val, ''), '(none)') || coalesce(' ' || unit, ''), \
                           coalesce(array_to_string(enumvals, ', '), min_val || ' to ' || max_val), \
                           case context when 'user' then 'any user' when 'sighup' then 'reload' else context end, \
                           short_desc || ' ' || coalesce(extra_desc, '') \
                      from pg_settings where name like 'command_ledger.%' and name <> 'command_ledger.failpoint' order by 1";
    for s in rows(ledger, settings) {
        writeln!(page, "| `{}` | {} | {} | {} | {} |", s[0], s[1], s[2], s[3], cell(&s[4])).expect("writes");
    }
    page.push('\n');
}

fn page(ledger: &mut Ledger) -> String {
    let mut page = String::from(
        "# Reference\n\nWritten by `scripts/reference.sh` from the comments in the catalog of a running ledger; \
         `\\dx+ command_ledger`, `\\df+` and `\\d+` show the same. Everything is in the schema `command_ledger`. The documents \
         that define destinations and command types are described in [design.md](design.md).\n\n## Functions\n\n\
         Arguments can be given by name (`tenant => 'acme'`).\n\n",
    );
    write_functions(&mut page, ledger);
    page.push_str(
        "## Views\n\nFor the capabilities approve, operate and audit. Each shows what the reader may read.\n\n",
    );
    write_relations(&mut page, ledger, "v");
    page.push_str("## Types\n\n");
    write_types(&mut page, ledger);
    page.push_str("## Settings\n\nNone needs a restart.\n\n");
    write_settings(&mut page, ledger);
    page.push_str(
        "## Errors\n\nNo message holds a payload value.\n\n| SQLSTATE | meaning | what to do |\n|---|---|---|\n",
    );
    for [code, meaning, hint] in sqlstates() {
        writeln!(page, "| `{code}` | {} | {} |", cell(&meaning), cell(&hint)).expect("writes");
    }
    page.push_str(
        "\n## Tables\n\nGranted to nobody, written by the functions alone. For backups, replication and diagnosis.\n\n",
    );
    write_relations(&mut page, ledger, "r");
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

#[test]
fn the_reference_is_what_the_catalog_says() {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let mut ledger = cluster.ledger("app");
    let page = page(&mut ledger);
    if std::env::var_os("LEDGER_WRITE_REFERENCE").is_some() {
        std::fs::write(repository().join(PAGE), &page).expect("writes");
    }
    let stored = read(PAGE);
    let difference = stored.lines().zip(page.lines()).find(|(a, b)| a != b);
    assert!(stored == page, "{PAGE} is out of date, run scripts/reference.sh; the first difference: {difference:#?}");
}

#[test]
fn nothing_is_undocumented() {
    let cluster = Cluster::builder().preload(true).fsync_off().start();
    let mut ledger = cluster.ledger("app");
    let silent = "select format('%s %s', 'function', p.oid::regprocedure) from pg_proc p \
                   where p.pronamespace = 'command_ledger'::regnamespace and obj_description(p.oid, 'pg_proc') is null \
                  union all select format('%s %s', c.relkind, c.relname) from pg_class c \
                   where c.relnamespace = 'command_ledger'::regnamespace and c.relkind in ('r', 'v') \
                     and obj_description(c.oid, 'pg_class') is null \
                  union all select format('type %s', t.typname) from pg_type t left join pg_class c on c.oid = t.typrelid \
                   where t.typnamespace = 'command_ledger'::regnamespace and (t.typtype = 'e' or c.relkind = 'c') \
                     and obj_description(t.oid, 'pg_type') is null";
    assert_eq!(ledger.column::<String>(silent, &[]), Vec::<String>::new());
    ledger.exec("load 'command_ledger'");
    let settings = "select name from pg_settings where name like 'command_ledger.%' and (short_desc is null or extra_desc is null)";
    assert_eq!(ledger.column::<String>(settings, &[]), Vec::<String>::new());
    assert!(sqlstates().len() >= 20);
    // Every view for readers shows how it is asked, and the example runs.
    for view in relations(&mut ledger, "v") {
        if view[1].starts_with("Internal") {
            continue;
        }
        let example = view[1].rsplit_once("SELECT ").unwrap_or_else(|| panic!("no example: {}", view[0])).1;
        ledger.table(&format!("SELECT {example}"));
        assert!(example.contains(&format!("command_ledger.{}", view[0])), "{example}");
    }
}
