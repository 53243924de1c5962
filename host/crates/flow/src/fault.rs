//! Faults of a definition, with the place of each.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

/// Maximum number of faults in one report. An author corrects a few at a time, and a hostile document has thousands.
pub const FAULTS_MAX: usize = 100;
/// Maximum length of a message or a path in characters. Both may quote the document.
const TEXT_CHARS_MAX: usize = 400;
/// Maximum length of the path of a place in bytes. A report shows less, and thousands of expressions keep their places.
const PATH_BYTES_MAX: usize = 2 * 1024;

/// One fault of a definition, or one warning about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The JSON pointer to the value, such as `/steps/0/tool`. Empty for the document as a whole.
    pub path: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// A place in a document. Clones share the path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spot {
    /// The JSON pointer, which lacks its end if it is too long.
    pub(crate) path: Arc<str>,
    pub(crate) line: usize,
    pub(crate) column: usize,
}

impl Spot {
    pub(crate) fn fault(&self, message: impl Into<String>) -> Fault {
        Fault { path: cut(&self.path), line: self.line, column: self.column, message: cut(&message.into()), hint: None }
    }

    /// A place below this one, of which only the path is known.
    pub(crate) fn below(&self, pointer: &str) -> Spot {
        let mut path = self.path.to_string();
        push_bounded(&mut path, pointer);
        Spot { path: path.into(), ..*self }
    }
}

impl Fault {
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Fault {
        self.hint = Some(cut(&hint.into()));
        self
    }
}

/// The path to the current value, on the stack.
#[derive(Clone, Copy)]
pub(crate) enum At<'a> {
    Root,
    Key(&'a At<'a>, &'a str),
    Index(&'a At<'a>, usize),
}

impl At<'_> {
    /// Returns the JSON pointer, or its start if it is too long for a place.
    pub(crate) fn pointer(&self) -> String {
        let mut pointer = String::new();
        self.write_to(&mut pointer);
        pointer
    }

    fn write_to(&self, pointer: &mut String) {
        let (At::Key(parent, _) | At::Index(parent, _)) = self else { return };
        parent.write_to(pointer);
        if pointer.len() >= PATH_BYTES_MAX {
            return;
        }
        push_bounded(pointer, "/");
        match self {
            At::Root => {}
            At::Key(_, key) => push_bounded(pointer, &escape(key)),
            At::Index(_, index) => push_bounded(pointer, &index.to_string()),
        }
    }
}

/// Adds as much of a text to a path as a place keeps.
fn push_bounded(path: &mut String, text: &str) {
    let room = PATH_BYTES_MAX.saturating_sub(path.len());
    path.push_str(&text[..text.floor_char_boundary(room)]);
}

/// Escapes a key for a JSON pointer.
pub(crate) fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Truncates a text and escapes its control characters, so that it is safe to print.
pub(crate) fn cut(text: &str) -> String {
    let is_long = text.chars().nth(TEXT_CHARS_MAX).is_some();
    let kept = if is_long { TEXT_CHARS_MAX - 1 } else { TEXT_CHARS_MAX };
    let mut short = String::new();
    for c in text.chars().take(kept) {
        if c.is_control() || is_directional(c) {
            short.extend(c.escape_unicode());
        } else {
            short.push(c);
        }
    }
    if is_long {
        short.push('…');
    }
    short
}

/// Returns whether a character changes the direction of text, and so could make a message read differently.
fn is_directional(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Returns the word of `known` that is nearest to `word`, if it is near enough to be a typing error.
pub(crate) fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    /// No known word is longer, and the distance takes time quadratic in the length.
    const WORD_CHARS_MAX: usize = 64;
    let word: Vec<char> = word.to_lowercase().chars().take(WORD_CHARS_MAX + 1).collect();
    if word.len() > WORD_CHARS_MAX {
        return None;
    }
    let near = |other: &'k str| {
        let distance = distance(&word, &other.chars().collect::<Vec<_>>());
        (distance <= 1 + word.len() / 4).then_some((distance, other))
    };
    known.into_iter().filter_map(near).min().map(|(_, other)| other)
}

/// Returns the number of inserted, deleted and replaced characters between two words.
fn distance(left: &[char], right: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_a_typing_error_away() {
        let known = ["steps", "timeout", "retry"];
        assert_eq!(nearest("stpes", known), Some("steps"));
        assert_eq!(nearest("Timeout", known), Some("timeout"));
        assert_eq!(nearest("authorization", known), None);
        assert_eq!(nearest(&"x".repeat(100_000), known), None);
    }

    #[test]
    fn messages_are_short_and_printable() {
        assert_eq!(cut("a\u{1b}[2J\u{202e}"), "a\\u{1b}[2J\\u{202e}");
        assert_eq!(cut(&"ä".repeat(1_000)).chars().count(), TEXT_CHARS_MAX);
    }

    #[test]
    fn a_place_keeps_the_start_of_a_long_path() {
        let (root, key) = (At::Root, "ä".repeat(PATH_BYTES_MAX));
        let outer = At::Key(&root, &key);
        let spot = Spot { path: At::Key(&outer, &key).pointer().into(), line: 1, column: 1 };
        assert!(spot.path.starts_with("/ä") && spot.path.len() <= PATH_BYTES_MAX);
        assert!(spot.below("/params").path.len() <= PATH_BYTES_MAX);
    }

    #[test]
    fn pointers_escape_keys() {
        let root = At::Root;
        let steps = At::Key(&root, "a/b~");
        assert_eq!(At::Index(&steps, 3).pointer(), "/a~1b~0/3");
    }
}
