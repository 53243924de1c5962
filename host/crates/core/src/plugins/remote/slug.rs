//! The names of tools that come from outside.

use std::collections::HashSet;

use monstrum_manifest::full_tool_name;
use sha2::{Digest as _, Sha256};

/// Maximum length of a tool name.
const NAME_CHARS_MAX: usize = 64;
/// The number of hex digits that distinguish a name that is too long or taken.
const HEX_CHARS: usize = 6;

/// Returns the part of a tool's name that follows the name of the resource: the original name in lower case, with `_`
/// for all characters except a-z and 0-9. If the whole name is too long, or another tool of the resource has it, the part
/// is cut and ends with a part of the SHA-256 of the original name.
pub fn slug(resource: &str, original_name: &str, taken: &HashSet<String>) -> String {
    let plain = |character: char| {
        let lower = character.to_ascii_lowercase();
        if lower.is_ascii_lowercase() || lower.is_ascii_digit() { lower } else { '_' }
    };
    let readable: String = original_name.chars().map(plain).collect();
    let is_free = |slug: &str| !slug.is_empty() && !taken.contains(slug);
    if full_tool_name(resource, &readable).len() <= NAME_CHARS_MAX && is_free(&readable) {
        return readable;
    }
    let room = NAME_CHARS_MAX.saturating_sub(full_tool_name(resource, "").len() + 1 + HEX_CHARS);
    let start = &readable[..readable.len().min(room)];
    let numbered = (0_u32..).map(|number| {
        let mut hash = Sha256::new_with_prefix(original_name);
        // A second tool whose hash begins with the same digits gets other digits.
        if number > 0 {
            hash.update(number.to_be_bytes());
        }
        format!("{start}_{}", &hex::encode(hash.finalize())[..HEX_CHARS])
    });
    numbered.into_iter().find(|slug| is_free(slug)).expect("a resource has fewer tools than numbers")
}

#[cfg(test)]
mod tests {
    use monstrum_types::ToolName;

    use super::*;

    #[test]
    fn names_are_readable_and_valid() {
        for (original, expected) in [("get-Issue", "get_issue"), ("a.b/c", "a_b_c"), ("é ü", "___"), ("x1", "x1")] {
            assert_eq!(slug("github", original, &HashSet::new()), expected);
        }
    }

    #[test]
    fn a_taken_or_long_name_ends_with_a_part_of_its_hash() {
        let taken = HashSet::from(["get_issue".to_owned()]);
        let second = slug("github", "get-issue", &taken);
        assert_eq!(second, format!("get_issue_{}", &hex::encode(Sha256::digest("get-issue"))[..6]));
        let both = HashSet::from(["get_issue".to_owned(), second]);
        assert!(!both.contains(&slug("github", "get-issue", &both)));
        let resource = "r".repeat(40);
        for original in ["x".repeat(128), "é".repeat(128), "y".repeat(22), "y".repeat(23), String::new()] {
            let name = full_tool_name(&resource, &slug(&resource, &original, &HashSet::new()));
            assert!(name.parse::<ToolName>().is_ok(), "{name}");
        }
        let long = slug(&resource, &"y".repeat(23), &HashSet::new());
        assert_eq!(long.len(), 22, "{long}");
    }
}
