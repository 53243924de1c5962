//! The validation errors of an input, which are collected and reported together.

use monstrum_types::InputError;

use super::{OperationError, rules};

/// The errors of an input.
#[derive(Debug, Default)]
pub struct InputErrors(Vec<InputError>);

impl InputErrors {
    /// Adds an error. `path` is a JSON pointer or the name of a parameter.
    pub fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(InputError { path: path.into(), message: message.into() });
    }

    /// Adds the errors of a part of the input, with `prefix` before their paths.
    pub fn add_under(&mut self, prefix: &str, errors: Vec<InputError>) {
        self.0.extend(errors.into_iter().map(|error| InputError { path: format!("{prefix}{}", error.path), ..error }));
    }

    /// Returns the paths of the errors so far.
    #[cfg(test)]
    pub fn paths(&self) -> Vec<&str> {
        self.0.iter().map(|error| error.path.as_str()).collect()
    }

    /// Returns all added errors as one error, or `Ok` if no error was added.
    pub fn check(self) -> Result<(), OperationError> {
        if self.0.is_empty() { Ok(()) } else { Err(OperationError::Invalid(self.0)) }
    }
}

/// Returns the error of an input that is not of the expected type. For a missing or duplicate field, the path gets the
/// name of the field, because the deserializer's path ends at the object.
pub fn shape_error(path: &str, message: &str) -> InputError {
    let field = |begin: &str| message.strip_prefix(begin)?.split_once('`').map(|(field, _)| format!("{path}/{field}"));
    let at = |path: String, message: &str| InputError { path, message: message.to_owned() };
    if let Some(field) = field("missing field `") {
        at(field, "required field is missing")
    } else if let Some(field) = field("duplicate field `") {
        at(field, "duplicate field")
    } else {
        at(path.to_owned(), message)
    }
}

/// Returns the JSON pointer to the value at which a deserializer failed.
pub fn json_pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    path.iter()
        .filter_map(|segment| match segment {
            Segment::Seq { index } => Some(format!("/{index}")),
            Segment::Map { key } => Some(format!("/{}", rules::pointer_token(key))),
            Segment::Enum { .. } | Segment::Unknown => None,
        })
        .collect()
}
