//! Origin patterns: the servers that a plugin may connect to, and the servers that may receive a credential.
//!
//! Patterns are parsed strictly, because a lenient parser could allow a credential to be sent to the wrong server: an
//! origin has exactly one spelling, and a wildcard matches exactly one label under a registered domain.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use url::{Host, Url};

/// A pattern such as `https://api.example.com` or `https://*.example.com:8443/v1/`: scheme, host (exact, or `*.` for
/// exactly one label), port (by default the scheme's port) and an optional path prefix that ends at a `/` boundary.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct OriginPattern {
    scheme: String,
    wildcard: bool,
    /// The host without `*.`, in lower case and IDNA-encoded. IPv6 addresses keep their brackets.
    host: String,
    port: u16,
    /// The path prefix, which is empty or starts with `/`.
    path_prefix: String,
}

/// The error for text that is not a valid origin pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an origin: {why}")]
pub struct InvalidOrigin {
    /// The rejected text, truncated to 200 characters.
    pub text: String,
    /// The reason.
    pub why: &'static str,
}

impl OriginPattern {
    /// Returns a pattern for exactly the origin of `url`. The pattern has no wildcard and no path. Returns `None` if
    /// the scheme is not http or https, or if no pattern can name the host.
    #[must_use]
    pub fn of_url(url: &Url) -> Option<OriginPattern> {
        let host = host_of(url).ok()?;
        Some(OriginPattern {
            scheme: url.scheme().to_owned(),
            wildcard: false,
            host,
            port: url.port_or_known_default()?,
            path_prefix: String::new(),
        })
    }

    /// Returns a pattern for the origin and the path of `url`, without its query. Returns `None` if no pattern can name
    /// them.
    #[must_use]
    pub fn of_endpoint(url: &Url) -> Option<OriginPattern> {
        let mut endpoint = url.clone();
        endpoint.set_query(None);
        endpoint.set_fragment(None);
        endpoint.as_str().parse().ok()
    }

    /// Returns whether `url` matches this pattern.
    #[must_use]
    pub fn matches(&self, url: &Url) -> bool {
        let Ok(host) = host_of(url) else { return false };
        self.scheme == url.scheme()
            && url.port_or_known_default() == Some(self.port)
            && self.takes_host(&host)
            && (self.path_prefix.is_empty() || (self.takes_path(url.path()) && !climbs(url.path())))
    }

    /// Returns whether all URLs that match `other` also match this pattern.
    #[must_use]
    pub fn covers(&self, other: &OriginPattern) -> bool {
        let host = if other.wildcard { self.wildcard && self.host == other.host } else { self.takes_host(&other.host) };
        host && self.scheme == other.scheme && self.port == other.port && self.takes_path(&other.path_prefix)
    }

    /// Returns the scheme, `http` or `https`.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Returns the host without `*.`, in the same form as `Url::host_str`.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    fn takes_host(&self, host: &str) -> bool {
        if !self.wildcard {
            return self.host == host;
        }
        let label = host.strip_suffix(self.host.as_str()).and_then(|rest| rest.strip_suffix('.'));
        label.is_some_and(|label| !label.is_empty() && !label.contains('.'))
    }

    fn takes_path(&self, path: &str) -> bool {
        path.strip_prefix(self.path_prefix.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || self.path_prefix.ends_with('/'))
            || self.path_prefix.is_empty()
    }
}

/// Returns the host of an http or https URL in the canonical spelling of patterns.
fn host_of(url: &Url) -> Result<String, &'static str> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err("the scheme must be http or https");
    }
    match url.host() {
        None => Err("the host is missing"),
        Some(Host::Domain(name)) if name.ends_with('.') => Err("the host must not end with a dot"),
        Some(Host::Domain(name)) if name.starts_with('.') || name.contains("..") => Err("the host has an empty label"),
        Some(Host::Domain(name)) if name.contains('*') => {
            Err("`*` is only allowed as the whole first label of the host")
        }
        Some(host) => Ok(host.to_string()),
    }
}

/// Returns whether `path` contains `..` after a server decodes its escapes. Such a path could lead outside a path
/// prefix, so no pattern with a path prefix matches the path.
fn climbs(path: &str) -> bool {
    // A server behind a proxy may receive text that was decoded more than once. Paths with more levels of escapes are
    // rejected.
    const DECODINGS_MAX: usize = 4;
    let mut bytes = path.as_bytes().to_vec();
    for _ in 0..DECODINGS_MAX {
        let steps = bytes.split(|byte| matches!(byte, b'/' | b'\\'));
        // Some servers truncate a segment at `;`, so `..;x` counts as `..`.
        if steps.map(|step| step.split(|byte| *byte == b';').next().unwrap_or(step)).any(|step| step == b"..") {
            return true;
        }
        let decoded = decode_once(&bytes);
        if decoded == bytes {
            return false;
        }
        bytes = decoded;
    }
    true
}

fn decode_once(bytes: &[u8]) -> Vec<u8> {
    let digit = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match (bytes[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(u8::try_from(high * 16 + low).unwrap_or(b'%'));
                at += 3;
            }
            (byte, _, _) => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    decoded
}

impl FromStr for OriginPattern {
    type Err = InvalidOrigin;

    fn from_str(text: &str) -> Result<Self, InvalidOrigin> {
        parse(text).map_err(|why| InvalidOrigin { text: crate::error::cut(text, 200), why })
    }
}

fn parse(text: &str) -> Result<OriginPattern, &'static str> {
    // The URL parser would silently drop or convert these characters.
    if text.chars().any(|c| c.is_control() || c.is_whitespace() || c == '\\') {
        return Err("it must not contain spaces, control characters or backslashes");
    }
    let (scheme, rest) = text.split_once("://").ok_or("expected an origin such as https://api.example.com")?;
    let (wildcard, rest) = rest.strip_prefix("*.").map_or((false, rest), |rest| (true, rest));
    if rest.is_empty() || rest.starts_with('/') {
        return Err("the host is missing");
    }
    if rest.contains('*') {
        return Err("`*` is only allowed as the whole first label of the host");
    }
    let url = Url::parse(&format!("{scheme}://{rest}")).map_err(|_| "it is not a valid URL")?;
    if rest.contains('@') || !url.username().is_empty() || url.password().is_some() {
        return Err("it must not contain a user name or password");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("it must not have a query or a fragment");
    }
    let host = host_of(&url)?;
    if wildcard {
        match url.host() {
            Some(Host::Domain(name)) if is_public_suffix(name) => {
                return Err("a wildcard over a public suffix would match domains of other owners");
            }
            Some(Host::Domain(_)) => {}
            _ => return Err("a wildcard requires a domain name"),
        }
    }
    if climbs(url.path()) {
        return Err("the path must not contain `..`");
    }
    let path_prefix = if url.path() == "/" { String::new() } else { url.path().to_owned() };
    let port = url.port_or_known_default().ok_or("the port is missing")?;
    Ok(OriginPattern { scheme: url.scheme().to_owned(), wildcard, host, port, path_prefix })
}

/// Returns whether `name` is a public suffix, under which anyone may register names. Unknown top-level domains count as
/// public suffixes.
fn is_public_suffix(name: &str) -> bool {
    psl::suffix_str(name).is_none_or(|suffix| suffix == name)
}

impl fmt::Display for OriginPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.wildcard { "*." } else { "" };
        write!(f, "{}://{star}{}", self.scheme, self.host)?;
        let default_port = if self.scheme == "http" { 80 } else { 443 };
        if self.port != default_port {
            write!(f, ":{}", self.port)?;
        }
        f.write_str(&self.path_prefix)
    }
}

impl TryFrom<String> for OriginPattern {
    type Error = InvalidOrigin;

    fn try_from(text: String) -> Result<Self, InvalidOrigin> {
        text.parse()
    }
}

impl From<OriginPattern> for String {
    fn from(pattern: OriginPattern) -> String {
        pattern.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> OriginPattern {
        text.parse().unwrap()
    }

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn an_endpoint_includes_its_path() {
        let of = |text: &str| OriginPattern::of_endpoint(&url(text)).map(|pattern| pattern.to_string());
        assert_eq!(of("https://a.example/mcp/x?key=1#top").as_deref(), Some("https://a.example/mcp/x"));
        assert_eq!(of("https://a.example:8443").as_deref(), Some("https://a.example:8443"));
        assert_eq!(of("https://a.example/%2e%2e%2fadmin"), None);
        assert_eq!(of("ftp://a.example/"), None);
        let one = OriginPattern::of_endpoint(&url("https://a.example/mcp")).unwrap();
        assert!(one.matches(&url("https://a.example/mcp?a=1")) && !one.matches(&url("https://a.example/other")));
    }

    #[test]
    fn an_origin_has_one_canonical_text() {
        for (text, canonical) in [
            ("https://api.example.com", "https://api.example.com"),
            ("HTTPS://API.Example.com:443/", "https://api.example.com"),
            ("http://example.com:80", "http://example.com"),
            ("https://*.Example.com:8443/v1/", "https://*.example.com:8443/v1/"),
            ("https://bücher.example", "https://xn--bcher-kva.example"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://0x7f.1", "http://127.0.0.1"),
            ("https://[2001:DB8::1]:8443", "https://[2001:db8::1]:8443"),
            ("https://*.internal.corp", "https://*.internal.corp"),
        ] {
            assert_eq!(pattern(text).to_string(), canonical, "{text}");
            assert_eq!(pattern(canonical), pattern(text));
        }
    }

    #[test]
    fn invalid_origins_are_refused() {
        let whys: Vec<String> = [
            "",
            "api.example.com",
            "ftp://example.com",
            "javascript://example.com",
            "https://",
            "https:///example.com",
            "https://user@example.com",
            "https://user:pw@example.com",
            "https://@example.com",
            "https://example.com?x",
            "https://example.com#x",
            "https://exa mple.com",
            "https://example.com\n",
            "https:\\\\example.com",
            "https://example.com\\@evil.example",
            "https://example.com.",
            "https://a..example.com",
            "https://.example.com",
            "https://*",
            "https://*.",
            "https://*.com",
            "https://*.co.uk",
            "https://*.github.io",
            "https://*.localhost",
            "https://*.127.0.0.1",
            "https://*.[::1]",
            "https://*.*.example.com",
            "https://a.*.example.com",
            "https://a*.example.com",
            "https://*example.com",
            "https://%2a.example.com",
            "https://example.com/a*",
            "https://example.com/a/%2e%2e%2fb",
            "https://example.com:99999",
        ]
        .iter()
        .map(|text| format!("{text:?}: {}", text.parse::<OriginPattern>().unwrap_err().why))
        .collect();
        insta::assert_snapshot!(whys.join("\n"), @r###"
        "": expected an origin such as https://api.example.com
        "api.example.com": expected an origin such as https://api.example.com
        "ftp://example.com": the scheme must be http or https
        "javascript://example.com": the scheme must be http or https
        "https://": the host is missing
        "https:///example.com": the host is missing
        "https://user@example.com": it must not contain a user name or password
        "https://user:pw@example.com": it must not contain a user name or password
        "https://@example.com": it must not contain a user name or password
        "https://example.com?x": it must not have a query or a fragment
        "https://example.com#x": it must not have a query or a fragment
        "https://exa mple.com": it must not contain spaces, control characters or backslashes
        "https://example.com\n": it must not contain spaces, control characters or backslashes
        "https:\\\\example.com": it must not contain spaces, control characters or backslashes
        "https://example.com\\@evil.example": it must not contain spaces, control characters or backslashes
        "https://example.com.": the host must not end with a dot
        "https://a..example.com": the host has an empty label
        "https://.example.com": the host has an empty label
        "https://*": `*` is only allowed as the whole first label of the host
        "https://*.": the host is missing
        "https://*.com": a wildcard over a public suffix would match domains of other owners
        "https://*.co.uk": a wildcard over a public suffix would match domains of other owners
        "https://*.github.io": a wildcard over a public suffix would match domains of other owners
        "https://*.localhost": a wildcard over a public suffix would match domains of other owners
        "https://*.127.0.0.1": a wildcard requires a domain name
        "https://*.[::1]": a wildcard requires a domain name
        "https://*.*.example.com": `*` is only allowed as the whole first label of the host
        "https://a.*.example.com": `*` is only allowed as the whole first label of the host
        "https://a*.example.com": `*` is only allowed as the whole first label of the host
        "https://*example.com": `*` is only allowed as the whole first label of the host
        "https://%2a.example.com": `*` is only allowed as the whole first label of the host
        "https://example.com/a*": `*` is only allowed as the whole first label of the host
        "https://example.com/a/%2e%2e%2fb": the path must not contain `..`
        "https://example.com:99999": it is not a valid URL
        "###);
    }

    #[test]
    fn matching_compares_scheme_host_port_and_path() {
        for (text, inside, outside) in [
            (
                "https://api.example.com",
                vec!["https://api.example.com", "https://API.example.com:443/any?x#y"],
                vec![
                    "http://api.example.com",
                    "https://api.example.com:8443",
                    "https://api.example.com.evil.example",
                    "https://x.api.example.com",
                    "https://example.com",
                    "https://api.example.com./",
                    "ftp://api.example.com",
                    "https://evilapi.example.com",
                ],
            ),
            (
                "https://*.example.com",
                vec!["https://a.example.com/x"],
                vec!["https://example.com", "https://a.b.example.com", "https://.example.com", "https://xexample.com"],
            ),
            (
                "https://h.example/v1",
                vec!["https://h.example/v1", "https://h.example/v1/", "https://h.example/v1/a%2Fb"],
                vec![
                    "https://h.example/",
                    "https://h.example/v10",
                    "https://h.example/v1/../v2",
                    "https://h.example/v1/..%2fv2",
                    "https://h.example/v1/%2e%2e%2fv2",
                    "https://h.example/v1/%252e%252e/v2",
                    "https://h.example/v1/..%5cv2",
                    "https://h.example/v1/..;/v2",
                    "https://h.example/v1/%2525252525252e",
                    "https://h.example/V1",
                ],
            ),
            (
                "https://h.example/v1/",
                vec!["https://h.example/v1/", "https://h.example/v1/a"],
                vec!["https://h.example/v1", "https://h.example/v10/"],
            ),
        ] {
            for yes in inside {
                assert!(pattern(text).matches(&url(yes)), "{text} {yes}");
            }
            for no in outside {
                assert!(!Url::parse(no).is_ok_and(|url| pattern(text).matches(&url)), "{text} {no}");
            }
        }
    }

    #[test]
    fn a_pattern_covers_only_narrower_patterns() {
        for (wide, narrow, covers) in [
            ("https://a.example.com", "https://a.example.com", true),
            ("https://*.example.com", "https://a.example.com", true),
            ("https://*.example.com", "https://*.example.com", true),
            ("https://a.example.com", "https://*.example.com", false),
            ("https://*.example.com", "https://*.b.example.com", false),
            ("https://*.example.com", "https://example.com", false),
            ("https://h.example", "https://h.example/v1", true),
            ("https://h.example/v1", "https://h.example", false),
            ("https://h.example/v1", "https://h.example/v1/x", true),
            ("https://h.example/v1", "https://h.example/v10", false),
            ("https://h.example/v1/", "https://h.example/v1", false),
            ("https://h.example", "http://h.example", false),
            ("https://h.example", "https://h.example:8443", false),
        ] {
            assert_eq!(pattern(wide).covers(&pattern(narrow)), covers, "{wide} {narrow}");
        }
    }

    #[test]
    fn the_origin_of_a_url_is_exact() {
        assert_eq!(OriginPattern::of_url(&url("https://H.example:443/a/b?c")), Some(pattern("https://h.example")));
        assert_eq!(OriginPattern::of_url(&url("https://h.example./")), None);
        assert_eq!(OriginPattern::of_url(&url("https://*.example.com/")), None);
        assert_eq!(OriginPattern::of_url(&url("file:///etc/passwd")), None);
    }
}
