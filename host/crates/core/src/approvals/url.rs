//! The URL at which a person decides about an approval.

use std::str::FromStr;

use monstrum_types::{ApprovalId, WorkspaceId};
use serde::Deserialize;
use url::Url;

const WORKSPACE: &str = "{workspace}";
const ID: &str = "{id}";

/// The template of the URL. It contains the placeholders `{workspace}` and `{id}`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ApprovalUrl(String);

impl ApprovalUrl {
    /// Returns the URL of an approval.
    pub fn of(&self, workspace: WorkspaceId, id: ApprovalId) -> String {
        self.0.replace(WORKSPACE, &workspace.to_string()).replace(ID, &id.to_string())
    }
}

impl FromStr for ApprovalUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        for placeholder in [WORKSPACE, ID] {
            if !text.contains(placeholder) {
                return Err(format!("the URL must contain the placeholder `{placeholder}`"));
            }
        }
        let filled = text.replace(WORKSPACE, "w").replace(ID, "i");
        if filled.contains(['{', '}']) {
            return Err(format!("the URL may contain only the placeholders `{WORKSPACE}` and `{ID}`"));
        }
        let url = Url::parse(&filled).map_err(|error| format!("not a URL: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
            return Err("expected https://HOST/… or http://HOST/…".to_owned());
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("the URL must not contain a user or password".to_owned());
        }
        // A placeholder in the host would let an id choose the server.
        let start = text.split_once("://").map_or("", |(_, rest)| rest);
        if start.split(['/', '?', '#']).next().is_some_and(|host| host.contains('{')) {
            return Err("the placeholders must be in the path, the query or the fragment of the URL".to_owned());
        }
        Ok(ApprovalUrl(text.to_owned()))
    }
}

impl TryFrom<String> for ApprovalUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_both_placeholders_after_its_host() {
        let (workspace, id) = (WorkspaceId::new(), ApprovalId::new());
        for text in ["https://a.example/{workspace}/{id}", "http://localhost:3000/?w={workspace}#{id}"] {
            let url = text.parse::<ApprovalUrl>().unwrap().of(workspace, id);
            assert_eq!(url, text.replace("{workspace}", &workspace.to_string()).replace("{id}", &id.to_string()));
        }
        for bad in [
            "",
            "https://a.example/{id}",
            "https://a.example/{workspace}",
            "https://a.example/{workspace}/{id}/{bot}",
            "ftp://a.example/{workspace}/{id}",
            "https://{workspace}.a.example/{id}",
            "https://u:p@a.example/{workspace}/{id}",
            "/{workspace}/{id}",
        ] {
            assert!(bad.parse::<ApprovalUrl>().is_err(), "{bad}");
        }
    }
}
