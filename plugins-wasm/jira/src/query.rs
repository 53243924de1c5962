//! Queries in JQL, Jira's query language, with escaped values.

use monstrum_sdk::Error;

use crate::project::ProjectKey;

/// Returns the query for the issues of a project, optionally with a status.
pub(crate) fn issues_of(project: &ProjectKey, status: Option<&str>) -> Result<String, Error> {
    // The key is quoted, because a key such as `AND` is also a keyword.
    let mut jql = format!("project = \"{}\"", project.as_str());
    if let Some(status) = status {
        jql.push_str(" AND status = ");
        jql.push_str(&quoted(status)?);
    }
    Ok(jql)
}

/// Returns `text` as a quoted JQL string.
fn quoted(text: &str) -> Result<String, Error> {
    if text.chars().any(char::is_control) {
        return Err(Error::message("status must not contain control characters"));
    }
    Ok(format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: &str) -> Result<String, Error> {
        issues_of(&ProjectKey::parse("PROJ").expect("it is a key"), Some(status))
    }

    #[test]
    fn a_status_is_quoted() {
        assert_eq!(of("In Progress"), Ok(r#"project = "PROJ" AND status = "In Progress""#.to_owned()));
        let attacks = [
            (r#"x" OR project = "SECRET"#, r#""x\" OR project = \"SECRET""#),
            (r#"x\" OR project = SECRET OR status = \"#, r#""x\\\" OR project = SECRET OR status = \\""#),
            ("x' OR 1", r#""x' OR 1""#),
        ];
        for (status, string) in attacks {
            assert_eq!(of(status), Ok(format!(r#"project = "PROJ" AND status = {string}"#)));
        }
    }

    #[test]
    fn control_characters_are_refused() {
        for status in ["a\nb", "\u{0}", "a\u{85}"] {
            assert_eq!(of(status), Err(Error::message("status must not contain control characters")), "{status:?}");
        }
    }
}
