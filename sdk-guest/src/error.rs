//! What can go wrong in a handler, and what a failed host call says.

use std::fmt;

use crate::outcome::ScopeViolation;
use crate::tools::ToolError;
use crate::wit::monstrum::plugin::types;

/// How much of an upstream's body the text of [`Error::Http`] shows. Two hundred characters hold the message of every
/// common API and leave a model's context alone.
const BODY_SHOWN_CHARS: usize = 200;

/// Why a handler did not succeed.
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
    /// A parameter is absent or of another type.
    #[error("parameter '{name}': {message}")]
    Param {
        /// The parameter's name.
        name: String,
        /// What is wrong with it.
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
    /// A host call did not succeed.
    #[error(transparent)]
    Host(#[from] Failure),
    /// A call of another tool did not succeed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The parameters lie outside the authorised scope; it reaches the caller as a scope violation.
    #[error(transparent)]
    Scope(#[from] ScopeViolation),
    /// Anything else, in words for the caller.
    #[error("{0}")]
    Message(String),
}

impl Error {
    /// An error that says `text` to the caller.
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

/// The first characters of a text.
pub(crate) fn cut(text: &str, chars_max: usize) -> &str {
    text.char_indices().nth(chars_max).map_or(text, |(end, _)| &text[..end])
}

/// A host call that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What kind of failure it is.
    pub code: FailureCode,
    /// The same in words.
    pub message: String,
    /// Whether the request may have reached the other side. Where it is false, sending again is safe.
    pub sent: bool,
    /// How long the other side asks to wait before the next attempt.
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
            /// The code as the contract spells it.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(FailureCode::$name => $text,)* }
            }

            /// A code that this version does not know is an internal failure.
            fn from_text(text: &str) -> Self {
                match text { $($text => FailureCode::$name,)* _ => FailureCode::Internal }
            }
        }
    };
}

failure_codes! {
    /// Policy forbids it: the origin, the address, or a secret in what was written.
    Denied = "denied",
    /// There is no credential that may be used.
    Unauthenticated = "unauthenticated",
    /// The request is malformed.
    Invalid = "invalid",
    /// The name does not resolve.
    Dns = "dns",
    /// No connection.
    Connect = "connect",
    /// No trust in the other side's certificate, or no common protocol.
    Tls = "tls",
    /// No answer in time.
    Timeout = "timeout",
    /// The answer is larger than the limit.
    TooLarge = "too_large",
    /// The call has used up its number of host calls.
    Limit = "limit",
    /// The other side is not there now.
    Unavailable = "unavailable",
    /// The other side does not speak proper HTTP.
    Protocol = "protocol",
    /// A fault of the host, or a code that is newer than this crate.
    Internal = "internal",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_of_the_future_is_internal() {
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
    fn every_code_is_read_as_it_is_spelt() {
        for code in
            "denied unauthenticated invalid dns connect tls timeout too_large limit unavailable protocol internal"
                .split(' ')
        {
            assert_eq!(FailureCode::from_text(code).as_str(), code);
        }
    }

    #[test]
    fn a_long_body_is_cut_by_characters() {
        let error = Error::Http { status: 500, body: "é".repeat(300) };
        assert_eq!(error.to_string(), format!("the upstream answered 500: {}", "é".repeat(200)));
    }
}
