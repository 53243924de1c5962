//! Parses JSON from outside the host within limits of size, depth and number of values.
//!
//! The module owns the limits of one JSON text. It must not repair a text or guess what it means.

use monstrum_types::json_values;
use serde_json::Value;

/// The most values in one JSON text. A value takes about 70 bytes in memory but can be two bytes of text, so that a text
/// of 8 MiB could otherwise take more than 200 MiB. Real answers have fewer than a thousand values. The reader of a
/// stream applies the same limit to what it keeps of all texts of an answer.
pub(crate) const VALUES_MAX: usize = 100_000;

/// Why a text from outside is not used. The depth is limited by `serde_json` to 128 and reported as a syntax error.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// The text is not JSON, or is nested deeper than 128 levels.
    #[error("the text is not valid JSON")]
    Syntax(#[source] serde_json::Error),
    /// The text has too many values.
    #[error("the JSON text has more than {VALUES_MAX} values")]
    TooManyValues,
}

/// Parses a whole JSON text.
pub(crate) fn parse(text: &str) -> Result<Value, JsonError> {
    // The outermost value is not counted.
    if json_values(text.as_bytes()) > VALUES_MAX + 1 {
        return Err(JsonError::TooManyValues);
    }
    serde_json::from_str(text).map_err(JsonError::Syntax)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_in_strings_are_not_values() {
        let text = format!("\"{}\\\"{}\"", ",[{".repeat(VALUES_MAX), ",".repeat(VALUES_MAX));
        assert!(parse(&text).unwrap().is_string());
    }

    #[test]
    fn the_number_of_values_is_limited() {
        let allowed = format!("[{}0]", "0,".repeat(VALUES_MAX - 1));
        let refused = format!("[{}0]", "0,".repeat(VALUES_MAX));
        assert!(parse(&allowed).is_ok());
        assert!(matches!(parse(&refused), Err(JsonError::TooManyValues)));
    }

    #[test]
    fn the_depth_is_limited() {
        assert!(matches!(parse(&"[".repeat(90_000)), Err(JsonError::Syntax(_))));
    }
}
