//! Outbound HTTP requests of a plugin, and failed host calls.

use serde::{Deserialize, Serialize};

use crate::words;

/// Maximum size of a plugin's request body in bytes: enough for any JSON and for small files.
pub const REQUEST_BODY_BYTES_MAX: usize = 10 * 1024 * 1024;

/// Maximum number of headers that a plugin may set, equal to the limit of common servers.
pub const REQUEST_HEADERS_MAX: usize = 100;

/// Maximum total length of the plugin's header names and values in bytes, equal to the limit of common servers.
pub const REQUEST_HEADER_BYTES_MAX: usize = 32 * 1024;

/// Maximum length of a URL in bytes, including its query, before a credential is added. The limit equals the limit of
/// common servers.
pub const URL_BYTES_MAX: usize = 8 * 1024;

/// A plugin's request that has not been checked yet.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HttpRequest {
    /// The method: GET, POST, PUT, PATCH, DELETE or HEAD.
    pub method: String,
    /// The URL: an absolute URL, or a path that is appended to the resource's `api_base`.
    pub url: String,
    /// Query parameters, not yet encoded.
    pub query: Vec<(String, String)>,
    /// Headers that the plugin set.
    pub headers: Vec<(String, String)>,
    /// The body, at most 10 MiB.
    pub body: Option<Vec<u8>>,
    /// The time limit in milliseconds. The remaining time of the call is an upper bound.
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

words! {
    /// The reason why a host call failed. Later versions may add values: treat unknown values as `internal`.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum FailureCode {
        /// The policy forbids the request.
        Denied = "denied",
        /// The resource has no usable credential.
        Unauthenticated = "unauthenticated",
        /// The request itself is malformed.
        Invalid = "invalid",
        /// The host name could not be resolved.
        Dns = "dns",
        /// The connection could not be established.
        Connect = "connect",
        /// A TLS error occurred.
        Tls = "tls",
        /// The request timed out.
        Timeout = "timeout",
        /// The response exceeds the size limit.
        TooLarge = "too_large",
        /// A limit on host calls was reached.
        Limit = "limit",
        /// The host is temporarily unable to serve the request.
        Unavailable = "unavailable",
        /// The server violated the protocol.
        Protocol = "protocol",
        /// An internal error occurred in the host.
        Internal = "internal",
    }
}

/// A failed host call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The reason.
    pub code: FailureCode,
    /// A description that is safe to show to the plugin.
    pub message: String,
    /// Whether the request may have reached the server.
    pub sent: bool,
    /// The waiting time in milliseconds that the server requested.
    pub retry_after_ms: Option<u32>,
}

impl Failure {
    /// Creates a failure of a request that was not sent.
    #[must_use]
    pub fn unsent(code: FailureCode, message: impl Into<String>) -> Self {
        Failure { code, message: message.into(), sent: false, retry_after_ms: None }
    }

    /// Creates a failure of a request that may have reached the server.
    #[must_use]
    pub fn sent(code: FailureCode, message: impl Into<String>) -> Self {
        Failure { code, message: message.into(), sent: true, retry_after_ms: None }
    }
}
