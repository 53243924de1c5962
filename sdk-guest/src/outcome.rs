//! The outcome of a call.

use serde_json::Value;

use crate::error::Error;
use crate::wit::monstrum::plugin::types::ExecuteResult;

/// The maximum size of a successful result as JSON text: 1 MiB. A call with a larger result fails with the code
/// `result_too_large`, so paginate long lists.
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
    /// The reason for rejecting parameters that are outside the authorized scope. The caller receives the message
    /// `Scope violation: {reason}`.
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

/// The error for parameters that are outside the authorized scope, with the reason. Use this error only for rules that
/// the manifest's scope dimensions cannot express. A 404 response of an upstream is an error, not a scope violation.
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
    /// Creates a violation with this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        ScopeViolation(reason.into())
    }
}
