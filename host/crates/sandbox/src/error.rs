//! Why a provider did not do what it was asked for.

/// A failure of a provider. The texts name paths and limits inside a sandbox, never a place on the host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// The provider cannot be used at present; the same request may work later.
    #[error("{0}")]
    Unavailable(String),
    /// There is no such sandbox, or no such file in it.
    #[error("{0}")]
    NotFound(String),
    /// The sandbox changed state meanwhile; look again.
    #[error("{0}")]
    Conflict(String),
    /// The request cannot be carried out as it is, such as a path that leaves the workspace.
    #[error("{0}")]
    Invalid(String),
    /// This provider does not do that.
    #[error("{0}")]
    Unsupported(String),
    /// A limit of the sandbox or of a request is used up.
    #[error("{0}")]
    Exhausted(String),
}
