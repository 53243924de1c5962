//! From the validator's errors to faults that a caller, often a model, can mend.

use jsonschema::Validator;
use jsonschema::error::{ValidationError, ValidationErrorKind};
use monstrum_types::Fault;
use serde_json::Value;

use crate::error::cut;
use crate::fields::escape;

/// The longest message, in characters.
const MESSAGE_CHARS_MAX: usize = 200;
/// A value whose text is longer is not quoted.
const QUOTED_CHARS_MAX: usize = 64;
/// Inputs with more values than this get their first fault only: the validator gathers all faults before it hands out
/// one, and an `anyOf` of a hundred branches makes a hundred of each wrong value.
const VALUES_MAX: usize = 1_000;

/// Adds the faults of `value` to `found`, up to `faults_max` in all; no fault twice.
pub(super) fn collect(validator: &Validator, value: &Value, found: &mut Vec<Fault>, faults_max: usize) {
    if count(value, VALUES_MAX) < VALUES_MAX {
        for error in validator.iter_errors(value) {
            add(&error, found, faults_max);
        }
    } else if let Err(error) = validator.validate(value) {
        add(&error, found, faults_max);
    }
}

/// A parameter that the schema does not know.
pub(super) fn undeclared(parent: &str, name: &str) -> Fault {
    Fault { path: cut_path(format!("{parent}/{}", escape(name))), message: "undeclared parameter".to_owned() }
}

/// A name may be as long as the input; a pointer to it need not.
fn cut_path(path: String) -> String {
    if path.len() > 1_024 { cut(&path, 1_024) } else { path }
}

fn add(error: &ValidationError<'_>, found: &mut Vec<Fault>, faults_max: usize) {
    let path = error.instance_path().as_str();
    let faults: Vec<Fault> = match error.kind() {
        ValidationErrorKind::AdditionalProperties { unexpected }
        | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
            unexpected.iter().take(faults_max).map(|name| undeclared(path, name)).collect()
        }
        ValidationErrorKind::Required { property } => vec![Fault {
            path: cut_path(format!("{path}/{}", escape(property.as_str().unwrap_or_default()))),
            message: "required parameter is missing".to_owned(),
        }],
        _ => vec![Fault { path: cut_path(path.to_owned()), message: message(error) }],
    };
    for fault in faults {
        if found.len() < faults_max && !found.contains(&fault) {
            found.push(fault);
        }
    }
}

/// What is wrong, with the value only where it is short.
pub(super) fn message(error: &ValidationError<'_>) -> String {
    let short = match error.instance().as_ref() {
        Value::String(text) => text.len() <= QUOTED_CHARS_MAX,
        Value::Array(_) | Value::Object(_) => false,
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
    };
    let text = if short { error.to_string() } else { error.masked_with("the value").to_string() };
    cut(&text, MESSAGE_CHARS_MAX)
}

/// What is wrong with a schema, where the validator's own words would not help its author.
pub(super) fn schema_message(error: &ValidationError<'_>) -> String {
    let at_type = error.instance_path().as_str().ends_with("/type");
    match error.kind() {
        ValidationErrorKind::Format { format } if format == "regex" => {
            let pattern = cut(error.instance().as_str().unwrap_or_default(), QUOTED_CHARS_MAX);
            format!("`{pattern}` is no regular expression of moderate size without look-around and back-references")
        }
        ValidationErrorKind::AnyOf { .. } if at_type => {
            "expected array, boolean, integer, null, number, object or string, or a list of these".to_owned()
        }
        _ => message(error),
    }
}

/// How many values `value` holds, itself included; counting stops at `most`.
fn count(value: &Value, most: usize) -> usize {
    let inner: Box<dyn Iterator<Item = &Value>> = match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(map) => Box::new(map.values()),
        _ => return 1,
    };
    let mut total = 1;
    for item in inner {
        if total >= most {
            break;
        }
        total += count(item, most - total);
    }
    total
}
