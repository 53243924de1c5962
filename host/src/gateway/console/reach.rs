//! Addresses in the configuration of a resource to which the host does not connect. The host refuses them when a call
//! connects; this module says so when the resource is shown.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use monstrum_egress::is_allowed;
use serde_json::{Map, Value};
use url::{Host, Url};

use crate::gateway::console::text::Text;

/// A value of the configuration with an address that the resource does not open.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Closed {
    /// The name of the value.
    pub name: Text,
    /// The key of the words that say what is missing.
    pub word: &'static str,
    /// The id of the field that opens the address.
    pub field: &'static str,
}

/// Returns what the addresses of a configuration lack. A name is not resolved, so its addresses are not known.
pub(super) fn closed(config: &Map<String, Value>, allow_http: bool, opened: &[IpNet]) -> Vec<Closed> {
    let mut closed = Vec::new();
    for (name, value) in config {
        let Some(url) = value.as_str().and_then(|text| Url::parse(text).ok()) else { continue };
        let mut lacks = |word, field| closed.push(Closed { name: name.as_str().into(), word, field });
        if url.scheme() == "http" && !allow_http {
            lacks("resources.needs_http", "allow_http");
        }
        if matches!(url.scheme(), "http" | "https") && address(&url).is_some_and(|address| !is_allowed(address, opened))
        {
            lacks("resources.needs_address", "allow_addresses");
        }
    }
    closed
}

/// Returns the address in a URL. The name `localhost` is that of the loopback interface.
fn address(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Ipv4(address) => Some(address.into()),
        Host::Ipv6(address) => Some(address.into()),
        Host::Domain(name) => (name == "localhost").then_some(Ipv4Addr::LOCALHOST.into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_that_are_not_opened_are_told_with_their_field() {
        const BOTH: &[&str] = &["allow_http", "allow_addresses"];
        const CASES: [(&str, bool, &str, &[&str]); 8] = [
            ("http://127.0.0.1:9000/x", false, "", BOTH),
            ("http://localhost", false, "", BOTH),
            ("http://127.0.0.1", true, "127.0.0.0/8", &[]),
            ("https://[::1]/", false, "127.0.0.0/8", &["allow_addresses"]),
            ("https://10.1.2.3", false, "10.0.0.0/8", &[]),
            ("http://api.example.com", false, "", &["allow_http"]),
            ("https://api.example.com", false, "", &[]),
            ("no address", false, "", &[]),
        ];
        for (text, allow_http, opened, expected) in CASES {
            let config = json!({ "url": text, "number": 1 });
            let opened: Vec<IpNet> = opened.parse::<IpNet>().into_iter().collect();
            let closed = closed(config.as_object().unwrap(), allow_http, &opened);
            let fields: Vec<&str> = closed.iter().map(|closed| closed.field).collect();
            assert_eq!(fields, expected, "{text}");
        }
    }
}
