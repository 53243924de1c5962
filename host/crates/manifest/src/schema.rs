//! JSON Schemas of tools: compiled once, used for every call.
//!
//! A schema comes from a plugin, so it must not cost the host more than it is worth: no reference leaves the schema,
//! regular expressions run in linear time, and `shape` bounds how much there is to do for one value.

mod defaults;
mod faults;
mod shape;
mod walk;

use std::collections::BTreeSet;

use jsonschema::{PatternOptions, Validator};
use monstrum_types::Fault;
use regex::Regex;
use serde_json::{Map, Value};

use crate::error::cut;
use defaults::Defaults;
use walk::{declares_in, parts};

/// How many faults of one input are told: more than anybody mends in one go.
const FAULTS_MAX: usize = 100;
/// The largest compiled regular expression, in bytes: `^[\w.-]{1,100}$` with Unicode classes takes about 100 KiB.
const PATTERN_BYTES_MAX: usize = 512 * 1024;

/// A tool's input_schema, ready to check parameters.
#[derive(Debug)]
pub struct InputSchema {
    root: Value,
    validator: Validator,
    defaults: Defaults,
    /// What may be given at the top level; None where the schema is open.
    closed: Option<Declared>,
    patterns: usize,
}

/// The parameters that a closed schema knows.
#[derive(Debug)]
struct Declared {
    names: BTreeSet<String>,
    patterns: Vec<Regex>,
}

impl Declared {
    fn holds(&self, name: &str) -> bool {
        self.names.contains(name) || self.patterns.iter().any(|pattern| pattern.is_match(name))
    }
}

impl InputSchema {
    /// Compiles a schema, or says what is wrong with it.
    ///
    /// # Errors
    /// A text for the author: not an object schema, a reference to elsewhere, a recursion, a pattern that cannot run
    /// in linear time, a default that the schema itself refuses, or anything else that is no JSON Schema.
    pub fn compile(schema: &Map<String, Value>) -> Result<InputSchema, String> {
        match schema.get("type") {
            None => {}
            Some(Value::String(kind)) if kind == "object" => {}
            Some(_) => return Err("at `/type`: parameters are an object, so the type must be `object`".to_owned()),
        }
        let root = Value::Object(schema.clone());
        let (validator, patterns) = compile(&root)?;
        let declared = declared(&root)?;
        if let Some(name) = declared.names.iter().find(|name| name.starts_with('_')) {
            let name = cut(name, 64);
            return Err(format!("parameter `{name}`: names that start with `_` are reserved for the platform"));
        }
        let closed = if is_open(schema) { None } else { Some(declared) };
        let defaults = Defaults::of(&root, &root);
        let compiled = InputSchema { root, validator, defaults, closed, patterns };
        compiled.check_defaults()?;
        Ok(compiled)
    }

    /// Checks parameters and fills the defaults in, in nested objects too.
    ///
    /// # Errors
    /// At most 100 faults, each with a JSON pointer into the parameters.
    pub fn check(&self, params: Value) -> Result<Map<String, Value>, Vec<Fault>> {
        let Value::Object(mut params) = params else {
            return Err(vec![Fault { path: String::new(), message: "expected an object".to_owned() }]);
        };
        let mut found = self.undeclared(&params);
        self.defaults.fill(&mut params);
        let value = Value::Object(params);
        if found.is_empty() && self.validator.is_valid(&value) {
            return match value {
                Value::Object(params) => Ok(params),
                _ => Err(found),
            };
        }
        faults::collect(&self.validator, &value, &mut found, FAULTS_MAX);
        Err(found)
    }

    /// Whether the schema declares the parameter at `dotted_path`: dots lead into objects, and into the entries of
    /// lists. A parameter whose own name has dots counts too.
    #[must_use]
    pub fn declares(&self, dotted_path: &str) -> bool {
        declares_in(&self.root, &self.root, dotted_path)
    }

    /// Whether parameters that the schema does not declare are accepted.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.closed.is_none()
    }

    /// How many regular expressions the schema holds.
    pub(crate) fn patterns(&self) -> usize {
        self.patterns
    }

    fn undeclared(&self, params: &Map<String, Value>) -> Vec<Fault> {
        let accepted =
            |name: &str| !name.starts_with('_') && self.closed.as_ref().is_none_or(|declared| declared.holds(name));
        params.keys().filter(|name| !accepted(name)).take(FAULTS_MAX).map(|name| faults::undeclared("", name)).collect()
    }

    /// A default that the schema refuses would make every call fail that leaves the parameter out.
    fn check_defaults(&self) -> Result<(), String> {
        let mut filled = Map::new();
        self.defaults.fill(&mut filled);
        let value = Value::Object(filled);
        let mut errors = self.validator.iter_errors(&value);
        match errors.find(|error| !error.instance_path().as_str().is_empty()) {
            Some(error) => {
                let at = cut(error.instance_path().as_str(), 128);
                Err(format!("the default at `{at}` is not valid: {}", faults::message(&error)))
            }
            None => Ok(()),
        }
    }
}

/// A tool's output_schema. An answer that does not match is delivered all the same, but flagged.
#[derive(Debug)]
pub struct OutputSchema {
    validator: Validator,
    patterns: usize,
}

impl OutputSchema {
    /// Compiles a schema, or says what is wrong with it.
    ///
    /// # Errors
    /// A text for the author, as for [`InputSchema::compile`].
    pub fn compile(schema: &Map<String, Value>) -> Result<OutputSchema, String> {
        let (validator, patterns) = compile(&Value::Object(schema.clone()))?;
        Ok(OutputSchema { validator, patterns })
    }

    /// Whether an answer is what the schema says.
    #[must_use]
    pub fn matches(&self, answer: &Value) -> bool {
        self.validator.is_valid(answer)
    }

    pub(crate) fn patterns(&self) -> usize {
        self.patterns
    }
}

fn compile(root: &Value) -> Result<(Validator, usize), String> {
    let patterns = shape::check(root)?;
    // Formats are annotations, as the present draft has it by default.
    let validator = jsonschema::options()
        .offline()
        .with_pattern_options(PatternOptions::regex().size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX))
        .should_validate_formats(false)
        .build(root)
        .map_err(|error| {
            let at = cut(error.instance_path().as_str(), 128);
            let at = if at.is_empty() { String::new() } else { format!("at `{at}`: ") };
            format!("not a JSON Schema: {at}{}", faults::schema_message(&error))
        })?;
    Ok((validator, patterns))
}

fn is_open(schema: &Map<String, Value>) -> bool {
    let closes = |keyword: &str| schema.get(keyword).map(|value| value == &Value::Bool(false));
    match closes("additionalProperties") {
        Some(closed) => !closed,
        None => closes("unevaluatedProperties") == Some(false),
    }
}

fn declared(root: &Value) -> Result<Declared, String> {
    let mut declared = Declared { names: BTreeSet::new(), patterns: Vec::new() };
    for part in parts(root, root) {
        if let Some(Value::Object(properties)) = part.get("properties") {
            declared.names.extend(properties.keys().cloned());
        }
        if let Some(Value::Object(properties)) = part.get("patternProperties") {
            for pattern in properties.keys() {
                let regex = regex::RegexBuilder::new(pattern).size_limit(PATTERN_BYTES_MAX).build();
                let why = |_| format!("at `/patternProperties`: `{}` is not a pattern", cut(pattern, 64));
                declared.patterns.push(regex.map_err(why)?);
            }
        }
    }
    Ok(declared)
}

#[cfg(test)]
mod tests;
