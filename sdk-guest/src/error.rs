//! Errors of handlers and of host calls.

use std::fmt;

use crate::outcome::ScopeViolation;
use crate::tools::ToolError;
use crate::wit::monstrum::plugin::types;

/// The maximum number of characters of an upstream's body in the text of [`Error::Http`]: enough for the messages of
/// common APIs, and short enough for a model's context.
const BODY_SHOWN_CHARS: usize = 200;

/// The error of a handler.
///
/// ```
/// use monstrum_sdk::Error;
///
/// let error = Error::Param { name: "repo".to_owned(), message: "is required".to_owned() };
/// assert_eq!(error.to_string(), "parameter 'repo': is required");
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter is missing or has the wrong type.
    #[error("parameter '{name}': {message}")]
    Param {
        /// The parameter's name.
        name: String,
        /// A description of the error.
        message: String,
    },
    /// The upstream answered with a status outside 200 to 299.
    #[error("the upstream answered {status}: {}", cut(body, BODY_SHOWN_CHARS))]
    Http {
        /// The HTTP status.
        status: u16,
        /// The whole body, as text.
        body: String,
    },
    /// A host call failed.
    #[error(transparent)]
    Host(#[from] Failure),
    /// A call of another tool failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The parameters are outside the authorized scope. The caller receives a scope violation.
    #[error(transparent)]
    Scope(#[from] ScopeViolation),
    /// An error of any other kind, with a message for the caller.
    #[error("{0}")]
    Message(String),
}

impl Error {
    /// Creates an error with the message `text`.
    ///
    /// ```
    /// # use monstrum_sdk::Error;
    /// assert_eq!(Error::message("labels are required").to_string(), "labels are required");
    /// ```
    pub fn message(text: impl Into<String>) -> Self {
        Error::Message(text.into())
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Error::Message(error.to_string())
    }
}

/// Returns the first `chars_max` characters of a text.
pub(crate) fn cut(text: &str, chars_max: usize) -> &str {
    text.char_indices().nth(chars_max).map_or(text, |(end, _)| &text[..end])
}

/// A failed host call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind of failure.
    pub code: FailureCode,
    /// A description of the failure.
    pub message: String,
    /// Whether the request may have reached the server. If false, the plugin can safely send the request again.
    pub sent: bool,
    /// The number of milliseconds that the server asks the client to wait before a retry.
    pub retry_after_ms: Option<u32>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.message.is_empty() { self.code.as_str() } else { &self.message })
    }
}

impl std::error::Error for Failure {}

impl From<types::Failure> for Failure {
    fn from(failure: types::Failure) -> Self {
        Failure {
            code: FailureCode::from_text(&failure.code),
            message: failure.message,
            sent: failure.sent,
            retry_after_ms: failure.retry_after_ms,
        }
    }
}

macro_rules! failure_codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The kinds of [`Failure`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum FailureCode {
            $($(#[$doc])* $name,)*
        }

        impl FailureCode {
            /// Returns the code as text.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(FailureCode::$name => $text,)* }
            }

            /// Parses a code. An unknown code becomes [`FailureCode::Internal`].
            fn from_text(text: &str) -> Self {
                match text { $($text => FailureCode::$name,)* _ => FailureCode::Internal }
            }
        }
    };
}

failure_codes! {
    /// The policy forbids the request because of its origin, its address, one of its headers or a secret in it.
    Denied = "denied",
    /// The resource has no usable credential.
    Unauthenticated = "unauthenticated",
    /// The request is malformed.
    Invalid = "invalid",
    /// The host name cannot be resolved.
    Dns = "dns",
    /// The connection to the server failed.
    Connect = "connect",
    /// The server's certificate is not trusted, or the server and the host have no TLS version in common.
    Tls = "tls",
    /// The response did not arrive in time.
    Timeout = "timeout",
    /// The response or the file exceeds its size limit.
    TooLarge = "too_large",
    /// The call has reached a limit, such as the number of host calls, or the sandbox is full.
    Limit = "limit",
    /// The service is temporarily unavailable.
    Unavailable = "unavailable",
    /// The server violated the HTTP protocol.
    Protocol = "protocol",
    /// An internal error of the host, or a code that this version of the crate does not know.
    Internal = "internal",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_code_is_internal() {
        let failure = Failure::from(types::Failure {
            code: "quantum".to_owned(),
            message: "entangled".to_owned(),
            sent: true,
            retry_after_ms: Some(5),
        });
        assert_eq!(failure.code, FailureCode::Internal);
        assert_eq!(failure.to_string(), "entangled");
        assert_eq!((failure.sent, failure.retry_after_ms), (true, Some(5)));
    }

    #[test]
    fn codes_are_parsed() {
        for code in
            "denied unauthenticated invalid dns connect tls timeout too_large limit unavailable protocol internal"
                .split(' ')
        {
            assert_eq!(FailureCode::from_text(code).as_str(), code);
        }
    }

    #[test]
    fn a_long_body_is_cut() {
        let error = Error::Http { status: 500, body: "é".repeat(300) };
        assert_eq!(error.to_string(), format!("the upstream answered 500: {}", "é".repeat(200)));
    }
}
