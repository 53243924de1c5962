//! Step 6: the request that follows a redirect.

use http::header::{AUTHORIZATION, COOKIE, LOCATION};
use http::{Method, StatusCode};
use monstrum_types::{Failure, FailureCode, HttpRequest};
use url::Url;

use crate::url::follow;

/// Returns the request that follows the redirect, or `None` if the response is not a redirect.
///
/// The new request must pass the same checks as a request of the plugin. A redirect to another origin clears its
/// authentication, and a later redirect back to the first origin does not restore it.
pub(crate) fn next(
    request: &HttpRequest,
    from: &Url,
    response: &reqwest::Response,
) -> Result<Option<HttpRequest>, Failure> {
    let status = response.status();
    let is_redirect = matches!(
        status,
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    );
    let Some(location) = response.headers().get(LOCATION).filter(|_| is_redirect) else { return Ok(None) };
    let location = std::str::from_utf8(location.as_bytes())
        .map_err(|_| Failure::sent(FailureCode::Protocol, "the redirect URL is malformed"))?;
    let to = follow(from, location)?;
    Ok(Some(following(request, from, &to, status)))
}

fn following(request: &HttpRequest, from: &Url, to: &Url, status: StatusCode) -> HttpRequest {
    let mut next = HttpRequest { url: to.as_str().to_owned(), query: Vec::new(), ..request.clone() };
    // Browsers use the same rules (Fetch standard, "HTTP-redirect fetch").
    let becomes_get = match status {
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => request.method == Method::POST.as_str(),
        StatusCode::SEE_OTHER => request.method != Method::GET.as_str() && request.method != Method::HEAD.as_str(),
        _ => false,
    };
    if becomes_get {
        next.method = Method::GET.as_str().to_owned();
        next.body = None;
        next.headers.retain(|(name, _)| !name.to_ascii_lowercase().starts_with("content-"));
    }
    if from.origin() != to.origin() {
        next.authenticate = false;
        let goes_along = |name: &str| {
            !name.eq_ignore_ascii_case(AUTHORIZATION.as_str()) && !name.eq_ignore_ascii_case(COOKIE.as_str())
        };
        next.headers.retain(|(name, _)| goes_along(name));
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    fn following_to(method: &str, status: u16, to: &str) -> HttpRequest {
        let header = |name: &str| (name.to_owned(), "x".to_owned());
        let request = HttpRequest {
            method: method.to_owned(),
            url: "/a".to_owned(),
            query: vec![header("q")],
            headers: vec![header("Accept"), header("Content-Type"), header("authorization")],
            body: Some(b"body".to_vec()),
            authenticate: true,
            ..HttpRequest::default()
        };
        let from = Url::parse("https://a.example/a?q=x").unwrap();
        following(&request, &from, &Url::parse(to).unwrap(), StatusCode::from_u16(status).unwrap())
    }

    #[test]
    fn methods_change_as_in_browsers() {
        for (method, status, then) in [
            ("POST", 301, "GET"),
            ("POST", 302, "GET"),
            ("POST", 303, "GET"),
            ("POST", 307, "POST"),
            ("POST", 308, "POST"),
            ("PUT", 301, "PUT"),
            ("PUT", 302, "PUT"),
            ("DELETE", 303, "GET"),
            ("HEAD", 303, "HEAD"),
            ("GET", 302, "GET"),
        ] {
            let next = following_to(method, status, "https://a.example/b");
            assert_eq!(next.method, then, "{method} {status}");
            assert_eq!(next.body.is_some(), method == then, "{method} {status}");
            assert_eq!(next.headers.iter().any(|(name, _)| name == "Content-Type"), method == then);
            assert!(next.query.is_empty());
        }
    }

    #[test]
    fn another_origin_does_not_get_the_credential() {
        for (to, same) in [
            ("https://a.example/b", true),
            ("https://a.example:443/b", true),
            ("https://a.example:444/b", false),
            ("http://a.example/b", false),
            ("https://b.example/b", false),
            ("https://sub.a.example/", false),
        ] {
            let next = following_to("GET", 302, to);
            assert_eq!(next.authenticate, same, "{to}");
            assert_eq!(next.headers.iter().any(|(name, _)| name == "authorization"), same, "{to}");
        }
    }
}
