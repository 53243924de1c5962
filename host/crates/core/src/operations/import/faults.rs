//! The faults of the lines of an import.

use monstrum_types::InputError;

use crate::operations::OperationError;

/// The maximum number of faults in an answer. The first ones suffice to repair a file step by step.
const LISTED_MAX: usize = 100;

/// The faults that were found so far. Only the first ones by line are kept.
#[derive(Debug, Default)]
pub(super) struct Faults {
    first: Vec<(usize, InputError)>,
    total: usize,
}

impl Faults {
    /// Adds a fault. `path` is a JSON pointer into the object of the line; it is empty for a fault of the whole line.
    pub(super) fn add(&mut self, line: usize, path: &str, message: impl Into<String>) {
        let separator = if path.is_empty() { "" } else { ": " };
        self.put(line, InputError { path: format!("line {line}{separator}{path}"), message: message.into() });
    }

    /// Adds a fault of the whole import.
    pub(super) fn add_whole(&mut self, message: impl Into<String>) {
        self.put(0, InputError { path: String::new(), message: message.into() });
    }

    /// Adds the errors of an object's check. An error of another kind ends the import.
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
        // The sort is stable, so that the faults of a line stay in their order.
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
