//! The pages for browsers. These pages run no scripts, load nothing and cannot be framed. Browsers do not send the URL
//! of a page as a referrer, because the URL may contain a code.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};

use monstrum_core::oauth::{Begun, Consent, OauthError};
use monstrum_types::{Secret, is_invisible};

const POLICY: &str = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// The policy of a page with a button. The form leads to this server, which redirects to the provider; browsers check
/// both.
const POLICY_OF_FORM: &str = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'";
/// The lifetime of the cookie: the time limit of an authorization.
const COOKIE_LIFETIME_S: u32 = 600;

/// Redirects the browser to the provider and sets a cookie. When the provider sends the browser back, the cookie
/// identifies the browser.
pub(super) fn onward(begun: &Begun, cookie: &str, is_secure: bool) -> Response {
    redirect(begun.authorization_url.as_str(), Some(&set_cookie(cookie, &begun.browser, is_secure)))
}

/// Redirects the browser, and sets a cookie if there is one.
pub(super) fn redirect(location: &str, cookie: Option<&str>) -> Response {
    let mut response = page(StatusCode::SEE_OTHER, "Monstrum", "Redirecting.");
    let headers = response.headers_mut();
    let cookie = cookie.map(|cookie| (header::SET_COOKIE, cookie));
    for (name, value) in [(header::LOCATION, location)].into_iter().chain(cookie) {
        // Both values are ASCII: the URL comes from a URL parser, and the cookie consists of ASCII parts.
        headers.extend(HeaderValue::from_str(value).ok().map(|value| (name, value)));
    }
    response
}

/// Returns the value of `Set-Cookie` for the secret with which a browser is recognized.
pub(super) fn set_cookie(name: &str, browser: &Secret, is_secure: bool) -> String {
    let secure = if is_secure { "; Secure" } else { "" };
    let value = browser.expose();
    // SameSite is Lax, because the provider's redirect comes from another site. A form of another site is sent without
    // the cookie.
    format!("{name}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={COOKIE_LIFETIME_S}{secure}")
}

/// Returns the page on which a user confirms the authorization. Its form is sent to the URL of the page.
pub(super) fn consent(consent: &Consent, cookie: &str, is_secure: bool) -> Response {
    let Consent { workspace, resource, user, provider, browser } = consent;
    let rows = [
        ("Workspace", workspace.as_str()),
        ("Resource", resource.as_str()),
        ("App", user.app_id.as_str()),
        ("User", user.user_id.as_str()),
        ("Provider", provider.as_str()),
    ];
    let rows: String = rows
        .into_iter()
        .map(|(name, value)| format!("<dt>{name}</dt>\n<dd><bdi>{}</bdi></dd>\n", visible(value)))
        .collect();
    let body = format!(
        "<p>Bots will use your account at the provider for this user. Continue only if you are this user.</p>\n\
         <dl>\n{rows}</dl>\n<form method=\"post\">\n<button>Continue to the provider</button>\n</form>\n"
    );
    let mut response = document(StatusCode::OK, "Authorize a resource", &body);
    let headers = response.headers_mut();
    // An origin that could change the policy is left out. Some browsers then refuse the redirect after the form.
    let is_plain =
        provider.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, ':' | '/' | '.' | '-' | '[' | ']'));
    let policy = if is_plain { format!("{POLICY_OF_FORM} {provider}") } else { POLICY_OF_FORM.to_owned() };
    let cookie = set_cookie(cookie, browser, is_secure);
    for (name, value) in [(header::CONTENT_SECURITY_POLICY, policy), (header::SET_COOKIE, cookie)] {
        // Both values are ASCII.
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    }
    response
}

/// Returns the answer to a HEAD request, which does not open the page.
pub(super) fn waiting() -> Response {
    page(StatusCode::OK, "Monstrum", "Open this page in a browser to continue the authorization.")
}

/// Returns the answer to a request under a host name that is not one of this server.
pub(super) fn misdirected() -> Response {
    let text = "This server does not serve this page under this host name. Use localhost or the host of --public-url, or \
                add the name to --console-hosts.";
    page(StatusCode::MISDIRECTED_REQUEST, "Not authorized", text)
}

/// Returns the page of a completed authorization, with a link to a page of the console.
pub(super) fn success(link: Option<&str>) -> Response {
    let text = match link {
        Some(_) => "The credential is stored.",
        None => "The credential is stored. This window can be closed.",
    };
    last(StatusCode::OK, "Authorized", text, link)
}

/// Returns the page of a failed authorization, with the reason and a link to a page of the console.
pub(super) fn failure(error: &OauthError, link: Option<&str>) -> Response {
    let status = super::page_status(error);
    let text = match error {
        OauthError::Vault(_) | OauthError::Store(_) => {
            tracing::error!(%error, "an authorization failed");
            "The authorization failed because of an error on the server. The server's log has the cause. Start again."
                .to_owned()
        }
        told => told.to_string(),
    };
    last(status, "Not authorized", &text, link)
}

/// Returns the last page of an authorization. `link` is a path that was checked when the authorization was started.
fn last(status: StatusCode, title: &str, text: &str, link: Option<&str>) -> Response {
    let link = link.map(|path| format!("<p><a href=\"{}\">Back to the console</a></p>\n", escaped(path)));
    document(status, title, &format!("<p>{}</p>\n{}", escaped(text), link.unwrap_or_default()))
}

fn page(status: StatusCode, title: &str, text: &str) -> Response {
    document(status, title, &format!("<p>{}</p>\n", escaped(text)))
}

/// Returns a document. The body is HTML.
fn document(status: StatusCode, title: &str, body: &str) -> Response {
    let title = escaped(title);
    let html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{title}</title>\n<h1>{title}</h1>\n{body}"
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

/// Returns a text of another party as HTML, with invisible characters written out.
fn visible(text: &str) -> String {
    let visible = text.chars().map(|character| match is_invisible(character) {
        true => character.escape_unicode().to_string(),
        false => character.to_string(),
    });
    escaped(&visible.collect::<String>())
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
        assert_eq!(visible("a\u{202e}<"), "a\\u{202e}&lt;");
        assert_eq!(escaped("<img src=x onerror='a'>&\""), "&lt;img src=x onerror=&#39;a&#39;&gt;&amp;&quot;");
    }
}
