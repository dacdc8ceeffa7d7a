//! How expressions reach into values: names, members, elements, slices. What is not there becomes `Missing`, never an
//! empty value.

use std::borrow::Cow;

use super::eval::{Context, Eval, describe, number};
use super::lower::Expr;
use super::value::Val;
use super::{Fault, decimal};
use crate::json::Json;

impl<'v> Context<'v> {
    pub(super) fn variable(&mut self, name: &'v str) -> Eval<Val<'v>> {
        if let Some((_, value)) = self.scope.iter().rev().find(|(bound, _)| *bound == name) {
            let value = value.clone();
            match &value {
                Val::Text(Cow::Owned(text)) => self.pay_text(text.len())?,
                Val::List(items) => self.step(items.len())?,
                _ => {}
            }
            return Ok(value);
        }
        if name == "params" {
            return Ok(Val::of(self.params));
        }
        match self.names.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Ok(Val::Text(Cow::Borrowed(text))),
            // Set in a branch that was not taken.
            None => Ok(Val::Missing(format!("{name} was not set"))),
        }
    }

    pub(super) fn attribute(&mut self, value: Val<'v>, name: &str, expression: &'v Expr) -> Eval<Val<'v>> {
        match value {
            Val::Missing(what) => Ok(Val::Missing(what)),
            Val::Tree(Json::Object(members)) => {
                self.step(members.len() / 16)?;
                let found = members.iter().find(|(member, _)| member == name);
                Ok(found.map_or_else(|| missing(expression), |(_, json)| Val::of(json)))
            }
            Val::Loop { index0, length } => Ok(match name {
                "index" => number(index0 + 1),
                "index0" => number(index0),
                "length" => number(length),
                "first" => Val::Bool(index0 == 0),
                "last" => Val::Bool(index0 + 1 == length),
                _ => missing(expression),
            }),
            _ => Ok(missing(expression)),
        }
    }

    /// `of[index]`: a member by name, an element by number.
    pub(super) fn element(&mut self, value: Val<'v>, index: &Val<'v>, expression: &'v Expr) -> Eval<Val<'v>> {
        match index {
            Val::Text(name) => self.attribute(value, name, expression),
            Val::Number(_) => {
                let found = match &value {
                    Val::Missing(what) => Some(Val::Missing(what.clone())),
                    Val::Tree(Json::Array(items)) => {
                        position(index, items.len()).and_then(|at| items.get(at)).map(Val::of)
                    }
                    Val::List(items) => position(index, items.len()).and_then(|at| items.get(at)).cloned(),
                    _ => None,
                };
                Ok(found.unwrap_or_else(|| missing(expression)))
            }
            other => Err(Fault(format!("{} cannot be an index", other.kind()))),
        }
    }

    pub(super) fn slice(
        &mut self,
        value: &Val<'v>,
        start: Option<&Val>,
        stop: Option<&Val>,
        of: &Expr,
    ) -> Eval<Val<'v>> {
        let bounds = |length: usize| -> Eval<(usize, usize)> {
            let side = |bound: Option<&Val>, absent: usize| match bound {
                None | Some(Val::Null) => Ok(absent),
                Some(bound) => {
                    position(bound, length).ok_or_else(|| Fault("a slice needs whole numbers as bounds".into()))
                }
            };
            let (from, to) = (side(start, 0)?.min(length), side(stop, length)?.min(length));
            Ok((from, to.max(from)))
        };
        if let Val::Text(text) = value {
            self.pay_text(text.len())?;
            let (from, to) = bounds(text.chars().count())?;
            return Ok(Val::Text(Cow::Owned(text.chars().skip(from).take(to - from).collect())));
        }
        let Some(items) = value.elements() else {
            return Err(Fault(format!("{} is {}, which has no slices", describe(of), value.kind())));
        };
        self.step(items.len())?;
        let (from, to) = bounds(items.len())?;
        Ok(Val::List(items.into_iter().skip(from).take(to - from).collect()))
    }
}

fn missing<'v>(expression: &Expr) -> Val<'v> {
    Val::Missing(format!("{} is missing", describe(expression)))
}

/// An index from the front, or from the back if negative; never before the front.
fn position(index: &Val<'_>, length: usize) -> Option<usize> {
    let Val::Number(text) = index else {
        return None;
    };
    let at: i64 = decimal::whole(text)?.parse().ok()?;
    if at >= 0 {
        usize::try_from(at).ok()
    } else {
        Some(length.saturating_sub(usize::try_from(at.unsigned_abs()).ok()?))
    }
}
