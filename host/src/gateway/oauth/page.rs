//! The pages for browsers. These pages run no scripts, load nothing and cannot be framed. Browsers do not send the URL
//! of a page as a referrer, because the URL may contain a code.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};

use monstrum_core::oauth::{Begun, OauthError};

const POLICY: &str = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// The lifetime of the cookie: the time limit of an authorization.
const COOKIE_LIFETIME_S: u32 = 600;

/// Redirects the browser to the provider and sets a cookie. When the provider sends the browser back, the cookie
/// identifies the browser.
pub(super) fn onward(begun: &Begun, cookie: &str, is_secure: bool) -> Response {
    let secure = if is_secure { "; Secure" } else { "" };
    let value = begun.browser.expose();
    // SameSite is Lax, because the provider's redirect comes from another site.
    let cookie = format!("{cookie}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={COOKIE_LIFETIME_S}{secure}");
    let mut response = page(StatusCode::SEE_OTHER, "Monstrum", "Redirecting to the provider.");
    let headers = response.headers_mut();
    for (name, value) in [(header::LOCATION, begun.authorization_url.as_str()), (header::SET_COOKIE, &cookie)] {
        // Both values are ASCII: the URL comes from a URL parser, and the cookie consists of ASCII parts.
        headers.extend(HeaderValue::from_str(value).ok().map(|value| (name, value)));
    }
    response
}

/// Returns the answer to a HEAD request, which does not open the page.
pub(super) fn waiting() -> Response {
    page(StatusCode::OK, "Monstrum", "Open this page in a browser to continue the authorization.")
}

/// Returns the page of a completed authorization.
pub(super) fn success() -> Response {
    page(StatusCode::OK, "Authorized", "The credential is stored. This window can be closed.")
}

/// Returns the page of a failed authorization, with the reason.
pub(super) fn failure(error: &OauthError) -> Response {
    let status = super::page_status(error);
    let text = match error {
        OauthError::Vault(_) | OauthError::Store(_) => {
            tracing::error!(%error, "an authorization failed");
            "The authorization failed because of an error on the server. The server's log has the cause. Start again."
                .to_owned()
        }
        told => told.to_string(),
    };
    page(status, "Not authorized", &text)
}

fn page(status: StatusCode, title: &str, text: &str) -> Response {
    let (title, text) = (escaped(title), escaped(text));
    let html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{title}</title>\n<h1>{title}</h1>\n<p>{text}</p>\n"
    );
    let mut response = Response::new(Body::from(html));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    response
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_providers_words_are_text() {
        assert_eq!(escaped("<img src=x onerror='a'>&\""), "&lt;img src=x onerror=&#39;a&#39;&gt;&amp;&quot;");
    }
}
