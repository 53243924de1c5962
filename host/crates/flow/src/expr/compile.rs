//! Parses an expression and checks everything about it that needs no values.

use std::collections::BTreeSet;
use std::sync::Arc;

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr};
use cel::parser::PrattParser;

use super::functions;
use super::operators;
use crate::fault::{Fault, Spot, nearest};

/// Maximum length of an expression in bytes.
pub const EXPRESSION_BYTES_MAX: usize = 1024;
/// Maximum nesting depth of an expression.
pub const EXPRESSION_DEPTH_MAX: usize = 32;
/// Maximum number of places in an expression that name a variable.
pub const EXPRESSION_REFERENCES_MAX: usize = 32;

/// The variables of the language.
const VARIABLES: [&str; 7] = ["input", "steps", "item", "index", "run", "trigger", "schedule"];
/// The fields of a step.
const STEP_FIELDS: [&str; 4] = ["status", "data", "error", "ended_at"];

/// The words of CEL, which cannot be ids of steps.
#[must_use]
pub fn reserved_words() -> &'static [&'static str] {
    &[
        "as",
        "break",
        "const",
        "continue",
        "else",
        "false",
        "for",
        "function",
        "if",
        "import",
        "in",
        "let",
        "loop",
        "namespace",
        "null",
        "package",
        "return",
        "true",
        "var",
        "void",
        "while",
    ]
}

/// A checked expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    pub(super) source: Arc<str>,
    pub(super) root: Arc<IdedExpr>,
    pub(crate) steps: Vec<StepUse>,
    pub(crate) variables: BTreeSet<&'static str>,
    pub(crate) spot: Spot,
}

/// A place in an expression that reads a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepUse {
    /// The id of the step.
    pub id: String,
    /// What is read of it.
    pub field: StepField,
}

/// A field of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepField {
    /// The result.
    Data,
    /// The status, the error, the time of the end, or all of the step.
    Other,
}

impl Expression {
    /// Parses `source`, which is at `spot` of the document.
    pub(crate) fn parse(source: &str, spot: &Spot) -> Result<Expression, Fault> {
        let source = source.trim();
        scan(source).map_err(|message| spot.fault(format!("in `{}`: {message}", short(source))))?;
        let parser = PrattParser::new()
            .max_recursion_depth(u16::try_from(EXPRESSION_DEPTH_MAX).unwrap_or(u16::MAX))
            .max_expression_node_count(EXPRESSION_BYTES_MAX * 4)
            .error_recovery_limit(1);
        let root = parser.parse(source).map_err(|errors| {
            let message = errors.errors.first().map_or("not an expression", |error| error.msg.as_str());
            let message =
                message.trim_start_matches("Syntax error: ").replace("'<EOF>'", "the end").replace("<EOF>", "the end");
            spot.fault(format!("not an expression: `{}`: {message}", short(source)))
        })?;
        let mut check =
            Check { spot, source, bound: Vec::new(), steps: Vec::new(), variables: BTreeSet::new(), references: 0 };
        check.expr(&root, 0)?;
        let Check { steps, variables, .. } = check;
        Ok(Expression { source: source.into(), root: Arc::new(root), steps, variables, spot: spot.clone() })
    }

    /// The text of the expression.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The steps that the expression reads.
    #[must_use]
    pub fn steps(&self) -> &[StepUse] {
        &self.steps
    }

    /// Returns whether the expression reads the variable `name`.
    #[must_use]
    pub fn reads(&self, name: &str) -> bool {
        self.variables.contains(name)
    }
}

fn short(source: &str) -> String {
    source.chars().take(120).collect()
}

/// Checks the text before the parser sees it: the parser's recursion has no limit for some operators, and its tokens are
/// bytes outside of strings.
fn scan(source: &str) -> Result<(), String> {
    if source.is_empty() {
        return Err("the expression is empty".to_owned());
    }
    if source.len() > EXPRESSION_BYTES_MAX {
        return Err(format!("the expression has more than {EXPRESSION_BYTES_MAX} bytes"));
    }
    let (mut depth, mut choices) = (0_usize, 0_usize);
    let mut chars = source.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' | '\'' => skip_string(&mut chars, c),
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '?' => choices += 1,
            '`' => return Err("a name in backticks is not supported; write `[\"name\"]`".to_owned()),
            c if !c.is_ascii() || (c.is_control() && !c.is_whitespace()) => {
                return Err(format!("the character `{}` is only allowed in strings", c.escape_unicode()));
            }
            _ => {}
        }
        if depth > EXPRESSION_DEPTH_MAX || choices > EXPRESSION_DEPTH_MAX {
            return Err(format!("nested deeper than {EXPRESSION_DEPTH_MAX} levels"));
        }
    }
    Ok(())
}

/// Skips the rest of a string literal. In a raw string, a backslash before the closing mark would be misread as an
/// escape; then brackets of the string are counted too, which only makes the check stricter or leaves it to the parser.
fn skip_string(chars: &mut std::str::Chars<'_>, mark: char) {
    while let Some(c) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            c if c == mark => return,
            _ => {}
        }
    }
}

struct Check<'s> {
    spot: &'s Spot,
    source: &'s str,
    /// The variables of the comprehensions around the current place.
    bound: Vec<String>,
    steps: Vec<StepUse>,
    variables: BTreeSet<&'static str>,
    references: usize,
}

impl Check<'_> {
    fn fault(&self, message: &str) -> Fault {
        self.spot.fault(format!("in `{}`: {message}", short(self.source)))
    }

    fn expr(&mut self, expr: &IdedExpr, depth: usize) -> Result<(), Fault> {
        if depth >= EXPRESSION_DEPTH_MAX {
            return Err(self.fault(&format!("nested deeper than {EXPRESSION_DEPTH_MAX} levels")));
        }
        match &expr.expr {
            Expr::Literal(LiteralValue::Bytes(_)) => Err(self.fault("bytes are not supported")),
            Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.ident(name),
            Expr::Select(select) => self.select(select, depth),
            Expr::Call(call) => self.call(call, depth),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension, depth),
            Expr::List(list) => list.elements.iter().try_for_each(|element| self.expr(element, depth + 1)),
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) if !entry.optional => {
                    self.expr(&entry.key, depth + 1)?;
                    self.expr(&entry.value, depth + 1)
                }
                _ => Err(self.fault("optional entries are not supported")),
            }),
            Expr::Struct(_) => Err(self.fault("message types are not supported; write a map, such as `{\"a\": 1}`")),
            Expr::Unspecified => Err(self.fault("not an expression")),
        }
    }

    fn ident(&mut self, name: &str) -> Result<(), Fault> {
        if name.starts_with('@') || self.bound.iter().any(|bound| bound == name) {
            return Ok(());
        }
        self.references += 1;
        if self.references > EXPRESSION_REFERENCES_MAX {
            return Err(self.fault(&format!("more than {EXPRESSION_REFERENCES_MAX} references to variables")));
        }
        if name == "steps" {
            return Err(self.fault("`steps` is only read by id, as in `steps.ID.data`"));
        }
        match VARIABLES.iter().find(|known| **known == name) {
            Some(known) => {
                self.variables.insert(known);
                Ok(())
            }
            None if functions::type_name(name).is_some() => Ok(()),
            None => {
                let fault = self.fault(&format!("unknown variable `{name}`"));
                let known = VARIABLES.iter().copied().chain(self.bound.iter().map(String::as_str));
                Err(match nearest(name, known) {
                    Some(known) => fault.hint(format!("did you mean `{known}`?")),
                    None => fault.hint(format!("the variables are {}", VARIABLES.join(", "))),
                })
            }
        }
    }

    fn select(&mut self, select: &SelectExpr, depth: usize) -> Result<(), Fault> {
        // `steps.ID.FIELD` and `steps.ID`
        if let Expr::Select(inner) = &select.operand.expr
            && is_steps(&inner.operand)
            && !inner.test
        {
            if !STEP_FIELDS.contains(&select.field.as_str()) {
                let fault = self.fault(&format!("a step has no field `{}`", select.field));
                return Err(fault.hint(format!("the fields are {}", STEP_FIELDS.join(", "))));
            }
            let field = if select.field == "data" { StepField::Data } else { StepField::Other };
            return self.step(&inner.field, field);
        }
        if is_steps(&select.operand) {
            if select.test {
                return Err(self.fault("a step always exists; test a part of it, as in `has(steps.ID.data.NAME)`"));
            }
            return self.step(&select.field, StepField::Other);
        }
        self.expr(&select.operand, depth + 1)
    }

    fn step(&mut self, id: &str, field: StepField) -> Result<(), Fault> {
        self.references += 1;
        if self.references > EXPRESSION_REFERENCES_MAX {
            return Err(self.fault(&format!("more than {EXPRESSION_REFERENCES_MAX} references to variables")));
        }
        self.variables.insert("steps");
        self.steps.push(StepUse { id: id.to_owned(), field });
        Ok(())
    }

    fn call(&mut self, call: &CallExpr, depth: usize) -> Result<(), Fault> {
        let arguments = call.args.len() + usize::from(call.target.is_some());
        if !operators::is_operator(&call.func_name, arguments) {
            let has_target = call.target.is_some();
            functions::check(&call.func_name, has_target, call.args.len()).map_err(|message| {
                let fault = self.fault(&message);
                match nearest(&call.func_name, functions::names()) {
                    Some(known) if known != call.func_name => fault.hint(format!("did you mean `{known}`?")),
                    _ => fault,
                }
            })?;
        }
        if let Some(target) = &call.target {
            self.expr(target, depth + 1)?;
        }
        call.args.iter().try_for_each(|argument| self.expr(argument, depth + 1))
    }

    fn comprehension(&mut self, comprehension: &ComprehensionExpr, depth: usize) -> Result<(), Fault> {
        self.expr(&comprehension.iter_range, depth + 1)?;
        let name = &comprehension.iter_var;
        if VARIABLES.contains(&name.as_str()) {
            let fault = self.fault(&format!("`{name}` is a variable of the workflow"));
            return Err(fault.hint("use another name for the item"));
        }
        if comprehension.iter_var2.is_some() {
            return Err(self.fault("comprehensions with two variables are not supported"));
        }
        self.expr(&comprehension.accu_init, depth + 1)?;
        self.bound.push(name.clone());
        let checked = [&comprehension.loop_cond, &comprehension.loop_step]
            .into_iter()
            .try_for_each(|inner| self.expr(inner, depth + 1));
        self.bound.pop();
        checked?;
        self.expr(&comprehension.result, depth + 1)
    }
}

fn is_steps(expr: &IdedExpr) -> bool {
    matches!(&expr.expr, Expr::Ident(name) if name == "steps")
}
