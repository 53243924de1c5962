//! Step 1, second half: the method and the headers that a plugin may set, and the headers that only the host sets.

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use monstrum_manifest::InjectRule;
use monstrum_types::{Failure, FailureCode, HttpRequest};

use crate::limits::{REQUEST_BODY_BYTES_MAX, REQUEST_HEADER_BYTES_MAX, REQUEST_HEADERS_MAX};

/// Headers that could control the connection or a proxy, or fake the origin of a request.
const OWNED: &[&str] = &[
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "http2-settings",
    "upgrade",
    "te",
    "trailer",
    "expect",
    "accept-encoding",
    "forwarded",
];

/// The prefixes of further headers that only the host may set.
const OWNED_PREFIXES: &[&str] = &["proxy-", "x-forwarded-"];

/// Headers that are rejected in requests with a credential. Cookies would be a second credential. A partial response
/// could contain only a part of a secret, which redaction would not find.
const OWNED_WITH_CREDENTIAL: &[&str] = &["cookie", "range", "if-range"];

/// Returns the method if it is allowed.
pub(crate) fn method(request: &HttpRequest) -> Result<Method, Failure> {
    match request.method.as_str() {
        "GET" => Ok(Method::GET),
        "POST" => Ok(Method::POST),
        "PUT" => Ok(Method::PUT),
        "PATCH" => Ok(Method::PATCH),
        "DELETE" => Ok(Method::DELETE),
        "HEAD" => Ok(Method::HEAD),
        _ => Err(invalid("the method is not supported; use GET, POST, PUT, PATCH, DELETE or HEAD")),
    }
}

/// Rejects a body that is too large.
pub(crate) fn check_body(request: &HttpRequest) -> Result<(), Failure> {
    match &request.body {
        Some(body) if body.len() > REQUEST_BODY_BYTES_MAX => Err(invalid("the body is larger than 10 MiB")),
        _ => Ok(()),
    }
}

/// Returns the plugin's headers if the plugin may set all of them. `authenticated` is true if the request gets a
/// credential.
pub(crate) fn build(request: &HttpRequest, authenticated: bool, inject: &[InjectRule]) -> Result<HeaderMap, Failure> {
    if request.headers.len() > REQUEST_HEADERS_MAX {
        return Err(invalid("the request has more than 100 headers"));
    }
    if request.headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > REQUEST_HEADER_BYTES_MAX {
        return Err(invalid("the headers are larger than 32 KiB"));
    }
    let mut headers = HeaderMap::with_capacity(request.headers.len() + 4);
    for (name, value) in &request.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid("a header name is malformed"))?;
        if is_owned(name.as_str(), authenticated) || is_injected(name.as_str(), inject) {
            return Err(Failure::unsent(FailureCode::Denied, format!("only the host may set the header `{name}`")));
        }
        let value = HeaderValue::from_bytes(value.as_bytes())
            .map_err(|_| invalid(&format!("the value of the header `{name}` is malformed")))?;
        headers.append(name, value);
    }
    Ok(headers)
}

/// Returns whether an inject rule sets the header `name`.
pub(crate) fn is_injected(name: &str, inject: &[InjectRule]) -> bool {
    inject.iter().filter_map(InjectRule::header_name).any(|injected| plain(injected) == plain(name))
}

fn is_owned(name: &str, authenticated: bool) -> bool {
    let name = plain(name);
    OWNED.contains(&name.as_str())
        || OWNED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || (authenticated && OWNED_WITH_CREDENTIAL.contains(&name.as_str()))
}

/// Returns the canonical form of a header name. Servers that pass headers as variables do not distinguish between `-`
/// and `_`.
fn plain(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

fn invalid(message: &str) -> Failure {
    Failure::unsent(FailureCode::Invalid, message)
}

#[cfg(test)]
mod tests {
    use monstrum_manifest::{BasicPair, BasicRule, HeaderRule};

    use super::*;

    fn code(headers: &[(&str, &str)], authenticated: bool, inject: &[InjectRule]) -> Option<FailureCode> {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let request = HttpRequest { headers, ..HttpRequest::default() };
        build(&request, authenticated, inject).err().map(|failure| failure.code)
    }

    #[test]
    fn headers_of_the_host_are_denied_in_all_spellings() {
        for name in [
            "Host",
            "Content-Length",
            "Transfer-Encoding",
            "Connection",
            "Keep-Alive",
            "HTTP2-Settings",
            "Upgrade",
            "TE",
            "Trailer",
            "Expect",
            "Accept-Encoding",
            "Proxy-Authorization",
            "Proxy-Connection",
            "Proxy-X",
            "Forwarded",
            "X-Forwarded-For",
            "X-Forwarded-Host",
            "X-Forwarded-Anything",
        ] {
            for name in [name.to_owned(), name.to_lowercase(), name.to_uppercase(), name.replace('-', "_")] {
                assert_eq!(code(&[(&name, "x")], false, &[]), Some(FailureCode::Denied), "{name}");
            }
        }
    }

    #[test]
    fn headers_of_inject_rules_are_denied_with_and_without_a_credential() {
        let header = InjectRule::Header(HeaderRule { header: "X-API-Key".into(), value: "{api_key}".into() });
        let pair = BasicPair { username: "{u}".into(), password: "{p}".into() };
        let rules = [header, InjectRule::Basic(BasicRule { basic: pair })];
        for authenticated in [true, false] {
            for name in ["x-api-key", "X-Api_Key", "Authorization", "AUTHORIZATION"] {
                assert_eq!(code(&[(name, "x")], authenticated, &rules), Some(FailureCode::Denied), "{name}");
            }
        }
        assert_eq!(code(&[("Authorization", "x")], false, &[]), None);
    }

    #[test]
    fn cookies_and_ranges_are_denied_only_with_a_credential() {
        for name in ["Cookie", "Range", "If-Range"] {
            assert_eq!(code(&[(name, "x")], true, &[]), Some(FailureCode::Denied), "{name}");
            assert_eq!(code(&[(name, "x")], false, &[]), None, "{name}");
        }
    }

    #[test]
    fn malformed_headers_are_invalid() {
        for (name, value) in [
            ("", "x"),
            ("a b", "x"),
            ("a:", "x"),
            (":authority", "x"),
            ("x\r\nHost", "x"),
            ("é", "x"),
            ("a", "x\r\ny"),
            ("a", "x\ny"),
            ("a", "\0"),
            ("a", "\u{7f}"),
        ] {
            assert_eq!(code(&[(name, value)], false, &[]), Some(FailureCode::Invalid), "{name:?}: {value:?}");
        }
        assert_eq!(code(&[("Accept", "a"), ("accept", "tab\t é")], false, &[]), None);
    }

    #[test]
    fn headers_are_limited_in_number_and_size() {
        let many = vec![("a", "b"); REQUEST_HEADERS_MAX];
        assert_eq!(code(&many, false, &[]), None);
        assert_eq!(code(&[many.as_slice(), &[("a", "b")]].concat(), false, &[]), Some(FailureCode::Invalid));
        let long = "x".repeat(REQUEST_HEADER_BYTES_MAX - 1);
        assert_eq!(code(&[("a", &long)], false, &[]), None);
        assert_eq!(code(&[("ab", &long)], false, &[]), Some(FailureCode::Invalid));
    }

    #[test]
    fn only_six_methods_are_allowed() {
        for (text, accepted) in [
            ("GET", true),
            ("POST", true),
            ("PUT", true),
            ("PATCH", true),
            ("DELETE", true),
            ("HEAD", true),
            ("get", false),
            ("CONNECT", false),
            ("OPTIONS", false),
            ("TRACE", false),
            ("", false),
            ("GET ", false),
        ] {
            let request = HttpRequest { method: text.to_owned(), ..HttpRequest::default() };
            assert_eq!(method(&request).is_ok(), accepted, "{text}");
        }
    }

    #[test]
    fn a_body_over_the_limit_is_invalid() {
        let with = |length| HttpRequest { body: Some(vec![0; length]), ..HttpRequest::default() };
        assert!(check_body(&with(REQUEST_BODY_BYTES_MAX)).is_ok());
        assert_eq!(check_body(&with(REQUEST_BODY_BYTES_MAX + 1)).unwrap_err().code, FailureCode::Invalid);
    }
}
