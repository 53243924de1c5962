//! Evaluates a syntax tree.

use std::rc::Rc;

use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators as op,
};
use serde_json::Value;

use super::compile::Expression;
use super::functions::{self, Patterns};
use super::meter::{Meter, Stop};
use super::operators::{self, binary, key, negate, short};
use super::scope::Scope;
use super::value::{Text, Val};
use super::{ExpressionError, value};
use crate::fault::cut;

impl Expression {
    /// Evaluates the expression.
    ///
    /// # Errors
    /// Fails if an operation fails, a field is missing, or the budget is exhausted.
    pub fn evaluate(&self, scope: &Scope<'_>) -> Result<Value, ExpressionError> {
        self.metered(scope, &Meter::default())
    }

    /// Evaluates the expression with what is left of a budget.
    pub(crate) fn metered(&self, scope: &Scope<'_>, meter: &Meter) -> Result<Value, ExpressionError> {
        let evaluation = Evaluation { scope, meter, patterns: Patterns::default() };
        let result = evaluation.expr(&self.root, &Locals::None).and_then(|value| value.to_json(meter));
        result.map_err(|stop| self.error(&stop.into_message()))
    }

    /// Evaluates the expression as a condition.
    ///
    /// # Errors
    /// Fails as [`Expression::evaluate`] does, and if the value is not true or false.
    pub fn holds(&self, scope: &Scope<'_>) -> Result<bool, ExpressionError> {
        self.metered_holds(scope, &Meter::default())
    }

    /// Evaluates the expression as a condition with what is left of a budget.
    pub(crate) fn metered_holds(&self, scope: &Scope<'_>, meter: &Meter) -> Result<bool, ExpressionError> {
        match self.metered(scope, meter)? {
            Value::Bool(value) => Ok(value),
            _ => Err(self.error("the value is not true or false")),
        }
    }

    /// Messages may quote data, so they are made short and printable.
    pub(super) fn error(&self, message: &str) -> ExpressionError {
        ExpressionError { source_text: cut(&short(self.source())), message: cut(message) }
    }
}

struct Evaluation<'s> {
    scope: &'s Scope<'s>,
    meter: &'s Meter,
    patterns: Patterns,
}

/// The variables of comprehensions, innermost first.
enum Locals<'l, 's> {
    None,
    Loop { item_name: &'l str, item: Val<'s>, result_name: &'l str, result: &'l Val<'s>, outer: &'l Locals<'l, 's> },
}

impl<'s> Locals<'_, 's> {
    fn find(&self, name: &str) -> Option<&Val<'s>> {
        match self {
            Locals::None => None,
            Locals::Loop { item_name, item, result_name, result, outer } => {
                if *item_name == name {
                    Some(item)
                } else if *result_name == name {
                    Some(result)
                } else {
                    outer.find(name)
                }
            }
        }
    }
}

impl<'s> Evaluation<'s> {
    fn expr(&self, expr: &'s IdedExpr, locals: &Locals<'_, 's>) -> Result<Val<'s>, Stop> {
        self.meter.step(1)?;
        match &expr.expr {
            Expr::Literal(literal) => self.literal(literal),
            Expr::Ident(name) => self.ident(name, locals),
            Expr::Select(select) => self.select(select, locals),
            Expr::Call(call) => self.call(call, locals),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension, locals),
            Expr::List(list) => {
                self.meter.elements(list.elements.len())?;
                let items = list.elements.iter().map(|element| self.expr(element, locals));
                Ok(Val::List(Rc::new(items.collect::<Result<_, _>>()?)))
            }
            Expr::Map(map) => {
                self.meter.elements(map.entries.len())?;
                let mut entries: Vec<(Text<'s>, Val<'s>)> = Vec::new();
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else { return Err(Stop::failed("not a map")) };
                    let name = key(self.expr(&entry.key, locals)?)?;
                    self.meter.scan(name.len().saturating_mul(entries.len()))?;
                    if entries.iter().any(|(known, _)| **known == *name) {
                        return Err(Stop::failed(format!("the map has the key `{}` twice", short(&name))));
                    }
                    entries.push((name, self.expr(&entry.value, locals)?));
                }
                Ok(Val::Map(Rc::new(entries)))
            }
            Expr::Struct(_) | Expr::Unspecified => Err(Stop::failed("not an expression")),
        }
    }

    fn literal(&self, literal: &'s LiteralValue) -> Result<Val<'s>, Stop> {
        Ok(match literal {
            LiteralValue::Null => Val::Null,
            LiteralValue::Boolean(value) => Val::Bool(*value.inner()),
            LiteralValue::Int(value) => Val::Int(i128::from(*value.inner())),
            LiteralValue::UInt(value) => Val::Int(i128::from(*value.inner())),
            LiteralValue::Double(value) => Val::Double(*value.inner()),
            LiteralValue::String(text) => Val::Text(Text::Borrowed(text.inner())),
            LiteralValue::Bytes(_) => return Err(Stop::failed("bytes are not supported")),
        })
    }

    fn ident(&self, name: &'s str, locals: &Locals<'_, 's>) -> Result<Val<'s>, Stop> {
        if let Some(value) = locals.find(name) {
            return Ok(value.clone());
        }
        if let Some(value) = self.scope.value(name) {
            return Ok(Val::of(value));
        }
        match functions::type_name(name) {
            Some(name) => Ok(Val::Type(name)),
            None => Err(Stop::failed(format!("`{}` has no value here", short(name)))),
        }
    }

    fn select(&self, select: &'s SelectExpr, locals: &Locals<'_, 's>) -> Result<Val<'s>, Stop> {
        if matches!(&select.operand.expr, Expr::Ident(name) if name == "steps") {
            let step = self.scope.step(&select.field);
            return step
                .map(Val::Step)
                .ok_or_else(|| Stop::failed(format!("step `{}` has not ended", short(&select.field))));
        }
        let operand = self.expr(&select.operand, locals)?;
        if select.test {
            // Nothing has no fields, so that `has(steps.a.data.b)` is false for a step that was skipped.
            let found = if matches!(operand, Val::Null) { None } else { operand.member(&select.field, self.meter)? };
            return Ok(Val::Bool(found.is_some()));
        }
        let found = operand.member(&select.field, self.meter)?;
        found.ok_or_else(|| Stop::failed(format!("there is no field `{}`", short(&select.field))))
    }

    fn call(&self, call: &'s CallExpr, locals: &Locals<'_, 's>) -> Result<Val<'s>, Stop> {
        let name = call.func_name.as_str();
        match (name, call.args.as_slice()) {
            (op::CONDITIONAL, [condition, yes, no]) => {
                let holds = self.expr(condition, locals)?.as_bool()?;
                self.expr(if holds { yes } else { no }, locals)
            }
            (op::LOGICAL_AND, [left, right]) => self.logical(left, right, false, locals),
            (op::LOGICAL_OR, [left, right]) => self.logical(left, right, true, locals),
            (op::LOGICAL_NOT, [operand]) => Ok(Val::Bool(!self.expr(operand, locals)?.as_bool()?)),
            (op::NOT_STRICTLY_FALSE, [operand]) => match self.expr(operand, locals) {
                Ok(value) => Ok(Val::Bool(!matches!(value, Val::Bool(false)))),
                Err(Stop::Failed(_)) => Ok(Val::Bool(true)),
                Err(budget) => Err(budget),
            },
            (op::NEGATE, [operand]) => negate(&self.expr(operand, locals)?),
            (name, [left, right]) if call.target.is_none() && operators::is_operator(name, 2) => {
                let (left, right) = (self.expr(left, locals)?, self.expr(right, locals)?);
                binary(name, &left, &right, self.meter)
            }
            (name, arguments) => {
                let target = call.target.iter().map(AsRef::as_ref);
                let values = target.chain(arguments).map(|argument| self.expr(argument, locals));
                functions::call(name, &values.collect::<Result<Vec<_>, _>>()?, self.meter, &self.patterns)
            }
        }
    }

    /// `&&` and `||`: an operand that decides makes an error of the other one irrelevant.
    fn logical(
        &self,
        left: &'s IdedExpr,
        right: &'s IdedExpr,
        decides: bool,
        locals: &Locals<'_, 's>,
    ) -> Result<Val<'s>, Stop> {
        let first = self.expr(left, locals).and_then(|value| value.as_bool());
        match first {
            Ok(value) if value == decides => return Ok(Val::Bool(decides)),
            Err(Stop::Budget(message)) => return Err(Stop::Budget(message)),
            _ => {}
        }
        let second = self.expr(right, locals)?.as_bool()?;
        if second == decides {
            return Ok(Val::Bool(decides));
        }
        first.map(Val::Bool)
    }

    fn comprehension(&self, loops: &'s ComprehensionExpr, locals: &Locals<'_, 's>) -> Result<Val<'s>, Stop> {
        let items = self.expr(&loops.iter_range, locals)?.items(self.meter)?;
        let mut result = self.expr(&loops.accu_init, locals)?;
        let mut failed = None;
        for item in items {
            result = match self.turn(loops, item, result, locals) {
                // An error in one turn of `exists` or `all` is irrelevant if a later turn decides. Until then the result
                // is neither true nor false.
                Err(Stop::Failed(message)) if is_logical(&loops.loop_step) => {
                    failed.get_or_insert(message);
                    Val::Null
                }
                turn => turn?,
            };
            let done = Locals::Loop {
                item_name: &loops.iter_var,
                item: Val::Null,
                result_name: &loops.accu_var,
                result: &result,
                outer: locals,
            };
            if !self.expr(&loops.loop_cond, &done)?.as_bool()? {
                break;
            }
        }
        if let (Val::Null, Some(message)) = (&result, failed) {
            return Err(Stop::Failed(message));
        }
        let done = Locals::Loop {
            item_name: &loops.iter_var,
            item: Val::Null,
            result_name: &loops.accu_var,
            result: &result,
            outer: locals,
        };
        self.expr(&loops.result, &done)
    }

    /// One turn of a loop. The lists of `map` and `filter` grow in place: a copy in each turn would take quadratic time.
    fn turn(
        &self,
        loops: &'s ComprehensionExpr,
        item: Val<'s>,
        mut result: Val<'s>,
        locals: &Locals<'_, 's>,
    ) -> Result<Val<'s>, Stop> {
        let (condition, step) = match &loops.loop_step.expr {
            Expr::Call(call) if call.func_name == op::CONDITIONAL && call.args.len() == 3 => {
                (Some((&call.args[0], &call.args[2])), &call.args[1])
            }
            _ => (None, &loops.loop_step),
        };
        let added = added(step, &loops.accu_var);
        let inner = Locals::Loop {
            item_name: &loops.iter_var,
            item,
            result_name: &loops.accu_var,
            result: &result,
            outer: locals,
        };
        let Some(added) = added else { return self.expr(&loops.loop_step, &inner) };
        if let Some((condition, _)) = condition
            && !self.expr(condition, &inner)?.as_bool()?
        {
            return Ok(result);
        }
        let value = self.expr(added, &inner)?;
        self.meter.elements(1)?;
        match &mut result {
            Val::List(list) => Rc::make_mut(list).push(value),
            _ => return Err(Stop::failed("not a list")),
        }
        Ok(result)
    }
}

fn is_logical(step: &IdedExpr) -> bool {
    matches!(&step.expr, Expr::Call(call) if call.func_name == op::LOGICAL_AND || call.func_name == op::LOGICAL_OR)
}

/// Returns the value that a step of `map` or `filter` adds to the list.
fn added<'s>(step: &'s IdedExpr, result: &str) -> Option<&'s IdedExpr> {
    let Expr::Call(call) = &step.expr else { return None };
    match (call.func_name.as_str(), call.args.as_slice()) {
        (op::ADD, [list, more]) => match (&list.expr, &more.expr) {
            (Expr::Ident(name), Expr::List(more)) if name == result && more.elements.len() == 1 => {
                more.elements.first()
            }
            _ => None,
        },
        _ => None,
    }
}

/// Returns a JSON value as the text that is inserted into a template.
pub(super) fn inserted(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Reads a time in the format of RFC 3339 as milliseconds since 1970.
pub(crate) fn time_ms(text: &str) -> Option<i64> {
    match functions::timestamp(text) {
        Ok(value::Val::Time(time)) => Some(time.timestamp_millis()),
        _ => None,
    }
}
