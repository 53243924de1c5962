//! Formats an error with all its causes as one text, for logs.

use std::error::Error;

/// Returns an error and its causes in one line. A cause that the text already contains is not repeated.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let own = next.to_string();
        if !text.contains(&own) {
            text.push_str(": ");
            text.push_str(&own);
        }
        cause = next.source();
    }
    text
}
