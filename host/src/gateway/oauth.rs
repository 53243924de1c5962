//! OAuth: the routes with which an admin starts an authorization, and the two pages for a browser. The pages need no
//! API key: the URL of the first page contains a ticket, and the second page identifies the browser by its cookie.

pub(super) mod discovery;
mod page;
pub(super) mod providers;
pub(super) mod users;

use axum::Json;
use axum::extract::{FromRequestParts, Path};
use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use monstrum_api::credentials::CredentialMetadata;
use monstrum_api::oauth::{DeviceInput, DeviceProgress, DeviceStarted, Nothing, StartInput, Started};
use monstrum_core::app::App;
use monstrum_core::oauth::OauthError;
use monstrum_core::operations::{Admin, oauth};
use monstrum_types::{OauthFlowId, ResourceId, Secret};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::console;
use crate::gateway::http::answer::Answer;
use crate::gateway::http::extract::{Id, Ids, OptionalInput, Params};
use crate::gateway::http::headers::cookie;
use crate::gateway::http::problem::ProblemBody;
use crate::gateway::http::state::{Host, HttpState};
use users::ForUsers;

/// A request of a browser that calls this server by one of its names. Under another name, the cookie of an authorization
/// would belong to another site (DNS rebinding), so the request is refused.
pub(in crate::gateway) struct KnownHost;

impl FromRequestParts<HttpState> for KnownHost {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Self, Response> {
        let is_known = console::is_known_host(&state.console, &parts.uri, &parts.headers);
        is_known.then_some(KnownHost).ok_or_else(page::misdirected)
    }
}

/// The response of a provider through the browser (RFC 6749, section 4.1.2). Other parameters of the provider are
/// ignored.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(in crate::gateway) struct CallbackQuery {
    state: Option<String>,
    code: Option<String>,
    error: Option<String>,
    /// The issuer that sends the response (RFC 9207).
    iss: Option<String>,
}

/// Starts an authorization in a browser
///
/// The browser visits the OAuth provider of the resource. The server then stores the credential of the resource or, with
/// `user`, the credential of the user. A bot key of a bot that is bound to the resource can start an authorization for a
/// user; otherwise, an admin key is required. The link is valid for ten minutes and for one browser.
#[utoipa::path(post, path = "/api/resources/{id}/oauth/start", tag = "oauth", params(("id" = ResourceId, Path)),
    request_body = StartInput, responses((status = 200, body = Started)))]
pub(super) async fn start(
    app: Host,
    ForUsers { caller, id }: ForUsers,
    OptionalInput(input): OptionalInput<StartInput>,
) -> Answer<Started> {
    Ok(Json(oauth::start(&app, &caller, id, input).await?))
}

/// Redirects the browser to the OAuth provider
///
/// Only the browser that first opens the link can continue. The server rejects every other browser. For the authorization
/// of a user, the answer is a page that names the user and has a button.
#[utoipa::path(get, path = "/oauth/begin/{ticket}", tag = "oauth", params(("ticket" = String, Path)), security(()),
    responses((status = 200, description = "The page for a user", content_type = "text/html", body = String),
        (status = 303, description = "Redirect to the provider, with a cookie"),
        (status = "4XX", description = "An error page", content_type = "text/html", body = String)))]
pub(super) async fn begin(
    app: Host,
    _: KnownHost,
    Path(ticket): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    // A HEAD request only checks whether the page exists, so it does not start the authorization.
    if method == Method::HEAD {
        return page::waiting();
    }
    let begun = async {
        let flow = app.oauth.of_ticket(&ticket).await?;
        let (name, is_secure) = (cookie_name(&app, flow.id), app.oauth.is_secure());
        let browser = cookie(&headers, &name);
        if flow.subject.is_some() {
            return Ok(page::consent(&app.oauth.consent(&flow, browser).await?, &name, is_secure));
        }
        Ok(page::onward(&app.oauth.begin(&flow, browser).await?, &name, is_secure))
    };
    begun.await.unwrap_or_else(|error| page::failure(&error, None))
}

/// Completes an authorization when the OAuth provider redirects the browser back
#[utoipa::path(get, path = "/api/oauth/callback", tag = "oauth", params(CallbackQuery), security(()),
    responses((status = 200, description = "The credential is stored", content_type = "text/html", body = String),
        (status = 303, description = "The credential of a user is stored; redirect to `return_to`"),
        (status = "4XX", description = "An error page", content_type = "text/html", body = String)))]
pub(super) async fn callback(app: Host, Params(query): Params<CallbackQuery>, headers: HeaderMap) -> Response {
    let flow = match app.oauth.of_state(query.state.as_deref().unwrap_or_default()).await {
        Ok(flow) => flow,
        Err(error) => return page::failure(&error, None),
    };
    // The browser of a user is redirected. The last page of another authorization has a link to the console.
    let return_to = flow.return_to.clone();
    let (redirect, link) = if flow.subject.is_some() { (return_to, None) } else { (None, return_to) };
    let finished = async {
        let code = match (query.error, query.code) {
            (None, Some(code)) => Ok(Secret::new(code)),
            (error, _) => Err(error.unwrap_or_else(|| "no_code".to_owned())),
        };
        let browser = cookie(&headers, &cookie_name(&app, flow.id)).map(str::to_owned);
        app.oauth.finish(flow, browser, code, query.iss).await
    };
    match (finished.await, redirect) {
        (Ok(()), Some(return_to)) => page::redirect(&return_to, None),
        (Ok(()), None) => page::success(link.as_deref()),
        (Err(error), _) => page::failure(&error, link.as_deref()),
    }
}

/// Starts an authorization with a code that a person enters on another device
#[utoipa::path(post, path = "/api/resources/{id}/oauth/device", tag = "oauth", params(("id" = ResourceId, Path)),
    request_body = DeviceInput, responses((status = 200, body = DeviceStarted)))]
pub(super) async fn device(
    app: Host,
    caller: Admin,
    Id(id): Id<ResourceId>,
    OptionalInput(input): OptionalInput<DeviceInput>,
) -> Answer<DeviceStarted> {
    Ok(Json(oauth::device(&app, &caller, id, input).await?))
}

/// Shows the progress of an authorization with a code
#[utoipa::path(get, path = "/api/resources/{id}/oauth/device/{flow_id}", tag = "oauth",
    params(("id" = ResourceId, Path), ("flow_id" = OauthFlowId, Path)),
    responses((status = 200, body = DeviceProgress)))]
pub(super) async fn show_device(
    app: Host,
    caller: Admin,
    Ids(id, flow_id): Ids<ResourceId, OauthFlowId>,
) -> Answer<DeviceProgress> {
    Ok(Json(oauth::show_device(&app, &caller, id, flow_id).await?))
}

/// Refreshes the credential of a resource
///
/// If this server has refreshed the credential within the last ten seconds, the credential does not change.
#[utoipa::path(post, path = "/api/resources/{id}/oauth/refresh", tag = "oauth", params(("id" = ResourceId, Path)),
    request_body = Nothing, responses((status = 200, body = CredentialMetadata),
        (status = 503, description = "The provider or the database is not reachable", body = ProblemBody)))]
pub(super) async fn refresh(
    app: Host,
    caller: Admin,
    Id(id): Id<ResourceId>,
    OptionalInput(Nothing {}): OptionalInput<Nothing>,
) -> Answer<CredentialMetadata> {
    Ok(Json(oauth::refresh(&app, &caller, id).await?))
}

/// Returns the name of an authorization's cookie. The name is unique, so that two authorizations can run in one
/// browser. With the prefix `__Host-`, browsers accept the cookie only from this host.
fn cookie_name(app: &App, flow: OauthFlowId) -> String {
    let prefix = if app.oauth.is_secure() { "__Host-" } else { "" };
    format!("{prefix}monstrum-oauth-{flow}")
}

/// Returns the status of the page that shows the error in a browser.
fn page_status(error: &OauthError) -> StatusCode {
    match error {
        OauthError::Token(_) => StatusCode::BAD_GATEWAY,
        OauthError::Store(_) | OauthError::Audit(_) => StatusCode::SERVICE_UNAVAILABLE,
        OauthError::Vault(_) => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::BAD_REQUEST,
    }
}
