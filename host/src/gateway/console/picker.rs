//! The picker of a binding's permissions: lists of names that may be absent, what a pattern of a list matches now, and
//! scopes, of which a person may test a value. The comparisons are the Guardian's own.

use monstrum_guardian::{PatternSet, VALUE_BYTES_MAX};
use monstrum_manifest::MatchMode;
use serde_json::Value;

use crate::gateway::console::text::Text;
use crate::gateway::console::words::Words;

/// The maximum numbers of patterns of a list whose matches are shown, and of names that are shown for one of them. More
/// would hide the form.
const PATTERNS_SHOWN_MAX: usize = 20;
const NAMES_SHOWN_MAX: usize = 20;
/// The maximum size of a pattern whose matches are shown. A pattern is compiled before the API has checked it.
const PATTERN_BYTES_MAX: usize = 512;

/// A list of names that may be absent, which restricts nothing.
#[derive(Default)]
pub(super) struct Restriction {
    pub is_restricted: bool,
    /// Each name that the type declares, and whether it is in the list.
    pub known: Vec<Choice>,
    /// The entries that the type does not declare, such as globs, one a line.
    pub others: Text,
    /// What these entries match.
    pub matches: Vec<Matches>,
}

/// A name that a person may choose.
pub(super) struct Choice {
    pub name: Text,
    pub hint: Text,
    pub is_chosen: bool,
}

/// The names that a pattern matches now.
pub(super) struct Matches {
    pub pattern: Text,
    /// The names, separated by commas. Empty if the pattern matches none.
    pub names: String,
}

impl Restriction {
    pub(super) fn new(list: Option<&Value>, known: Vec<(Text, Text)>) -> Restriction {
        let entries: Option<Vec<&str>> =
            list.and_then(Value::as_array).map(|list| list.iter().filter_map(Value::as_str).collect());
        let chosen = entries.clone().unwrap_or_default();
        let others: Vec<&str> =
            chosen.iter().copied().filter(|entry| !known.iter().any(|(name, _)| name.raw() == *entry)).collect();
        let shown = others.iter().filter(|pattern| pattern.len() <= PATTERN_BYTES_MAX).take(PATTERNS_SHOWN_MAX);
        let matches = shown.map(|pattern| Matches::of(pattern, &known)).collect();
        let others = others.join("\n").into();
        let known = known.into_iter().map(|(name, hint)| {
            let is_chosen = chosen.contains(&name.raw());
            Choice { name, hint, is_chosen }
        });
        Restriction { is_restricted: entries.is_some(), known: known.collect(), others, matches }
    }
}

impl Matches {
    fn of(pattern: &str, known: &[(Text, Text)]) -> Matches {
        let set = PatternSet::new(MatchMode::Pattern, [pattern]);
        let mut names: Vec<String> = Vec::new();
        for (name, _) in known.iter().filter(|(name, _)| set.matches(name.raw())) {
            if names.len() == NAMES_SHOWN_MAX {
                names.push("…".to_owned());
                break;
            }
            names.push(name.to_string());
        }
        Matches { pattern: pattern.into(), names: names.join(", ") }
    }
}

/// A scope of the form.
pub(super) struct Scope {
    pub key: Text,
    pub match_mode: String,
    pub is_restricted: bool,
    /// The entries, one a line.
    pub entries: Text,
    /// The value that a person tests.
    pub tested: Text,
    /// What the entries say about the tested value.
    pub verdict: Option<Verdict>,
}

/// Whether the entries of a scope allow a value.
pub(super) struct Verdict {
    pub is_allowed: bool,
    pub sentence: String,
}

impl Scope {
    /// Tests a value. An empty value is not tested.
    pub(super) fn test(&mut self, words: &Words, value: &str) {
        self.tested = value.into();
        let mode = match self.match_mode.as_str() {
            "pattern" => MatchMode::Pattern,
            "path" => MatchMode::Path,
            "exact" => MatchMode::Exact,
            _ => return,
        };
        if value.is_empty() {
            return;
        }
        let matches = |entry: &&str| value.len() <= VALUE_BYTES_MAX && PatternSet::new(mode, [*entry]).matches(value);
        let (is_allowed, sentence) = if !self.is_restricted {
            (true, words.filled("bind.test_unrestricted", &[&self.tested]))
        } else if let Some(entry) = self.entries.raw().lines().find(matches) {
            (true, words.filled("bind.test_allowed", &[&self.tested, &Text::from(entry)]))
        } else {
            (false, words.filled("bind.test_refused", &[&self.tested]))
        };
        self.verdict = Some(Verdict { is_allowed, sentence });
    }
}

#[cfg(test)]
mod tests {
    use monstrum_core::language::UiLanguage;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pattern_shows_what_it_matches_now() {
        let known = || ["hub_list", "hub_read", "hub_write"].map(|name| (Text::from(name), Text::default())).to_vec();
        let list = json!(["hub_list", "hub_[lr]*", "other_*", "x".repeat(PATTERN_BYTES_MAX + 1)]);
        let restriction = Restriction::new(Some(&list), known());
        let shown: Vec<(&str, &str)> =
            restriction.matches.iter().map(|of| (of.pattern.raw(), of.names.as_str())).collect();
        assert_eq!(shown, [("hub_[lr]*", "hub_list, hub_read"), ("other_*", "")]);
        let many = (0..30).map(|number| (Text::from(format!("t{number:02}")), Text::default())).collect();
        let restriction = Restriction::new(Some(&json!(["t*"])), many);
        assert!(restriction.matches[0].names.ends_with("t18, t19, …"), "{}", restriction.matches[0].names);
    }

    #[test]
    fn a_value_is_tested_as_a_call_would_be() {
        let verdict = |mode: &str, entries: &str, value: &str| {
            let mut scope = Scope {
                key: "repos".into(),
                match_mode: mode.to_owned(),
                is_restricted: entries != "all",
                entries: entries.into(),
                tested: Text::default(),
                verdict: None,
            };
            scope.test(Words::of(UiLanguage::English), value);
            scope.verdict.map(|verdict| verdict.is_allowed)
        };
        assert_eq!(verdict("pattern", "other/*\nacme/*", "acme/site"), Some(true));
        assert_eq!(verdict("exact", "acme/*", "acme/site"), Some(false));
        assert_eq!(verdict("path", "/docs/**", "/docs/../etc/passwd"), Some(false));
        assert_eq!(verdict("path", "/docs/**", "/docs/a/b"), Some(true));
        assert_eq!(verdict("pattern", "", "acme/site"), Some(false), "an empty list allows nothing");
        assert_eq!(verdict("pattern", "all", "acme/site"), Some(true));
        assert_eq!(verdict("pattern", "*", &"x".repeat(VALUE_BYTES_MAX + 1)), Some(false));
        assert_eq!(verdict("pattern", "*", ""), None);
        assert_eq!(verdict("a newer mode", "*", "x"), None);
    }
}
