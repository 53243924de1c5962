//! A request of a browser: how it calls the server, its session, and its look. One middleware checks all of it before a
//! page runs, so that no page can forget a check.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use monstrum_core::console_sessions::{self, Message, Session};
use monstrum_core::language::{Language, UiLanguage};
use monstrum_types::Secret;
use serde::Deserialize;
use serde_json::Value;

use crate::gateway::console::Console;
use crate::gateway::console::client::{Client, Conditions, Failure};
use crate::gateway::console::form::{FORM_BYTES_MAX, FORM_ID, Fields, TOKEN, Tokens, VERSION};
use crate::gateway::console::hosts::CalledAs;
use crate::gateway::console::page::{self, Frame, Inside};
use crate::gateway::console::pages::{device, error, live, login, run, task};
use crate::gateway::console::text::Text;
use crate::gateway::console::words::Words;
use crate::gateway::http::extract::{ConsoleKey, whole_body_of};
use crate::gateway::http::headers::cookie;

/// The headers of every answer. Scripts and styles only come from this server, and nothing may frame a page.
const HEADERS: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
         base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types fragment",
    ),
    (header::X_FRAME_OPTIONS, "DENY"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    // Without a referrer, browsers would send `Origin: null` with forms.
    (header::REFERRER_POLICY, "same-origin"),
];

/// The forms that need no session, and so have no token.
const WITHOUT_SESSION: [&str; 3] = ["/console/login", "/console/look", "/console/enter/"];

/// The cookies of the look. They hold no secret.
pub(super) const THEME_COOKIE: &str = "monstrum-theme";
pub(super) const LANGUAGE_COOKIE: &str = "monstrum-language";
/// The cookie with which a browser skips the demo, and its value.
pub(super) const DEMO_COOKIE: &str = "monstrum-demo";
pub(super) const SKIPPED: &str = "skipped";

/// The theme and the language of a browser, and whether it skips the demo.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub theme: &'static str,
    pub language: UiLanguage,
    /// Whether the first page of an empty server leaves out the demo.
    pub skips_demo: bool,
}

impl Look {
    fn of(headers: &HeaderMap) -> Look {
        let theme = match cookie(headers, THEME_COOKIE) {
            Some("light") => "light",
            Some("dark") => "dark",
            Some(_) | None => "system",
        };
        let accepted = || {
            let lines = headers.get_all(header::ACCEPT_LANGUAGE).iter().filter_map(|line| line.to_str().ok());
            Language::new(lines.collect::<Vec<_>>().join(",")).ui_language()
        };
        let language = match cookie(headers, LANGUAGE_COOKIE) {
            Some("en-US") => UiLanguage::English,
            Some("zh-CN") => UiLanguage::Chinese,
            Some(_) | None => accepted(),
        };
        Look { theme, language, skips_demo: cookie(headers, DEMO_COOKIE) == Some(SKIPPED) }
    }
}

/// What is known of the browser before its page runs.
#[derive(Clone)]
pub(super) struct Browser {
    pub called_as: CalledAs,
    pub look: Look,
    /// The path with its query.
    pub path: String,
    /// Whether the request sends a form.
    pub is_form: bool,
    /// The path of the console's page whose form the request sends, if the browser tells it.
    pub came_from: Option<String>,
    /// The session with the text of its cookie.
    pub session: Option<(Session, Secret)>,
}

impl Browser {
    /// Returns the name of the cookie with the session. Browsers accept the prefix only over https.
    pub(super) fn session_cookie(&self) -> &'static str {
        if self.called_as.is_https { "__Host-monstrum" } else { "monstrum" }
    }

    /// Returns a frame without a session.
    pub(super) fn frame(&self, console: &Console, title: &str) -> Frame {
        let words = Words::of(self.look.language);
        let assets = page::assets();
        Frame {
            words,
            lang: words.tag(),
            theme: self.look.theme,
            css: &assets.css,
            js: &assets.js,
            icon: &assets.icon,
            title: title.to_owned(),
            path: self.path.clone(),
            now: console.app.clock.now(),
            messages: Vec::new(),
            inside: None,
        }
    }
}

/// Checks a request, finds its session, runs its page, and renders what failed.
pub(super) async fn visit(State(console): State<Console>, request: Request, next: Next) -> Response {
    let mut response = match admitted(&console, request).await {
        Ok((request, browser)) => {
            let mut response = next.run(request).await;
            match response.extensions_mut().remove::<Failure>() {
                Some(failure) => error::page(&console, &browser, &failure).await,
                None => response,
            }
        }
        Err(refused) => refused,
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

async fn admitted(console: &Console, mut request: Request) -> Result<(Request, Browser), Response> {
    let Some(called_as) = console.hosts.called_as(request.uri(), request.headers()) else {
        return Err(error::unknown_host());
    };
    let look = Look::of(request.headers());
    let path = request.uri().path_and_query().map_or("/console", |path| path.as_str()).to_owned();
    let is_form = !matches!(*request.method(), Method::GET | Method::HEAD);
    let came_from = if is_form { page_before(request.headers()) } else { None };
    let mut browser = Browser { called_as, look, path, is_form, came_from, session: None };
    // The API answers when the plugins are loaded. A page does not wait for that.
    if !*console.app.scanned.borrow() {
        return Err(error::unavailable(console, &browser, ""));
    }
    let secret = cookie(request.headers(), browser.session_cookie()).map(|value| Secret::new(value.to_owned()));
    browser.session = match secret {
        Some(secret) => {
            // An open page that asks for news by itself does not keep its session alive.
            let asked = request.uri().path();
            let is_quiet = asked.ends_with(live::EVENTS)
                || device::is_state(asked)
                || task::is_state(asked)
                || run::is_quiet(asked);
            let visit = if is_quiet { console_sessions::Visit::Quiet } else { console_sessions::Visit::Page };
            match console.app.console_sessions.find(secret.expose(), visit).await {
                Ok(found) => found.map(|session| (session, secret)),
                Err(error) => {
                    tracing::error!(%error, "the sessions of the console cannot be read");
                    let detail = Words::of(look.language).text("error.no_database");
                    return Err(error::unavailable(console, &browser, detail));
                }
            }
        }
        None => None,
    };
    if is_form {
        request = checked_form(console, request, &browser).await?;
    }
    request.extensions_mut().insert(browser.clone());
    Ok((request, browser))
}

/// Returns the path of the page from which a browser comes, if it is a page of a workspace.
fn page_before(headers: &HeaderMap) -> Option<String> {
    let url: http::Uri = headers.get(header::REFERER)?.to_str().ok()?.parse().ok()?;
    let path = url.path_and_query()?.as_str();
    path.starts_with("/console/w/").then(|| path.to_owned())
}

/// Checks a request that changes something, and reads its form.
async fn checked_form(console: &Console, request: Request, browser: &Browser) -> Result<Request, Response> {
    if *request.method() != Method::POST {
        return Err(StatusCode::METHOD_NOT_ALLOWED.into_response());
    }
    if !browser.called_as.is_from_here(request.headers()) {
        return Err(error::foreign_form(console, browser));
    }
    let (mut parts, body) = request.into_parts();
    let action = parts.uri.path();
    let needs_session = !WITHOUT_SESSION
        .iter()
        .any(|path| if path.ends_with('/') { action.starts_with(path) } else { action == *path });
    if needs_session && browser.session.is_none() {
        return Err(login::over(&browser.path));
    }
    let bytes = whole_body_of(body, FORM_BYTES_MAX).await.map_err(|_| error::too_large(console, browser))?;
    let fields = Fields::parse(&bytes);
    if needs_session {
        let secret = browser.session.as_ref().map(|(_, secret)| secret.clone());
        let is_ours = secret.is_some_and(|secret| Tokens::new(secret).accepts(action, fields.value(TOKEN)));
        if !is_ours {
            return Err(error::stale_form(console, browser));
        }
    }
    parts.extensions.insert(Arc::new(fields));
    Ok(Request::from_parts(parts, Body::empty()))
}

impl IntoResponse for Failure {
    /// Hands the failure to the middleware, which knows the browser and renders the page.
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// What the API says of the key of the session.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Me {
    pub key_id: String,
    pub name: Text,
    pub kind: String,
    pub workspace: Text,
    pub workspace_id: String,
    may: Vec<String>,
}

/// A request for a page of a session. A request without a session is redirected to the login page.
pub(super) struct Visit {
    pub console: Console,
    pub browser: Browser,
    pub client: Client,
    pub me: Me,
    fields: Arc<Fields>,
    tokens: Tokens,
}

impl FromRequestParts<Console> for Visit {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, console: &Console) -> Result<Self, Response> {
        let browser = parts.extensions.get::<Browser>().cloned();
        let browser = browser.ok_or_else(|| StatusCode::INTERNAL_SERVER_ERROR.into_response())?;
        let fields = parts.extensions.get::<Arc<Fields>>().cloned().unwrap_or_default();
        Visit::of(console, &browser, fields).await
    }
}

impl Visit {
    /// Finds out what the key of the session may do in the workspace that the path of the request names.
    async fn of(console: &Console, browser: &Browser, fields: Arc<Fields>) -> Result<Visit, Response> {
        let Some((session, secret)) = browser.session.clone() else { return Err(login::over(&browser.path)) };
        let path = browser.path.split('?').next().unwrap_or_default();
        let named = path.strip_prefix("/console/w/").and_then(|rest| rest.split('/').next());
        let language = Words::of(browser.look.language).tag();
        let key = ConsoleKey::new(session.key_hash);
        let client = Client::new(console.api.clone(), key, named, language);
        let me = client.get::<Me>("/api/me").await.map_err(IntoResponse::into_response)?;
        let (console, browser) = (console.clone(), browser.clone());
        Ok(Visit { console, browser, client, me, fields, tokens: Tokens::new(secret) })
    }

    /// Returns a frame with the menu of the session for the page of an error, or `None` if the browser has no session or
    /// the key may not see the workspace.
    pub(super) async fn frame_of_error(console: &Console, browser: &Browser, title: &str) -> Option<Frame> {
        let visit = Visit::of(console, browser, Arc::default()).await.ok()?;
        Some(visit.frame("", title).await)
    }

    /// Returns whether the key may call an operation of the API.
    pub(super) fn may(&self, operation: &str) -> bool {
        self.me.may.iter().any(|known| known == operation)
    }

    pub(super) fn words(&self) -> &'static Words {
        Words::of(self.browser.look.language)
    }

    /// Returns the fields of the form.
    pub(super) fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Returns the conditions of a change, from the hidden fields of the form.
    pub(super) fn conditions(&self) -> Conditions<'_> {
        Conditions { if_match: Some(self.fields.value(VERSION)), idempotency_key: Some(self.fields.value(FORM_ID)) }
    }

    /// Returns the version of the object that the page of the form showed.
    pub(super) fn shown_version(&self) -> String {
        self.fields.value(VERSION).to_owned()
    }

    /// Returns the path of a page of this workspace.
    pub(super) fn to(&self, rest: &str) -> String {
        format!("/console/w/{}/{rest}", self.me.workspace_id)
    }

    /// Returns the frame of a page.
    pub(super) async fn frame(&self, section: &str, title: &str) -> Frame {
        let messages = async {
            let secret = self.secret()?;
            self.console.app.console_sessions.take_messages(secret.expose()).await.ok()
        };
        let (messages, waiting, workspaces) = tokio::join!(messages, self.waiting(), self.workspaces());
        let messages = messages.unwrap_or_default();
        let inside = Inside {
            workspace: self.me.workspace.clone(),
            base: format!("/console/w/{}", self.me.workspace_id),
            workspaces,
            groups: crate::gateway::console::navigation::groups(self, section, waiting),
            key_name: self.me.name.clone(),
            key_kind: self.words().known(&format!("kind.{}", self.me.kind)).unwrap_or_default(),
            tokens: self.tokens.clone(),
        };
        Frame { messages, inside: Some(inside), ..self.browser.frame(&self.console, title) }
    }

    /// Returns the number of approvals that wait for a person.
    async fn waiting(&self) -> Option<u64> {
        #[derive(Deserialize)]
        struct List {
            items: Vec<Value>,
        }
        if !self.may("approvals_list") {
            return None;
        }
        let list = self.client.get::<List>("/api/approvals?status=pending&limit=100").await.ok()?;
        u64::try_from(list.items.len()).ok().filter(|count| *count > 0)
    }

    /// Returns the workspaces among which a root key chooses, each with the path of its pages.
    async fn workspaces(&self) -> Vec<(Text, String)> {
        #[derive(Deserialize)]
        struct Workspace {
            id: String,
            name: Text,
        }
        #[derive(Deserialize)]
        struct List {
            items: Vec<Workspace>,
        }
        if !self.may("workspaces_list") {
            return Vec::new();
        }
        let list = self.client.get::<List>("/api/workspaces?limit=200").await;
        let items = list.map(|list| list.items).unwrap_or_default();
        items.into_iter().map(|of| (of.name, format!("/console/w/{}", of.id))).collect()
    }

    /// Returns the text of the session's cookie.
    pub(super) fn secret(&self) -> Option<&Secret> {
        self.browser.session.as_ref().map(|(_, secret)| secret)
    }

    /// Redirects to a page after a change and shows `text` there.
    pub(super) async fn done(&self, text: String, path: &str) -> Response {
        self.say(Message { is_error: false, text }).await;
        page::see_other(path)
    }

    /// Redirects to a page and shows there that something was refused.
    pub(super) async fn refused(&self, text: String, path: &str) -> Response {
        self.say(Message { is_error: true, text }).await;
        page::see_other(path)
    }

    async fn say(&self, message: Message) {
        let Some(secret) = self.secret() else { return };
        if let Err(error) = self.console.app.console_sessions.put_message(secret.expose(), message).await {
            tracing::warn!(%error, "a message of the console cannot be stored");
        }
    }
}
