//! The result of a call, or the reason why it has no result.

use std::time::Duration;

use monstrum_manifest::json_depth;
use monstrum_types::{Code, JsonText};

use crate::bindings::WitResult;

/// The maximum size of a result in bytes of JSON text. LLMs read far less.
pub const RESULT_BYTES_MAX: usize = 1 << 20;

/// The maximum nesting depth of a result, which is also the limit for parameters and manifests.
pub const RESULT_DEPTH_MAX: usize = 64;

/// The maximum length in bytes of the text of an error or a scope violation. Longer texts are truncated. A complete
/// error page of an upstream fits into this limit.
pub const TEXT_BYTES_MAX: usize = 64 << 10;

/// The result that a plugin returned.
#[derive(Clone, Debug, PartialEq)]
pub enum ExecuteResult {
    /// Data for the caller.
    Success(JsonText),
    /// An error message for the caller.
    Error(String),
    /// The reason why the parameters are outside the authorised scope.
    ScopeViolation(String),
}

/// The reason why a call ended without a usable result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The call used up its fuel.
    Fuel,
    /// The call exceeded its time limit.
    Timeout {
        /// The time limit of the call.
        timeout: Duration,
    },
    /// The plugin crashed after its request for memory was denied.
    Memory,
    /// The plugin trapped, panicked or exited.
    Trap,
    /// The result is not JSON, or its nesting exceeds the limit.
    BadResult,
    /// The result is too large.
    ResultTooLarge,
    /// An internal error of the host, which the host has logged.
    Internal,
}

impl StopReason {
    /// Returns the code for HTTP, WIT and audit.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            StopReason::Fuel => Code::Fuel,
            StopReason::Timeout { .. } => Code::Timeout,
            StopReason::Memory => Code::Memory,
            StopReason::Trap => Code::Trap,
            StopReason::BadResult => Code::BadResult,
            StopReason::ResultTooLarge => Code::ResultTooLarge,
            StopReason::Internal => Code::Unavailable,
        }
    }

    /// Returns the message for the LLM.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            StopReason::Fuel => "the plugin used up its computing budget".to_owned(),
            StopReason::Timeout { timeout } => format!("the call took longer than {} s", timeout.as_secs_f64()),
            StopReason::Memory => "the plugin ran out of memory".to_owned(),
            StopReason::Trap => "the plugin crashed".to_owned(),
            StopReason::BadResult => "the plugin returned invalid JSON".to_owned(),
            StopReason::ResultTooLarge => "the plugin returned more than 1 MiB".to_owned(),
            StopReason::Internal => "the host could not run the call".to_owned(),
        }
    }
}

/// Checks and converts the result of a guest.
pub(crate) fn from_guest(result: WitResult) -> Result<ExecuteResult, StopReason> {
    match result {
        WitResult::Success(json) => success(&json).map(ExecuteResult::Success),
        WitResult::Error(message) => Ok(ExecuteResult::Error(cut(message))),
        WitResult::ScopeViolation(reason) => Ok(ExecuteResult::ScopeViolation(cut(reason))),
    }
}

fn success(json: &str) -> Result<JsonText, StopReason> {
    if json.len() > RESULT_BYTES_MAX {
        return Err(StopReason::ResultTooLarge);
    }
    // The depth is checked before parsing, so that deep nesting cannot exhaust the stack.
    if json_depth(json.as_bytes()) > RESULT_DEPTH_MAX {
        return Err(StopReason::BadResult);
    }
    JsonText::parse(json).map_err(|_| StopReason::BadResult)
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case(StopReason::Fuel, "the plugin used up its computing budget", "fuel")]
    #[case(StopReason::Timeout { timeout: Duration::from_secs(30) }, "the call took longer than 30 s", "timeout")]
    #[case(StopReason::Timeout { timeout: Duration::from_millis(1500) }, "the call took longer than 1.5 s", "timeout")]
    #[case(StopReason::Memory, "the plugin ran out of memory", "memory")]
    #[case(StopReason::Trap, "the plugin crashed", "trap")]
    #[case(StopReason::BadResult, "the plugin returned invalid JSON", "bad_result")]
    #[case(StopReason::ResultTooLarge, "the plugin returned more than 1 MiB", "result_too_large")]
    #[case(StopReason::Internal, "the host could not run the call", "unavailable")]
    fn messages_and_codes_are_fixed(#[case] stop: StopReason, #[case] message: &str, #[case] code: &str) {
        assert_eq!(stop.message(), message);
        assert_eq!(stop.code().as_str(), code);
    }

    fn nested(depth: usize) -> String {
        format!("{}{}", "[".repeat(depth), "]".repeat(depth))
    }

    #[test]
    fn data_is_json_of_bounded_size_and_depth() {
        let judge = |json: String| from_guest(WitResult::Success(json));
        let text = |length: usize| format!("\"{}\"", "a".repeat(length - 2));
        assert_eq!(
            judge(r#"{"b":1,"a":[null]}"#.to_owned()),
            Ok(ExecuteResult::Success(JsonText::from(&json!({"b": 1, "a": [null]}))))
        );
        assert!(judge(text(RESULT_BYTES_MAX)).is_ok());
        assert_eq!(judge(text(RESULT_BYTES_MAX + 1)), Err(StopReason::ResultTooLarge));
        assert!(judge(nested(RESULT_DEPTH_MAX)).is_ok());
        assert_eq!(judge(nested(RESULT_DEPTH_MAX + 1)), Err(StopReason::BadResult));
        assert_eq!(judge("[".repeat(RESULT_BYTES_MAX)), Err(StopReason::BadResult));
        for bad in [
            "",
            "{",
            "{}{}",
            "nul",
            "NaN",
            "'a'",
            "{\"a\":1,}",
            "\u{feff}{}",
            r#"{"$serde_json::private::RawValue":"x"}"#,
        ] {
            assert_eq!(judge(bad.to_owned()), Err(StopReason::BadResult), "{bad}");
        }
    }

    #[test]
    fn texts_are_cut_at_a_character() {
        let long = format!("a{}", "é".repeat(TEXT_BYTES_MAX));
        let ExecuteResult::Error(message) = from_guest(WitResult::Error(long.clone())).unwrap() else {
            panic!("not an error");
        };
        assert_eq!(message.len(), TEXT_BYTES_MAX - 1);
        let ExecuteResult::ScopeViolation(reason) = from_guest(WitResult::ScopeViolation(long)).unwrap() else {
            panic!("not a violation");
        };
        assert_eq!(reason.len(), TEXT_BYTES_MAX - 1);
    }
}
