//! Reads the errors of servers.
//!
//! The text of an error comes from outside. It is kept short, and the caller must not take it for instructions. A text
//! that is cut can end with a part of a secret: the caller must remove secrets from it as from a text that goes on.

use std::fmt;

use serde_json::Value;

/// The longest text that is kept of an error.
const TEXT_BYTES_MAX: usize = 2_000;

/// The codes and types by which servers say that the request is longer than the model's context.
const CONTEXT_CODES: &[&str] = &["context_length_exceeded", "exceed_context_size_error", "string_above_max_length"];

/// The beginnings and parts of messages that say the same, for servers without such a code.
const CONTEXT_PHRASES: &[&str] =
    &["maximum context length", "context length exceeded", "prompt is too long", "exceeds the available context size"];

/// An error that a server sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProviderError {
    /// What the server says.
    pub message: String,
    /// The server's type of the error, such as `invalid_request_error`.
    pub kind: Option<String>,
    /// The server's code of the error; a number is written as text.
    pub code: Option<String>,
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match (&self.code, &self.kind) {
            (Some(word), _) | (None, Some(word)) => write!(f, " ({word})"),
            (None, None) => Ok(()),
        }
    }
}

impl std::error::Error for ProviderError {}

impl ProviderError {
    /// Reads the body of an answer whose HTTP status is an error. A body in no known form becomes the message.
    #[must_use]
    pub fn from_body(body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let value = crate::json::parse(&text).ok();
        let error = value.as_ref().and_then(|value| ProviderError::within(value).or_else(|| without_frame(value)));
        error.unwrap_or_else(|| ProviderError { message: shorten(text.trim()), ..ProviderError::default() })
    }

    /// Returns whether the server says that the request is longer than the model's context.
    #[must_use]
    pub fn is_context_length(&self) -> bool {
        let words = [&self.code, &self.kind];
        let message = self.message.to_ascii_lowercase();
        words.into_iter().flatten().any(|word| CONTEXT_CODES.contains(&word.as_str()))
            || CONTEXT_PHRASES.iter().any(|phrase| message.contains(phrase))
    }

    /// Returns the HTTP status in the field `code`, which some servers have inside of a stream.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        self.code.as_ref()?.parse().ok().filter(|status| (400..600).contains(status))
    }

    /// Returns the error in a document or in a chunk. Some servers send a list with it.
    pub(super) fn within(value: &Value) -> Option<Self> {
        let value = match value {
            Value::Array(list) => list.first()?,
            value => value,
        };
        let is_error = value.get("object").and_then(Value::as_str) == Some("error");
        match value.get("error") {
            Some(Value::String(message)) if message.is_empty() => None,
            Some(Value::Null | Value::Bool(false)) | None => is_error.then(|| ProviderError::read(value)),
            Some(Value::String(message)) => {
                Some(ProviderError { message: shorten(message), ..ProviderError::read(value) })
            }
            Some(error) => Some(ProviderError::read(error)),
        }
    }

    /// The error of an answer that ended with a `finish_reason` that means a failure.
    pub(super) fn interrupted(reason: &str) -> Self {
        let reason = shorten(reason);
        ProviderError {
            message: format!("the answer ended with the reason `{reason}`"),
            kind: None,
            code: Some(reason),
        }
    }

    fn read(error: &Value) -> Self {
        let word = |name: &str| match error.get(name)? {
            Value::String(word) if !word.is_empty() => Some(shorten(word)),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let message = word("message").unwrap_or_else(|| shorten(&error.to_string()));
        ProviderError { message, kind: word("type"), code: word("code") }
    }
}

/// Reads an object without the field `error`, as gateways and frameworks send it.
fn without_frame(value: &Value) -> Option<ProviderError> {
    match (value.get("message"), value.get("detail")) {
        (Some(Value::String(_)), _) => Some(ProviderError::read(value)),
        (_, Some(Value::String(detail))) => {
            Some(ProviderError { message: shorten(detail), ..ProviderError::default() })
        }
        _ => None,
    }
}

/// Cuts a text from outside at a character near the limit.
fn shorten(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned()
}
