//! The checks of subscriptions, whether a person or a plugin makes them.

use monstrum_types::InputError;

use super::Template;

/// The maximum length of a pattern, in characters: twice that of the name of an event.
const PATTERN_CHARS_MAX: usize = 256;
/// The maximum size of an instruction, in bytes.
const INSTRUCTION_BYTES_MAX: usize = 8 << 10;
/// The maximum number of subscriptions of a bot. Each event is compared with all of them.
pub const SUBSCRIPTIONS_MAX: i64 = 100;

/// Returns the faults of a pattern and an instruction, with the pointers of the API's fields.
#[must_use]
pub fn subscription_faults(pattern: &str, instruction: &str) -> Vec<InputError> {
    let mut faults = Vec::new();
    let mut add = |path: &str, message: String| faults.push(InputError { path: path.to_owned(), message });
    if pattern.is_empty() {
        add("/pattern", "must not be empty".to_owned());
    } else if pattern.chars().count() > PATTERN_CHARS_MAX {
        add("/pattern", format!("must have at most {PATTERN_CHARS_MAX} characters"));
    } else if pattern.chars().any(char::is_control) {
        add("/pattern", "must not contain control characters".to_owned());
    }
    let bytes = instruction.len();
    if instruction.trim().is_empty() {
        add("/instruction", "must not be empty".to_owned());
    } else if bytes > INSTRUCTION_BYTES_MAX {
        add("/instruction", format!("must have at most {INSTRUCTION_BYTES_MAX} bytes, but has {bytes}"));
    } else if instruction.contains('\0') {
        add("/instruction", "must not contain the character U+0000".to_owned());
    } else if let Err(error) = Template::parse(instruction) {
        add("/instruction", error.to_string());
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_a_pointer() {
        let paths = |pattern: &str, instruction: &str| {
            let faults = subscription_faults(pattern, instruction);
            faults.into_iter().map(|fault| fault.path).collect::<Vec<_>>()
        };
        assert!(paths("custom.*", "Look at {data}.").is_empty());
        assert!(paths(&"x".repeat(256), &"x".repeat(8 << 10)).is_empty());
        for pattern in ["", &"x".repeat(257), "a\nb"] {
            assert_eq!(paths(pattern, "x"), ["/pattern"], "{pattern:?}");
        }
        for instruction in ["", " ", &"x".repeat((8 << 10) + 1), "{name}", "{", "a\0b"] {
            assert_eq!(paths("*", instruction), ["/instruction"], "{instruction:?}");
        }
        assert_eq!(paths("", ""), ["/pattern", "/instruction"]);
    }
}
