//! The project of a call.

use monstrum_sdk::{Error, Request, Value};

/// A project key, with only the characters that Jira allows.
///
/// The key becomes part of a query. A binding to `ACME*` also permits the text `ACME or project = SECRET`, which this
/// type rejects. This type also rejects numbers, because Jira would interpret a number as the id of any project.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProjectKey(String);

impl ProjectKey {
    /// Returns the project key in the parameter `project`.
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
    fn keys_that_extend_the_query_are_refused() {
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
