//! Pages that say what went wrong, what was kept, and what to do.

use askama::Template;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};

use crate::gateway::console::Console;
use crate::gateway::console::client::Failure;
use crate::gateway::console::page::{self, Frame};
use crate::gateway::console::pages::login;
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::{Browser, Visit};
use crate::gateway::console::words::Words;

/// The kind of the page that reads itself again.
const STARTING: &str = "starting";
/// The time after which a browser reads a page again.
const RELOAD_S: HeaderValue = HeaderValue::from_static("2");

#[derive(Template)]
#[template(path = "console/error.html")]
struct ErrorPage {
    frame: Frame,
    /// What happened, in one sentence.
    text: String,
    /// What the API said.
    detail: Text,
    /// What a person can do.
    advice: String,
    request_id: Text,
    faults: Vec<(Text, Text)>,
    /// The path of the page whose form was refused.
    back: Option<String>,
}

/// Returns the page of a failure.
pub(in crate::gateway::console) async fn page(console: &Console, browser: &Browser, failure: &Failure) -> Response {
    // The key of the session was rotated or deleted.
    if failure.status() == StatusCode::UNAUTHORIZED {
        return login::over(&browser.path);
    }
    let kind = match failure.status().as_u16() {
        403 => "forbidden",
        404 => "not_found",
        409 => "conflict",
        412 => "changed",
        422 => "invalid",
        503 => unavailable_kind(browser),
        504 => "no_answer",
        _ => "failed",
    };
    let refusal = failure.refusal();
    let faults = refusal.map(|refusal| refusal.errors.as_slice()).unwrap_or_default();
    let faults = faults.iter().map(|error| (error.path.as_str().into(), error.message.as_str().into())).collect();
    let (detail, request_id) = match refusal {
        Some(refusal) => (refusal.detail.as_str().into(), refusal.request_id.as_str().into()),
        None => (Text::default(), Text::default()),
    };
    let title = Words::of(browser.look.language).text(&format!("error.{kind}.title")).to_owned();
    // A part of the server that fails would fail for the menu too.
    let frame = match failure.status().is_client_error() {
        true => Visit::frame_of_error(console, browser, &title).await,
        false => None,
    };
    let frame = frame.unwrap_or_else(|| browser.frame(console, &title));
    build(frame, browser, failure.status(), kind, (detail, request_id, faults))
}

/// Returns the kind of an error that passes by itself. Only a page that was read is read again, because a form is not sent
/// twice.
fn unavailable_kind(browser: &Browser) -> &'static str {
    if browser.is_form { "unavailable" } else { STARTING }
}

type Told = (Text, Text, Vec<(Text, Text)>);

fn build(frame: Frame, browser: &Browser, status: StatusCode, kind: &str, told: Told) -> Response {
    let words = Words::of(browser.look.language);
    let (detail, request_id, faults) = told;
    let page = ErrorPage {
        frame,
        text: words.text(&format!("error.{kind}.text")).to_owned(),
        advice: words.text(&format!("error.{kind}.advice")).to_owned(),
        detail,
        request_id,
        faults,
        back: browser.came_from.clone(),
    };
    let mut response = page::render_as(status, &page);
    if kind == STARTING {
        response.headers_mut().insert(header::REFRESH, RELOAD_S);
    }
    response
}

fn plain(console: &Console, browser: &Browser, status: StatusCode, kind: &str) -> Response {
    alone(console, browser, status, kind, (Text::default(), Text::default(), Vec::new()))
}

/// Returns a page without the menu of the session.
fn alone(console: &Console, browser: &Browser, status: StatusCode, kind: &str, told: Told) -> Response {
    let frame = browser.frame(console, Words::of(browser.look.language).text(&format!("error.{kind}.title")));
    build(frame, browser, status, kind, told)
}

/// A request that changes something and does not come from a page of this console.
pub(in crate::gateway::console) fn foreign_form(console: &Console, browser: &Browser) -> Response {
    plain(console, browser, StatusCode::FORBIDDEN, "foreign")
}

/// A form whose token is not of this session.
pub(in crate::gateway::console) fn stale_form(console: &Console, browser: &Browser) -> Response {
    plain(console, browser, StatusCode::FORBIDDEN, "stale")
}

/// A form that exceeds the limit.
pub(in crate::gateway::console) fn too_large(console: &Console, browser: &Browser) -> Response {
    plain(console, browser, StatusCode::PAYLOAD_TOO_LARGE, "too_large")
}

/// A page that does not exist.
pub(in crate::gateway::console) async fn no_page() -> Failure {
    Failure::not_found()
}

/// A request under a name that is not one of this server. The answer shows nothing of the console.
pub(in crate::gateway::console) fn unknown_host() -> Response {
    let text = "This server does not serve its console under this host name. Use localhost or the host of --public-url, \
                or add the name to --console-hosts.\n";
    (StatusCode::MISDIRECTED_REQUEST, text).into_response()
}

/// The server is starting, or its database cannot be read, so nothing is known of the session.
pub(in crate::gateway::console) fn unavailable(console: &Console, browser: &Browser, detail: &str) -> Response {
    let told = (Text::from(detail), Text::default(), Vec::new());
    alone(console, browser, StatusCode::SERVICE_UNAVAILABLE, unavailable_kind(browser), told)
}
