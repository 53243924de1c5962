//! Checks a definition as a whole.

mod credentials;
mod order;
mod references;
mod tools;

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::Value;

use crate::expr::{ExpressionError, Scope};
use crate::fault::{FAULTS_MAX, Fault, Spot};
use crate::model::Definition;
use crate::parse::{self, Parsed, schema};

/// A tool that the bot has.
#[derive(Clone, Debug)]
pub struct KnownTool {
    /// The name.
    pub name: String,
    /// The JSON Schema of the parameters.
    pub input_schema: Option<Value>,
}

/// A definition without faults.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The definition.
    pub definition: Definition,
    /// What may be a mistake.
    pub warnings: Vec<Fault>,
}

/// Reads and checks the text of a definition. `tools` are those of its bot; without them, nothing about tools is checked.
/// The check of the text runs nothing and takes less than a tenth of a second. Literal parameters are checked against the
/// schemas of the tools for at most as long again; what is left then is checked when the tool is called.
///
/// # Errors
/// Returns all faults, at most [`FAULTS_MAX`], in the order of their places.
pub fn check(text: &str, tools: Option<&[KnownTool]>) -> Result<Checked, Vec<Fault>> {
    let Parsed { definition, faults, more_faults, broken, root } = parse::parse(text);
    let mut found = Found { faults, more_faults, warnings: Vec::new() };
    if let Some(definition) = &definition {
        let mut checks = Found::default();
        order::check(definition, &broken, &mut checks);
        references::check(definition, &broken, &mut checks);
        tools::check(definition, tools, &mut checks);
        credentials::check(definition, &mut checks);
        if let Some(root) = &root {
            for fault in checks.faults.iter_mut().chain(&mut checks.warnings) {
                (fault.line, fault.column) = root.locate(&fault.path);
            }
        }
        checks.faults.into_iter().for_each(|fault| found.fault(fault));
        found.more_faults += checks.more_faults;
        found.warnings = checks.warnings;
    }
    found.warnings.sort_by_key(|warning| (warning.line, warning.column));
    match definition {
        Some(definition) if found.faults.is_empty() => Ok(Checked { definition, warnings: found.warnings }),
        _ => Err(found.into_faults()),
    }
}

impl Definition {
    /// Checks the input of a run against the schema of the definition.
    ///
    /// # Errors
    /// Returns the pointer and the message of each error.
    pub fn check_input(&self, input: &Value) -> Result<(), Vec<(String, String)>> {
        let Some(schema) = &self.input else { return Ok(()) };
        let validator = schema::compile(schema).map_err(|message| vec![(String::new(), message)])?;
        let errors = schema::errors(&validator, input, validator.work(input));
        if errors.is_empty() {
            return Ok(());
        }
        Err(errors.into_iter().map(|error| (error.pointer, error.message)).collect())
    }
}

impl Definition {
    /// Evaluates the key of the limit of runs at once. Runs with another key have a limit of their own.
    ///
    /// # Errors
    /// Fails if the expression of the key fails for this input.
    pub fn concurrency_key(
        &self,
        input: &Value,
        trigger: Option<&Value>,
        schedule: Option<&Value>,
    ) -> Result<Option<String>, ExpressionError> {
        let Some(key) = self.concurrency.as_ref().and_then(|concurrency| concurrency.key.as_ref()) else {
            return Ok(None);
        };
        let mut scope = Scope::default();
        scope.set("input", Cow::Borrowed(input));
        for (name, value) in [("trigger", trigger), ("schedule", schedule)] {
            scope.set(name, value.map_or(Cow::Owned(Value::Null), Cow::Borrowed));
        }
        Ok(Some(match key.evaluate(&scope)? {
            Value::String(text) => text,
            other => other.to_string(),
        }))
    }
}

/// What the checks have found.
#[derive(Default)]
struct Found {
    faults: Vec<Fault>,
    more_faults: usize,
    warnings: Vec<Fault>,
}

impl Found {
    fn fault(&mut self, fault: Fault) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault);
        } else {
            self.more_faults += 1;
        }
    }

    /// Returns whether further faults are only counted.
    fn is_full(&self) -> bool {
        self.faults.len() >= FAULTS_MAX
    }

    fn warn(&mut self, warning: Fault) {
        if self.warnings.len() < FAULTS_MAX && !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    fn into_faults(self) -> Vec<Fault> {
        let mut faults = self.faults;
        faults.sort_by_key(|fault| (fault.line, fault.column));
        if self.more_faults > 0 {
            let end = faults.last().map(|fault| (fault.line, fault.column)).unwrap_or_default();
            let spot = Spot { path: "".into(), line: end.0, column: end.1 };
            faults.push(spot.fault(format!("and {} more faults", self.more_faults)));
        }
        faults
    }
}

/// Returns whether a missing step is one that the parser could not read.
fn is_broken(broken: &BTreeSet<String>, id: &str) -> bool {
    broken.contains(id)
}

#[cfg(test)]
mod tests;
