//! The faults of the lines of an import.

use monstrum_types::InputError;

use crate::operations::OperationError;

/// The maximum number of faults in a response. With the first faults, a file can be corrected step by step.
const LISTED_MAX: usize = 100;

/// The faults that were found so far. Only the faults of the first lines are kept.
#[derive(Debug, Default)]
pub(super) struct Faults {
    first: Vec<(usize, InputError)>,
    total: usize,
}

impl Faults {
    /// Adds a fault. `path` is a JSON pointer into the object of the line, or empty for a fault of the whole line.
    pub(super) fn add(&mut self, line: usize, path: &str, message: impl Into<String>) {
        let separator = if path.is_empty() { "" } else { ": " };
        self.put(line, InputError { path: format!("line {line}{separator}{path}"), message: message.into() });
    }

    /// Adds a fault that concerns the whole import.
    pub(super) fn add_whole(&mut self, message: impl Into<String>) {
        self.put(0, InputError { path: String::new(), message: message.into() });
    }

    /// Adds the validation errors of an object. Any other error is returned and ends the import.
    pub(super) fn add_errors(
        &mut self,
        line: usize,
        checked: Result<(), OperationError>,
    ) -> Result<(), OperationError> {
        match checked {
            Err(OperationError::Invalid(errors)) => {
                for InputError { path, message } in errors {
                    self.add(line, &path, message);
                }
                Ok(())
            }
            other => other,
        }
    }

    fn put(&mut self, line: usize, error: InputError) {
        self.total += 1;
        self.first.push((line, error));
        if self.first.len() >= 2 * LISTED_MAX {
            self.keep_first();
        }
    }

    fn keep_first(&mut self) {
        // The sort is stable, so the faults of a line keep their order.
        self.first.sort_by_key(|(line, _)| *line);
        self.first.truncate(LISTED_MAX);
    }

    /// Returns all faults as one error, if there are any.
    pub(super) fn check(mut self) -> Result<(), OperationError> {
        if self.total == 0 {
            return Ok(());
        }
        self.keep_first();
        let mut errors: Vec<InputError> = self.first.into_iter().map(|(_, error)| error).collect();
        if self.total > errors.len() {
            let message = format!("the import has {} errors; the first {} are listed", self.total, errors.len());
            errors.push(InputError { path: String::new(), message });
        }
        Err(OperationError::Invalid(errors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_hundred_faults_by_line_are_listed_with_the_total() {
        let mut faults = Faults::default();
        for line in (1..=500).rev() {
            faults.add(line, "/name", "must not be empty");
        }
        let Err(OperationError::Invalid(errors)) = faults.check() else { panic!("there are faults") };
        assert_eq!(errors.len(), LISTED_MAX + 1);
        assert_eq!((errors[0].path.as_str(), errors[99].path.as_str()), ("line 1: /name", "line 100: /name"));
        assert_eq!(errors[100].message, "the import has 500 errors; the first 100 are listed");
    }

    #[test]
    fn no_fault_is_no_error() {
        assert!(Faults::default().check().is_ok());
    }
}
