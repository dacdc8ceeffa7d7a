//! What the demo prints: steps, the SQL that it ran, what came back, and whether that was expected.

use std::io::{IsTerminal, stdout};

use pg_test::session::{Session, SqlError};

#[derive(Clone, Copy)]
enum Ink {
    Heading,
    Sql,
    Good,
    Bad,
    Note,
}

/// The terminal (or pipe) of the demo.
pub struct Screen {
    colour: bool,
    step: u32,
    failures: u32,
}

impl Screen {
    pub fn new() -> Screen {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
        Screen { colour: stdout().is_terminal() && !no_colour && !dumb, step: 0, failures: 0 }
    }

    fn ink(&self, ink: Ink, text: &str) -> String {
        let code = match ink {
            Ink::Heading => "1",
            Ink::Sql => "36",
            Ink::Good => "32",
            Ink::Bad => "1;31",
            Ink::Note => "2",
        };
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// The heading of the next step.
    pub fn step(&mut self, what: &str) {
        self.step += 1;
        println!("\n{}", self.ink(Ink::Heading, &format!("{}. {what}", self.step)));
    }

    /// A line of explanation.
    pub fn say(&self, text: &str) {
        println!("   {text}");
    }

    /// A line about what runs where.
    pub fn note(&self, text: &str) {
        println!("   {}", self.ink(Ink::Note, text));
    }

    /// Something to be read as it is, indented.
    pub fn block(&self, text: &str) {
        for line in text.trim_end().lines() {
            println!("     {line}");
        }
    }

    /// An expectation: what holds, or what should have.
    pub fn expect(&mut self, what: &str, holds: bool) {
        if holds {
            println!("   {} {what}", self.ink(Ink::Good, "ok:"));
        } else {
            self.failures += 1;
            println!("   {} {what}", self.ink(Ink::Bad, "NOT SO:"));
        }
    }

    /// An error that ends the demo.
    pub fn broken(&mut self, error: &str) {
        self.failures += 1;
        println!("\n{} {error}", self.ink(Ink::Bad, "The demo broke off:"));
    }

    /// How many expectations failed.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Shows SQL.
    pub fn show_sql(&self, sql: &str) {
        for line in sql.trim().lines() {
            println!("   {}", self.ink(Ink::Sql, line));
        }
    }

    /// Shows and runs one statement; its rows are shown, a value per line, and answered as text.
    pub fn run(&self, session: &mut Session, sql: &str) -> Result<Vec<Vec<Option<String>>>, String> {
        self.show_sql(sql);
        let (names, rows) = session.try_table(sql).map_err(|e| format!("{e}\nof: {sql}"))?;
        let width = names.iter().map(String::len).max().unwrap_or(0);
        for row in &rows {
            for (name, value) in names.iter().zip(row) {
                // A void function has an empty value, an unknown one is not worth a line.
                if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
                    let mut lines = value.lines();
                    println!("     {name:width$}  {}", lines.next().unwrap_or_default());
                    lines.for_each(|line| println!("     {:width$}  {line}", ""));
                }
            }
        }
        Ok(rows)
    }

    /// Shows and runs a statement that must fail; its error is shown as psql would.
    pub fn run_refused(&self, session: &mut Session, sql: &str) -> Result<SqlError, String> {
        self.show_sql(sql);
        match session.try_exec(sql) {
            Ok(()) => Err(format!("it succeeded, which it should not: {sql}")),
            Err(error) => {
                self.block(&format!("ERROR:  {}: {}", error.sqlstate, error.message));
                for (name, text) in [("DETAIL", &error.detail), ("HINT", &error.hint)] {
                    if !text.is_empty() {
                        self.block(&format!("{name}:  {text}"));
                    }
                }
                Ok(error)
            }
        }
    }
}
