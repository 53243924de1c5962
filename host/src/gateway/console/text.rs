//! Texts of others on a page: names, descriptions, parameters, results. The templates escape markup; this type writes
//! invisible characters as escapes, so that a text cannot pass for another text.

use std::fmt::{self, Display, Formatter, Write};

use monstrum_types::is_invisible;
use serde::Deserialize;

/// A text of another party. `Display` writes invisible characters as `\u{…}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(transparent)]
pub(super) struct Text(String);

impl Text {
    /// Returns the text as it is, for paths, queries and values of fields.
    pub(super) fn raw(&self) -> &str {
        &self.0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the start of the text, with a mark if the text is longer.
    pub(super) fn start(&self, chars_max: usize) -> Text {
        match self.0.char_indices().nth(chars_max) {
            Some((at, _)) => Text(format!("{}…", &self.0[..at])),
            None => self.clone(),
        }
    }
}

impl From<String> for Text {
    fn from(text: String) -> Text {
        Text(text)
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Text {
        Text(text.to_owned())
    }
}

impl Display for Text {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '\n' | '\t' => formatter.write_char(character)?,
                hidden if is_invisible(hidden) => write!(formatter, "{}", hidden.escape_unicode())?,
                shown => formatter.write_char(shown)?,
            }
        }
        Ok(())
    }
}

/// Returns a JSON value as indented text.
pub(super) fn pretty(value: &serde_json::Value) -> Text {
    serde_json::to_string_pretty(value).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_written_out() {
        assert_eq!(Text::from("a\u{202e}b\u{200b}\u{1b}[0m\nc").to_string(), "a\\u{202e}b\\u{200b}\\u{1b}[0m\nc");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(Text::from("äöü").start(2).raw(), "äö…");
        assert_eq!(Text::from("äö").start(2).raw(), "äö");
    }
}
