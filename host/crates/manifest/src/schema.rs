//! JSON Schemas of tools, compiled once and used for all calls.
//!
//! Schemas come from plugins, so the work of a check is bounded: references stay inside the schema, regular expressions
//! are small and run in linear time, and each check spends its steps from a budget in advance. `cost` bounds the steps
//! for one value, and `weight` counts the values.

mod cost;
mod defaults;
mod errors;
mod limits;
mod pattern;
mod paying;
mod shape;
mod unique;
mod walk;
mod weight;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use jsonschema::{PatternOptions, Validator};
use monstrum_types::{Effort, InputError, ObjectParams, Overrun, Params};
use serde_json::{Map, Value};

use crate::error::cut;
use cost::Steps;
use defaults::Defaults;
pub use limits::{CHECK_STEPS_MAX, MANIFEST_STEPS_MAX, SchemaLimits};
use limits::{PATTERN_BYTES_STORED_MAX, TEXT_CHARS_MAX};
use pattern::{Pattern, Patterns};
use paying::Paying;
use shape::Shape;
use unique::UniqueItems;
use walk::{declares_in, parts};
use weight::Weight;

/// Maximum number of validation errors in one report.
const ERRORS_MAX: usize = 100;
/// The cost, in steps, of looking up one parameter among the declared parameters.
const PARAMETER_STEPS: u64 = 128;

/// The base cost, in steps, of compiling a schema at its first check. It exceeds the limit for work on a serving thread.
const COMPILE_STEPS: u64 = 1 << 16;

/// A tool's `input_schema`, which checks parameters.
#[derive(Debug)]
pub struct InputSchema {
    root: Value,
    /// The compiled schema, or the reason why the schema does not compile.
    checker: OnceLock<Result<InputChecker, String>>,
}

/// A compiled `input_schema`.
#[derive(Debug)]
struct InputChecker {
    compiled: Compiled,
    defaults: Defaults,
    /// The parameters that the schema declares at its top level; `None` if the schema allows undeclared parameters.
    closed: Option<Declared>,
}

/// The parameters that a closed schema declares.
#[derive(Debug)]
struct Declared {
    names: BTreeSet<String>,
    patterns: Vec<Arc<Pattern>>,
}

impl Declared {
    fn holds(&self, name: &str) -> Result<bool, Overrun> {
        if self.names.contains(name) {
            return Ok(true);
        }
        if self.patterns.is_empty() || is_too_long(name) {
            return Ok(false);
        }
        let name = Value::from(name);
        for pattern in &self.patterns {
            if pattern.is_match(&name)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl InputSchema {
    /// Compiles a schema. `effort` is the budget for checking its defaults.
    ///
    /// # Errors
    /// Returns a message for the author if the schema is not a JSON Schema for objects, has an external or recursive
    /// reference, has a pattern that cannot run in linear time, rejects one of its own defaults, or exceeds `limits`.
    pub fn compile(schema: &Map<String, Value>, limits: SchemaLimits, effort: &Effort) -> Result<InputSchema, String> {
        let root = Value::Object(schema.clone());
        let checker = InputChecker::of(&root, limits, effort)?;
        Ok(InputSchema { root, checker: OnceLock::from(Ok(checker)) })
    }

    /// Creates a schema that this build has compiled before. The first check compiles the schema, unless [`prepare`]
    /// has compiled it.
    ///
    /// [`prepare`]: InputSchema::prepare
    #[must_use]
    pub fn known(schema: &Map<String, Value>) -> InputSchema {
        InputSchema { root: Value::Object(schema.clone()), checker: OnceLock::new() }
    }

    /// Compiles the schema if it is not compiled yet.
    ///
    /// # Errors
    /// Returns the reason why the schema does not compile.
    pub fn prepare(&self) -> Result<(), &str> {
        self.checker().map(|_| ())
    }

    fn checker(&self) -> Result<&InputChecker, &str> {
        let compile = || InputChecker::of(&self.root, SchemaLimits::Stored, &Effort::of(MANIFEST_STEPS_MAX));
        self.checker.get_or_init(compile).as_ref().map_err(String::as_str)
    }

    /// Checks parameters and fills in the defaults, also in nested objects, within the budget `effort`. The inner
    /// result is either the parameters or at most 100 validation errors with JSON pointers into the parameters.
    ///
    /// # Errors
    /// Fails if the budget is exhausted before the check ends.
    pub fn check(&self, params: &Params, effort: &Effort) -> Result<Result<ObjectParams, Vec<InputError>>, Overrun> {
        let Some(params) = params.object() else {
            return Ok(Err(vec![InputError { path: String::new(), message: "expected an object".to_owned() }]));
        };
        if self.checker.get().is_none() {
            effort.spend(COMPILE_STEPS)?;
        }
        match self.checker() {
            Ok(checker) => checker.check(params, effort),
            Err(why) => {
                let message = format!("the input_schema of the tool is not valid: {why}");
                Ok(Err(vec![InputError { path: String::new(), message }]))
            }
        }
    }

    /// Returns whether the schema declares the parameter at `dotted_path`. Dots separate the keys of nested objects,
    /// also inside lists. The function also finds parameter names that contain dots.
    #[must_use]
    pub fn declares(&self, dotted_path: &str) -> bool {
        declares_in(&self.root, &self.root, dotted_path)
    }

    /// Returns whether the schema accepts parameters that it does not declare.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.root.as_object().is_some_and(is_open)
    }

    /// Returns the exceeded limits, each as a sentence with its location. The list is empty unless the schema was
    /// compiled with [`SchemaLimits::Stored`].
    #[must_use]
    pub fn exceeds(&self) -> &[String] {
        self.checker().map_or(&[], |checker| &checker.compiled.exceeds)
    }

    /// Returns the number of regular expressions in the schema.
    pub(crate) fn patterns(&self) -> usize {
        self.checker().map_or(0, |checker| checker.compiled.pattern_count)
    }
}

impl InputChecker {
    fn of(root: &Value, limits: SchemaLimits, effort: &Effort) -> Result<InputChecker, String> {
        let members = root.as_object().ok_or("the schema is not an object")?;
        match members.get("type") {
            None => {}
            Some(Value::String(kind)) if kind == "object" => {}
            Some(_) => return Err("at `/type`: parameters are an object, so the type must be `object`".to_owned()),
        }
        let (compiled, patterns) = Compiled::of(root, limits)?;
        let declared = declared(root, &patterns);
        if let Some(name) = declared.names.iter().find(|name| name.starts_with('_')) {
            let name = cut(name, 64);
            return Err(format!("parameter `{name}`: names that start with `_` are reserved for the platform"));
        }
        let closed = if is_open(members) { None } else { Some(declared) };
        let mut checker = InputChecker { compiled, defaults: Defaults::of(root, root), closed };
        match checker.check_defaults(effort) {
            // Earlier releases checked the defaults without these limits, so a stored version may contain such
            // defaults.
            Err(why) if limits == SchemaLimits::Stored => checker.compiled.exceeds.push(why),
            checked => checked?,
        }
        Ok(checker)
    }

    fn check(&self, params: ObjectParams, effort: &Effort) -> Result<Result<ObjectParams, Vec<InputError>>, Overrun> {
        let _paying = Paying::from(effort);
        let mut found = self.undeclared(params.members(), effort)?;
        let params = if self.defaults.are_missing_in(params.members()) {
            let mut filled = params.members().clone();
            self.defaults.fill(&mut filled);
            ObjectParams::from(filled)
        } else {
            params
        };
        let weight = Weight::of(params.value(), effort)?;
        if found.is_empty() && self.compiled.is_valid(params.value(), &weight, effort)? {
            return Ok(Ok(params));
        }
        self.compiled.collect(params.value(), &weight, effort, &mut found)?;
        Ok(Err(found))
    }

    fn undeclared(&self, params: &Map<String, Value>, effort: &Effort) -> Result<Vec<InputError>, Overrun> {
        effort.spend(PARAMETER_STEPS.saturating_mul(params.len() as u64))?;
        let mut found = Vec::new();
        for name in params.keys() {
            let is_declared = match &self.closed {
                Some(declared) => declared.holds(name)?,
                None => true,
            };
            if name.starts_with('_') || !is_declared {
                found.push(errors::undeclared("", name));
            }
            if found.len() == ERRORS_MAX {
                break;
            }
        }
        Ok(found)
    }

    /// Checks the defaults. If a default were invalid, calls without the parameter would fail.
    fn check_defaults(&self, effort: &Effort) -> Result<(), String> {
        let mut filled = Map::new();
        self.defaults.fill(&mut filled);
        if filled.is_empty() {
            return Ok(());
        }
        let value = Value::Object(filled);
        match self.compiled.first_within(&value, effort) {
            Ok(None) => Ok(()),
            Ok(Some(error)) => {
                Err(format!("the default at `{}` is not valid: {}", cut(&error.path, 128), error.message))
            }
            Err(overrun) => Err(format!(
                "the defaults cannot be checked: {overrun}; shorten the defaults or the patterns that apply to them"
            )),
        }
    }
}

/// A tool's `output_schema`. The host still returns a result that does not match, with a flag.
#[derive(Debug)]
pub struct OutputSchema {
    root: Value,
    /// The compiled schema, or the reason why the schema does not compile.
    compiled: OnceLock<Result<Compiled, String>>,
}

impl OutputSchema {
    /// Compiles a schema.
    ///
    /// # Errors
    /// Returns a message for the author, for the same reasons as [`InputSchema::compile`].
    pub fn compile(schema: &Map<String, Value>, limits: SchemaLimits) -> Result<OutputSchema, String> {
        let root = Value::Object(schema.clone());
        let (compiled, _) = Compiled::of(&root, limits)?;
        Ok(OutputSchema { root, compiled: OnceLock::from(Ok(compiled)) })
    }

    /// Creates a schema that this build has compiled before, like [`InputSchema::known`].
    #[must_use]
    pub fn known(schema: &Map<String, Value>) -> OutputSchema {
        OutputSchema { root: Value::Object(schema.clone()), compiled: OnceLock::new() }
    }

    /// Compiles the schema if it is not compiled yet.
    ///
    /// # Errors
    /// Returns the reason why the schema does not compile.
    pub fn prepare(&self) -> Result<(), &str> {
        self.compiled().map(|_| ())
    }

    fn compiled(&self) -> Result<&Compiled, &str> {
        let compile = || Compiled::of(&self.root, SchemaLimits::Stored).map(|(compiled, _)| compiled);
        self.compiled.get_or_init(compile).as_ref().map_err(String::as_str)
    }

    /// Returns whether a result matches the schema. The check runs within the budget `effort`. No result matches a
    /// schema that does not compile.
    ///
    /// # Errors
    /// Fails if the budget is exhausted before the check ends.
    pub fn matches(&self, answer: &Value, effort: &Effort) -> Result<bool, Overrun> {
        if self.compiled.get().is_none() {
            effort.spend(COMPILE_STEPS)?;
        }
        let Ok(compiled) = self.compiled() else { return Ok(false) };
        let _paying = Paying::from(effort);
        let weight = Weight::of(answer, effort)?;
        compiled.is_valid(answer, &weight, effort)
    }

    /// Returns the errors of a result, at most 100, with JSON pointers into it. There are none if the result matches the
    /// schema.
    ///
    /// # Errors
    /// Fails if the budget is exhausted before the check ends.
    pub fn errors(&self, answer: &Value, effort: &Effort) -> Result<Vec<InputError>, Overrun> {
        if self.matches(answer, effort)? {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        if let Ok(compiled) = self.compiled() {
            let _paying = Paying::from(effort);
            let weight = Weight::of(answer, effort)?;
            compiled.collect(answer, &weight, effort, &mut found)?;
        }
        if found.is_empty() {
            found.push(InputError { path: String::new(), message: "does not match the schema".to_owned() });
        }
        Ok(found)
    }

    /// Returns the exceeded limits in the same form as [`InputSchema::exceeds`].
    #[must_use]
    pub fn exceeds(&self) -> &[String] {
        self.compiled().map_or(&[], |compiled| &compiled.exceeds)
    }

    pub(crate) fn patterns(&self) -> usize {
        self.compiled().map_or(0, |compiled| compiled.pattern_count)
    }
}

/// A compiled schema with its cost.
#[derive(Debug)]
struct Compiled {
    validator: Validator,
    /// An upper bound of the steps for each value in the input.
    steps: Steps,
    choices: u64,
    has_name_patterns: bool,
    pattern_count: usize,
    exceeds: Vec<String>,
}

impl Compiled {
    fn of(root: &Value, limits: SchemaLimits) -> Result<(Compiled, Arc<Patterns>), String> {
        let Shape { pattern_count, patterns, cost, choices, exceeds } = shape::check(root)?;
        if limits == SchemaLimits::Current && !exceeds.is_empty() {
            return Err(exceeds.join("; "));
        }
        let patterns = Arc::new(patterns);
        let steps = cost.steps();
        let validator = validator(root, &patterns)?;
        let has_name_patterns = steps.name_quarter > 0;
        Ok((Compiled { validator, steps, choices, has_name_patterns, pattern_count, exceeds }, patterns))
    }

    /// Returns whether `value` is valid. Keywords spend from the current budget of this thread, which must be `effort`.
    fn is_valid(&self, value: &Value, weight: &Weight, effort: &Effort) -> Result<bool, Overrun> {
        if self.has_long_name(weight) {
            return Ok(false);
        }
        effort.spend(self.steps.of(weight))?;
        let is_valid = self.validator.is_valid(value);
        // After an overrun, the remaining patterns were not matched, so the result is discarded.
        effort.overrun().map_or(Ok(is_valid), Err)
    }

    /// Returns whether a name is too long to be matched with patternProperties.
    fn has_long_name(&self, weight: &Weight) -> bool {
        self.has_name_patterns && weight.name_bytes_max as u64 > TEXT_CHARS_MAX
    }
}

/// Returns whether a name is too long to be matched with patterns.
fn is_too_long(name: &str) -> bool {
    name.len() as u64 > TEXT_CHARS_MAX
}

fn validator(root: &Value, patterns: &Arc<Patterns>) -> Result<Validator, String> {
    let patterns = patterns.clone();
    // Formats are annotations, as they are by default in the current draft.
    jsonschema::options()
        .offline()
        .with_pattern_options(
            PatternOptions::regex().size_limit(PATTERN_BYTES_STORED_MAX).dfa_size_limit(PATTERN_BYTES_STORED_MAX),
        )
        .should_validate_formats(false)
        .with_keyword("pattern", move |parent, text, _| Ok(Box::new(patterns.keyword(parent, text)?)))
        .with_keyword("uniqueItems", |_, wanted, _| {
            Ok(Box::new(UniqueItems { is_wanted: *wanted == Value::Bool(true) }))
        })
        .build(root)
        .map_err(|error| {
            let at = cut(error.instance_path().as_str(), 128);
            let at = if at.is_empty() { String::new() } else { format!("at `{at}`: ") };
            format!("not a JSON Schema: {at}{}", errors::schema_message(&error))
        })
}

fn is_open(schema: &Map<String, Value>) -> bool {
    let closes = |keyword: &str| schema.get(keyword).map(|value| value == &Value::Bool(false));
    match closes("additionalProperties") {
        Some(closed) => !closed,
        None => closes("unevaluatedProperties") == Some(false),
    }
}

fn declared(root: &Value, patterns: &Patterns) -> Declared {
    let mut declared = Declared { names: BTreeSet::new(), patterns: Vec::new() };
    for part in parts(root, root) {
        if let Some(Value::Object(properties)) = part.get("properties") {
            declared.names.extend(properties.keys().cloned());
        }
        if let Some(Value::Object(properties)) = part.get("patternProperties") {
            declared.patterns.extend(properties.keys().filter_map(|text| patterns.get(text)).cloned());
        }
    }
    declared
}

#[cfg(test)]
mod tests;
