//! Rules that several inputs share.

use std::collections::BTreeMap;

use crate::gateway::extract::Faults;

/// Names of roles, bots, resources and workspaces: 1 to 128 characters, none of them a control character.
pub fn name(faults: &mut Faults, path: &str, name: &str) {
    const CHARS_MAX: usize = 128;
    if name.trim().is_empty() {
        faults.add(path, "must not be empty");
    } else if name.chars().count() > CHARS_MAX {
        faults.add(path, format!("must have {CHARS_MAX} characters at most"));
    } else if name.chars().any(char::is_control) {
        faults.add(path, "must not hold control characters");
    }
}

/// A text of at most `chars_max` characters.
pub fn length(faults: &mut Faults, path: &str, text: &str, chars_max: usize) {
    if text.chars().count() > chars_max {
        faults.add(path, format!("must have {chars_max} characters at most"));
    }
}

/// A list of patterns. A pattern is as long as the longest name or path that anyone writes down; matching a hostile
/// value against a longer one could cost more than a call is worth.
pub fn patterns<'a>(faults: &mut Faults, path: &str, patterns: impl IntoIterator<Item = &'a str>) {
    const BYTES_MAX: usize = 4096;
    for (index, pattern) in patterns.into_iter().enumerate() {
        if pattern.len() > BYTES_MAX {
            faults.add(format!("{path}/{index}"), format!("a pattern has {BYTES_MAX} bytes at most"));
        }
    }
}

/// The patterns of every key.
pub fn scope_patterns(faults: &mut Faults, path: &str, constraints: &BTreeMap<String, Vec<String>>) {
    for (key, list) in constraints {
        patterns(faults, &format!("{path}/{}", pointer_token(key)), list.iter().map(String::as_str));
    }
}

/// A key as a part of a JSON pointer (RFC 6901).
pub fn pointer_token(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
