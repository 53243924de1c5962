//! The URL at which clients reach this server.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use url::Url;

/// An http or https URL with a host and an optional path. The server creates links by appending paths to this URL.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct PublicUrl(Url);

impl PublicUrl {
    /// Returns the parsed URL.
    pub fn url(&self) -> &Url {
        &self.0
    }
}

impl FromStr for PublicUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| format!("not a URL: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
            return Err("expected https://HOST or http://HOST".to_owned());
        }
        if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
            return Err("the URL must not contain a user, password, query or fragment".to_owned());
        }
        Ok(PublicUrl(url))
    }
}

impl TryFrom<String> for PublicUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Writes the URL without a trailing slash.
impl fmt::Display for PublicUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_host_and_no_query_fragment_or_user() {
        for (text, shown) in [
            ("https://monstrum.example.com", "https://monstrum.example.com"),
            ("https://example.com/monstrum/", "https://example.com/monstrum"),
            ("http://10.0.0.7:8080", "http://10.0.0.7:8080"),
        ] {
            assert_eq!(text.parse::<PublicUrl>().map(|url| url.to_string()), Ok(shown.to_owned()));
        }
        for bad in [
            "",
            "example.com",
            "ftp://example.com",
            "https://",
            "https://a:b@example.com",
            "https://example.com/?a",
            "https://example.com/#a",
        ] {
            assert!(bad.parse::<PublicUrl>().is_err(), "{bad}");
        }
    }
}
