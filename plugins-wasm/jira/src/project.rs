//! The project that a call concerns.

use monstrum_sdk::{Error, Request, Value};

/// A project's key, in nothing but the characters that Jira allows.
///
/// The key becomes part of a query, and a binding to `ACME*` permits the text `ACME or project = SECRET` too, so it is
/// here that such a text ends. A number would be a project's id, by which any project could be named.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProjectKey(String);

impl ProjectKey {
    /// The key that the parameter `project` holds.
    pub(crate) fn of(request: &Request) -> Result<Self, Error> {
        request
            .params
            .get("project")
            .and_then(Value::as_str)
            .and_then(ProjectKey::parse)
            .ok_or_else(|| Error::message("Invalid project key, expected letters, digits and '_' such as 'PROJ'"))
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_key = text.starts_with(|first: char| first.is_ascii_alphabetic())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_key.then(|| ProjectKey(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_what_jira_allows() {
        for text in ["PROJ", "A", "R2D2", "OPS_2026", "proj"] {
            assert_eq!(ProjectKey::parse(text), Some(ProjectKey(text.to_owned())));
        }
    }

    #[test]
    fn what_would_say_more_than_one_project_is_no_key() {
        let texts = [
            "",
            "10001",
            "_A",
            " PROJ",
            "PROJ ",
            "PROJ OR project = SECRET",
            "PROJ\" OR \"1\"=\"1",
            "PROJ,SECRET",
            "PROJ)",
            "(PROJ",
            "PROJ\\",
            "PROJ\n",
            "PROJ-1",
            "PROJ*",
            "ＰＲＯＪ",
            "PRÖJ",
            "../PROJ",
        ];
        for text in texts {
            assert_eq!(ProjectKey::parse(text), None, "{text:?}");
        }
    }
}
