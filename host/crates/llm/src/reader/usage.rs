//! Reads what an answer used.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The most tokens that are believed. No context is near it; sums of such numbers cannot overflow.
pub const TOKENS_MAX: u64 = 1 << 40;

/// What one answer used, in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The tokens of the request, with cached ones.
    pub input: u64,
    /// The tokens of the request that the server had cached.
    pub cached_input: u64,
    /// The tokens of the answer, with those of reasoning.
    pub output: u64,
    /// The tokens of reasoning.
    pub reasoning: u64,
}

/// Takes a `usage` object. Servers that report it in each chunk report the sum so far, so the largest numbers count.
pub(super) fn take(reported: Option<&Value>, usage: &mut Option<Usage>) {
    let Some(reported) = reported.and_then(Usage::read) else { return };
    let known = usage.unwrap_or_default();
    *usage = Some(Usage {
        input: known.input.max(reported.input),
        cached_input: known.cached_input.max(reported.cached_input),
        output: known.output.max(reported.output),
        reasoning: known.reasoning.max(reported.reasoning),
    });
}

impl Usage {
    /// Returns `None` if the value reports neither input nor output.
    fn read(value: &Value) -> Option<Self> {
        let number = |pointer: &str| value.pointer(pointer).and_then(tokens);
        let (prompt, completion) = (number("/prompt_tokens"), number("/completion_tokens"));
        if prompt.is_none() && completion.is_none() {
            return None;
        }
        let input = prompt.unwrap_or(0);
        // Some servers leave reasoning out of `completion_tokens`, but not out of the total.
        let output = number("/total_tokens").unwrap_or(0).saturating_sub(input).max(completion.unwrap_or(0));
        let cached = number("/prompt_tokens_details/cached_tokens").or_else(|| number("/prompt_cache_hit_tokens"));
        let reasoning = number("/completion_tokens_details/reasoning_tokens").unwrap_or(0);
        Some(Usage { input, cached_input: cached.unwrap_or(0).min(input), output, reasoning: reasoning.min(output) })
    }
}

/// Reads a number of tokens. Some servers write it as a float.
fn tokens(value: &Value) -> Option<u64> {
    let whole = value.as_u64().or_else(|| {
        let text = value.as_f64().filter(|number| *number >= 0.0)?.trunc().to_string();
        // A float that is too large for the integer is above the limit.
        Some(text.parse().unwrap_or(TOKENS_MAX))
    });
    whole.map(|tokens| tokens.min(TOKENS_MAX))
}
