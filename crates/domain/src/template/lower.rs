//! From the parsed source to the ledger's own tree: what the language does not have is refused here.

use std::collections::BTreeSet;

use minijinja::machinery::{Span, ast, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};

use super::filters::{FILTERS, FilterKind, TESTS, TestKind};
use super::{Fault, MAX_DEPTH, MAX_SOURCE_BYTES, VARIABLES, decimal};
use crate::json::Json;

/// The most brackets that may be open at once, and the most signs in a row: the parser recurses on them.
const MAX_OPEN_BRACKETS: usize = 32;
/// The most `{% … %}` of one template, for the same reason.
const MAX_BLOCKS: usize = 96;

/// A statement.
#[derive(Debug)]
pub(crate) enum Node {
    Text(String),
    Emit(Expr),
    If { test: Expr, then: Vec<Node>, otherwise: Vec<Node> },
    For { targets: Vec<String>, over: Expr, filter: Option<Expr>, body: Vec<Node>, empty: Vec<Node> },
    Set { name: String, value: Expr },
}

/// How two values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

/// An expression.
#[derive(Debug)]
pub(crate) enum Expr {
    Const(Json<'static>),
    Var(String),
    Attr(Box<Expr>, String),
    Index(Box<Expr>, Box<Expr>),
    Slice { of: Box<Expr>, start: Option<Box<Expr>>, stop: Option<Box<Expr>> },
    Not(Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Concat(Box<Expr>, Box<Expr>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    Choose { test: Box<Expr>, then: Box<Expr>, otherwise: Option<Box<Expr>> },
    Filter { kind: FilterKind, of: Box<Expr>, args: Vec<Expr> },
    Test { kind: TestKind, of: Box<Expr> },
}

type Lower<T> = Result<T, Fault>;

fn fault<T>(text: impl Into<String>) -> Lower<T> {
    Err(Fault(text.into()))
}

/// Compiles a source into nodes and the set of the intent's names that it mentions.
pub(crate) fn compile(source: &str) -> Lower<(Vec<Node>, BTreeSet<&'static str>)> {
    if !["{{", "{%", "{#"].iter().any(|mark| source.contains(mark)) {
        let nodes = if source.is_empty() { vec![] } else { vec![Node::Text(source.to_owned())] };
        return Ok((nodes, BTreeSet::new()));
    }
    if source.len() > MAX_SOURCE_BYTES {
        return fault(format!("the template is longer than {MAX_SOURCE_BYTES} bytes"));
    }
    refuse_deep_nesting(source)?;
    let syntax = SyntaxConfig::builder().keep_trailing_newline(true).build().map_err(|error| syntax_fault(&error))?;
    let parsed = parse(source, "template", syntax).map_err(|error| syntax_fault(&error))?;
    let mut lowering = Lowering { source, uses: BTreeSet::new(), declared: Vec::new() };
    let nodes = match &parsed {
        ast::Stmt::Template(template) => lowering.body(&template.children, 0)?,
        other => lowering.body(std::slice::from_ref(other), 0)?,
    };
    Ok((nodes, lowering.uses))
}

fn syntax_fault(error: &minijinja::Error) -> Fault {
    let detail = error.detail().unwrap_or("the source is not a template");
    Fault(format!("template syntax: {detail}"))
}

/// The parser recurses on brackets, signs and blocks; these bounds keep its stack small whatever the source says.
fn refuse_deep_nesting(source: &str) -> Lower<()> {
    if source.matches("{%").count() > MAX_BLOCKS {
        return fault(format!("the template has more than {MAX_BLOCKS} statements"));
    }
    let (mut open, mut signs) = (0usize, 0usize);
    for byte in source.bytes() {
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        signs = match byte {
            b'-' => signs + 1,
            b' ' | b'\t' | b'\n' | b'\r' => signs,
            _ => 0,
        };
        if open > MAX_OPEN_BRACKETS || signs > MAX_OPEN_BRACKETS {
            return fault(format!("the template is nested deeper than {MAX_OPEN_BRACKETS} brackets or signs"));
        }
    }
    Ok(())
}

struct Lowering<'s> {
    source: &'s str,
    uses: BTreeSet<&'static str>,
    declared: Vec<String>,
}

impl Lowering<'_> {
    fn body(&mut self, statements: &[ast::Stmt<'_>], depth: usize) -> Lower<Vec<Node>> {
        statements.iter().map(|statement| self.statement(statement, depth)).collect()
    }

    fn statement(&mut self, statement: &ast::Stmt<'_>, depth: usize) -> Lower<Node> {
        if depth > MAX_DEPTH {
            return fault(format!("the template is nested deeper than {MAX_DEPTH} levels"));
        }
        let depth = depth + 1;
        match statement {
            ast::Stmt::EmitRaw(raw) => Ok(Node::Text(raw.raw.to_owned())),
            ast::Stmt::EmitExpr(emit) => Ok(Node::Emit(self.expression(&emit.expr, depth)?)),
            ast::Stmt::IfCond(condition) => Ok(Node::If {
                test: self.expression(&condition.expr, depth)?,
                then: self.body(&condition.true_body, depth)?,
                otherwise: self.body(&condition.false_body, depth)?,
            }),
            ast::Stmt::ForLoop(each) => {
                if each.recursive {
                    return fault("recursive loops are not available");
                }
                let over = self.expression(&each.iter, depth)?;
                let targets = loop_targets(&each.target)?;
                let mark = self.declared.len();
                self.declared.extend(targets.iter().cloned());
                let filter = each.filter_expr.as_ref().map(|test| self.expression(test, depth)).transpose()?;
                self.declared.push("loop".into());
                let body = self.body(&each.body, depth)?;
                self.declared.truncate(mark);
                let empty = self.body(&each.else_body, depth)?;
                Ok(Node::For { targets, over, filter, body, empty })
            }
            ast::Stmt::Set(set) => {
                let value = self.expression(&set.expr, depth)?;
                let name = target_name(&set.target)?;
                self.declared.push(name.clone());
                Ok(Node::Set { name, value })
            }
            _ => fault("only text, {{ … }}, if, for and set are available"),
        }
    }

    fn boxed(&mut self, expression: &ast::Expr<'_>, depth: usize) -> Lower<Box<Expr>> {
        self.expression(expression, depth).map(Box::new)
    }

    fn expression(&mut self, expression: &ast::Expr<'_>, depth: usize) -> Lower<Expr> {
        if depth > MAX_DEPTH {
            return fault(format!("the template is nested deeper than {MAX_DEPTH} levels"));
        }
        let depth = depth + 1;
        match expression {
            ast::Expr::Const(constant) => self.constant(&constant.value, constant.span()).map(Expr::Const),
            ast::Expr::List(list) => {
                let items = list.items.iter().map(|item| match self.expression(item, depth)? {
                    Expr::Const(json) => Ok(json),
                    _ => fault("a list literal may hold constants only"),
                });
                Ok(Expr::Const(Json::Array(items.collect::<Lower<_>>()?)))
            }
            ast::Expr::Var(variable) => self.variable(variable.id),
            ast::Expr::GetAttr(get) => Ok(Expr::Attr(self.boxed(&get.expr, depth)?, get.name.to_owned())),
            ast::Expr::GetItem(get) => match self.expression(&get.subscript_expr, depth)? {
                Expr::Const(Json::String(name)) => Ok(Expr::Attr(self.boxed(&get.expr, depth)?, name.into_owned())),
                index => Ok(Expr::Index(self.boxed(&get.expr, depth)?, Box::new(index))),
            },
            ast::Expr::Slice(slice) => {
                if slice.step.is_some() {
                    return fault("slices with a step are not available");
                }
                let of = self.boxed(&slice.expr, depth)?;
                let mut bound = |side: &Option<ast::Expr<'_>>| side.as_ref().map(|e| self.boxed(e, depth)).transpose();
                Ok(Expr::Slice { of, start: bound(&slice.start)?, stop: bound(&slice.stop)? })
            }
            ast::Expr::UnaryOp(unary) => match (&unary.op, self.expression(&unary.expr, depth)?) {
                (ast::UnaryOpKind::Not, inner) => Ok(Expr::Not(Box::new(inner))),
                (ast::UnaryOpKind::Neg, Expr::Const(Json::Number(text))) if !text.starts_with('-') => {
                    Ok(Expr::Const(Json::Number(format!("-{text}").into())))
                }
                (ast::UnaryOpKind::Neg, _) => fault(NO_ARITHMETIC),
            },
            ast::Expr::BinOp(binary) => self.binary(binary, depth),
            ast::Expr::Compare(compare) => {
                let first = self.boxed(&compare.expr, depth)?;
                let rest =
                    compare.ops.iter().map(|step| Ok((comparison(step.op), self.expression(&step.expr, depth)?)));
                Ok(Expr::Compare(first, rest.collect::<Lower<_>>()?))
            }
            ast::Expr::IfExpr(choice) => Ok(Expr::Choose {
                test: self.boxed(&choice.test_expr, depth)?,
                then: self.boxed(&choice.true_expr, depth)?,
                otherwise: choice.false_expr.as_ref().map(|other| self.boxed(other, depth)).transpose()?,
            }),
            ast::Expr::Filter(filter) => self.filter(filter, depth),
            ast::Expr::Test(test) => {
                let Some((_, kind)) = TESTS.iter().find(|(name, _)| *name == test.name) else {
                    let names: Vec<&str> = TESTS.iter().map(|(name, _)| *name).collect();
                    return fault(format!("unknown test \"{}\"; available: {}", test.name, names.join(", ")));
                };
                if !test.args.is_empty() {
                    return fault(format!("the test \"{}\" takes no argument", test.name));
                }
                Ok(Expr::Test { kind: *kind, of: self.boxed(&test.expr, depth)? })
            }
            ast::Expr::Call(_) => fault("calls are not available in templates"),
            ast::Expr::Tuple(_) | ast::Expr::Map(_) => {
                fault("tuples and maps are not available; write an object as JSON around the templates")
            }
        }
    }

    fn variable(&mut self, name: &str) -> Lower<Expr> {
        if !self.declared.iter().any(|declared| declared == name) {
            match VARIABLES.iter().find(|variable| **variable == name) {
                Some(variable) => {
                    self.uses.insert(variable);
                }
                None => {
                    return fault(format!("unknown variable \"{name}\"; available: {}", VARIABLES.join(", ")));
                }
            }
        }
        Ok(Expr::Var(name.to_owned()))
    }

    fn constant(&self, value: &Value, span: Span) -> Lower<Json<'static>> {
        Ok(match value.kind() {
            ValueKind::None => Json::Null,
            ValueKind::Bool => Json::Bool(value.is_true()),
            ValueKind::String => Json::String(value.as_str().unwrap_or_default().to_owned().into()),
            ValueKind::Number => {
                // The parser read a fraction into a binary float: take the digits from the source instead.
                let written = self.source.get(span.start_offset as usize..span.end_offset as usize).unwrap_or_default();
                let text = if value.is_integer() { value.to_string() } else { written.trim().to_owned() };
                if !decimal::is_number(&text) {
                    return fault("a number must be written as JSON writes it");
                }
                Json::Number(text.into())
            }
            _ => return fault("this constant is not available"),
        })
    }

    fn binary(&mut self, binary: &ast::BinOp<'_>, depth: usize) -> Lower<Expr> {
        let left = self.boxed(&binary.left, depth)?;
        let right = self.expression(&binary.right, depth)?;
        let compare = |op, left, right| Ok(Expr::Compare(left, vec![(op, right)]));
        match binary.op {
            ast::BinOpKind::ScAnd => Ok(Expr::And(left, Box::new(right))),
            ast::BinOpKind::ScOr => Ok(Expr::Or(left, Box::new(right))),
            ast::BinOpKind::Concat => Ok(Expr::Concat(left, Box::new(right))),
            ast::BinOpKind::Eq => compare(Comparison::Eq, left, right),
            ast::BinOpKind::Ne => compare(Comparison::Ne, left, right),
            ast::BinOpKind::Lt => compare(Comparison::Lt, left, right),
            ast::BinOpKind::Lte => compare(Comparison::Le, left, right),
            ast::BinOpKind::Gt => compare(Comparison::Gt, left, right),
            ast::BinOpKind::Gte => compare(Comparison::Ge, left, right),
            ast::BinOpKind::In => compare(Comparison::In, left, right),
            ast::BinOpKind::Add
            | ast::BinOpKind::Sub
            | ast::BinOpKind::Mul
            | ast::BinOpKind::Div
            | ast::BinOpKind::FloorDiv
            | ast::BinOpKind::Rem
            | ast::BinOpKind::Pow => fault(NO_ARITHMETIC),
        }
    }

    fn filter(&mut self, filter: &ast::Filter<'_>, depth: usize) -> Lower<Expr> {
        let Some((name, kind, allowed)) = FILTERS.iter().find(|(name, _, _)| *name == filter.name) else {
            let names: Vec<&str> = FILTERS.iter().map(|(name, _, _)| *name).collect();
            return fault(format!("unknown filter \"{}\"; available: {}", filter.name, names.join(", ")));
        };
        let Some(of) = &filter.expr else {
            return fault("filter blocks are not available");
        };
        let of = self.boxed(of, depth)?;
        let mut args = Vec::new();
        for arg in &filter.args {
            match arg {
                ast::CallArg::Pos(value) if *kind != FilterKind::Map => args.push(self.expression(value, depth)?),
                ast::CallArg::Kwarg("attribute", value) if *kind == FilterKind::Map => {
                    args.push(self.expression(value, depth)?);
                }
                _ if *kind == FilterKind::Map => return fault("the filter \"map\" takes attribute=\"name\""),
                _ => return fault(format!("the filter \"{name}\" takes no such argument")),
            }
        }
        if !allowed.contains(&args.len()) {
            return fault(format!("the filter \"{name}\" takes {} to {} arguments", allowed.start(), allowed.end()));
        }
        Ok(Expr::Filter { kind: *kind, of, args })
    }
}

const NO_ARITHMETIC: &str =
    "arithmetic is not available in templates: what is sent must have been computed, and approved, before";

fn comparison(op: ast::CompareOpKind) -> Comparison {
    match op {
        ast::CompareOpKind::Eq => Comparison::Eq,
        ast::CompareOpKind::Ne => Comparison::Ne,
        ast::CompareOpKind::Lt => Comparison::Lt,
        ast::CompareOpKind::Lte => Comparison::Le,
        ast::CompareOpKind::Gt => Comparison::Gt,
        ast::CompareOpKind::Gte => Comparison::Ge,
        ast::CompareOpKind::In => Comparison::In,
        ast::CompareOpKind::NotIn => Comparison::NotIn,
    }
}

fn target_name(target: &ast::Expr<'_>) -> Lower<String> {
    match target {
        ast::Expr::Var(variable) if variable.id == "loop" || VARIABLES.contains(&variable.id) => {
            fault(format!("the name \"{}\" cannot be given away", variable.id))
        }
        ast::Expr::Var(variable) => Ok(variable.id.to_owned()),
        _ => fault("only a plain name can be set"),
    }
}

fn loop_targets(target: &ast::Expr<'_>) -> Lower<Vec<String>> {
    match target {
        ast::Expr::Tuple(names) => names.items.iter().map(target_name).collect(),
        ast::Expr::List(names) => names.items.iter().map(target_name).collect(),
        one => target_name(one).map(|name| vec![name]),
    }
}
