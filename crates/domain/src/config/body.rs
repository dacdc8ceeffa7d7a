//! The body of a request: the params, nothing, or a JSON tree of templates.

use std::sync::Arc;

use super::reader::{Field, Read};
use super::request::template;
use crate::json::Json;
use crate::template::Template;

const MAX_BODY_DEPTH: usize = 64;
const MAX_BODY_LEAVES: usize = 10_000;

/// The body of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// The params as they are (the default).
    Params,
    /// No body (`"body": null`; the default of GET and HEAD).
    Empty,
    /// A JSON tree whose string leaves are templates.
    Tree(Arc<Tree>),
}

/// A JSON tree with compiled leaves. Member names are not templates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tree {
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// A number with its digits.
    Number(String),
    /// A string leaf.
    Leaf(Template),
    /// Elements in order.
    Array(Vec<Tree>),
    /// Members in order.
    Object(Vec<(String, Tree)>),
}

/// Reads `body`.
pub(super) fn body(field: &Field<'_>) -> Read<Body> {
    if matches!(field.json, Json::Null) {
        return Ok(Body::Empty);
    }
    let mut leaves = 0;
    tree(field, 0, &mut leaves).map(|tree| Body::Tree(Arc::new(tree)))
}

fn tree(field: &Field<'_>, depth: usize, leaves: &mut usize) -> Read<Tree> {
    *leaves += 1;
    if depth > MAX_BODY_DEPTH || *leaves > MAX_BODY_LEAVES {
        return Err(field
            .invalid("the body of the definition is too large")
            .hint(format!("at most {MAX_BODY_DEPTH} levels and {MAX_BODY_LEAVES} values")));
    }
    Ok(match field.json {
        Json::Null => Tree::Null,
        Json::Bool(value) => Tree::Bool(*value),
        Json::Number(text) => Tree::Number(text.clone().into_owned()),
        Json::String(_) => Tree::Leaf(template(field)?),
        Json::Array(_) => {
            let items = field.array(MAX_BODY_LEAVES)?;
            Tree::Array(items.iter().map(|item| tree(item, depth + 1, leaves)).collect::<Read<_>>()?)
        }
        Json::Object(_) => {
            let entries = field.entries(MAX_BODY_LEAVES)?;
            let members = entries.iter().map(|(name, value)| Ok(((*name).to_owned(), tree(value, depth + 1, leaves)?)));
            Tree::Object(members.collect::<Read<_>>()?)
        }
    })
}
