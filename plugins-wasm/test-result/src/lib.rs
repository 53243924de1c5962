//! Returns invalid results. The guest does not use the SDK, because the SDK would prevent invalid results.

#![cfg(target_arch = "wasm32")]
#![allow(unsafe_code, reason = "the macros of wit-bindgen expand to unsafe code")]

mod wit {
    #![allow(missing_docs, unreachable_pub, clippy::all, reason = "the code is generated")]
    wit_bindgen::generate!({ path: "../../wit/0.1.0", world: "plugin" });
}

use wit::exports::monstrum::plugin::executor::{ExecuteRequest, ExecuteResult, Guest};

/// A size in bytes that exceeds the maximum size of a result (1 MiB).
const BIG_BYTES: usize = 1_100_000;
/// A number of levels that exceeds the maximum nesting depth of a result (64 levels).
const DEEP_LEVELS: usize = 200_000;
/// A size in bytes that exceeds the memory of a guest.
const HUGE_BYTES: usize = 100_000_000;
/// A size in bytes that is slightly smaller than the memory of a guest.
const LARGE_BYTES: usize = 50_000_000;

struct Results;

impl Guest for Results {
    fn execute(request: ExecuteRequest) -> ExecuteResult {
        // The schema has only one parameter, so its value is the fourth part of the JSON text when the text is split at
        // quotes.
        match request.params.split('"').nth(3).unwrap_or_default() {
            "big" => ExecuteResult::Success(format!("\"{}\"", "x".repeat(BIG_BYTES))),
            "large" => ExecuteResult::Success("x".repeat(LARGE_BYTES)),
            "huge" => ExecuteResult::Success("x".repeat(HUGE_BYTES)),
            "deep" => ExecuteResult::Success("[".repeat(DEEP_LEVELS) + &"]".repeat(DEEP_LEVELS)),
            "invalid" => ExecuteResult::Success("{\"half\":".to_owned()),
            "empty" => ExecuteResult::Success(String::new()),
            "error" => ExecuteResult::Error("an error on purpose".to_owned()),
            "scope_violation" => ExecuteResult::ScopeViolation("a violation on purpose".to_owned()),
            _ => ExecuteResult::Success("{\"ok\":true}".to_owned()),
        }
    }
}

wit::export!(Results with_types_in wit);
