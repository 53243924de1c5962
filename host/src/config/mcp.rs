//! Settings of `/mcp`: the host names and browser origins that may reach it.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use url::Url;

/// A host name or address with an optional port, as in the header `Host`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct McpHost {
    /// The name in lower case. IPv6 addresses have brackets.
    host: String,
    /// The port; without a port, all ports match.
    port: Option<u16>,
}

impl McpHost {
    /// Returns whether a header `Host` with this name and port matches.
    pub fn matches(&self, host: &str, port: Option<u16>) -> bool {
        self.host.eq_ignore_ascii_case(host) && (self.port.is_none() || self.port == port)
    }
}

impl FromStr for McpHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected HOST or HOST:PORT, found `{text}`");
        let authority: http::uri::Authority = text.parse().map_err(|_| wrong())?;
        let host = authority.host().to_ascii_lowercase();
        let written = authority.port().map_or_else(|| host.clone(), |port| format!("{host}:{}", port.as_str()));
        // The comparison rejects a user and a port that is not a number.
        if host.is_empty() || written != text.to_ascii_lowercase() || (authority.port_u16() == Some(0)) {
            return Err(wrong());
        }
        Ok(McpHost { host, port: authority.port_u16() })
    }
}

impl TryFrom<String> for McpHost {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// The origin of a browser page, such as `https://app.example.com`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct McpOrigin(String);

impl McpOrigin {
    /// Returns whether the header `Origin` contains this origin.
    pub fn matches(&self, header: &str) -> bool {
        self.0 == header
    }
}

impl FromStr for McpOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| format!("not a URL: {error}"))?;
        let origin = url.origin().ascii_serialization();
        if !matches!(url.scheme(), "http" | "https") || text.trim_end_matches('/') != origin || text.contains('*') {
            return Err(format!("expected SCHEME://HOST or SCHEME://HOST:PORT, found `{text}`"));
        }
        Ok(McpOrigin(origin))
    }
}

impl TryFrom<String> for McpOrigin {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for McpOrigin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_a_port_matches_every_port() {
        let host = |text: &str| text.parse::<McpHost>();
        let name = host("Monstrum.internal").unwrap();
        assert!(name.matches("monstrum.INTERNAL", Some(1)) && name.matches("monstrum.internal", None));
        assert!(!name.matches("monstrum.internal.example", None));
        let with_port = host("[fd00::1]:8080").unwrap();
        assert!(with_port.matches("[fd00::1]", Some(8080)) && !with_port.matches("[fd00::1]", None));
        for bad in ["", "a b", "http://a", "a/", "user@a", "a:", "a:x", "a:0", "a:99999"] {
            assert!(host(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_origin_has_a_scheme_and_no_path() {
        let origin = |text: &str| text.parse::<McpOrigin>();
        assert!(origin("https://a.example").unwrap().matches("https://a.example"));
        assert!(origin("http://localhost:6274/").unwrap().matches("http://localhost:6274"));
        assert!(!origin("https://a.example").unwrap().matches("https://a.example.evil"));
        for bad in ["", "null", "a.example", "https://a.example/x", "file:///x", "https://A.example", "https://*"] {
            assert!(origin(bad).is_err(), "{bad}");
        }
    }
}
