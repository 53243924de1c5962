//! Step 2: where a resource may connect to.

use ipnet::IpNet;
use monstrum_manifest::{InjectRule, OriginPattern};
use monstrum_types::{Failure, FailureCode};
use url::Url;

/// What the calls of one resource may reach.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// Where paths are appended to; its origin may always be reached.
    pub api_base: Option<Url>,
    /// Origins that may be reached besides that of `api_base`.
    pub egress: Vec<OriginPattern>,
    /// The inject rules that the manifest has now. The headers that they name are the host's, whether or not a
    /// request is authenticated.
    pub inject: Vec<InjectRule>,
    /// Who may get a credential by what manifest and configuration say now. A request to anybody else is one that did
    /// not ask to be authenticated, so that it neither needs a credential nor is held up by the state of one.
    pub audience: Vec<OriginPattern>,
    /// How many redirects the host follows.
    pub follow_redirects: u8,
    /// What the operator opened for this resource.
    pub network: Network,
}

/// What an operator opens for a resource besides the public internet by https.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Network {
    /// Ranges that may be connected to although they are not public.
    pub allow_addresses: Vec<IpNet>,
    /// Whether `http://` may be used at all, loopback included.
    pub allow_http: bool,
}

impl Scope {
    /// Whether a credential may go to `url` at all.
    pub(crate) fn may_authenticate(&self, url: &Url) -> bool {
        self.audience.iter().any(|origin| origin.matches(url))
    }
}

/// Refuses a URL that is outside of what the resource may reach.
pub(crate) fn check(scope: &Scope, url: &Url) -> Result<(), Failure> {
    if !permits(scope, url) {
        let origin = url.origin().ascii_serialization();
        return Err(denied(format!("`{origin}` is not among the origins that this resource may reach")));
    }
    if url.scheme() != "https" && !scope.network.allow_http {
        return Err(denied("this resource may not use http://, only https://".to_owned()));
    }
    Ok(())
}

fn permits(scope: &Scope, url: &Url) -> bool {
    let base = scope.api_base.as_ref().and_then(OriginPattern::of_url);
    base.iter().chain(&scope.egress).any(|origin| origin.matches(url))
}

fn denied(message: String) -> Failure {
    Failure::unsent(FailureCode::Denied, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(api_base: Option<&str>, egress: &[&str], allow_http: bool) -> Scope {
        Scope {
            api_base: api_base.map(|base| Url::parse(base).unwrap()),
            egress: egress.iter().map(|origin| origin.parse().unwrap()).collect(),
            network: Network { allow_http, ..Network::default() },
            ..Scope::default()
        }
    }

    #[test]
    fn only_listed_origins_pass() {
        let scope = scope(
            Some("https://api.example.com/v1"),
            &["https://*.up.example.com:8443", "https://files.example.com/public/", "http://plain.example.com"],
            false,
        );
        for (url, allowed) in [
            ("https://api.example.com/anything", true),
            ("https://api.example.com:443/", true),
            ("https://api.example.com:444/", false),
            ("http://api.example.com/", false),
            ("https://api.example.com.evil.test/", false),
            ("https://evil.test/api.example.com", false),
            ("https://api.example.com./", false),
            ("https://a.up.example.com:8443/", true),
            ("https://a.b.up.example.com:8443/", false),
            ("https://up.example.com:8443/", false),
            ("https://a.up.example.com/", false),
            ("https://files.example.com/public/x", true),
            ("https://files.example.com/publicity", false),
            ("https://files.example.com/public/..%2fprivate", false),
            // Listed, but http:// is closed.
            ("http://plain.example.com/", false),
        ] {
            assert_eq!(check(&scope, &Url::parse(url).unwrap()).is_ok(), allowed, "{url}");
        }
    }

    #[test]
    fn http_needs_the_operator_even_on_loopback() {
        let url = Url::parse("http://127.0.0.1:80/").unwrap();
        assert!(check(&scope(Some("http://127.0.0.1"), &[], false), &url).is_err());
        assert!(check(&scope(Some("http://127.0.0.1"), &[], true), &url).is_ok());
    }

    #[test]
    fn without_origins_nothing_passes() {
        assert!(check(&scope(None, &[], true), &Url::parse("https://example.com/").unwrap()).is_err());
    }
}
