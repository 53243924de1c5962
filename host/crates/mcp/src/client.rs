//! The client of MCP servers whose tools bots may call.
//!
//! A [`Connection`] keeps what was agreed with one server for one credential: the revision and, for servers of earlier
//! revisions, the session. It sends its messages through a [`Wire`], which the host implements: the wire decides where
//! messages go, adds the credential and redacts the answers. The client treats everything that a server sends as
//! untrusted: it limits what it reads, and it answers no request of a server except `ping`.
//!
//! The client uses tools only. It declares no capabilities, so a server has no reason to ask for sampling, roots or
//! elicitation.

mod agreement;
mod connection;
mod exchange;
mod listing;
mod param_headers;
mod stream;
mod subscription;
mod wire;

#[cfg(test)]
mod tests;

pub use agreement::{SESSION_IDLE_MAX, UnusedSession};
pub use connection::{CalledTool, Connection, InFlight, RemoteCall};
pub use listing::{DeclaredList, ListLimits, ListedTool};
pub use subscription::Subscription;
pub use wire::{Content, Events, Head, Message, MessageBody, Wire};

use monstrum_types::{Failure, FailureCode};

/// The identity of a server, as the server states it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerIdentity {
    /// The name and the version, if the server states them.
    pub name: Option<String>,
    pub version: Option<String>,
    /// The revision of the protocol that was agreed.
    pub revision: String,
    /// Whether the server notifies clients when its list of tools changes.
    pub notifies: bool,
}

/// The maximum length of a text of a server that an error quotes, in bytes.
const QUOTED_BYTES_MAX: usize = 1024;

/// The reason why a server gave no usable answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The message was not sent, or its answer was not received.
    #[error("{0}")]
    Failed(Failure),
    /// The server rejected the credential, or requires one.
    #[error("the MCP server rejected the request as unauthenticated (HTTP 401)")]
    Unauthenticated,
    /// The token of the credential lacks scopes that the server requires.
    #[error("the MCP server requires scopes that the credential does not have{}", named(.0))]
    InsufficientScope(Vec<String>),
    /// The server answered with an HTTP status that stands for an error.
    #[error("the MCP server answered with HTTP status {0}")]
    Status(u16),
    /// The server answered with a JSON-RPC error.
    #[error("the MCP server answered with an error ({code}): {message}")]
    Rpc {
        /// The code of the error.
        code: i64,
        /// The text of the server, shortened.
        message: String,
    },
    /// The server does not support the revision of the request.
    #[error("the MCP server does not support the revision of the request; it supports [{}]", supported.join(", "))]
    UnsupportedRevision {
        /// The revisions that the server names, or none.
        supported: Vec<String>,
    },
    /// The answer violates the protocol.
    #[error("the MCP server sent an invalid answer: {0}")]
    Invalid(String),
    /// The server requires something that this client does not support.
    #[error("the MCP server requires what Monstrum does not support: {0}")]
    Unsupported(String),
    /// The server sent more than the host accepts.
    #[error("{0}")]
    TooMuch(String),
}

/// The maximum number of scopes that an error names.
const NAMED_SCOPES_MAX: usize = 10;

fn named(scopes: &[String]) -> String {
    match scopes {
        [] => String::new(),
        scopes => format!(": {}", scopes[..scopes.len().min(NAMED_SCOPES_MAX)].join(" ")),
    }
}

impl ClientError {
    /// Returns whether no byte of the request was sent.
    #[must_use]
    pub fn is_unsent(&self) -> bool {
        matches!(self, ClientError::Failed(failure) if !failure.sent)
    }

    /// Returns whether the connection broke, so that a second attempt may succeed.
    fn is_broken_connection(&self) -> bool {
        match self {
            ClientError::Failed(failure) => is_broken_connection(failure),
            _ => false,
        }
    }
}

fn is_broken_connection(failure: &Failure) -> bool {
    matches!(failure.code, FailureCode::Connect | FailureCode::Protocol)
}

impl From<Failure> for ClientError {
    fn from(failure: Failure) -> Self {
        ClientError::Failed(failure)
    }
}

/// Shortens a text of a server to `bytes_max` bytes, at the end of a character.
#[must_use]
pub fn shortened(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
