//! Step 2: the origins that a resource may connect to.

use ipnet::IpNet;
use monstrum_manifest::{InjectRule, OriginPattern};
use monstrum_types::{Failure, FailureCode};
use url::Url;

/// The destinations that the calls of one resource may connect to.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// The base URL, to which paths are appended. Its origin is always allowed.
    pub api_base: Option<Url>,
    /// Further allowed origins.
    pub egress: Vec<OriginPattern>,
    /// The current inject rules of the manifest. A plugin may not set the headers that these rules set, even in
    /// requests without a credential.
    pub inject: Vec<InjectRule>,
    /// The current audience of the manifest and the configuration. A request to any other origin is sent without a
    /// credential, so the state of the credential does not affect the request.
    pub audience: Vec<OriginPattern>,
    /// The maximum number of redirects that the host follows.
    pub follow_redirects: u8,
    /// The network access that the operator allows for this resource.
    pub network: Network,
}

/// The network access that an operator allows for a resource, in addition to https to the public internet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Network {
    /// Allowed address ranges outside the public internet.
    pub allow_addresses: Vec<IpNet>,
    /// Whether `http://` is allowed. If false, `http://` is rejected even for loopback addresses.
    pub allow_http: bool,
}

impl Scope {
    /// Returns whether a credential may be sent to `url`.
    pub(crate) fn may_authenticate(&self, url: &Url) -> bool {
        self.audience.iter().any(|origin| origin.matches(url))
    }
}

/// Rejects a URL that the resource may not connect to.
pub(crate) fn check(scope: &Scope, url: &Url) -> Result<(), Failure> {
    if !permits(scope, url) {
        let origin = url.origin().ascii_serialization();
        return Err(denied(format!("this resource may not connect to the origin `{origin}`")));
    }
    if url.scheme() != "https" && !scope.network.allow_http {
        return Err(denied("this resource may use only https:// URLs".to_owned()));
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
    fn only_listed_origins_are_allowed() {
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
            // The origin is listed, but http:// is not allowed.
            ("http://plain.example.com/", false),
        ] {
            assert_eq!(check(&scope, &Url::parse(url).unwrap()).is_ok(), allowed, "{url}");
        }
    }

    #[test]
    fn http_must_be_allowed_even_on_loopback() {
        let url = Url::parse("http://127.0.0.1:80/").unwrap();
        assert!(check(&scope(Some("http://127.0.0.1"), &[], false), &url).is_err());
        assert!(check(&scope(Some("http://127.0.0.1"), &[], true), &url).is_ok());
    }

    #[test]
    fn without_origins_nothing_is_allowed() {
        assert!(check(&scope(None, &[], true), &Url::parse("https://example.com/").unwrap()).is_err());
    }
}
