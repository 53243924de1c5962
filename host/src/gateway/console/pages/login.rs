//! Logging in with a key or with a link, and logging out.

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, extract::Request};
use http::{HeaderValue, StatusCode, header};
use monstrum_core::console_sessions::{ConsoleError, NewSession};
use monstrum_types::RequestId;
use serde::Deserialize;

use crate::gateway::console::Console;
use crate::gateway::console::form::Fields;
use crate::gateway::console::page::{self, Frame};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::{Browser, LANGUAGE_COOKIE, THEME_COOKIE};
use crate::gateway::console::words::Words;
use std::sync::Arc;

/// The field with the path to which a browser returns after it logged in.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Next {
    #[serde(default)]
    next: String,
}

#[derive(Template)]
#[template(path = "console/login.html")]
struct LoginPage {
    frame: Frame,
    next: String,
    /// Why the last attempt failed.
    error: String,
    /// Whether a key may be sent over this connection.
    is_private: bool,
    host: Text,
}

#[derive(Template)]
#[template(path = "console/enter.html")]
struct EnterPage {
    frame: Frame,
    action: String,
    key_name: Text,
    key_kind: String,
}

/// Returns the path to which a browser is sent back. Only a path of the console is followed.
pub(in crate::gateway::console) fn safe_next(next: &str) -> &str {
    let is_console = next == "/console" || next.starts_with("/console/");
    let is_plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\') && !next.contains("//");
    if is_console && is_plain && !next.starts_with("/console/login") { next } else { "/console" }
}

/// Redirects a browser without a session to the login page, which leads back to `path`.
pub(in crate::gateway::console) fn over(path: &str) -> Response {
    page::see_other(&crate::gateway::console::client::with_query("/console/login", &[("next", safe_next(path))]))
}

/// Shows the login page.
pub(in crate::gateway::console) async fn show(
    State(console): State<Console>,
    Extension(browser): Extension<Browser>,
    Query(Next { next }): Query<Next>,
) -> Response {
    if browser.session.is_some() {
        return page::see_other(safe_next(&next));
    }
    form(&console, &browser, &next, StatusCode::OK, "")
}

fn form(console: &Console, browser: &Browser, next: &str, status: StatusCode, error: &str) -> Response {
    let words = Words::of(browser.look.language);
    let frame = browser.frame(console, words.text("login.title"));
    let page = LoginPage {
        next: safe_next(next).to_owned(),
        error: error.to_owned(),
        is_private: browser.called_as.is_private(),
        host: browser.called_as.authority.as_str().into(),
        frame,
    };
    page::render_as(status, &page)
}

/// Logs in with a key.
pub(in crate::gateway::console) async fn log_in(
    State(console): State<Console>,
    Extension(browser): Extension<Browser>,
    Extension(fields): Extension<Arc<Fields>>,
    Extension(request): Extension<RequestId>,
) -> Response {
    let next = fields.value("next");
    let words = Words::of(browser.look.language);
    if !browser.called_as.is_private() {
        return form(&console, &browser, next, StatusCode::FORBIDDEN, words.text("login.not_private"));
    }
    match console.app.console_sessions.open(request, fields.value("key").trim()).await {
        Ok(session) => entered(&browser, &session, safe_next(next)),
        Err(error) => {
            let (status, text) = told(&error);
            form(&console, &browser, next, status, words.text(text))
        }
    }
}

/// Returns the status and the words for an attempt to log in that failed.
fn told(error: &ConsoleError) -> (StatusCode, &'static str) {
    match error {
        ConsoleError::UnknownKey => (StatusCode::UNAUTHORIZED, "login.unknown_key"),
        ConsoleError::Kind(_) => (StatusCode::FORBIDDEN, "login.kind_refused"),
        ConsoleError::UnknownTicket => (StatusCode::GONE, "login.ticket_used"),
        ConsoleError::Busy => (StatusCode::TOO_MANY_REQUESTS, "login.too_many"),
        other => {
            tracing::error!(error = %other, "a log-in to the console failed");
            (StatusCode::SERVICE_UNAVAILABLE, "login.unavailable")
        }
    }
}

fn entered(browser: &Browser, session: &NewSession, next: &str) -> Response {
    let mut response = page::see_other(next);
    set_cookie(&mut response, browser.session_cookie(), session.token.expose(), browser.called_as.is_https, true);
    response
}

/// Shows who a link logs in. The link is not used up, because programs look at links as well.
pub(in crate::gateway::console) async fn ticket(
    State(console): State<Console>,
    Extension(browser): Extension<Browser>,
    Path(ticket): Path<String>,
    request: Request,
) -> Response {
    let words = Words::of(browser.look.language);
    let peeked = console.app.console_sessions.peek_ticket(&ticket).await;
    match peeked.and_then(|key| key.ok_or(ConsoleError::UnknownTicket)) {
        Ok(key) => {
            let frame = browser.frame(&console, words.text("login.enter_title"));
            let kind = words.known(&format!("kind.{}", key.kind.as_str())).unwrap_or_default().to_owned();
            let action = request.uri().path().to_owned();
            page::render(&EnterPage { frame, action, key_name: Text::from(&*key.key_name), key_kind: kind })
        }
        Err(error) => {
            let (status, text) = told(&error);
            form(&console, &browser, "", status, words.text(text))
        }
    }
}

/// Logs in with a link.
pub(in crate::gateway::console) async fn enter(
    State(console): State<Console>,
    Extension(browser): Extension<Browser>,
    Extension(request): Extension<RequestId>,
    Path(ticket): Path<String>,
) -> Response {
    let words = Words::of(browser.look.language);
    if !browser.called_as.is_private() {
        return form(&console, &browser, "", StatusCode::FORBIDDEN, words.text("login.not_private"));
    }
    match console.app.console_sessions.enter(request, &ticket).await {
        Ok(session) => entered(&browser, &session, "/console"),
        Err(error) => {
            let (status, text) = told(&error);
            form(&console, &browser, "", status, words.text(text))
        }
    }
}

/// Ends the session.
pub(in crate::gateway::console) async fn log_out(
    State(console): State<Console>,
    Extension(browser): Extension<Browser>,
) -> Response {
    if let Some((_, secret)) = &browser.session
        && let Err(error) = console.app.console_sessions.close(secret.expose()).await
    {
        tracing::error!(%error, "a session of the console cannot be ended");
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let mut response = page::see_other("/console/login");
    set_cookie(&mut response, browser.session_cookie(), "", browser.called_as.is_https, true);
    response
}

/// Keeps the theme and the language that a person chose.
pub(in crate::gateway::console) async fn look(
    Extension(browser): Extension<Browser>,
    Extension(fields): Extension<Arc<Fields>>,
) -> Response {
    let mut response = page::see_other(safe_next(fields.value("next")));
    let chosen = [
        (THEME_COOKIE, "theme", ["system", "light", "dark"].as_slice()),
        (LANGUAGE_COOKIE, "language", &["en-US", "zh-CN"]),
    ];
    for (cookie, field, known) in chosen {
        let value = fields.value(field);
        if known.contains(&value) {
            set_cookie(&mut response, cookie, value, browser.called_as.is_https, false);
        }
    }
    response
}

/// Sets a cookie. An empty value deletes it. A session's cookie ends with the browser; the cookies of the look are kept.
pub(in crate::gateway::console) fn set_cookie(
    response: &mut Response,
    name: &str,
    value: &str,
    is_https: bool,
    is_session: bool,
) {
    let secure = if is_https { "; Secure" } else { "" };
    let age = match (value.is_empty(), is_session) {
        (true, _) => "; Max-Age=0",
        (false, true) => "",
        (false, false) => "; Max-Age=31536000",
    };
    let cookie = format!("{name}={value}; Path=/; HttpOnly; SameSite=Lax{age}{secure}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_only_returns_to_the_console() {
        for good in ["/console", "/console/w/a/bots?q=1", "/console/w/a%2Fb"] {
            assert_eq!(safe_next(good), good);
        }
        for bad in [
            "",
            "/",
            "//evil",
            "/\\evil",
            "https://evil",
            "/console//evil",
            "/console\\evil",
            "/consolevil",
            "/api/bots",
            "/console/a b",
            "/console/\u{0}",
            "/console/login?next=/console",
        ] {
            assert_eq!(safe_next(bad), "/console", "{bad}");
        }
    }
}
