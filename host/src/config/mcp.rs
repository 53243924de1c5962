//! Settings of `/mcp`: the host names and browser origins that may reach it.

use std::fmt;
use std::str::FromStr;

use monstrum_core::access_tokens::{IssuerClient, TokenIssuer};
use monstrum_egress::Network;
use monstrum_types::Secret;
use serde::Deserialize;
use url::Url;

use crate::config::{PublicUrl, ServeFlags, SettingsError};

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

/// The URL that identifies an authorization server. It is compared with the claim `iss` of tokens without any change.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct McpIssuer(String);

/// The maximum length of an issuer, which is also the id of an app.
const ISSUER_BYTES_MAX: usize = 256;

impl McpIssuer {
    /// Combines the setting with the settings that it depends on.
    fn resolve(
        self,
        network: Network,
        public_url: Option<&PublicUrl>,
        client: Option<IssuerClient>,
    ) -> Result<TokenIssuer, &'static str> {
        let public_url =
            public_url.ok_or("mcp_issuer requires public_url, which access tokens name as their audience")?;
        if self.0.starts_with("http://") && !network.allow_http {
            return Err("mcp_issuer is an http:// URL, which requires mcp_issuer_http");
        }
        Ok(TokenIssuer { url: self.0, network, public_url: public_url.to_string(), client })
    }
}

/// The secret of the client at the MCP issuer.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct ClientSecret(Secret);

impl From<String> for ClientSecret {
    fn from(text: String) -> Self {
        ClientSecret(Secret::new(text))
    }
}

impl fmt::Debug for ClientSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ClientSecret")
    }
}

/// Resolves the settings of the MCP issuer.
pub(super) fn issuer(flags: &ServeFlags, file: &ServeFlags) -> Result<Option<TokenIssuer>, SettingsError> {
    macro_rules! setting {
        ($name:ident) => {
            flags.$name.as_ref().or(file.$name.as_ref()).cloned()
        };
    }
    let client = setting!(mcp_issuer_client_id);
    let secret = client_secret(flags)?.or(client_secret(file)?);
    let Some(issuer) = setting!(mcp_issuer) else {
        return match client {
            Some(_) => Err(SettingsError::McpIssuer("mcp_issuer_client_id requires mcp_issuer")),
            None => Ok(None),
        };
    };
    if client.is_none() && secret.is_some() {
        return Err(SettingsError::McpIssuer("mcp_issuer_client_secret requires mcp_issuer_client_id"));
    }
    let allow_addresses = setting!(mcp_issuer_allow).unwrap_or_default();
    let network =
        Network { allow_addresses, allow_http: flags.mcp_issuer_http.or(file.mcp_issuer_http).unwrap_or(false) };
    let client = client.map(|id| IssuerClient { id, secret });
    let issuer = issuer.resolve(network, setting!(public_url).as_ref(), client);
    issuer.map(Some).map_err(SettingsError::McpIssuer)
}

/// Returns the secret of the client, from its setting or from its file.
fn client_secret(settings: &ServeFlags) -> Result<Option<Secret>, SettingsError> {
    match (&settings.mcp_issuer_client_secret, &settings.mcp_issuer_client_secret_file) {
        (Some(_), Some(_)) => Err(SettingsError::McpIssuer(
            "both mcp_issuer_client_secret and mcp_issuer_client_secret_file are set; remove one of them",
        )),
        (Some(ClientSecret(secret)), None) => Ok(Some(secret.clone())),
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|source| SettingsError::Read { path: path.clone(), source })?;
            Ok(Some(Secret::new(text.trim().to_owned())))
        }
        (None, None) => Ok(None),
    }
}

impl FromStr for McpIssuer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| format!("not a URL: {error}"))?;
        // The text must be the normal form of the URL, so that there is one text for each issuer.
        let is_normal = url.as_str() == text || url.as_str().strip_suffix('/') == Some(text);
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() || !is_normal {
            return Err("expected https://HOST or https://HOST/PATH in its normal form".to_owned());
        }
        if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
            return Err("the URL must not contain a user, password, query or fragment".to_owned());
        }
        if text.len() > ISSUER_BYTES_MAX {
            return Err(format!("the URL must have at most {ISSUER_BYTES_MAX} bytes"));
        }
        Ok(McpIssuer(text.to_owned()))
    }
}

impl TryFrom<String> for McpIssuer {
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
    fn an_issuer_is_the_url_that_tokens_contain() {
        let url: PublicUrl = "https://monstrum.example".parse().unwrap();
        let network = |allow_http| Network { allow_addresses: Vec::new(), allow_http };
        for text in ["https://id.example", "https://id.example/", "https://id.example/realms/a", "http://id:8080"] {
            let issuer = text.parse::<McpIssuer>().unwrap().resolve(network(true), Some(&url), None).unwrap();
            assert_eq!((issuer.url.as_str(), issuer.public_url.as_str()), (text, "https://monstrum.example"));
        }
        for bad in [
            "",
            "id.example",
            "https://",
            "ftp://id.example",
            "https://ID.example",
            "https://id.example:443",
            "https://id.example/a/../b",
            "https://u@id.example",
            "https://id.example?a",
            "https://id.example#a",
            &format!("https://id.example/{}", "a".repeat(256)),
        ] {
            assert!(bad.parse::<McpIssuer>().is_err(), "{bad}");
        }
        let parsed = |text: &str| text.parse::<McpIssuer>().unwrap();
        assert!(parsed("https://id.example").resolve(network(false), None, None).is_err(), "no public URL");
        assert!(parsed("http://id.example").resolve(network(false), Some(&url), None).is_err(), "http");
    }

    #[test]
    fn the_secret_of_the_client_is_read_from_a_file_or_a_variable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "of-a-file\n").unwrap();
        let flags = || ServeFlags {
            mcp_issuer: Some("https://id.example".parse().unwrap()),
            public_url: Some("https://monstrum.example".parse().unwrap()),
            mcp_issuer_client_id: Some("monstrum".to_owned()),
            ..ServeFlags::default()
        };
        let client = |flags: &ServeFlags| {
            let client = issuer(flags, &ServeFlags::default()).ok()??.client?;
            Some((client.id, client.secret.map(|secret| secret.expose().to_owned())))
        };
        let (id, text) = ("monstrum".to_owned(), |text: &str| Some(text.to_owned()));
        assert_eq!(client(&flags()), Some((id.clone(), None)));
        let of_file = ServeFlags { mcp_issuer_client_secret_file: Some(path), ..flags() };
        assert_eq!(client(&of_file), Some((id.clone(), text("of-a-file"))));
        let secret = || Some(ClientSecret::from("of-a-variable".to_owned()));
        let of_variable = ServeFlags { mcp_issuer_client_secret: secret(), ..flags() };
        assert_eq!(client(&of_variable), Some((id, text("of-a-variable"))));
        assert!(!format!("{of_variable:?}").contains("of-a-variable"));
        for wrong in [
            ServeFlags { mcp_issuer_client_secret: secret(), ..of_file.clone() },
            ServeFlags { mcp_issuer_client_id: None, ..of_file },
            ServeFlags { mcp_issuer: None, ..flags() },
            ServeFlags { mcp_issuer_client_secret_file: Some(folder.path().join("absent")), ..flags() },
        ] {
            assert!(issuer(&wrong, &ServeFlags::default()).is_err(), "{wrong:?}");
        }
    }

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
