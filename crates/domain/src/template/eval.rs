//! Evaluates compiled templates over one intent, within a budget of steps and of bytes.

use std::borrow::Cow;

use super::filters::{apply_filter, apply_test};
use super::lower::{Expr, Node};
use super::value::Val;
use super::{Fault, MAX_FUEL, MAX_OUTPUT_BYTES, decimal};
use crate::json::Json;

/// How an emitted value becomes text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Escape {
    /// As it is.
    None,
    /// Percent-encoded except for the unreserved characters of RFC 3986; empty values are refused before the `?`,
    /// because an empty path segment addresses something else.
    Url,
}

/// The intent as templates see it, and what is left of the budget. One context serves all leaves of a request.
pub struct Context<'v> {
    pub(super) params: &'v Json<'v>,
    pub(super) names: [(&'static str, &'v str); 4],
    pub(super) scope: Vec<(&'v str, Val<'v>)>,
    fuel: u32,
    output_bytes: usize,
}

pub(super) type Eval<T> = Result<T, Fault>;

impl<'v> Context<'v> {
    /// A context with a full budget.
    pub fn new(
        params: &'v Json<'v>,
        destination_key: &'v str,
        command_id: &'v str,
        tenant: &'v str,
        command_type: &'v str,
    ) -> Self {
        let names = [
            ("destination_key", destination_key),
            ("command_id", command_id),
            ("tenant", tenant),
            ("command_type", command_type),
        ];
        Self { params, names, scope: Vec::new(), fuel: MAX_FUEL, output_bytes: MAX_OUTPUT_BYTES }
    }

    /// Takes steps from the budget.
    pub(crate) fn step(&mut self, steps: usize) -> Eval<()> {
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        match self.fuel.checked_sub(steps) {
            Some(left) => {
                self.fuel = left;
                Ok(())
            }
            None => {
                self.fuel = 0;
                Err(Fault(format!("the templates need more than {MAX_FUEL} steps")))
            }
        }
    }

    /// Pays for text that was made or copied: a step per 64 bytes; refuses text beyond the output limit.
    pub(crate) fn pay_text(&mut self, bytes: usize) -> Eval<()> {
        if bytes > MAX_OUTPUT_BYTES {
            return Err(too_large());
        }
        self.step(1 + bytes / 64)
    }

    pub(crate) fn render(&mut self, nodes: &'v [Node], escape: Escape) -> Eval<String> {
        let mut out = String::new();
        let mark = self.scope.len();
        let done = self.nodes(nodes, escape, &mut out);
        self.scope.truncate(mark);
        done.map(|()| out)
    }

    fn emit(&mut self, text: &str, out: &mut String) -> Eval<()> {
        self.output_bytes = self.output_bytes.checked_sub(text.len()).ok_or_else(too_large)?;
        out.push_str(text);
        Ok(())
    }

    fn nodes(&mut self, nodes: &'v [Node], escape: Escape, out: &mut String) -> Eval<()> {
        for node in nodes {
            self.step(1)?;
            match node {
                Node::Text(text) => self.emit(text, out)?,
                Node::Emit(expression) => {
                    let value = self.present(expression)?;
                    let text = self.text_of(&value, expression)?;
                    match escape {
                        Escape::None => self.emit(&text, out)?,
                        Escape::Url => {
                            if text.is_empty() && !out.contains('?') {
                                let what = describe(expression);
                                return Err(Fault(format!("{what} is empty, which would change the path of the URL")));
                            }
                            self.emit(&percent_encode(&text), out)?;
                        }
                    }
                }
                Node::If { test, then, otherwise } => {
                    let branch = if self.truth(test)? { then } else { otherwise };
                    self.nodes(branch, escape, out)?;
                }
                Node::Set { name, value } => {
                    let value = self.present(value)?;
                    self.scope.push((name, value));
                }
                Node::For { targets, over, filter, body, empty } => {
                    let turns = self.turns(targets, over, filter.as_ref())?;
                    if turns.is_empty() {
                        self.nodes(empty, escape, out)?;
                    }
                    let mark = self.scope.len();
                    let length = turns.len();
                    for (index0, bindings) in turns.into_iter().enumerate() {
                        self.step(1)?;
                        self.scope.extend(bindings);
                        self.scope.push(("loop", Val::Loop { index0, length }));
                        self.nodes(body, escape, out)?;
                        self.scope.truncate(mark);
                    }
                }
            }
        }
        Ok(())
    }

    /// The bindings of every turn of a loop, after its filter.
    fn turns(
        &mut self,
        targets: &'v [String],
        over: &'v Expr,
        filter: Option<&'v Expr>,
    ) -> Eval<Vec<Vec<(&'v str, Val<'v>)>>> {
        let value = self.present(over)?;
        let Some(items) = value.elements() else {
            let (what, kind) = (describe(over), value.kind());
            return Err(Fault(format!(
                "a loop needs an array, but {what} is {kind}; use the filter items for objects"
            )));
        };
        self.step(items.len())?;
        let mut turns = Vec::new();
        for item in items {
            let bindings: Vec<(&'v str, Val<'v>)> = match targets {
                [one] => vec![(one.as_str(), item)],
                several => {
                    let parts = item.elements().filter(|parts| parts.len() == several.len()).ok_or_else(|| {
                        Fault(format!("the loop needs elements of {} parts, see {}", several.len(), describe(over)))
                    })?;
                    several.iter().map(String::as_str).zip(parts).collect()
                }
            };
            let mark = self.scope.len();
            let keep = match filter {
                None => true,
                Some(test) => {
                    self.scope.extend(bindings.iter().cloned());
                    let keep = self.truth(test);
                    self.scope.truncate(mark);
                    keep?
                }
            };
            if keep {
                turns.push(bindings);
            }
        }
        Ok(turns)
    }

    /// The value of an expression that must be there.
    pub(crate) fn present(&mut self, expression: &'v Expr) -> Eval<Val<'v>> {
        match self.value(expression)? {
            Val::Missing(what) => Err(Fault(what)),
            value => Ok(value),
        }
    }

    fn boxed_present(&mut self, expression: &'v Option<Box<Expr>>) -> Eval<Option<Val<'v>>> {
        expression.as_ref().map(|inner| self.present(inner)).transpose()
    }

    fn value(&mut self, expression: &'v Expr) -> Eval<Val<'v>> {
        self.step(1)?;
        match expression {
            Expr::Const(json) => Ok(Val::of(json)),
            Expr::Var(name) => self.variable(name),
            Expr::Attr(of, name) => {
                let value = self.value(of)?;
                self.attribute(value, name, expression)
            }
            Expr::Index(of, index) => {
                let (value, index) = (self.value(of)?, self.present(index)?);
                self.element(value, &index, expression)
            }
            Expr::Slice { of, start, stop } => {
                let value = self.present(of)?;
                let (start, stop) = (self.boxed_present(start)?, self.boxed_present(stop)?);
                self.slice(&value, start.as_ref(), stop.as_ref(), of)
            }
            Expr::Not(inner) => Ok(Val::Bool(!self.truth(inner)?)),
            Expr::And(left, right) => {
                let value = self.present(left)?;
                if is_true(&value) { self.value(right) } else { Ok(value) }
            }
            Expr::Or(left, right) => {
                let value = self.present(left)?;
                if is_true(&value) { Ok(value) } else { self.value(right) }
            }
            Expr::Concat(left, right) => {
                let (first, second) = (self.present(left)?, self.present(right)?);
                let text = [self.text_of(&first, left)?, self.text_of(&second, right)?];
                self.pay_text(text[0].len() + text[1].len())?;
                Ok(Val::Text(Cow::Owned(text.concat())))
            }
            Expr::Compare(first, rest) => {
                let mut left = self.present(first)?;
                for (op, right) in rest {
                    let right = self.present(right)?;
                    if !self.compare(*op, &left, &right)? {
                        return Ok(Val::Bool(false));
                    }
                    left = right;
                }
                Ok(Val::Bool(true))
            }
            Expr::Choose { test, then, otherwise } => match (self.truth(test)?, otherwise) {
                (true, _) => self.value(then),
                (false, Some(otherwise)) => self.value(otherwise),
                (false, None) => Ok(Val::Missing("a condition without else was not met".into())),
            },
            Expr::Filter { kind, of, args } => {
                let value = self.value(of)?;
                let args = args.iter().map(|arg| self.present(arg)).collect::<Eval<Vec<_>>>()?;
                apply_filter(self, *kind, value, &args, of)
            }
            Expr::Test { kind, of } => {
                let value = self.value(of)?;
                apply_test(*kind, &value).map(Val::Bool)
            }
        }
    }

    fn truth(&mut self, expression: &'v Expr) -> Eval<bool> {
        self.present(expression).map(|value| is_true(&value))
    }

    /// The text form of a value. Null and containers have none: `None` or a dump in a reference number is never meant.
    pub(crate) fn text_of(&mut self, value: &Val<'v>, source: &Expr) -> Eval<Cow<'v, str>> {
        match value {
            Val::Text(text) | Val::Number(text) => {
                self.pay_text(text.len())?;
                Ok(text.clone())
            }
            Val::Bool(true) => Ok("true".into()),
            Val::Bool(false) => Ok("false".into()),
            other => {
                let (what, kind) = (describe(source), other.kind());
                Err(Fault(format!("{what} is {kind}, which has no form as text")))
            }
        }
    }
}

fn too_large() -> Fault {
    Fault(format!("the result is larger than {MAX_OUTPUT_BYTES} bytes"))
}

pub(crate) fn number<'v>(value: usize) -> Val<'v> {
    Val::Number(Cow::Owned(value.to_string()))
}

pub(crate) fn is_true(value: &Val<'_>) -> bool {
    match value {
        Val::Missing(_) | Val::Null => false,
        Val::Bool(value) => *value,
        Val::Number(text) => !decimal::is_zero(text),
        Val::Text(text) => !text.is_empty(),
        Val::Tree(Json::Array(items)) => !items.is_empty(),
        Val::Tree(Json::Object(members)) => !members.is_empty(),
        Val::List(items) => !items.is_empty(),
        Val::Tree(_) | Val::Loop { .. } => true,
    }
}

/// What an expression is about, as its author wrote it; never a value.
pub(crate) fn describe(expression: &Expr) -> String {
    match expression {
        Expr::Var(name) => name.clone(),
        Expr::Attr(of, name) => format!("{}.{name}", describe(of)),
        Expr::Index(of, _) | Expr::Slice { of, .. } => format!("{}[…]", describe(of)),
        Expr::Filter { of, .. } | Expr::Test { of, .. } => describe(of),
        _ => "an expression".into(),
    }
}

/// Encodes everything except the unreserved characters of RFC 3986.
pub(crate) fn percent_encode(text: &str) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
    out
}
