//! Statement text is ordinary SQL with two rules that [`qualify`] turns into search_path-proof SQL: an operator with a
//! blank on both sides is pg_catalog's, and a cast to a built-in type is to pg_catalog's. `SET a=b` has no blanks.
//! Tables and functions are always written with their schema.

const OPERATORS: [&str; 15] = ["=", "<>", "<", ">", "<=", ">=", "+", "-", "*", "/", "||", "->", "->>", "@>", "~"];
const TYPES: [&str; 11] = [
    "text[]",
    "text",
    "jsonpath",
    "jsonb",
    "timestamptz",
    "bytea",
    "uuid",
    "oid",
    "regrole",
    "regprocedure",
    "regclass",
];

/// Makes a statement independent of the caller's search_path (rules in the module's comment).
pub fn qualify(sql: &str) -> String {
    let mut out = String::with_capacity(sql.len() * 2);
    for (i, word) in sql.split_whitespace().enumerate() {
        if i > 0 {
            out.push(' ');
        }
        if OPERATORS.contains(&word) && out.trim_end() != "count(" {
            out.push_str("OPERATOR(pg_catalog.");
            out.push_str(word);
            out.push(')');
            continue;
        }
        let mut rest = word;
        while let Some(at) = rest.find("::") {
            out.push_str(&rest[..at + 2]);
            rest = &rest[at + 2..];
            if TYPES.iter().any(|t| {
                rest.strip_prefix(t).is_some_and(|r| !r.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
            }) {
                out.push_str("pg_catalog.");
            }
        }
        out.push_str(rest);
    }
    out
}
