//! Which resource types a trusted key may bring.

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
    /// Whether the key may bring packages of this type.
    pub fn include(&self, id: &ResourceTypeId) -> bool {
        self.globs.iter().any(|glob| match_glob(id.as_str(), &folded(glob)))
    }
}

/// The glob with `-` and `_` in place of each other: the name of a plugin has no `_`, while types use it often. Between
/// brackets, where `-` makes a range, nothing changes.
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

/// The length of the brackets at the start of `text`; `None` where they do not close, so that `[` stands for itself.
fn brackets(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('[')?;
    let inside = inside.strip_prefix('!').unwrap_or(inside);
    // A closing bracket in first place stands for itself.
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
