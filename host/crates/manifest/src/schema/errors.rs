//! Converts the validator's errors to messages that callers, often language models, can act on.

use jsonschema::error::{ValidationError, ValidationErrorKind};
use monstrum_types::{Effort, InputError, Overrun};
use serde_json::Value;

use crate::error::cut;
use crate::fields::escape;

use super::limits::TEXT_CHARS_MAX;
use super::paying::Paying;
use super::weight::Weight;
use super::{Compiled, ERRORS_MAX, is_too_long};

/// Maximum length of a message in characters.
const MESSAGE_CHARS_MAX: usize = 200;
/// Maximum length, in bytes, of a string that a message quotes.
const QUOTED_CHARS_MAX: usize = 64;
/// If an input has at least this number of values, only its first error is reported. The validator collects all errors
/// before it returns one, and an `anyOf` with a hundred branches has a hundred errors for each invalid value.
const VALUES_MAX: u64 = 1_000;
/// The maximum number of steps spent on collecting errors: about 70 milliseconds.
const STEPS_MAX: u64 = 1 << 26;
/// The cost of creating an error, as a multiple of the cost of the visit that finds the error.
const ERROR_VISITS: u64 = 16;

impl Compiled {
    /// Adds the errors of the invalid `value` to `found`, without duplicates. If collecting the errors would take too
    /// much work, adds a single error that reports this.
    pub(super) fn collect(
        &self,
        value: &Value,
        weight: &Weight,
        effort: &Effort,
        found: &mut Vec<InputError>,
    ) -> Result<(), Overrun> {
        if let Some(path) = self.has_long_name(weight).then(|| long_name(value)).flatten() {
            let message =
                format!("the name is longer than {TEXT_CHARS_MAX} bytes, the limit for names with patternProperties");
            found.truncate(ERRORS_MAX - 1);
            found.push(InputError { path, message });
            return Ok(());
        }
        let gathers_all = weight.values() < VALUES_MAX;
        // If the schema has no alternatives, a second pass over the value finds the first error.
        let finds_one = !gathers_all && self.choices == 0;
        let steps = if finds_one { self.steps.of(weight).saturating_mul(2) } else { self.error_steps(weight) };
        if steps > STEPS_MAX {
            // The value is known to be invalid, so there must be at least one error.
            if found.is_empty() {
                let message = "does not match the schema; listing the errors would take too much work".to_owned();
                found.push(InputError { path: String::new(), message });
            }
            return Ok(());
        }
        effort.spend(steps)?;
        if gathers_all {
            self.validator.iter_errors(value).for_each(|error| add(&error, found, ERRORS_MAX));
        } else {
            self.validator.validate(value).err().iter().for_each(|error| add(error, found, ERRORS_MAX));
        }
        effort.overrun().map_or(Ok(()), Err)
    }

    /// Returns the first error of a value inside `value`. Errors of `value` itself, such as missing members, are
    /// ignored.
    pub(super) fn first_within(&self, value: &Value, effort: &Effort) -> Result<Option<InputError>, Overrun> {
        let _paying = Paying::from(effort);
        let weight = Weight::of(value, effort)?;
        effort.spend(self.error_steps(&weight))?;
        let mut errors = self.validator.iter_errors(value);
        let error = errors.find(|error| !error.instance_path().as_str().is_empty());
        let input_error = |error: ValidationError<'_>| InputError {
            path: error.instance_path().as_str().to_owned(),
            message: message(&error),
        };
        effort.overrun().map_or(Ok(error.map(input_error)), Err)
    }

    /// Returns the number of steps for finding all errors. Each level of alternatives visits its schemas once more.
    fn error_steps(&self, weight: &Weight) -> u64 {
        self.steps.of(weight).saturating_mul(ERROR_VISITS).saturating_mul(2 + self.choices)
    }
}

/// Returns a JSON pointer to the first member whose name is too long for patternProperties.
fn long_name(value: &Value) -> Option<String> {
    match value {
        Value::Object(members) => members.iter().find_map(|(name, member)| {
            let step = || format!("/{}", escape(name));
            if is_too_long(name) {
                return Some(cut_path(step()));
            }
            long_name(member).map(|rest| cut_path(step() + &rest))
        }),
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(index, item)| Some(format!("/{index}{}", long_name(item)?)))
        }
        _ => None,
    }
}

/// Returns the error for an undeclared parameter.
pub(super) fn undeclared(parent: &str, name: &str) -> InputError {
    InputError { path: cut_path(format!("{parent}/{}", escape(name))), message: "undeclared parameter".to_owned() }
}

/// Truncates a pointer, because the names in the pointer may be as long as the input.
fn cut_path(path: String) -> String {
    if path.len() > 1_024 { cut(&path, 1_024) } else { path }
}

fn add(error: &ValidationError<'_>, found: &mut Vec<InputError>, errors_max: usize) {
    let path = error.instance_path().as_str();
    let errors: Vec<InputError> = match error.kind() {
        ValidationErrorKind::AdditionalProperties { unexpected }
        | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
            unexpected.iter().take(errors_max).map(|name| undeclared(path, name)).collect()
        }
        ValidationErrorKind::Required { property } => vec![InputError {
            path: cut_path(format!("{path}/{}", escape(property.as_str().unwrap_or_default()))),
            message: "required parameter is missing".to_owned(),
        }],
        _ => vec![InputError { path: cut_path(path.to_owned()), message: message(error) }],
    };
    for error in errors {
        if found.len() < errors_max && !found.contains(&error) {
            found.push(error);
        }
    }
}

/// Returns the message of an error. The message quotes the value only if the value is short.
pub(super) fn message(error: &ValidationError<'_>) -> String {
    let short = match error.instance().as_ref() {
        Value::String(text) => text.len() <= QUOTED_CHARS_MAX,
        Value::Array(_) | Value::Object(_) => false,
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
    };
    let text = if short { error.to_string() } else { error.masked_with("the value").to_string() };
    cut(&text, MESSAGE_CHARS_MAX)
}

/// Returns the message of an error in a schema. The function replaces validator messages that would not help the
/// author.
pub(super) fn schema_message(error: &ValidationError<'_>) -> String {
    let at_type = error.instance_path().as_str().ends_with("/type");
    match error.kind() {
        ValidationErrorKind::Format { format } if format == "regex" => {
            let pattern = cut(error.instance().as_str().unwrap_or_default(), QUOTED_CHARS_MAX);
            format!("`{pattern}` is not a regular expression, is too large, or has look-around or back-references")
        }
        ValidationErrorKind::AnyOf { .. } if at_type => {
            "expected array, boolean, integer, null, number, object or string, or a list of these".to_owned()
        }
        _ => message(error),
    }
}
