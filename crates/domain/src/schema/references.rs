//! Looks at a schema's references before it is compiled: a reference that comes back to itself without going down into
//! the document would recurse without end, and references that fan out would take exponential time.
//!
//! | reference | answer |
//! |---|---|
//! | `#`, `#/…` to a schema of the document, going down on the way around | accepted (recursive documents) |
//! | around without going down (`{"$ref": "#"}`, through `allOf`, `if`, …) | refused |
//! | anchors, other documents, `$dynamicRef`, `$recursiveRef`, an `$id` below the root | refused |

use std::collections::HashMap;

use serde_json::Value;

/// The longest chain of schemas that apply to one place of the document: checking recurses through it at every level.
const MAX_CHAIN: u64 = 16;
/// The most schemas that may apply to one place of the document.
const MAX_IN_PLACE: u64 = 10_000;
/// The most patterns of one schema.
const MAX_PATTERNS: usize = 256;

/// Keywords whose schemas apply to the same place of the document.
const IN_PLACE: [&str; 7] = ["not", "if", "then", "else", "allOf", "anyOf", "oneOf"];
const IN_PLACE_MAPS: [&str; 2] = ["dependentSchemas", "dependencies"];
/// Keywords whose schemas apply further down.
const DOWN: [&str; 9] = [
    "items",
    "prefixItems",
    "additionalItems",
    "contains",
    "additionalProperties",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
];
const DOWN_MAPS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

#[derive(Clone, Copy)]
struct Cost {
    /// How many schemas apply in place.
    count: u64,
    /// The longest chain of these.
    chain: u64,
}

impl Cost {
    const ONE: Cost = Cost { count: 1, chain: 1 };

    /// This schema with one more below it in place.
    fn with(self, part: Cost) -> Cost {
        Cost { count: self.count.saturating_add(part.count), chain: self.chain.max(part.chain + 1) }
    }
}

enum State {
    /// Being looked at: meeting it again closes a circle.
    Open,
    /// What it takes to check one place with it.
    Done(Cost),
}

struct Walk<'s> {
    root: &'s Value,
    seen: HashMap<*const Value, State>,
    /// The schemas that were reached downwards and still have to be looked at.
    below: Vec<&'s Value>,
    patterns: usize,
}

/// Checks all references of a schema.
pub(super) fn check(root: &Value) -> Result<(), String> {
    let mut walk = Walk { root, seen: HashMap::new(), below: vec![root], patterns: 0 };
    while let Some(schema) = walk.below.pop() {
        walk.in_place(schema, 1)?;
    }
    Ok(())
}

impl<'s> Walk<'s> {
    /// What it takes to check the place that this schema applies to; `chain` bounds the recursion of the walk itself.
    fn in_place(&mut self, schema: &'s Value, chain: u64) -> Result<Cost, String> {
        let Value::Object(members) = schema else { return Ok(Cost::ONE) };
        let too_long = || Err(format!("$.schema: more than {MAX_CHAIN} schemas in a chain apply to one place"));
        if chain > MAX_CHAIN {
            return too_long();
        }
        match self.seen.get(&std::ptr::from_ref(schema)) {
            Some(State::Done(cost)) => return Ok(*cost),
            Some(State::Open) => {
                return Err("$.schema: a $ref comes back to itself without going down into the document".into());
            }
            None => {}
        }
        self.seen.insert(schema, State::Open);
        let mut cost = Cost::ONE;
        for (keyword, value) in members {
            let keyword = keyword.as_str();
            self.refuse_or_count(keyword, value, schema)?;
            if keyword == "$ref" {
                let target = self.target(value)?;
                cost = cost.with(self.in_place(target, chain + 1)?);
            }
            let (in_place, in_place_map) = (IN_PLACE.contains(&keyword), IN_PLACE_MAPS.contains(&keyword));
            let (down, down_map) = (DOWN.contains(&keyword), DOWN_MAPS.contains(&keyword));
            let parts: Vec<&'s Value> = match value {
                Value::Object(map) if in_place_map || down_map => map.values().collect(),
                Value::Array(items) if in_place || down => items.iter().collect(),
                one if in_place || down => vec![one],
                _ => vec![],
            };
            for part in parts {
                if down || down_map {
                    if !self.seen.contains_key(&std::ptr::from_ref(part)) {
                        self.below.push(part);
                    }
                } else {
                    cost = cost.with(self.in_place(part, chain + 1)?);
                }
            }
        }
        if cost.chain > MAX_CHAIN {
            return too_long();
        }
        if cost.count > MAX_IN_PLACE {
            return Err(format!("$.schema: more than {MAX_IN_PLACE} schemas apply to one place"));
        }
        self.seen.insert(schema, State::Done(cost));
        Ok(cost)
    }

    fn refuse_or_count(&mut self, keyword: &str, value: &Value, schema: &Value) -> Result<(), String> {
        match keyword {
            "$dynamicRef" | "$recursiveRef" => Err(format!("$.schema: the keyword {keyword} is not available")),
            // With an $id below the root, `#/…` would mean another place.
            "$id" | "id" if !std::ptr::eq(schema, self.root) && value.is_string() => {
                Err("$.schema: an $id below the root is not available".into())
            }
            "pattern" => self.count_patterns(1),
            "patternProperties" => self.count_patterns(value.as_object().map_or(0, serde_json::Map::len)),
            _ => Ok(()),
        }
    }

    fn count_patterns(&mut self, more: usize) -> Result<(), String> {
        self.patterns = self.patterns.saturating_add(more);
        if self.patterns > MAX_PATTERNS {
            return Err(format!("$.schema: more than {MAX_PATTERNS} patterns"));
        }
        Ok(())
    }

    fn target(&self, reference: &Value) -> Result<&'s Value, String> {
        let text = reference.as_str().ok_or("$.schema: a $ref is not text")?;
        let pointer = text.strip_prefix('#').filter(|rest| rest.is_empty() || rest.starts_with('/'));
        let Some(pointer) = pointer.filter(|rest| !rest.contains('%')) else {
            return Err("$.schema: a $ref is not a JSON pointer into the document (#/…)".into());
        };
        self.root.pointer(pointer).ok_or_else(|| "$.schema: a $ref leads nowhere".into())
    }
}
