//! The errors of providers.

use std::error::Error;
use std::sync::Arc;

/// A failure of a provider. Users and bots may read the messages, so the messages name paths and limits inside a
/// sandbox, but never a path on the host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// The provider cannot carry out the request now; the same request may succeed later.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The sandbox, or the file in it, does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The state of the sandbox does not allow the request, for example because the sandbox is stopped.
    #[error("{0}")]
    Conflict(String),
    /// The request is not valid, for example because its path leaves the workspace.
    #[error("{0}")]
    Invalid(String),
    /// This provider, or this sandbox, does not support the request.
    #[error("{0}")]
    Unsupported(String),
    /// The request exceeds a limit of the sandbox, of the request or of the host.
    #[error("{0}")]
    Exhausted(String),
}

impl SandboxError {
    /// Creates an [`Unavailable`] error that has no cause.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> SandboxError {
        Unavailable::new(message).into()
    }

    /// Creates an [`Unavailable`] error that was caused by `source`.
    #[must_use]
    pub fn unavailable_because(message: impl Into<String>, source: impl Error + Send + Sync + 'static) -> SandboxError {
        SandboxError::Unavailable(Unavailable { message: message.into(), source: Some(Arc::new(source)) })
    }
}

/// The message of a request that cannot be carried out now, and its cause: an error of the operating system or of the
/// provider's own code.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Unavailable {
    message: String,
    // The cause is shared, so that the error can be cloned: a host that has no provider returns the same error to every
    // request.
    #[source]
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// Compares the messages: causes cannot be compared.
impl PartialEq for Unavailable {
    fn eq(&self, other: &Unavailable) -> bool {
        self.message == other.message
    }
}

impl Eq for Unavailable {}

impl Unavailable {
    /// Creates an error that has no cause.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Unavailable {
        Unavailable { message: message.into(), source: None }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn cause_is_a_source_and_not_in_the_message() {
        let error = SandboxError::unavailable_because(
            "the disk image of the sandbox could not be created",
            io::Error::other("EIO"),
        );
        assert_eq!(error.to_string(), "the disk image of the sandbox could not be created");
        assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("EIO"));
        assert!(SandboxError::unavailable("not now").source().is_none());
    }
}
