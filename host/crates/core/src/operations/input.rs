//! The validation errors of an input, which are collected and reported together.

use monstrum_types::InputError;

use super::OperationError;

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
