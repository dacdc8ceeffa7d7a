//! Templates: the string leaves of a request, in the syntax of Jinja (parsed by minijinja), over the intent alone.
//!
//! What is available is what the intent hash covers and what never changes between attempts: `params`,
//! `destination_key`, `command_id`, `tenant`, `command_type`. There is no time, no random, no file, no other template.
//! The evaluator is the ledger's own, because an engine that holds fractions as binary floats would send
//! `9007199254740992` for `9007199254740993` and `0.1` for `0.10`: here every number keeps its digits, and two numbers
//! are compared as decimals.
//!
//! | part of the language | available |
//! |---|---|
//! | statements | text, `{{ … }}`, `{# … #}`, `if`/`elif`/`else`, `for … in … if …`/`else` with `loop`, `set` |
//! | operators | `.`, `[…]`, `[a:b]`, `~`, `== != < <= > >=`, `in`, `and`, `or`, `not`, `a if b else c` |
//! | filters | see [`FILTERS`] |
//! | tests | see [`TESTS`] |
//! | refused at definition | arithmetic, calls, macros, blocks, includes, imports, unknown filters, tests and variables |
//! | refused at rendering | a missing value, null or a container inside text, what exceeds [`MAX_FUEL`] or [`MAX_OUTPUT_BYTES`] |

mod access;
mod compare;
mod decimal;
mod eval;
mod filters;
mod lower;
mod value;

pub(crate) use decimal::is_number;
pub use eval::{Context, Escape};
pub use filters::{FILTERS, TESTS};
pub use value::Val;
pub(crate) use value::{json_string, write_json};

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// The longest source of one template, in bytes.
pub const MAX_SOURCE_BYTES: usize = 4096;
/// The most text that one rendering may produce, in bytes.
pub const MAX_OUTPUT_BYTES: usize = 1 << 20;
/// The most steps that one rendering may take: nodes, loop turns, and 64 bytes of text copied are one step each.
pub const MAX_FUEL: u32 = 1_000_000;
/// The deepest nesting of a template's statements and expressions.
pub const MAX_DEPTH: usize = 64;

/// The names that a template may use.
pub const VARIABLES: [&str; 5] = ["params", "destination_key", "command_id", "tenant", "command_type"];

/// Why a template could not be compiled or rendered: never with a value of the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault(pub(crate) String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}

/// A compiled template; cheap to clone.
#[derive(Clone)]
pub struct Template {
    source: Arc<str>,
    nodes: Arc<[lower::Node]>,
    uses: BTreeSet<&'static str>,
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Template").field(&self.source).finish()
    }
}

impl PartialEq for Template {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Template {}

impl Template {
    /// Compiles a source of at most [`MAX_SOURCE_BYTES`]; text without `{{`, `{%` and `{#` may be longer.
    ///
    /// # Errors
    /// A syntax error, an unknown name, or something that the language does not have.
    pub fn compile(source: &str) -> Result<Self, Fault> {
        let (nodes, uses) = lower::compile(source)?;
        Ok(Self { source: source.into(), nodes: nodes.into(), uses })
    }

    /// The text that was compiled.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The intent's names that the template mentions.
    pub fn uses(&self, variable: &str) -> bool {
        self.uses.contains(variable)
    }

    /// The text, if the template has neither expressions nor statements.
    pub fn constant(&self) -> Option<&str> {
        match &*self.nodes {
            [] => Some(""),
            [lower::Node::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// The text before the first expression or statement.
    pub fn prefix(&self) -> &str {
        match self.nodes.first() {
            Some(lower::Node::Text(text)) => text,
            _ => "",
        }
    }

    /// The value of a template that is one single expression; `None` for every other template.
    ///
    /// # Errors
    /// What [`Self::text`] refuses, except that null and containers are values here.
    pub fn value<'v>(&'v self, context: &mut Context<'v>) -> Option<Result<Val<'v>, Fault>> {
        match &*self.nodes {
            [lower::Node::Emit(expression)] => Some(context.present(expression)),
            _ => None,
        }
    }

    /// Renders to text.
    ///
    /// # Errors
    /// A missing value, a value without a text form, or a limit.
    pub fn text<'v>(&'v self, context: &mut Context<'v>, escape: Escape) -> Result<String, Fault> {
        context.render(&self.nodes, escape)
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
