//! Bodies of the type `application/x-www-form-urlencoded`: `a=1&b[c]=2&d[0]=3`, brackets and all percent-encoded.

use super::{RenderError, at, error, leaf_value, member_step};
use crate::config::Tree;
use crate::json::Json;
use crate::template::{Context, Fault, MAX_OUTPUT_BYTES, Val};

const MAX_DEPTH: usize = 128;

/// The form of a value that must be an object.
pub(super) fn of_value(value: &Val<'_>) -> Result<Vec<u8>, RenderError> {
    let Val::Tree(Json::Object(_)) = value else {
        return Err(error("", "a form body must be an object"));
    };
    let mut out = Vec::new();
    value_pairs(value, "", 0, &mut out).map_err(at(""))?;
    Ok(out)
}

/// The form of a templated tree.
pub(super) fn of_tree<'v>(tree: &'v Tree, context: &mut Context<'v>) -> Result<Vec<u8>, RenderError> {
    if let Tree::Leaf(leaf) = tree {
        let value = leaf_value(leaf, context).map_err(at(""))?;
        return of_value(&value);
    }
    let mut out = Vec::new();
    tree_pairs(tree, "", context, &mut out)?;
    Ok(out)
}

fn tree_pairs<'v>(tree: &'v Tree, name: &str, context: &mut Context<'v>, out: &mut Vec<u8>) -> Result<(), RenderError> {
    match tree {
        Tree::Null => pair(name, "", out),
        Tree::Bool(value) => pair(name, if *value { "true" } else { "false" }, out),
        Tree::Number(text) => pair(name, text, out),
        Tree::Leaf(leaf) => {
            leaf_value(leaf, context).and_then(|value| value_pairs(&value, name, 0, out)).map_err(at(""))?;
            return Ok(());
        }
        Tree::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                tree_pairs(item, &format!("{name}[{index}]"), context, out)
                    .map_err(|e| e.under(&format!("[{index}]")))?;
            }
            return Ok(());
        }
        Tree::Object(members) => {
            for (member, value) in members {
                tree_pairs(value, &below(name, member), context, out).map_err(|e| e.under(&member_step(member)))?;
            }
            return Ok(());
        }
    }
    .map_err(at(""))
}

fn value_pairs(value: &Val<'_>, name: &str, depth: usize, out: &mut Vec<u8>) -> Result<(), Fault> {
    if depth > MAX_DEPTH {
        return Err(Fault(format!("the form is nested deeper than {MAX_DEPTH} levels")));
    }
    match value {
        Val::Null => pair(name, "", out),
        Val::Bool(value) => pair(name, if *value { "true" } else { "false" }, out),
        Val::Number(text) | Val::Text(text) => pair(name, text, out),
        Val::Tree(Json::Array(items)) => items
            .iter()
            .enumerate()
            .try_for_each(|(index, item)| value_pairs(&Val::of(item), &format!("{name}[{index}]"), depth + 1, out)),
        Val::Tree(Json::Object(members)) => members
            .iter()
            .try_for_each(|(member, item)| value_pairs(&Val::of(item), &below(name, member), depth + 1, out)),
        Val::List(items) => items
            .iter()
            .enumerate()
            .try_for_each(|(index, item)| value_pairs(item, &format!("{name}[{index}]"), depth + 1, out)),
        Val::Tree(_) | Val::Loop { .. } => Err(Fault("the value has no form".into())),
        Val::Missing(what) => Err(Fault(what.clone())),
    }
}

fn below(name: &str, member: &str) -> String {
    if name.is_empty() { member.to_owned() } else { format!("{name}[{member}]") }
}

fn pair(name: &str, value: &str, out: &mut Vec<u8>) -> Result<(), Fault> {
    if !out.is_empty() {
        out.push(b'&');
    }
    encode(name, out);
    out.push(b'=');
    encode(value, out);
    if out.len() > MAX_OUTPUT_BYTES {
        return Err(Fault(format!("the body is larger than {MAX_OUTPUT_BYTES} bytes")));
    }
    Ok(())
}

fn encode(text: &str, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        match byte {
            b' ' => out.push(b'+'),
            b'*' | b'-' | b'.' | b'_' => out.push(byte),
            _ if byte.is_ascii_alphanumeric() => out.push(byte),
            _ => out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]),
        }
    }
}
