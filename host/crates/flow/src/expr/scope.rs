//! What an expression can read.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;

/// The variables of one evaluation. A variable that is absent here but known to the language has no value at this place.
#[derive(Debug, Default)]
pub struct Scope<'a> {
    values: BTreeMap<&'static str, Cow<'a, Value>>,
    steps: BTreeMap<String, StepView<'a>>,
}

/// A step as expressions see it.
#[derive(Clone, Debug, Default)]
pub struct StepView<'a> {
    /// `succeeded`, `failed`, `skipped`, `cancelled` or `uncertain`.
    pub status: &'static str,
    /// The result. Steps that did not succeed have none.
    pub data: Option<Cow<'a, Value>>,
    /// `{code, message}` of a failed step.
    pub error: Option<Value>,
    /// When the step ended, in the format of RFC 3339.
    pub ended_at: Option<String>,
}

impl<'a> Scope<'a> {
    /// Sets a variable.
    pub fn set(&mut self, name: &'static str, value: Cow<'a, Value>) {
        self.values.insert(name, value);
    }

    /// Sets the view of a step.
    pub fn set_step(&mut self, id: &str, view: StepView<'a>) {
        self.steps.insert(id.to_owned(), view);
    }

    pub(super) fn value(&self, name: &str) -> Option<&Value> {
        self.values.get(name).map(Cow::as_ref)
    }

    pub(super) fn step(&self, id: &str) -> Option<&StepView<'a>> {
        self.steps.get(id)
    }
}
