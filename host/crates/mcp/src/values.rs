//! The limit on the number of values in a message, which is checked before the message is parsed.

use monstrum_types::json_values;

/// The maximum number of values in a message: those of a text of 1 MiB that consists of one-digit numbers.
pub(crate) const VALUES_MAX: usize = 512 << 10;

/// Returns whether a JSON text has more than [`VALUES_MAX`] values. An empty list or object may count twice. The text need
/// not be valid.
pub(crate) fn has_too_many(text: &[u8]) -> bool {
    // Each value takes at least two bytes.
    if text.len() / 2 < VALUES_MAX {
        return false;
    }
    json_values(text) > VALUES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_strings() {
        let list = |element: &str, count: usize| format!("[{}]", vec![element; count].join(","));
        assert!(!has_too_many(list("1", VALUES_MAX - 1).as_bytes()));
        assert!(has_too_many(list("1", VALUES_MAX + 1).as_bytes()));
        assert!(has_too_many(list("{}", VALUES_MAX).as_bytes()));
        let text = format!("[\"{}\"]", "[{,\\\",".repeat(VALUES_MAX));
        assert!(!has_too_many(text.as_bytes()), "the characters are part of a string");
    }
}
