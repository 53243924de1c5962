//! Pattern matching for the whole host.
//!
//! Globs have the semantics of Python's `fnmatch.fnmatchcase`: `*` also matches `/`, `?` matches one character, `[seq]`
//! and `[!seq]` are sets, matching is case-sensitive, and every string is a valid pattern. Path patterns have different
//! rules, see [`PathPattern`]. Matching does not backtrack: its time is linear in the length of the value.

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

/// Maximum memory of one compiled regular expression in bytes: several thousand states, far more than a rule needs.
const REGEX_BYTES_MAX: usize = 1 << 20;
/// Maximum nesting depth of groups in one regular expression.
const REGEX_DEPTH_MAX: u32 = 64;

/// Returns whether the glob `pattern` matches the whole of `value`.
#[must_use]
pub fn match_glob(value: &str, pattern: &str) -> bool {
    if Glob::has_wildcard_characters(pattern) { Glob::new(pattern).matches(value) } else { value == pattern }
}

/// Returns whether any of the globs matches the whole of `value`.
///
/// With `allow_regex`, a pattern that starts with `^` is a regular expression. The match must begin at the start of the
/// value, and may end before the end of the value unless the expression ends with `$`. A regular expression that is
/// invalid or too large matches nothing.
#[must_use]
pub fn match_any(value: &str, patterns: impl IntoIterator<Item: AsRef<str>>, allow_regex: bool) -> bool {
    patterns.into_iter().any(|pattern| {
        let pattern = pattern.as_ref();
        if allow_regex && pattern.starts_with('^') { matches_regex(value, pattern) } else { match_glob(value, pattern) }
    })
}

/// Returns whether the path pattern matches the path `value`. [`PathPattern`] describes the rules.
#[must_use]
pub fn match_path(value: &str, pattern: &str) -> bool {
    PathPattern::new(pattern).matches(value)
}

/// Returns whether any of the path patterns matches the path `value`.
#[must_use]
pub fn match_any_path(value: &str, patterns: impl IntoIterator<Item: AsRef<str>>) -> bool {
    patterns.into_iter().any(|pattern| match_path(value, pattern.as_ref()))
}

/// Returns whether the regular expression matches at the start of `value`. The `^` in `^a|b` anchors only the `a`, so
/// the position of the match is also checked.
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
    fn examples() {
        assert!(match_glob("issue.read", "issue.*"));
        assert!(match_glob("anything", "*"));
        assert!(match_any("issue.read", ["issue.*", "pr.*"], false));
        assert!(match_any("ls -la", ["^ls.*"], true));
        assert!(match_path("/home/user/docs/file.txt", "/home/user/**"));
        assert!(match_path("/tmp/file.txt", "/tmp/*"));
        assert!(match_any_path("/tmp/file", ["/home/**", "/tmp/*"]));
    }

    #[test]
    fn an_empty_list_matches_nothing() {
        assert!(!match_any("x", Vec::<String>::new(), true));
        assert!(!match_any_path("/x", Vec::<String>::new()));
    }

    #[test]
    fn a_regex_needs_the_flag_a_caret_and_a_match_at_the_start() {
        assert!(!match_any("ls -la", ["^ls.*"], false));
        assert!(match_any("^ls-x", ["^ls*"], false));
        assert!(!match_any("ls -la", ["ls.*"], true));
        assert!(match_any("ls; rm", ["^ls"], true));
        assert!(!match_any("ls; rm", ["^ls$"], true));
        assert!(!match_any("sudo rm", ["^ls|rm"], true));
        assert!(!match_any("x\nls", ["^(?m:^ls)"], true));
    }

    #[test]
    fn an_invalid_or_large_regex_matches_nothing() {
        let nested = format!("^{}{}", "(".repeat(200), ")".repeat(200));
        for bad in ["^(", "^(?=ls)", r"^(a)\1", "^a{999999}", "^(((a{100}){100}){100}){100}", nested.as_str()] {
            assert!(!match_any("ls", [bad], true), "{bad}");
            assert!(!match_any("", [bad], true), "{bad}");
        }
    }

    #[test]
    fn a_regex_does_not_backtrack() {
        assert!(!match_any(&"a".repeat(1 << 16), ["^(a+)+$b", "^(a|a)*b"], true));
    }
}
