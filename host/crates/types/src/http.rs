//! Outbound HTTP as a plugin requests it, and failed host calls.

use crate::call::words;
use serde::{Deserialize, Serialize};

/// The largest request body of a plugin: enough for any JSON and for small files.
pub const REQUEST_BODY_BYTES_MAX: usize = 10 * 1024 * 1024;

/// The most headers that a plugin may set: the limit of common servers.
pub const REQUEST_HEADERS_MAX: usize = 100;

/// The total length of the plugin's header names and values: the limit of common servers.
pub const REQUEST_HEADER_BYTES_MAX: usize = 32 * 1024;

/// The longest URL, with its query and before a credential is added: the limit of common servers.
pub const URL_BYTES_MAX: usize = 8 * 1024;

/// A request of a plugin, not yet checked.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HttpRequest {
    /// GET, POST, PUT, PATCH, DELETE or HEAD.
    pub method: String,
    /// Absolute, or a path that is appended to the resource's `api_base`.
    pub url: String,
    /// Query parameters, not yet encoded.
    pub query: Vec<(String, String)>,
    /// Headers that the plugin set.
    pub headers: Vec<(String, String)>,
    /// The body, at most 10 MiB.
    pub body: Option<Vec<u8>>,
    /// The time limit; the remaining time of the call is an upper bound.
    pub timeout_ms: Option<u32>,
    /// Whether to inject the resource's credential, if its audience allows that.
    pub authenticate: bool,
}

/// A response, after redaction.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HttpResponse {
    /// The status code.
    pub status: u16,
    /// Headers in the order of arrival, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The decoded body, at most 10 MiB.
    pub body: Vec<u8>,
}

words!(
    /// Why a host call failed. More values may be added: treat one you do not know as internal.
    FailureCode {
        /// Policy forbids it.
        Denied = "denied",
        /// The resource has no usable credential.
        Unauthenticated = "unauthenticated",
        /// The request itself is malformed.
        Invalid = "invalid",
        /// The name could not be resolved.
        Dns = "dns",
        /// No connection could be made.
        Connect = "connect",
        /// TLS failed.
        Tls = "tls",
        /// It took too long.
        Timeout = "timeout",
        /// The response is over the limit.
        TooLarge = "too_large",
        /// A limit on host calls was reached.
        Limit = "limit",
        /// The host cannot serve this now.
        Unavailable = "unavailable",
        /// The server violated the protocol.
        Protocol = "protocol",
        /// The host has an internal error.
        Internal = "internal",
    }
);

/// A failed host call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Why.
    pub code: FailureCode,
    /// A description that is safe to show to the plugin.
    pub message: String,
    /// Whether the request may have reached the server.
    pub sent: bool,
    /// How long the server asked to wait.
    pub retry_after_ms: Option<u32>,
}

impl Failure {
    /// A failure of a request that was not sent.
    #[must_use]
    pub fn unsent(code: FailureCode, message: impl Into<String>) -> Self {
        Failure { code, message: message.into(), sent: false, retry_after_ms: None }
    }

    /// A failure of a request that may have reached the server.
    #[must_use]
    pub fn sent(code: FailureCode, message: impl Into<String>) -> Self {
        Failure { code, message: message.into(), sent: true, retry_after_ms: None }
    }
}
