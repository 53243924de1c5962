//! Outbound HTTP as a plugin asks for it, and host calls that did not succeed.

use crate::call::words;
use serde::{Deserialize, Serialize};

/// What a plugin may send in one request: room for any JSON and for small files; larger ones need another way.
pub const REQUEST_BODY_BYTES_MAX: usize = 10 * 1024 * 1024;

/// Headers of the plugin's own: what common servers accept in all.
pub const REQUEST_HEADERS_MAX: usize = 100;

/// Names and values of the plugin's headers together: what common servers accept in all.
pub const REQUEST_HEADER_BYTES_MAX: usize = 32 * 1024;

/// The URL with its query, before a credential is added: what common servers accept.
pub const URL_BYTES_MAX: usize = 8 * 1024;

/// What a plugin wants sent. Nothing in it has been checked yet.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HttpRequest {
    /// GET, POST, PUT, PATCH, DELETE or HEAD.
    pub method: String,
    /// Absolute, or a path that is appended to the resource's api_base.
    pub url: String,
    /// Query parameters, not yet encoded.
    pub query: Vec<(String, String)>,
    /// Headers of the plugin's own.
    pub headers: Vec<(String, String)>,
    /// The body, at most 10 MiB.
    pub body: Option<Vec<u8>>,
    /// At most the time that the call has left.
    pub timeout_ms: Option<u32>,
    /// Whether the resource's credential is to be injected, where its audience allows.
    pub authenticate: bool,
}

/// What came back, after redaction.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HttpResponse {
    /// The status code.
    pub status: u16,
    /// Headers in the order in which they came, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The decoded body, at most 10 MiB.
    pub body: Vec<u8>,
}

words!(
    /// Why a host call failed. An open set for plugins: treat one you do not know as internal.
    FailureCode {
        /// Policy forbids it.
        Denied = "denied",
        /// There is no credential that may be used.
        Unauthenticated = "unauthenticated",
        /// The request itself is malformed.
        Invalid = "invalid",
        /// The name could not be resolved.
        Dns = "dns",
        /// No connection.
        Connect = "connect",
        /// TLS failed.
        Tls = "tls",
        /// It took too long.
        Timeout = "timeout",
        /// The response is over the limit.
        TooLarge = "too_large",
        /// A limit on host calls was reached.
        Limit = "limit",
        /// The host cannot serve this at present.
        Unavailable = "unavailable",
        /// The other side broke the protocol.
        Protocol = "protocol",
        /// The host is at fault.
        Internal = "internal",
    }
);

/// A host call that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Why.
    pub code: FailureCode,
    /// In words, safe to show to the plugin.
    pub message: String,
    /// Whether the request may have reached the other side.
    pub sent: bool,
    /// How long the other side asked to wait.
    pub retry_after_ms: Option<u32>,
}

impl Failure {
    /// A failure of a request that never left.
    #[must_use]
    pub fn unsent(code: FailureCode, message: impl Into<String>) -> Self {
        Failure { code, message: message.into(), sent: false, retry_after_ms: None }
    }

    /// A failure of a request that may have reached the other side.
    #[must_use]
    pub fn sent(code: FailureCode, message: impl Into<String>) -> Self {
        Failure { code, message: message.into(), sent: true, retry_after_ms: None }
    }
}
