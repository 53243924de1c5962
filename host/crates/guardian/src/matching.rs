//! Text against patterns, one implementation for the whole product.
//!
//! A glob is Python's `fnmatch.fnmatchcase`: `*` crosses `/`, `?` is one character, `[seq]` and `[!seq]` are sets, case
//! counts, and every string is a valid pattern. Paths have rules of their own, see [`PathPattern`]. Matching does
//! not backtrack: hostile values cost time in proportion to their length.

mod components;
mod glob;
mod path;
mod search;
mod set;
mod weight;

use regex::RegexBuilder;

pub use glob::{Glob, escape_glob};
pub use path::PathPattern;
pub use set::{PatternList, PatternSet, compiled_bytes_max};

/// Memory that one regular expression may take when compiled: some thousand states, far more than a rule needs.
const REGEX_BYTES_MAX: usize = 1 << 20;
/// Groups within groups in one regular expression.
const REGEX_DEPTH_MAX: u32 = 64;

/// Whether the glob `pattern` matches the whole of `value`.
#[must_use]
pub fn match_glob(value: &str, pattern: &str) -> bool {
    if Glob::has_wildcard_characters(pattern) { Glob::new(pattern).matches(value) } else { value == pattern }
}

/// Whether any of the globs matches the whole of `value`.
///
/// With `allow_regex` a pattern that starts with `^` is a regular expression which must match from the start of the
/// value, but not to its end: end it with `$` for that. One that cannot be parsed or is too large matches nothing.
#[must_use]
pub fn match_any(value: &str, patterns: impl IntoIterator<Item: AsRef<str>>, allow_regex: bool) -> bool {
    patterns.into_iter().any(|pattern| {
        let pattern = pattern.as_ref();
        if allow_regex && pattern.starts_with('^') { matches_regex(value, pattern) } else { match_glob(value, pattern) }
    })
}

/// Whether the path pattern matches the path `value`; [`PathPattern`] has the table.
#[must_use]
pub fn match_path(value: &str, pattern: &str) -> bool {
    PathPattern::new(pattern).matches(value)
}

/// Whether any of the path patterns matches the path `value`.
#[must_use]
pub fn match_any_path(value: &str, patterns: impl IntoIterator<Item: AsRef<str>>) -> bool {
    patterns.into_iter().any(|pattern| match_path(value, pattern.as_ref()))
}

/// The `^` of `^a|b` anchors only the `a`, so the start of the match is what is looked at.
fn matches_regex(value: &str, pattern: &str) -> bool {
    RegexBuilder::new(pattern)
        .size_limit(REGEX_BYTES_MAX)
        .dfa_size_limit(REGEX_BYTES_MAX)
        .nest_limit(REGEX_DEPTH_MAX)
        .build()
        .is_ok_and(|regex| regex.find(value).is_some_and(|found| found.start() == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_specification() {
        assert!(match_glob("issue.read", "issue.*"));
        assert!(match_glob("anything", "*"));
        assert!(match_any("issue.read", ["issue.*", "pr.*"], false));
        assert!(match_any("ls -la", ["^ls.*"], true));
        assert!(match_path("/home/user/docs/file.txt", "/home/user/**"));
        assert!(match_path("/tmp/file.txt", "/tmp/*"));
        assert!(match_any_path("/tmp/file", ["/home/**", "/tmp/*"]));
    }

    #[test]
    fn no_pattern_matches_nothing() {
        assert!(!match_any("x", Vec::<String>::new(), true));
        assert!(!match_any_path("/x", Vec::<String>::new()));
    }

    #[test]
    fn a_regex_needs_the_flag_the_caret_and_a_match_from_the_start() {
        assert!(!match_any("ls -la", ["^ls.*"], false));
        assert!(match_any("^ls-x", ["^ls*"], false));
        assert!(!match_any("ls -la", ["ls.*"], true));
        assert!(match_any("ls; rm", ["^ls"], true));
        assert!(!match_any("ls; rm", ["^ls$"], true));
        assert!(!match_any("sudo rm", ["^ls|rm"], true));
        assert!(!match_any("x\nls", ["^(?m:^ls)"], true));
    }

    #[test]
    fn a_regex_that_does_not_parse_or_is_too_large_matches_nothing() {
        let nested = format!("^{}{}", "(".repeat(200), ")".repeat(200));
        for bad in ["^(", "^(?=ls)", r"^(a)\1", "^a{999999}", "^(((a{100}){100}){100}){100}", nested.as_str()] {
            assert!(!match_any("ls", [bad], true), "{bad}");
            assert!(!match_any("", [bad], true), "{bad}");
        }
    }

    #[test]
    fn a_hostile_regex_is_linear() {
        assert!(!match_any(&"a".repeat(1 << 16), ["^(a+)+$b", "^(a|a)*b"], true));
    }
}
