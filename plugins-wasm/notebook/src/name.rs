//! The names of notebooks and pages.

use std::fmt::{self, Display, Formatter};

use monstrum_sdk::{Error, Request, Value};

/// The maximum length of a name.
const NAME_BYTES_MAX: usize = 64;

/// A name of a notebook or a page.
///
/// A name becomes a segment of a path. A binding to the notebook `team` must not permit a page that leads to another
/// notebook, so this type allows no slash and no `.` or `..` segments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Name(String);

impl Name {
    /// Returns the name in a parameter.
    pub(crate) fn of(request: &Request, parameter: &str) -> Result<Self, Error> {
        let name = request.params.get(parameter).and_then(Value::as_str).and_then(Name::parse);
        name.ok_or_else(|| {
            Error::message(format!(
                "Invalid {parameter}, expected 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' and '.'"
            ))
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let is_name = (1..=NAME_BYTES_MAX).contains(&text.len())
            && !matches!(text, "." | "..")
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        is_name.then(|| Name(text.to_owned()))
    }
}

impl Display for Name {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_letters_digits_and_three_signs() {
        for text in ["team", "a", "Q3-plan", "v1.2_draft", "..."] {
            assert_eq!(Name::parse(text), Some(Name(text.to_owned())));
        }
    }

    #[test]
    fn names_that_change_the_path_are_refused() {
        let long = "a".repeat(65);
        for text in ["", ".", "..", "a/b", "../board", "a?b", "a#b", "a b", "a%2Fb", "a\\b", "a\nb", "ä", &long] {
            assert_eq!(Name::parse(text), None, "{text:?}");
        }
    }
}
