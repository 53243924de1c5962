//! Compares path patterns with a naive implementation, which matches components one by one and tries every possible
//! length of a `**`.

use monstrum_guardian::matching::{PathPattern, PatternSet, match_any_path, match_glob, match_path};
use monstrum_manifest::MatchMode;
use proptest::prelude::*;
use proptest::sample::select;

/// Returns whether the path is absolute, together with its components. Returns `None` if the path leads outside its
/// start or if `..` follows a `**`.
fn components(path: &str, is_pattern: bool) -> Option<(bool, Vec<&str>)> {
    let absolute = path.starts_with('/');
    let mut all: Vec<&str> = Vec::new();
    for component in path.split('/').filter(|component| !matches!(*component, "" | ".")) {
        match (component, all.last()) {
            ("..", Some(&"**")) if is_pattern => return None,
            ("..", Some(_)) => _ = all.pop(),
            ("..", None) if absolute => {}
            ("..", None) => return None,
            _ => all.push(component),
        }
    }
    Some((absolute, all))
}

fn matches_from(pattern: &[&str], path: &[&str]) -> bool {
    match pattern {
        [] => path.is_empty(),
        ["**", rest @ ..] => (0..=path.len()).any(|skipped| matches_from(rest, &path[skipped..])),
        [first, rest @ ..] => {
            path.first().is_some_and(|next| match_glob(next, first)) && matches_from(rest, &path[1..])
        }
    }
}

/// Implements the table of [`monstrum_guardian::PathPattern`] naively.
fn naively(value: &str, pattern: &str) -> bool {
    if value.is_empty() || pattern.is_empty() {
        return value.is_empty() && pattern.is_empty();
    }
    let (Some((root, pattern)), Some((value_root, value))) = (components(pattern, true), components(value, false))
    else {
        return false;
    };
    if value.iter().any(|component| component.contains('\0')) || root != value_root {
        return false;
    }
    // An unclosed `[` and a set of one character are not wildcards.
    let is_plain = |component: &&str| {
        let only = component.replace("[*]", "x").replace("[a]", "x");
        let has_set = only.contains('[') && only.contains(']');
        !has_set && !only.contains(['*', '?'])
    };
    if pattern.iter().all(is_plain) {
        return pattern.len() <= value.len() && matches_from(&pattern, &value[..pattern.len()]);
    }
    matches_from(&pattern, &value)
}

fn path(pieces: &'static [&'static str], pieces_max: usize) -> impl Strategy<Value = String> {
    let component = select(pieces).prop_map(str::to_owned);
    (any::<bool>(), prop::collection::vec(component, 0..=pieces_max))
        .prop_map(|(absolute, components)| format!("{}{}", if absolute { "/" } else { "" }, components.join("/")))
}

const PATTERNS: &[&str] =
    &["a", "b", "**", "**", "*", "?", "[ab]", "[!a]", "a*", "*b", "[*]", "[a]", "..", ".", "", "ab", "["];
const VALUES: &[&str] = &["a", "a", "b", "ab", "ba", "*", "[", "..", ".", "", "c", "**"];

#[test]
fn corpus() {
    for line in include_str!("../corpus/paths.jsonl").lines() {
        let (pattern, value, expected): (String, String, bool) = serde_json::from_str(line).unwrap();
        assert_eq!(match_path(&value, &pattern), expected, "{line}");
        assert_eq!(naively(&value, &pattern), expected, "the naive implementation for {line}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases * 8, ..ProptestConfig::default() })]

    #[test]
    fn paths_match_as_the_table_says(value in path(VALUES, 7), pattern in path(PATTERNS, 6)) {
        prop_assert_eq!(match_path(&value, &pattern), naively(&value, &pattern), "{:?} against {:?}", value, pattern);
    }

    #[test]
    fn any_text_is_a_pattern_and_a_value(value in ".{0,30}", pattern in ".{0,30}", other in path(PATTERNS, 5)) {
        for pattern in [&pattern, &other] {
            let one = match_path(&value, pattern);
            prop_assert_eq!(PathPattern::new(pattern).matches(&value), one);
            prop_assert_eq!(match_any_path(&value, [pattern]), one);
            prop_assert_eq!(PatternSet::new(MatchMode::Path, [pattern]).matches(&value), one);
        }
    }

    #[test]
    fn a_path_that_leaves_its_start_matches_nothing(below in path(VALUES, 4), pattern in path(PATTERNS, 5)) {
        let climbing = format!("{}/{}..", below.trim_start_matches('/'), "../".repeat(below.split('/').count()));
        prop_assert!(!match_path(climbing.trim_start_matches('/'), &pattern));
        let with_nul = format!("{below}\0");
        prop_assert!(!match_path(&with_nul, &pattern));
    }
}
