//! Preconditions of changes. A caller can require that an object still has the version that the caller has read, so that
//! the change of another caller is not overwritten. The version of an object is the time of its last change.

use monstrum_types::UtcMillis;

use super::OperationError;

/// The versions of an object at which a change may be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Expected {
    #[default]
    Any,
    /// One of these versions. An empty list permits no change.
    OneOf(Vec<UtcMillis>),
}

impl Expected {
    /// Refuses a change of an object that has another version.
    pub fn check(&self, version: UtcMillis) -> Result<(), OperationError> {
        match self {
            Expected::Any => Ok(()),
            Expected::OneOf(versions) if versions.contains(&version) => Ok(()),
            Expected::OneOf(_) => Err(OperationError::PreconditionFailed),
        }
    }

    /// Returns the error for an object that was changed after its version was checked.
    pub fn changed_meanwhile(&self) -> OperationError {
        match self {
            Expected::Any => OperationError::changed_meanwhile(),
            Expected::OneOf(_) => OperationError::PreconditionFailed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_expected_version_may_change() {
        let version: UtcMillis = "2026-11-21T22:21:49.123Z".parse().unwrap();
        let later = version.plus_ms(1);
        assert!(Expected::Any.check(version).is_ok());
        assert!(Expected::OneOf(vec![later, version]).check(version).is_ok());
        for other in [vec![], vec![later]] {
            let refused = Expected::OneOf(other).check(version);
            assert!(matches!(refused, Err(OperationError::PreconditionFailed)));
        }
        assert!(matches!(Expected::Any.changed_meanwhile(), OperationError::Conflict(_)));
    }
}
