//! The repository of a call.

use monstrum_sdk::{Error, Request, Value};

/// A repository name `owner/name`, with only the characters that GitHub allows.
///
/// A binding to `acme/*` also permits the text `acme/../../user`. This type rejects that text, because it allows only
/// one slash and no `.` or `..` segments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Repo {
    pub(crate) owner: String,
    pub(crate) name: String,
}

impl Repo {
    /// Returns the repository in the parameter `repo`.
    pub(crate) fn of(request: &Request) -> Result<Self, Error> {
        request
            .params
            .get("repo")
            .and_then(Value::as_str)
            .and_then(Repo::parse)
            .ok_or_else(|| Error::message("Invalid repo format, expected 'owner/repo'"))
    }

    fn parse(text: &str) -> Option<Self> {
        let (owner, name) = text.split_once('/')?;
        (is_name(owner) && is_name(name)).then(|| Repo { owner: owner.to_owned(), name: name.to_owned() })
    }
}

fn is_name(text: &str) -> bool {
    !matches!(text, "" | "." | "..") && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::Repo;

    #[test]
    fn a_repository_is_owner_and_name() {
        for (owner, name) in [("acme", "site"), ("a-b", "c.d_e"), ("x_y", ".github"), ("A1", "...")] {
            let expected = Repo { owner: owner.to_owned(), name: name.to_owned() };
            assert_eq!(Repo::parse(&format!("{owner}/{name}")), Some(expected));
        }
    }

    #[test]
    fn names_that_change_the_path_are_refused() {
        let texts = [
            "",
            "/",
            "acme",
            "acme/",
            "/site",
            "acme//site",
            "acme/site/",
            "acme/site/issues",
            "acme/../../user",
            "acme/..",
            "../acme",
            "./site",
            "acme/.",
            "acme/..%2f..",
            "acme/%2e%2e",
            "acme/site?x=1",
            "acme/site#x",
            "acme/si te",
            "acme\\site",
            "acme/si\\te",
            "acme/site\n",
            "acme/\u{ff0e}\u{ff0e}",
            "acme@evil/site",
            "https://github.com/acme/site",
        ];
        for text in texts {
            assert_eq!(Repo::parse(text), None, "{text:?}");
        }
    }
}
