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

/// What a request may replace that creates an object or replaces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replacing {
    /// A version of the object. With [`Expected::Any`], also nothing.
    Version(Expected),
    /// Nothing: the object must not exist.
    Nothing,
}

impl Default for Replacing {
    fn default() -> Self {
        Replacing::Version(Expected::Any)
    }
}

impl Replacing {
    /// Returns whether the object with this version may be replaced, or created if it has none.
    pub fn allows(&self, version: Option<UtcMillis>) -> bool {
        match (self, version) {
            (Replacing::Nothing, version) => version.is_none(),
            (Replacing::Version(expected), Some(version)) => expected.check(version).is_ok(),
            (Replacing::Version(expected), None) => *expected == Expected::Any,
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

    #[test]
    fn only_what_the_caller_knows_is_replaced() {
        let version: UtcMillis = "2026-11-21T22:21:49.123Z".parse().unwrap();
        let of = |versions| Replacing::Version(Expected::OneOf(versions));
        for (replacing, of_version, of_nothing) in [
            (Replacing::default(), true, true),
            (Replacing::Nothing, false, true),
            (of(vec![version]), true, false),
            (of(vec![version.plus_ms(1)]), false, false),
            (of(vec![]), false, false),
        ] {
            assert_eq!((replacing.allows(Some(version)), replacing.allows(None)), (of_version, of_nothing));
        }
    }
}
