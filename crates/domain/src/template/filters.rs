//! The filters and tests of templates: pure, exact on numbers, and few.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use super::eval::{Context, describe, is_true, number};
use super::lower::Expr;
use super::value::Val;
use super::{Fault, MAX_OUTPUT_BYTES, decimal};
use crate::json::Json;

/// What a filter does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterKind {
    /// The value, or the argument if the value is missing (with `true` as second argument also if it is empty or null).
    Default,
    /// How many characters, elements or members.
    Length,
    /// In upper case.
    Upper,
    /// In lower case.
    Lower,
    /// Without blanks around.
    Trim,
    /// With every first argument replaced by the second.
    Replace,
    /// The elements as text, with the argument between.
    Join,
    /// The parts between the separator.
    Split,
    /// The first element or character.
    First,
    /// The last element or character.
    Last,
    /// As text.
    String,
    /// The whole number that the text or number stands for.
    Int,
    /// The number that the text stands for, with its digits.
    Float,
    /// As JSON text.
    ToJson,
    /// `[name, value]` of each member.
    Items,
    /// One attribute of each element.
    Map,
}

/// Every filter: its name, what it does, and how many arguments it takes.
pub const FILTERS: [(&str, FilterKind, RangeInclusive<usize>); 18] = [
    ("default", FilterKind::Default, 1..=2),
    ("d", FilterKind::Default, 1..=2),
    ("length", FilterKind::Length, 0..=0),
    ("count", FilterKind::Length, 0..=0),
    ("upper", FilterKind::Upper, 0..=0),
    ("lower", FilterKind::Lower, 0..=0),
    ("trim", FilterKind::Trim, 0..=0),
    ("replace", FilterKind::Replace, 2..=2),
    ("join", FilterKind::Join, 0..=1),
    ("split", FilterKind::Split, 1..=1),
    ("first", FilterKind::First, 0..=0),
    ("last", FilterKind::Last, 0..=0),
    ("string", FilterKind::String, 0..=0),
    ("int", FilterKind::Int, 0..=0),
    ("float", FilterKind::Float, 0..=0),
    ("tojson", FilterKind::ToJson, 0..=0),
    ("items", FilterKind::Items, 0..=0),
    ("map", FilterKind::Map, 1..=1),
];

/// What a test asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestKind {
    /// Is it there?
    Defined,
    /// Is it missing?
    Undefined,
    /// Is it null?
    None,
    /// Is it text?
    String,
    /// Is it a number?
    Number,
    /// Is it true or false?
    Boolean,
    /// Is it an object?
    Mapping,
    /// Is it an array?
    Sequence,
}

/// Every test: its name and what it asks.
pub const TESTS: [(&str, TestKind); 8] = [
    ("defined", TestKind::Defined),
    ("undefined", TestKind::Undefined),
    ("none", TestKind::None),
    ("string", TestKind::String),
    ("number", TestKind::Number),
    ("boolean", TestKind::Boolean),
    ("mapping", TestKind::Mapping),
    ("sequence", TestKind::Sequence),
];

pub(crate) fn apply_test(kind: TestKind, value: &Val<'_>) -> Result<bool, Fault> {
    match (kind, value) {
        (TestKind::Defined, value) => return Ok(!matches!(value, Val::Missing(_))),
        (TestKind::Undefined, value) => return Ok(matches!(value, Val::Missing(_))),
        (_, Val::Missing(what)) => return Err(Fault(what.clone())),
        _ => {}
    }
    Ok(match kind {
        TestKind::None => matches!(value, Val::Null),
        TestKind::String => matches!(value, Val::Text(_)),
        TestKind::Number => matches!(value, Val::Number(_)),
        TestKind::Boolean => matches!(value, Val::Bool(_)),
        TestKind::Mapping => matches!(value, Val::Tree(Json::Object(_))),
        TestKind::Sequence => value.elements().is_some(),
        TestKind::Defined | TestKind::Undefined => true,
    })
}

pub(crate) fn apply_filter<'v>(
    context: &mut Context<'v>,
    kind: FilterKind,
    value: Val<'v>,
    args: &[Val<'v>],
    source: &'v Expr,
) -> Result<Val<'v>, Fault> {
    if kind == FilterKind::Default {
        let Some(instead) = args.first() else { return Ok(value) };
        let also_empty = args.get(1).is_some_and(is_true);
        let replace = matches!(value, Val::Missing(_)) || (also_empty && !is_true(&value));
        return Ok(if replace { instead.clone() } else { value });
    }
    if let Val::Missing(what) = value {
        return Err(Fault(what));
    }
    let refuse = |value: &Val<'_>, wanted: &str| {
        Fault(format!("{} is {}, but the filter needs {wanted}", describe(source), value.kind()))
    };
    let text = |value: &Val<'v>| match value {
        Val::Text(text) => Ok(text.clone()),
        other => Err(refuse(other, "text")),
    };
    let owned = |text: String| Ok(Val::Text(Cow::Owned(text)));
    match kind {
        FilterKind::Upper | FilterKind::Lower | FilterKind::Trim => {
            let text = text(&value)?;
            context.pay_text(text.len())?;
            owned(match kind {
                FilterKind::Upper => text.to_uppercase(),
                FilterKind::Lower => text.to_lowercase(),
                _ => text.trim().to_owned(),
            })
        }
        FilterKind::Replace => {
            let text = text(&value)?;
            let [Val::Text(from), Val::Text(to)] = args else {
                return Err(Fault("the filter replace needs two texts".into()));
            };
            if from.is_empty() {
                return Err(Fault("the filter replace cannot look for empty text".into()));
            }
            // Counted first: the result may be far larger than the input.
            let found = text.matches(from.as_ref()).count();
            context.pay_text(text.len())?;
            context.pay_text(text.len().saturating_add(found.saturating_mul(to.len())))?;
            owned(text.replace(from.as_ref(), to))
        }
        FilterKind::Split => {
            let text = text(&value)?;
            let [Val::Text(separator)] = args else {
                return Err(Fault("the filter split needs a text".into()));
            };
            if separator.is_empty() {
                return Err(Fault("the filter split cannot split at empty text".into()));
            }
            context.pay_text(text.len())?;
            context.step(text.matches(separator.as_ref()).count())?;
            let part = |part: &str| Val::Text(Cow::Owned(part.to_owned()));
            Ok(Val::List(text.split(separator.as_ref()).map(part).collect()))
        }
        FilterKind::Join => {
            let Some(items) = value.elements() else { return Err(refuse(&value, "an array")) };
            let separator = match args.first() {
                Some(separator) => context.text_of(separator, source)?,
                None => Cow::Borrowed(""),
            };
            let mut out = String::new();
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push_str(&separator);
                }
                out.push_str(&context.text_of(item, source)?);
                context.step(1 + separator.len() / 64)?;
                if out.len() > MAX_OUTPUT_BYTES {
                    context.pay_text(out.len())?;
                }
            }
            context.pay_text(out.len())?;
            owned(out)
        }
        FilterKind::Length => match &value {
            Val::Text(text) => {
                context.pay_text(text.len())?;
                Ok(number(text.chars().count()))
            }
            Val::Tree(Json::Array(items)) => Ok(number(items.len())),
            Val::Tree(Json::Object(members)) => Ok(number(members.len())),
            Val::List(items) => Ok(number(items.len())),
            other => Err(refuse(other, "text, an array or an object")),
        },
        FilterKind::First | FilterKind::Last => {
            let first = kind == FilterKind::First;
            let found = if let Val::Text(text) = &value {
                let one = if first { text.chars().next() } else { text.chars().next_back() };
                one.map(|c| Val::Text(Cow::Owned(c.to_string())))
            } else {
                let Some(items) = value.elements() else { return Err(refuse(&value, "text or an array")) };
                context.step(items.len())?;
                if first { items.into_iter().next() } else { items.into_iter().next_back() }
            };
            Ok(found.unwrap_or_else(|| Val::Missing(format!("{} is empty", describe(source)))))
        }
        FilterKind::String => context.text_of(&value, source).map(Val::Text),
        FilterKind::Int | FilterKind::Float => {
            let digits = match &value {
                Val::Number(text) => text.clone(),
                Val::Text(text) => Cow::Owned(text.trim().to_owned()),
                other => return Err(refuse(other, "a number or a number as text")),
            };
            context.pay_text(digits.len())?;
            let found = match kind {
                FilterKind::Float => decimal::is_number(&digits).then_some(digits),
                _ => decimal::whole(&digits).map(Cow::Owned),
            };
            found.map(Val::Number).ok_or_else(|| {
                let wanted = if kind == FilterKind::Int { "a whole number" } else { "a number" };
                Fault(format!("{} is not {wanted}", describe(source)))
            })
        }
        FilterKind::ToJson => {
            let mut out = Vec::new();
            value.write(&mut out, MAX_OUTPUT_BYTES)?;
            context.pay_text(out.len())?;
            String::from_utf8(out).map_or_else(|_| Err(Fault("the value is not text".into())), owned)
        }
        FilterKind::Items => {
            let Val::Tree(Json::Object(members)) = &value else { return Err(refuse(&value, "an object")) };
            context.step(members.len())?;
            let pair = |name: &'v str, json| Val::List(vec![Val::Text(Cow::Borrowed(name)), Val::of(json)]);
            Ok(Val::List(members.iter().map(|(name, json)| pair(name, json)).collect()))
        }
        FilterKind::Map => {
            let Some(items) = value.elements() else { return Err(refuse(&value, "an array")) };
            let [Val::Text(name)] = args else {
                return Err(Fault("the filter map needs a name".into()));
            };
            let mut found = Vec::with_capacity(items.len());
            for item in items {
                let Val::Tree(Json::Object(members)) = item else {
                    return Err(Fault(format!("an element of {} is not an object", describe(source))));
                };
                context.step(1 + members.len() / 16)?;
                match members.iter().find(|(member, _)| member == name) {
                    Some((_, json)) => found.push(Val::of(json)),
                    None => return Err(Fault(format!("{name} is missing in an element of {}", describe(source)))),
                }
            }
            Ok(Val::List(found))
        }
        FilterKind::Default => Ok(value),
    }
}
