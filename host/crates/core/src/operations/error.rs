//! The errors of operations. An interface converts each error to the form of the interface. The messages are the same
//! in all interfaces.

use std::error::Error;
use std::time::Duration;

use monstrum_store::StoreError;
use monstrum_types::{Code, DocumentError, InputError};

/// An error of an operation. Its message may be shown to the caller.
#[derive(Debug, thiserror::Error)]
pub enum OperationError {
    /// The caller's key was deleted or rotated.
    #[error("{0}")]
    Unauthenticated(String),
    /// The caller has no right for this operation.
    #[error("{0}")]
    Forbidden(String),
    /// The object does not exist, or the caller may not see it.
    #[error("{0}")]
    NotFound(String),
    /// The object already exists, is still in use, or was changed by another request.
    #[error("{0}")]
    Conflict(String),
    /// The object does not have the version that the caller expects.
    #[error("the object was changed since it was read; read it again, and repeat the change if it is still right")]
    PreconditionFailed,
    /// The input has validation errors.
    #[error("{}", summary(.0))]
    Invalid(Vec<InputError>),
    /// A document in the input has validation errors.
    #[error("{}", summary_of_document(.0))]
    InvalidDocument(Vec<DocumentError>),
    /// The request exceeds a limit of size or effort.
    #[error("{0}")]
    OverLimit(String),
    /// The capacity for this work is exhausted. The caller may try again.
    #[error("{0}")]
    Busy(String),
    /// The request exceeds a configured rate limit.
    #[error("{message}")]
    RateLimited { message: String, retry_after: Duration },
    /// The operation did not end in time.
    #[error("{0}")]
    Timeout(String),
    /// The interface cannot transmit the answer.
    #[error("{0}")]
    Undeliverable(String),
    /// An upstream server returned an unexpected response.
    #[error("{0}")]
    BadGateway(String),
    /// The host temporarily cannot run the operation. The caller may try again.
    #[error("{0}")]
    Unavailable(String),
    /// The rows of the workspace or of the instance do not match their seal.
    #[error("{0}")]
    Unverified(String),
    /// An error of the host. The cause is logged but never shown to the caller.
    #[error("internal error; search the server's log for this request id")]
    Internal(#[source] Box<dyn Error + Send + Sync>),
    /// An error of the host after a part of the work was done, which the message names. The cause is only logged.
    #[error("internal error; search the server's log for this request id; {done}")]
    BrokenOff { done: String, source: Box<dyn Error + Send + Sync> },
}

impl OperationError {
    /// Returns the error for an object that does not exist or that the caller may not see.
    pub fn not_found(what: &str) -> Self {
        OperationError::NotFound(format!("no such {what}"))
    }

    /// Returns the error for a caller who has no right to run this operation.
    pub fn forbidden(message: impl Into<String>) -> Self {
        OperationError::Forbidden(message.into())
    }

    /// Returns the error for an object that already exists, is still in use, or is not in the state that the operation
    /// needs.
    pub fn conflict(message: impl Into<String>) -> Self {
        OperationError::Conflict(message.into())
    }

    /// Returns the error for an operation that the host temporarily cannot run.
    pub fn unavailable(message: impl Into<String>) -> Self {
        OperationError::Unavailable(message.into())
    }

    /// Returns the error with `prefix` before the paths of its input errors.
    pub fn under(self, prefix: &str) -> Self {
        match self {
            OperationError::Invalid(errors) => {
                let errors =
                    errors.into_iter().map(|error| InputError { path: format!("{prefix}{}", error.path), ..error });
                OperationError::Invalid(errors.collect())
            }
            other => other,
        }
    }

    /// Returns the error for a row that another request has changed or deleted since this operation read it.
    pub fn changed_meanwhile() -> Self {
        let message = "the object was changed or deleted by another request; read it again and retry";
        OperationError::conflict(message)
    }

    /// Returns the error for an input with a single error. `path` is a JSON pointer or the name of a parameter.
    pub fn invalid_at(path: impl Into<String>, message: impl Into<String>) -> Self {
        OperationError::Invalid(vec![InputError { path: path.into(), message: message.into() }])
    }

    /// Returns the code under which the audit records this error.
    pub(super) fn code(&self) -> Code {
        match self {
            OperationError::Unauthenticated(_) | OperationError::Forbidden(_) => Code::Denied,
            OperationError::NotFound(_)
            | OperationError::Conflict(_)
            | OperationError::PreconditionFailed
            | OperationError::Invalid(_)
            | OperationError::InvalidDocument(_)
            | OperationError::Undeliverable(_) => Code::InvalidParams,
            OperationError::OverLimit(_) | OperationError::RateLimited { .. } => Code::Limit,
            OperationError::Busy(_) => Code::Busy,
            OperationError::Timeout(_) => Code::Timeout,
            OperationError::BadGateway(_) => Code::Upstream,
            OperationError::Unavailable(_)
            | OperationError::Unverified(_)
            | OperationError::Internal(_)
            | OperationError::BrokenOff { .. } => Code::Unavailable,
        }
    }

    /// Returns the error for a failure of the host.
    pub fn internal(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        OperationError::Internal(cause.into())
    }

    /// Returns the error for an unverified scope: a workspace or `instance`.
    pub fn unverified(scope: &str) -> Self {
        OperationError::Unverified(format!(
            "the rows of scope `{scope}` in the database do not match their seals; run `monstrum doctor` to list these \
             rows"
        ))
    }
}

fn summary(errors: &[InputError]) -> String {
    match errors {
        [only] if only.path.is_empty() => only.message.clone(),
        [only] => format!("{}: {}", only.path, only.message),
        many => format!("the input has {} errors", many.len()),
    }
}

fn summary_of_document(errors: &[DocumentError]) -> String {
    match errors {
        [only] => format!("line {}, column {}: {}", only.line, only.column, only.message),
        many => format!("the document has {} errors", many.len()),
    }
}

impl From<StoreError> for OperationError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Conflict { constraint } => OperationError::conflict(conflict_text(&constraint)),
            StoreError::InUse => {
                OperationError::conflict("the object is still in use; delete the objects that use it first")
            }
            StoreError::ChangedMeanwhile => OperationError::changed_meanwhile(),
            StoreError::UnknownReference => {
                OperationError::conflict("a referenced object was deleted by another request")
            }
            StoreError::Nul => OperationError::invalid_at("", error.to_string()),
            StoreError::Unavailable { .. } => {
                tracing::error!(%error, "the database is not available");
                OperationError::unavailable("the database is not available")
            }
            StoreError::Unverified { scope, .. } => OperationError::unverified(&scope),
            other => OperationError::internal(other),
        }
    }
}

/// Returns the message for a violated unique constraint. The name of a constraint is `{table}_{column}_{column}_key`,
/// and the last column is the column that the caller can change.
fn conflict_text(constraint: &str) -> &'static str {
    match constraint {
        "trust_public_key_name_glob_key" => "the key is already trusted for these names",
        "workspaces_name_key" => "another workspace has this name",
        "api_keys_name_key" => "another root key has this name",
        "oauth_providers_workspace_id_resource_id_key" => "the resource already has an OAuth provider",
        name if name.ends_with("_name_key") => "the name is already used in this workspace",
        name if name.ends_with("_resource_id_key") => "this resource is already bound to this bot",
        _ => "the object already exists",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_audit_tells_faults_of_the_caller_from_faults_of_the_host() {
        let conflict = StoreError::Conflict { constraint: "roles_workspace_id_name_key".to_owned() };
        for (error, code) in [
            (OperationError::from(conflict), Code::InvalidParams),
            (OperationError::from(StoreError::InUse), Code::InvalidParams),
            (OperationError::not_found("role"), Code::InvalidParams),
            (OperationError::invalid_at("/path", "x"), Code::InvalidParams),
            (OperationError::forbidden("x"), Code::Denied),
            (OperationError::OverLimit("x".to_owned()), Code::Limit),
            (OperationError::BadGateway("x".to_owned()), Code::Upstream),
            (OperationError::unavailable("x"), Code::Unavailable),
            (OperationError::internal("x"), Code::Unavailable),
        ] {
            assert_eq!(error.code(), code, "{error:?}");
        }
    }
}
