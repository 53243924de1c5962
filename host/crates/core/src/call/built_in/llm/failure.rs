//! Why a try of a model has failed, what may be tried next, and the outcome of the call.

use std::sync::Arc;
use std::time::Duration;

use monstrum_egress::{PieceRedactor, Redactor};
use monstrum_llm::{ProviderError, ReadError};
use monstrum_types::{CallOutcome, Code, Failure, FailureCode};

use crate::call_types::call_secrets::Withheld;
use crate::call_types::round::RoundFailure;

/// The maximum length of a server's message in the outcome, in bytes. It can repeat parts of the conversation, which
/// must not fill the audit.
const MESSAGE_BYTES_MAX: usize = 300;
/// The maximum length of a server's code or type of an error in the outcome, in bytes.
const WORD_BYTES_MAX: usize = 80;

/// Codes with which servers say that they have filtered a request.
const FILTER_CODES: [&str; 3] = ["content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation"];

/// A failed try.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) kind: RoundFailure,
    code: Code,
    message: String,
    /// The delay that the server asks for.
    pub(super) retry_after: Option<Duration>,
    /// Whether the server rejects the field that limits the answer, and names the other one.
    pub(super) wants_other_field: bool,
}

impl Failed {
    pub(super) fn new(kind: RoundFailure, message: impl Into<String>) -> Failed {
        let code = match kind {
            RoundFailure::Timeout => Code::Timeout,
            RoundFailure::Unauthenticated => Code::Unauthenticated,
            _ => Code::Upstream,
        };
        Failed { kind, code, message: message.into(), retry_after: None, wants_other_field: false }
    }

    /// The round has reached its time limit.
    pub(super) fn late() -> Failed {
        Failed::new(RoundFailure::Timeout, "the round did not end within its time limit")
    }

    /// The model's server was silent for too long.
    pub(super) fn silent(limit: Duration) -> Failed {
        let message = format!("the model's server sent nothing for {} seconds", limit.as_secs());
        Failed::new(RoundFailure::Timeout, message)
    }

    /// The answer cannot leave the call, because it could not be searched for secrets.
    pub(super) fn withheld(withheld: Withheld) -> Failed {
        let outcome = withheld.outcome();
        let code = outcome.code.unwrap_or(Code::Unavailable);
        Failed { code, ..Failed::new(RoundFailure::Rejected, withheld.message()) }
    }

    /// The request could not be sent, or its connection broke.
    pub(super) fn of_request(failure: Failure) -> Failed {
        let kind = match failure.code {
            FailureCode::Unauthenticated => RoundFailure::Unauthenticated,
            FailureCode::Timeout => RoundFailure::Timeout,
            FailureCode::Connect | FailureCode::Dns | FailureCode::Tls | FailureCode::Unavailable => {
                RoundFailure::Unavailable
            }
            FailureCode::Protocol => RoundFailure::Broken,
            _ => RoundFailure::Rejected,
        };
        let retry_after = failure.retry_after_ms.map(|ms| Duration::from_millis(ms.into()));
        let failed = Failed { retry_after, ..Failed::new(kind, failure.message) };
        if failure.code == FailureCode::TooLarge { Failed { code: Code::ResultTooLarge, ..failed } } else { failed }
    }

    /// The server answered with an HTTP status that is an error.
    pub(super) fn of_status(
        status: u16,
        error: &ProviderError,
        retry_after_ms: Option<u32>,
        redactors: &[Arc<Redactor>],
    ) -> Failed {
        let kind = match status {
            401 | 403 => RoundFailure::Unauthenticated,
            408 | 429 | 500..=599 => RoundFailure::Unavailable,
            _ => of_rejection(error),
        };
        let message = format!("the model's server answered with status {status}: {}", shown(error, redactors));
        let retry_after = retry_after_ms.map(|ms| Duration::from_millis(ms.into()));
        let wants_other_field = status == 400 && error.message.contains("max_completion_tokens");
        Failed { retry_after, wants_other_field, ..Failed::new(kind, message) }
    }

    /// The answer could not be read.
    pub(super) fn of_answer(error: &ReadError, redactors: &[Arc<Redactor>]) -> Failed {
        match error {
            ReadError::Provider(error) => {
                let kind = match (error.status(), of_rejection(error)) {
                    (Some(401 | 403), _) => RoundFailure::Unauthenticated,
                    (Some(408 | 429 | 500..=599), RoundFailure::Rejected) => RoundFailure::Unavailable,
                    (None, RoundFailure::Rejected) if !is_invalid_request(error) => RoundFailure::Unavailable,
                    (_, kind) => kind,
                };
                Failed::new(kind, format!("the model's server reported an error: {}", shown(error, redactors)))
            }
            ReadError::TooLong | ReadError::TooManyValues => {
                Failed { code: Code::ResultTooLarge, ..Failed::new(RoundFailure::Rejected, error.to_string()) }
            }
            error => Failed::new(RoundFailure::Broken, error.to_string()),
        }
    }

    /// Returns whether the same model may be tried again.
    pub(super) fn is_repeatable(&self) -> bool {
        matches!(self.kind, RoundFailure::Unavailable | RoundFailure::Timeout | RoundFailure::Broken)
    }

    pub(super) fn outcome(self) -> CallOutcome {
        let outcome = CallOutcome::error(self.code, self.message);
        match self.retry_after {
            Some(wait) => outcome.retry_after(wait),
            None => outcome,
        }
    }
}

/// Returns why a server has rejected a request.
fn of_rejection(error: &ProviderError) -> RoundFailure {
    let words = [&error.code, &error.kind];
    if error.is_context_length() {
        RoundFailure::ContextLength
    } else if words.into_iter().flatten().any(|word| FILTER_CODES.contains(&word.as_str())) {
        RoundFailure::ContentFilter
    } else {
        RoundFailure::Rejected
    }
}

/// Returns whether the server says, without a status, that the request itself is wrong.
fn is_invalid_request(error: &ProviderError) -> bool {
    [&error.code, &error.kind].into_iter().flatten().any(|word| word.contains("invalid_request"))
}

/// Returns what the outcome shows of an error.
fn shown(error: &ProviderError, redactors: &[Arc<Redactor>]) -> String {
    let message = shortened(&error.message, MESSAGE_BYTES_MAX, redactors);
    match error.code.as_ref().or(error.kind.as_ref()) {
        Some(word) => format!("{message} ({})", shortened(word, WORD_BYTES_MAX, redactors)),
        None => message,
    }
}

/// Removes the secrets of `redactors` from a text of a server, and then cuts it: a cut secret would not be found any
/// more. A longer text was perhaps cut before it came here, so the end of it that may be the beginning of a secret is
/// dropped.
fn shortened(text: &str, bytes_max: usize, redactors: &[Arc<Redactor>]) -> String {
    let mut pieces = PieceRedactor::new(redactors.iter().cloned());
    let mut redacted = pieces.push(text);
    if text.len() <= bytes_max {
        redacted += &pieces.finish();
    }
    redacted.truncate(redacted.floor_char_boundary(bytes_max));
    redacted
}

#[cfg(test)]
mod tests {
    use monstrum_types::Secret;
    use serde_json::json;

    use super::*;

    const KEY: &str = "sk-canary-7f3a9c1e5b";
    const OTHER: &str = "other-secret-0d4e6f";

    fn error(body: &str) -> ProviderError {
        ProviderError::from_body(body.as_bytes())
    }

    #[test]
    fn statuses_say_what_may_be_tried_next() {
        let plain = error(r#"{"error": {"message": "no"}}"#);
        let of = |status: u16, error: &ProviderError| {
            let failed = Failed::of_status(status, error, None, &[]);
            (failed.kind, failed.is_repeatable(), failed.kind.may_try_next_model())
        };
        for status in [408, 429, 500, 502, 503, 529] {
            assert_eq!(of(status, &plain), (RoundFailure::Unavailable, true, true), "{status}");
        }
        for status in [401, 403] {
            assert_eq!(of(status, &plain), (RoundFailure::Unauthenticated, false, false), "{status}");
        }
        for status in [302, 400, 404, 422] {
            assert_eq!(of(status, &plain), (RoundFailure::Rejected, false, false), "{status}");
        }
        let long = error(r#"{"error": {"message": "too long", "code": "context_length_exceeded"}}"#);
        assert_eq!(of(400, &long), (RoundFailure::ContextLength, false, true));
        let filtered = error(r#"{"error": {"message": "no", "code": "content_filter"}}"#);
        assert_eq!(of(400, &filtered), (RoundFailure::ContentFilter, false, false));
    }

    #[test]
    fn errors_inside_an_answer_are_told_apart() {
        let of = |body: &str| Failed::of_answer(&ReadError::Provider(error(body)), &[]).kind;
        for (body, kind) in [
            (r#"{"error": {"message": "busy", "type": "server_error"}}"#, RoundFailure::Unavailable),
            (r#"{"error": {"message": "busy", "code": 429}}"#, RoundFailure::Unavailable),
            (r#"{"error": {"message": "no", "code": 400}}"#, RoundFailure::Rejected),
            (r#"{"error": {"message": "no", "code": 401}}"#, RoundFailure::Unauthenticated),
            (r#"{"error": {"message": "no", "type": "invalid_request_error"}}"#, RoundFailure::Rejected),
            (r#"{"error": {"message": "no", "code": "content_filter"}}"#, RoundFailure::ContentFilter),
            (r#"{"error": {"message": "a", "code": "context_length_exceeded"}}"#, RoundFailure::ContextLength),
        ] {
            assert_eq!(of(body), kind, "{body}");
        }
        assert_eq!(Failed::of_answer(&ReadError::Unfinished { events: 3 }, &[]).kind, RoundFailure::Broken);
        for error in [ReadError::TooLong, ReadError::TooManyValues] {
            let failed = Failed::of_answer(&error, &[]);
            assert!(!failed.is_repeatable(), "{error}");
            assert_eq!(failed.outcome().code, Some(Code::ResultTooLarge), "{error}");
        }
    }

    #[test]
    fn the_message_of_a_server_is_shortened_and_its_delay_kept() {
        let long = error(&"é".repeat(1000));
        let outcome = Failed::of_status(429, &long, Some(7000), &[]).outcome();
        assert_eq!((outcome.code, outcome.retry_after), (Some(Code::Upstream), Some(Duration::from_secs(7))));
        assert!(outcome.message.unwrap().len() < MESSAGE_BYTES_MAX + 100);
    }

    /// Every text of an error is longer than what is shown and than what the reader keeps, and repeats a key at the place
    /// where it is cut.
    #[test]
    fn no_part_of_a_key_that_a_server_repeats_is_shown() {
        let redactors = [KEY, OTHER].map(|key| Arc::new(Redactor::new([Secret::new(key.to_owned())])));
        let cuts = [MESSAGE_BYTES_MAX, WORD_BYTES_MAX, 2_000];
        for (key, cut) in [KEY, OTHER].into_iter().flat_map(|key| cuts.map(|cut| (key, cut))) {
            for at in [cut - key.len(), cut - key.len() + 1, cut - key.len() / 2, cut - 1] {
                let text = format!("{}{key}{}", &"- ".repeat(at)[..at], " end".repeat(600));
                for body in [
                    json!({"error": {"message": text}}),
                    json!({"error": {"message": text, "code": "busy"}}),
                    json!({"error": {"message": "busy", "code": text}}),
                    json!({"error": {"message": "busy", "type": text}}),
                    json!({"error": text}),
                    json!({"detail": text}),
                ] {
                    let error = error(&body.to_string());
                    let of_status = Failed::of_status(400, &error, None, &redactors).message;
                    let of_answer = Failed::of_answer(&ReadError::Provider(error), &redactors).message;
                    for message in [of_status, of_answer] {
                        let begin = &key[..5];
                        assert!(!message.contains(begin), "a key at byte {at} is shown: {message}");
                    }
                }
            }
        }
        let short = error(&json!({"error": {"message": format!("wrong key {KEY}"), "code": OTHER}}).to_string());
        let failed = Failed::of_status(401, &short, None, &redactors);
        let expected = "the model's server answered with status 401: wrong key [redacted] ([redacted])";
        assert_eq!(failed.message, expected);
    }

    #[test]
    fn a_server_can_ask_for_the_other_field() {
        let text = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.";
        let other = error(&json!({"error": {"message": text}}).to_string());
        assert!(Failed::of_status(400, &other, None, &[]).wants_other_field);
        assert!(!Failed::of_status(422, &other, None, &[]).wants_other_field);
        assert!(!Failed::of_status(400, &error("{}"), None, &[]).wants_other_field);
    }
}
