//! The comparisons of templates: numbers as decimals, everything else by kind, nothing by guess.

use std::cmp::Ordering;

use super::eval::Context;
use super::lower::Comparison;
use super::value::Val;
use super::{Fault, decimal};
use crate::json::Json;

type Eval<T> = Result<T, Fault>;

impl<'v> Context<'v> {
    pub(super) fn compare(&mut self, op: Comparison, left: &Val<'v>, right: &Val<'v>) -> Eval<bool> {
        match op {
            Comparison::Eq => self.equal(left, right),
            Comparison::Ne => self.equal(left, right).map(|equal| !equal),
            Comparison::In => self.contains(left, right),
            Comparison::NotIn => self.contains(left, right).map(|found| !found),
            Comparison::Lt | Comparison::Le | Comparison::Gt | Comparison::Ge => {
                let order = match (left, right) {
                    (Val::Number(left), Val::Number(right)) => {
                        self.step((left.len() + right.len()) / 64)?;
                        decimal::compare(left, right)
                    }
                    (Val::Text(left), Val::Text(right)) => {
                        self.step(left.len().min(right.len()) / 64)?;
                        Some(left.cmp(right))
                    }
                    _ => None,
                };
                let Some(order) = order else {
                    return Err(Fault(format!("{} and {} have no order", left.kind(), right.kind())));
                };
                Ok(match op {
                    Comparison::Lt => order == Ordering::Less,
                    Comparison::Le => order != Ordering::Greater,
                    Comparison::Gt => order == Ordering::Greater,
                    _ => order != Ordering::Less,
                })
            }
        }
    }

    fn equal(&mut self, left: &Val<'v>, right: &Val<'v>) -> Eval<bool> {
        Ok(match (left, right) {
            (Val::Null, Val::Null) => true,
            (Val::Bool(left), Val::Bool(right)) => left == right,
            (Val::Number(left), Val::Number(right)) => {
                self.step((left.len() + right.len()) / 64)?;
                decimal::compare(left, right) == Some(Ordering::Equal)
            }
            (Val::Text(left), Val::Text(right)) => {
                self.step(left.len().min(right.len()) / 64)?;
                left == right
            }
            (Val::Tree(_) | Val::List(_) | Val::Loop { .. }, _)
            | (_, Val::Tree(_) | Val::List(_) | Val::Loop { .. }) => {
                return Err(Fault("arrays and objects cannot be compared".into()));
            }
            _ => false,
        })
    }

    fn contains(&mut self, needle: &Val<'v>, haystack: &Val<'v>) -> Eval<bool> {
        match (needle, haystack) {
            (Val::Text(part), Val::Text(text)) => {
                self.pay_text(text.len())?;
                Ok(text.contains(part.as_ref()))
            }
            (Val::Text(name), Val::Tree(Json::Object(members))) => {
                self.step(members.len() / 16)?;
                Ok(members.iter().any(|(member, _)| member == name))
            }
            _ => {
                let Some(items) = haystack.elements() else {
                    return Err(Fault(format!("{} cannot be searched for {}", haystack.kind(), needle.kind())));
                };
                self.step(items.len())?;
                for item in &items {
                    let scalar = !matches!(item, Val::Tree(_) | Val::List(_));
                    if scalar && self.equal(needle, item)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }
}
