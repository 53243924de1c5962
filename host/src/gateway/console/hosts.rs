//! Which host names a browser may call the console by, and which requests that change something come from its pages.
//!
//! A page of another site can send requests to this server under a name of its own (DNS rebinding), or with the cookies
//! of the console. So the name that the browser calls the server by must be a known one, and a browser must say that a
//! request comes from a page of this origin.

use http::{HeaderMap, Uri};
use url::Url;

use crate::config::McpHost;
use crate::gateway::http::headers::{host_of, is_loopback};
use crate::gateway::http::state::ConsoleOptions;

/// The names of this server.
pub(super) struct Hosts {
    names: Vec<McpHost>,
    public_url: Option<Url>,
}

/// How a browser calls this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CalledAs {
    /// The name with its port, as the browser sent it.
    pub(super) authority: String,
    /// Whether the browser reaches the server by https.
    pub(super) is_https: bool,
    /// Whether the name is one of this machine's own.
    pub(super) is_loopback: bool,
}

/// Returns whether a page of another site makes a request that changes nothing, such as a link to a page. Browsers that
/// do not name the site are trusted, because a person may open a page from everywhere.
pub(super) fn is_from_other_site(headers: &HeaderMap) -> bool {
    headers.get_all("sec-fetch-site").iter().any(|site| site == "cross-site" || site == "same-site")
}

impl CalledAs {
    /// Returns whether a key may be sent: over https, or without a network between.
    pub(super) fn is_private(&self) -> bool {
        self.is_https || self.is_loopback
    }

    fn origin(&self) -> String {
        let scheme = if self.is_https { "https" } else { "http" };
        format!("{scheme}://{}", self.authority)
    }

    /// Returns whether a request that changes something comes from a page of this origin.
    pub(super) fn is_from_here(&self, headers: &HeaderMap) -> bool {
        let values =
            |name: &'static str| headers.get_all(name).iter().map(|value| value.as_bytes()).collect::<Vec<_>>();
        match values("sec-fetch-site").as_slice() {
            [] => values("origin") == [self.origin().as_bytes()],
            site => site == [b"same-origin"],
        }
    }
}

impl Hosts {
    /// Returns the names that the settings of the console contain.
    pub(super) fn of(options: &ConsoleOptions) -> Hosts {
        Hosts {
            names: options.hosts.clone(),
            public_url: options.public_url.as_ref().map(|public| public.url().clone()),
        }
    }

    /// Returns how the browser calls this server, or `None` for an unknown name.
    pub(super) fn called_as(&self, uri: &Uri, headers: &HeaderMap) -> Option<CalledAs> {
        let authority = host_of(uri, headers)?;
        let (name, port) = (authority.host(), authority.port_u16());
        let written = port.map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"));
        if name.is_empty() || written != authority.as_str() {
            return None;
        }
        let is_public =
            self.public_url.as_ref().and_then(Url::host_str).is_some_and(|own| own.eq_ignore_ascii_case(name));
        let is_https = is_public && self.public_url.as_ref().is_some_and(|url| url.scheme() == "https");
        let is_loopback = is_loopback(name);
        let is_known = is_public || is_loopback || self.names.iter().any(|known| known.matches(name, port));
        is_known.then_some(CalledAs { authority: written, is_https, is_loopback })
    }
}

#[cfg(test)]
mod tests {
    use http::header;

    use super::*;

    fn hosts() -> Hosts {
        let public_url = Some("https://monstrum.example/".parse().unwrap());
        Hosts { names: vec!["ops.internal".parse().unwrap()], public_url }
    }

    fn called(host: &str) -> Option<CalledAs> {
        let headers = HeaderMap::from_iter([(header::HOST, host.parse().unwrap())]);
        hosts().called_as(&Uri::from_static("/console"), &headers)
    }

    #[test]
    fn known_names_are_accepted_under_any_port() {
        for host in ["localhost", "localhost:9", "LOCALHOST:8080", "127.0.0.1:1", "127.9.9.9", "[::1]:5", "[::1]"] {
            let called = called(host).unwrap_or_else(|| panic!("{host}"));
            assert!(called.is_loopback && !called.is_https && called.is_private(), "{host}");
        }
        let public = called("Monstrum.example").unwrap();
        assert!(public.is_https && public.is_private() && !public.is_loopback);
        let named = called("ops.internal:8080").unwrap();
        assert!(!named.is_private());
    }

    #[test]
    fn other_names_are_refused() {
        let hosts = [
            "evil.example",
            "localhost.evil.example",
            "192.168.1.4",
            "",
            ":80",
            "user@localhost",
            "localhost:x",
            "monstrum.example.evil.example",
            "[::2]:80",
            "0.0.0.0",
        ];
        for host in hosts {
            assert_eq!(called(host), None, "{host}");
        }
        let mut two = HeaderMap::from_iter([(header::HOST, "localhost".parse().unwrap())]);
        two.append(header::HOST, "evil.example".parse().unwrap());
        assert_eq!(super::tests::hosts().called_as(&Uri::from_static("/"), &two), None);
    }

    #[test]
    fn a_change_comes_from_a_page_of_this_origin() {
        let called = called("localhost:8080").unwrap();
        let request = |lines: &[(&'static str, &'static str)]| {
            let lines = lines.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            HeaderMap::from_iter(lines)
        };
        for good in [request(&[("sec-fetch-site", "same-origin")]), request(&[("origin", "http://localhost:8080")])] {
            assert!(called.is_from_here(&good), "{good:?}");
        }
        for bad in [
            request(&[]),
            request(&[("sec-fetch-site", "cross-site"), ("origin", "http://localhost:8080")]),
            request(&[("sec-fetch-site", "same-site")]),
            request(&[("sec-fetch-site", "none")]),
            request(&[("origin", "null")]),
            request(&[("origin", "http://localhost:8081")]),
            request(&[("origin", "https://localhost:8080")]),
        ] {
            assert!(!called.is_from_here(&bad), "{bad:?}");
        }
    }
}
