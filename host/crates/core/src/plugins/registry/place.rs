//! The location of a package registry: a folder on this machine, or a web server.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::IpNet;
use serde::Deserialize;
use url::{Host, Url};

const HTTP_HINT: &str = "http:// is allowed only for a loopback address, such as http://127.0.0.1:8000/; use https://";

/// The location of a registry in the form in which an operator writes it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Place {
    Folder(PathBuf),
    /// A URL with https, or with http and a loopback address. The URL ends with a slash.
    Web(Url),
}

impl Place {
    /// Returns the address of the URL if its host is a numeric address. By writing a numeric address, the operator
    /// allows connections to it. A host name must resolve to public addresses or to addresses that the operator allows
    /// separately.
    pub fn named_address(&self) -> Option<IpNet> {
        match self {
            Place::Folder(_) => None,
            Place::Web(url) => match url.host()? {
                Host::Domain(_) => None,
                Host::Ipv4(address) => Some(IpNet::from(std::net::IpAddr::from(address))),
                Host::Ipv6(address) => Some(IpNet::from(std::net::IpAddr::from(address))),
            },
        }
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("expected a folder or a URL".to_owned());
        }
        if !text.contains("://") {
            return Ok(Place::Folder(PathBuf::from(text)));
        }
        // The errors do not contain the text, because it may contain a password.
        let mut url = Url::parse(text).map_err(|error| format!("not a URL: {error}"))?;
        if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
            return Err("the URL must not contain a user, password, query or fragment".to_owned());
        }
        let is_loopback = match url.host() {
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            Some(Host::Domain(_)) | None => false,
        };
        match url.scheme() {
            "https" => {}
            "http" if is_loopback => {}
            "http" => return Err(HTTP_HINT.to_owned()),
            _ => return Err("expected a folder, an https:// URL, or http:// on a loopback address".to_owned()),
        }
        if !url.path().ends_with('/') {
            let path = format!("{}/", url.path());
            url.set_path(&path);
        }
        Ok(Place::Web(url))
    }
}

impl TryFrom<String> for Place {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Folder(path) => path.display().fmt(f),
            Place::Web(url) => url.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_only_for_loopback_addresses() {
        let shown = |text: &str| text.parse::<Place>().map(|place| place.to_string());
        assert_eq!(shown("https://packages.example/mst"), Ok("https://packages.example/mst/".to_owned()));
        assert_eq!(shown("http://127.0.0.1:8000"), Ok("http://127.0.0.1:8000/".to_owned()));
        assert_eq!(shown("http://[::1]:8000/a/"), Ok("http://[::1]:8000/a/".to_owned()));
        assert_eq!(shown("/srv/registry"), Ok("/srv/registry".to_owned()));
        for refused in [
            "http://packages.example/",
            "http://localhost:8000/",
            "http://10.0.0.1/",
            "ftp://127.0.0.1/",
            "file:///etc",
            "https://user:secret@packages.example/",
            "https://packages.example/?key=1",
            "",
        ] {
            assert!(shown(refused).is_err(), "{refused}");
        }
        assert!(!shown("https://user:secret@packages.example/").unwrap_err().contains("secret"));
    }

    #[test]
    fn only_an_address_written_as_a_number_is_allowed() {
        let opened = |text: &str| text.parse::<Place>().unwrap().named_address().map(|net| net.to_string());
        assert_eq!(opened("http://127.0.0.1:8000").as_deref(), Some("127.0.0.1/32"));
        assert_eq!(opened("https://10.1.2.3/").as_deref(), Some("10.1.2.3/32"));
        assert_eq!(opened("https://packages.example/"), None);
    }
}
