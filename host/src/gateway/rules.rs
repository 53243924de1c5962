//! Rules that several inputs share.

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
