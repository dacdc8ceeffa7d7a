//! The documentation as tests read it: fenced blocks, statements, headings.

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn repository() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    root.unwrap_or_else(|| panic!("the crate stands in the repository")).to_owned()
}

/// A file of the repository.
pub fn read(path: &str) -> String {
    let path = repository().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The fenced blocks of one language, in order.
pub fn blocks(document: &str, language: &str) -> Vec<String> {
    let (open, mut blocks, mut current) = (format!("```{language}"), Vec::new(), None::<String>);
    for line in document.lines() {
        match &mut current {
            Some(_) if line.trim() == "```" => blocks.extend(current.take().filter(|b: &String| !b.is_empty())),
            Some(block) => {
                block.push_str(line);
                block.push('\n');
            }
            None if line.trim() == open => current = Some(String::new()),
            None => {}
        }
    }
    assert!(current.is_none(), "a block of {language} is not closed");
    blocks
}

/// The headings of one level (2: those with `## `).
pub fn headings(document: &str, level: usize) -> Vec<String> {
    let mark = format!("{} ", "#".repeat(level));
    let mut fenced = false;
    let mut found = Vec::new();
    for line in document.lines() {
        fenced ^= line.starts_with("```");
        if !fenced && let Some(heading) = line.strip_prefix(&mark) {
            found.push(heading.trim().to_owned());
        }
    }
    found
}

/// The statements of a text, without their semicolons; empty ones and comments alone are left out. Knows quotes, dollar
/// quotes of the form `$$`, and comments to the end of the line.
pub fn statements(sql: &str) -> Vec<String> {
    let (mut all, mut current, mut code) = (Vec::new(), String::new(), false);
    let mut rest = sql;
    while let Some(c) = rest.chars().next() {
        let skip = |end: &str, from: usize| rest[from..].find(end).map_or(rest.len(), |at| at + from + end.len());
        let length = match c {
            '\'' => skip("'", 1),
            '-' if rest.starts_with("--") => skip("\n", 2),
            '$' if rest.starts_with("$$") => skip("$$", 2),
            _ => c.len_utf8(),
        };
        if c == ';' {
            if code {
                all.push(current.trim().to_owned());
            }
            (current, code) = (String::new(), false);
        } else {
            code |= !c.is_whitespace() && !rest.starts_with("--");
            current.push_str(&rest[..length]);
        }
        rest = &rest[length..];
    }
    assert!(!code, "no semicolon after: {current}");
    all
}

#[cfg(test)]
mod tests {
    #[test]
    fn statements_end_at_semicolons_outside_of_quotes_and_comments() {
        let sql = "-- one; two\nSELECT 'a;b''c';\n\nDO $$ BEGIN; END $$;\n-- end\n";
        let expected = ["-- one; two\nSELECT 'a;b''c'", "DO $$ BEGIN; END $$"];
        assert_eq!(super::statements(sql), expected);
    }

    #[test]
    fn blocks_and_headings_are_found_where_they_stand() {
        let text = "# A\n## B\n```sql\n## no heading\nSELECT 1;\n```\n```sh\nls\n```\n## C\n";
        assert_eq!(super::blocks(text, "sql"), ["## no heading\nSELECT 1;\n"]);
        assert_eq!(super::headings(text, 2), ["B", "C"]);
    }
}
