//! The resource types for which a key is trusted.

use monstrum_guardian::match_glob;
use monstrum_types::ResourceTypeId;

/// The types for which the key of a package is trusted.
#[derive(Clone, Debug)]
pub struct TrustedTypes {
    /// The key that signed the package.
    pub key: String,
    pub globs: Vec<String>,
}

impl TrustedTypes {
    /// Returns whether the key may install plugins of this type.
    pub fn include(&self, id: &ResourceTypeId) -> bool {
        self.globs.iter().any(|glob| match_glob(id.as_str(), &folded(glob)))
    }
}

/// Returns a glob in which `-` and `_` match both characters, because plugin names cannot contain `_`, but types often
/// do. Text in brackets stays the same, because `-` denotes a range there.
fn folded(glob: &str) -> String {
    let mut folded = String::with_capacity(glob.len());
    let mut rest = glob;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '[' => brackets(rest).unwrap_or(1),
            _ => first.len_utf8(),
        };
        let (piece, after) = rest.split_at(length);
        folded.push_str(if matches!(piece, "-" | "_") { "[_-]" } else { piece });
        rest = after;
    }
    folded
}

/// Returns the length of the bracket expression at the start of `text`. Returns `None` if the expression is not closed.
/// The bracket `[` is then literal.
fn brackets(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('[')?;
    let inside = inside.strip_prefix('!').unwrap_or(inside);
    // A closing bracket in the first position is literal.
    let inside = inside.strip_prefix(']').unwrap_or(inside);
    let behind = inside.split_once(']')?.1;
    Some(text.len() - behind.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hyphen_and_underscore_count_as_the_same() {
        for (glob, id, expected) in [
            ("acme-*", "acme-crm", true),
            ("acme-*", "acme_crm", true),
            ("acme_*", "acme-crm", true),
            ("acme-crm", "acme_crm", true),
            ("acme-crm-x", "acme_crm-x", true),
            ("acme-*", "acmecrm", false),
            ("acme-*", "acme", false),
            ("acme-*", "github", false),
            ("*", "github", true),
            ("acme[a-c]", "acmeb", true),
            ("acme[a-c]", "acme-", false),
            ("acme[a-c]-x", "acmea_x", true),
            ("a[]-_]c", "a_c", true),
            ("[acme-x", "acme-x", false),
            ("a?b", "a_b", true),
            ("", "a", false),
        ] {
            let trusted = TrustedTypes { key: String::new(), globs: vec![glob.to_owned()] };
            assert_eq!(trusted.include(&id.parse().unwrap()), expected, "{glob} {id}");
        }
    }
}
