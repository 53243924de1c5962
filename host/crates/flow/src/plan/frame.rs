//! Where a step stands: outside of `each`, or in one of its items. Makes the variables of expressions there.

use std::borrow::Cow;
use std::sync::Arc;

use chrono::{DateTime, SecondsFormat};
use serde_json::{Value, json};

use super::Planner;
use super::types::{RunEnd, StepError, StepKey, StepStatus};
use crate::expr::{Expression, ExpressionError, Meter, Scope, StepView, Template};

/// The place of a list of steps.
#[derive(Clone)]
pub(super) struct Frame {
    /// The indices of the items, the outermost first, and whether results of earlier attempts of the run count there.
    items: Vec<(usize, bool)>,
    /// The items of the innermost list.
    values: Option<Arc<Vec<Value>>>,
    /// Whether results of earlier attempts of the run count outside of `each`.
    reuse: bool,
}

impl Frame {
    pub(super) fn root(reuse: bool) -> Frame {
        Frame { items: Vec::new(), values: None, reuse }
    }

    /// The place of an item.
    pub(super) fn item(&self, values: &Arc<Vec<Value>>, index: usize, reuse: bool) -> Frame {
        let mut items = self.items.clone();
        items.push((index, reuse && self.reuses()));
        Frame { items, values: Some(values.clone()), reuse: self.reuse }
    }

    pub(super) fn reuses(&self) -> bool {
        self.items.last().map_or(self.reuse, |(_, reuse)| *reuse)
    }

    /// Makes the place of a row again, without the items.
    pub(super) fn of_item(item: &str) -> Frame {
        let items = item.split('.').filter_map(|index| index.parse().ok()).map(|index| (index, true)).collect();
        Frame { items, values: None, reuse: true }
    }

    pub(super) fn with_values(mut self, values: Option<Arc<Vec<Value>>>) -> Frame {
        self.values = values;
        self
    }

    pub(super) fn key(&self, step: &str) -> StepKey {
        self.key_at(step, self.items.len())
    }

    /// The key of a step that stands in `depth` of the lists around this place.
    fn key_at(&self, step: &str, depth: usize) -> StepKey {
        let item: Vec<String> = self.items.iter().take(depth).map(|(index, _)| index.to_string()).collect();
        StepKey { step: step.to_owned(), item: item.join("."), undo: false }
    }

    fn reuses_at(&self, depth: usize) -> bool {
        match depth.checked_sub(1).and_then(|last| self.items.get(last)) {
            Some((_, reuse)) => *reuse,
            None => self.reuse,
        }
    }
}

impl Planner<'_> {
    /// Evaluates a template at a place.
    pub(super) fn value(&self, template: &Template, frame: &Frame) -> Result<Value, StepError> {
        let mut expressions = Vec::new();
        template.each_expression(&mut |expression| expressions.push(expression));
        let scope = self.scope(&expressions, frame);
        template.metered(&scope, &self.meter()).map_err(|error| self.wrong(&error))
    }

    pub(super) fn text(&self, template: &Template, frame: &Frame) -> Result<String, StepError> {
        Ok(match self.value(template, frame)? {
            Value::String(text) => text,
            other => other.to_string(),
        })
    }

    pub(super) fn expression(&self, expression: &Expression, frame: &Frame) -> Result<Value, StepError> {
        let scope = self.scope(&[expression], frame);
        expression.metered(&scope, &self.meter()).map_err(|error| self.wrong(&error))
    }

    pub(super) fn holds(&self, expression: &Expression, frame: &Frame) -> Result<bool, StepError> {
        let scope = self.scope(&[expression], frame);
        expression.metered_holds(&scope, &self.meter()).map_err(|error| self.wrong(&error))
    }

    fn meter(&self) -> Meter {
        Meter::within(&self.budget)
    }

    /// The error of a step whose expression failed.
    fn wrong(&self, error: &ExpressionError) -> StepError {
        let code = if self.budget.is_spent() { "limit" } else { "expression" };
        StepError::new(code, error.to_string())
    }

    fn scope<'s>(&'s self, expressions: &[&Expression], frame: &'s Frame) -> Scope<'s> {
        let mut scope = Scope::default();
        let reads = |name: &str| expressions.iter().any(|expression| expression.reads(name));
        if reads("input") {
            scope.set("input", Cow::Borrowed(&*self.run.input));
        }
        for (name, value) in [("trigger", &self.run.trigger), ("schedule", &self.run.schedule)] {
            if reads(name) {
                scope.set(name, value.as_ref().map_or(Cow::Owned(Value::Null), Cow::Borrowed));
            }
        }
        if reads("run") {
            let status = self.ending.as_ref().map_or("running", |ending| RunEnd::as_str(ending.status));
            let run = json!({"id": self.run.id, "status": status, "started_by": self.run.started_by});
            scope.set("run", Cow::Owned(run));
        }
        if let (Some(values), Some((index, _))) = (&frame.values, frame.items.last()) {
            if let Some(value) = values.get(*index).filter(|_| reads("item")) {
                scope.set("item", Cow::Borrowed(value));
            }
            if reads("index") {
                scope.set("index", Cow::Owned(json!(index)));
            }
        }
        for used in expressions.iter().flat_map(|expression| expression.steps()) {
            scope.set_step(&used.id, self.view(&used.id, frame));
        }
        scope
    }

    /// A step as expressions at a place see it. A step that never ran counts as skipped.
    fn view(&self, id: &str, frame: &Frame) -> StepView<'_> {
        let depth = self.depths.get(id).copied().unwrap_or_default();
        let key = frame.key_at(id, depth);
        // The steps of `finally` run in each attempt of the run, but read what the other steps have kept.
        let reuse = frame.reuses_at(depth) || (depth == 0 && !self.finally.contains(id));
        let row = self.steps.get(id).and_then(|step| self.current_at(step, &key, reuse));
        let Some(row) = row else {
            return StepView { status: StepStatus::Skipped.as_str(), ..StepView::default() };
        };
        let has_data = matches!(row.status, StepStatus::Succeeded | StepStatus::Undone);
        let error = row.error.as_ref().map(|error| json!({"code": error.code, "message": error.message}));
        StepView {
            status: row.status.as_str(),
            data: has_data.then(|| Cow::Borrowed(&*row.data)),
            error,
            ended_at: row.ended_at.and_then(time_text),
        }
    }
}

/// Writes a time in the format of RFC 3339.
pub(super) fn time_text(ms: i64) -> Option<String> {
    Some(DateTime::from_timestamp_millis(ms)?.to_rfc3339_opts(SecondsFormat::AutoSi, true))
}
