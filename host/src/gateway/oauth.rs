//! OAuth: what an admin starts, and the two pages that a browser sees. The pages have no key: the address of the first
//! is the ticket, and the second knows the browser by its cookie.

mod page;
pub mod providers;

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::Response;
use http::{HeaderMap, Method, StatusCode, header};
use monstrum_egress::{CredentialSource as _, CredentialState};
use monstrum_store::{FlowStatus, OauthFlowRow};
use monstrum_types::{OauthFlowId, ResourceId, Secret, UtcMillis};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::gateway::changes::Change;
use crate::gateway::credentials::{CredentialMetadata, as_it_stands, credential_of, served};
use crate::gateway::extract::{Admin, Id, Ids, OptionalInput, Params};
use crate::gateway::problem::{Problem, ProblemBody};
use crate::gateway::resources::resource;
use monstrum_core::app::App;
use monstrum_core::oauth::OauthError;

/// Where an admin's browser begins.
#[derive(Serialize, ToSchema)]
pub struct Started {
    /// A page of this server, good for one browser. It leads on to the provider.
    pub authorization_url: String,
    pub expires_at: UtcMillis,
}

/// What a person needs to authorize by entering a code (RFC 8628).
#[derive(Serialize, ToSchema)]
pub struct DeviceStarted {
    pub id: OauthFlowId,
    pub user_code: String,
    pub verification_uri: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verification_uri_complete: Option<String>,
    /// Seconds.
    pub expires_in: i64,
    /// Seconds between two questions of this server to the provider; it asks by itself.
    pub interval: i64,
}

/// How an authorization by a code stands.
#[derive(Serialize, ToSchema)]
pub struct DeviceProgress {
    pub id: OauthFlowId,
    /// `pending`, `done` or `failed`.
    pub status: &'static str,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    pub expires_at: UtcMillis,
}

/// Nothing can be chosen yet.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// What a provider answers through the browser (RFC 6749, section 4.1.2). What else it says is of no use here.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct CallbackQuery {
    state: Option<String>,
    code: Option<String>,
    error: Option<String>,
    /// Who answers (RFC 9207).
    iss: Option<String>,
}

/// Starts an authorization in a browser
///
/// The browser is sent to the type's OAuth provider and comes back with the credential of the resource. The link is good
/// for ten minutes and one browser.
#[utoipa::path(post, path = "/api/resources/{id}/oauth/start", tag = "oauth", params(("id" = ResourceId, Path)),
    request_body = Nothing,
    responses((status = 200, body = Started), (status = "4XX", body = ProblemBody)))]
pub async fn start(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Id(id): Id<ResourceId>,
    OptionalInput(Nothing {}): OptionalInput<Nothing>,
) -> Result<Json<Started>, Problem> {
    let row = resource(&app, &caller, id).await?;
    let snapshot = app.policy.load();
    let started = app.oauth.start(served(&snapshot, &row)?, caller.key).await?;
    Ok(Json(Started { authorization_url: started.begin_url, expires_at: started.expires_at }))
}

/// The page with which a browser begins
///
/// It leads to the provider. Whoever opens it first goes on with it; in another browser it is refused.
#[utoipa::path(get, path = "/oauth/begin/{ticket}", tag = "oauth", params(("ticket" = String, Path)), security(()),
    responses((status = 303, description = "To the provider, with a cookie"),
        (status = "4XX", description = "What is wrong, as a page", content_type = "text/html", body = String)))]
pub async fn begin(
    State(app): State<Arc<App>>,
    Path(ticket): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    // Who only asks whether there is such a page is not the browser that it is for.
    if method == Method::HEAD {
        return page::waiting();
    }
    let begun = async {
        let flow = app.oauth.of_ticket(&ticket).await?;
        let name = cookie_name(&app, &flow);
        let begun = app.oauth.begin(&flow, cookie(&headers, &name)).await?;
        Ok((name, begun))
    };
    match begun.await {
        Ok((name, begun)) => page::onward(&begun, &name, app.oauth.is_secure()),
        Err(error) => page::failure(&error),
    }
}

/// Where a provider sends the browser back to
#[utoipa::path(get, path = "/api/oauth/callback", tag = "oauth", params(CallbackQuery), security(()),
    responses((status = 200, description = "The credential is stored", content_type = "text/html", body = String),
        (status = "4XX", description = "What is wrong, as a page", content_type = "text/html", body = String)))]
pub async fn callback(
    State(app): State<Arc<App>>,
    Params(query): Params<CallbackQuery>,
    headers: HeaderMap,
) -> Response {
    let finished = async {
        let flow = app.oauth.of_state(query.state.as_deref().unwrap_or_default()).await?;
        let code = match (query.error, query.code) {
            (None, Some(code)) => Ok(Secret::new(code)),
            (error, _) => Err(error.unwrap_or_else(|| "no_code".to_owned())),
        };
        let browser = cookie(&headers, &cookie_name(&app, &flow)).map(str::to_owned);
        app.oauth.finish(flow, browser, code, query.iss).await
    };
    match finished.await {
        Ok(()) => page::success(),
        Err(error) => page::failure(&error),
    }
}

/// Starts an authorization by a code that a person enters elsewhere
#[utoipa::path(post, path = "/api/resources/{id}/oauth/device", tag = "oauth", params(("id" = ResourceId, Path)),
    request_body = Nothing,
    responses((status = 200, body = DeviceStarted), (status = "4XX", body = ProblemBody)))]
pub async fn device(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Id(id): Id<ResourceId>,
    OptionalInput(Nothing {}): OptionalInput<Nothing>,
) -> Result<Json<DeviceStarted>, Problem> {
    let row = resource(&app, &caller, id).await?;
    let snapshot = app.policy.load();
    let started = app.oauth.start_device(served(&snapshot, &row)?, caller.key).await?;
    Ok(Json(DeviceStarted {
        id: started.id,
        user_code: started.user_code,
        verification_uri: started.verification_uri,
        verification_uri_complete: started.verification_uri_complete,
        expires_in: started.expires_in_s,
        interval: started.interval_s,
    }))
}

/// Shows how an authorization by a code stands
#[utoipa::path(get, path = "/api/resources/{id}/oauth/device/{flow_id}", tag = "oauth",
    params(("id" = ResourceId, Path), ("flow_id" = OauthFlowId, Path)),
    responses((status = 200, body = DeviceProgress), (status = "4XX", body = ProblemBody)))]
pub async fn show_device(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Ids(id, flow_id): Ids<ResourceId, OauthFlowId>,
) -> Result<Json<DeviceProgress>, Problem> {
    let flow = app.store.oauth_flow(caller.workspace, id, flow_id).await?;
    let flow = flow.filter(|flow| flow.poll_interval_s.is_some()).ok_or_else(|| Problem::not_found("authorization"))?;
    let status = match flow.status {
        FlowStatus::Done | FlowStatus::Failed => flow.status,
        _ if flow.expires_at <= app.clock.now() => FlowStatus::Failed,
        _ => FlowStatus::Pending,
    };
    let OauthFlowRow { id, message, expires_at, .. } = flow;
    Ok(Json(DeviceProgress { id, status: status.as_str(), message, expires_at }))
}

/// Refreshes the credential of a resource now
///
/// One that this server has refreshed within the last ten seconds stays as it is.
#[utoipa::path(post, path = "/api/resources/{id}/oauth/refresh", tag = "oauth", params(("id" = ResourceId, Path)),
    request_body = Nothing,
    responses((status = 200, body = CredentialMetadata), (status = "4XX", body = ProblemBody),
        (status = 503, description = "The provider or the database could not be asked", body = ProblemBody)))]
pub async fn refresh(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Id(id): Id<ResourceId>,
    OptionalInput(Nothing {}): OptionalInput<Nothing>,
) -> Result<Json<CredentialMetadata>, Problem> {
    let row = resource(&app, &caller, id).await?;
    let snapshot = app.policy.load();
    let serving = served(&snapshot, &row)?;
    let source = serving.credential_source();
    let credential = source.current().await.map_err(not_refreshed)?;
    if !credential.refreshable {
        let why = "this credential cannot be refreshed; it was not obtained by OAuth, or came without a refresh token";
        return Err(Problem::conflict(why));
    }
    let change = Change::new("credential.refresh", &id).of_resource(id).from(&credential_of(&app, &row).await?);
    let made = async {
        source.refresh(&credential).await.map_err(not_refreshed)?;
        Ok(app.changed().await?)
    };
    change.made(&app, &caller, made).await?;
    as_it_stands(&app, &row).await
}

fn not_refreshed(state: CredentialState) -> Problem {
    match state {
        CredentialState::Unavailable => {
            Problem::unavailable("the provider or the database could not be asked; try again")
        }
        CredentialState::None | CredentialState::NotNeeded => Problem::not_found("credential"),
        _ => Problem::conflict("the credential has to be authorized again"),
    }
}

/// Each authorization has a cookie of its own, so that two in one browser do not meet. With the prefix, a browser takes
/// it from this very host only.
fn cookie_name(app: &App, flow: &OauthFlowRow) -> String {
    let prefix = if app.oauth.is_secure() { "__Host-" } else { "" };
    format!("{prefix}monstrum-oauth-{}", flow.id)
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let values = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = values.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

impl From<OauthError> for Problem {
    fn from(error: OauthError) -> Self {
        match error {
            OauthError::Token(error) => Problem::bad_gateway(error.to_string()),
            OauthError::Store(error) => Problem::from(error),
            OauthError::Vault(error) => Problem::internal(&error),
            OauthError::Audit(error) => Problem::unavailable(error.to_string()),
            refused => Problem::conflict(refused.to_string()),
        }
    }
}

/// The status of the page that shows the error to a browser.
fn page_status(error: &OauthError) -> StatusCode {
    match error {
        OauthError::Token(_) => StatusCode::BAD_GATEWAY,
        OauthError::Store(_) | OauthError::Audit(_) => StatusCode::SERVICE_UNAVAILABLE,
        OauthError::Vault(_) => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::BAD_REQUEST,
    }
}
