//! The outcome of a call.

use serde_json::Value;

use crate::error::Error;
use crate::wit::monstrum::plugin::types::ExecuteResult;

/// The largest JSON text of a success, 1 MiB. A call with a larger result fails with `result_too_large`, so long lists
/// should be paginated.
pub const RESULT_BYTES_MAX: usize = 1 << 20;

/// The outcome of a call.
///
/// ```
/// use monstrum_sdk::{Error, Outcome, json};
///
/// let outcome = Outcome::from(Error::message("labels are required"));
/// assert_eq!(outcome, Outcome::Error("labels are required".to_owned()));
/// assert_eq!(Outcome::Success(json!([1])), Outcome::Success(json!([1])));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Data for the caller.
    Success(Value),
    /// An error message for the caller.
    Error(String),
    /// Why the parameters are outside the authorised scope; the caller reads `Scope violation: {reason}`.
    ScopeViolation(String),
}

impl From<Error> for Outcome {
    fn from(error: Error) -> Self {
        match error {
            Error::Scope(violation) => Outcome::ScopeViolation(violation.0),
            other => Outcome::Error(other.to_string()),
        }
    }
}

impl From<Outcome> for ExecuteResult {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Success(data) => ExecuteResult::Success(data.to_string()),
            Outcome::Error(message) => ExecuteResult::Error(message),
            Outcome::ScopeViolation(reason) => ExecuteResult::ScopeViolation(reason),
        }
    }
}

/// Why parameters are outside the authorised scope. Use it only for rules that the manifest's scope dimensions cannot
/// express. A 404 of an upstream is an error, not a violation.
///
/// ```
/// use monstrum_sdk::ScopeViolation;
///
/// assert_eq!(ScopeViolation::new("port 22 is not authorized").to_string(), "port 22 is not authorized");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScopeViolation(pub String);

impl ScopeViolation {
    /// A violation with this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        ScopeViolation(reason.into())
    }
}
