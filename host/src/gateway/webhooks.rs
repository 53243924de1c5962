//! `/api/webhooks`: the routes by which systems outside make events, and `/hooks/{id}`: their requests. A request to a
//! webhook has no API key: it is signed, or has the secret as its token.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRef, FromRequestParts, Path};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use monstrum_api::webhooks::{NewWebhook, ShownWebhook, Webhook, WebhookChange, WebhookEvent, WebhookList};
use monstrum_core::operations::webhooks::{self, BODY_BYTES_MAX, Received, ServerAddress};
use monstrum_core::operations::{Admin, OperationError};
use monstrum_core::webhooks::RequestHeaders;
use monstrum_types::WebhookId;

use crate::gateway::http::answer::{Answer, Created, Done};
use crate::gateway::http::extract::{Id, Input, PageQuery, Params, whole_body_of};
use crate::gateway::http::problem::{Problem, ProblemBody};
use crate::gateway::http::state::{ConsoleOptions, Host, HttpState};
use crate::gateway::http::versions::{IfMatch, Versioned, versioned};

/// The address of this server, for the URLs of webhooks.
pub(super) struct Address(ServerAddress);

impl FromRequestParts<HttpState> for Address {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut Parts, state: &HttpState) -> Result<Self, Infallible> {
        let options = Arc::<ConsoleOptions>::from_ref(state);
        let base_url = options.base_url().trim_end_matches('/').to_owned();
        Ok(Address(ServerAddress { base_url, is_public: options.public_url.is_some() }))
    }
}

/// Creates a webhook; only this response contains its secret
///
/// The system outside sends its requests to `url`. It signs them with the secret, or sends the secret as its token.
#[utoipa::path(post, path = "/api/webhooks", tag = "webhooks", request_body = NewWebhook,
    responses((status = 201, body = ShownWebhook)))]
pub(super) async fn create(
    app: Host,
    caller: Admin,
    Address(address): Address,
    Input(new): Input<NewWebhook>,
) -> Created<ShownWebhook> {
    Ok((StatusCode::CREATED, Json(webhooks::create(&app, &caller, &address, new).await?)))
}

/// Lists webhooks
#[utoipa::path(get, path = "/api/webhooks", tag = "webhooks", params(PageQuery),
    responses((status = 200, body = WebhookList)))]
pub(super) async fn list(
    app: Host,
    caller: Admin,
    Address(address): Address,
    Params(page): Params<PageQuery>,
) -> Answer<WebhookList> {
    Ok(Json(webhooks::list(&app, &caller, &address, &page.page()?).await?))
}

/// Shows a webhook
#[utoipa::path(get, path = "/api/webhooks/{id}", tag = "webhooks", params(("id" = WebhookId, Path)),
    responses((status = 200, body = Webhook)))]
pub(super) async fn show(
    app: Host,
    caller: Admin,
    Address(address): Address,
    Id(id): Id<WebhookId>,
) -> Versioned<Webhook> {
    Ok(versioned(webhooks::show(&app, &caller, &address, id).await?))
}

/// Changes a webhook; the secret stays as it is
#[utoipa::path(patch, path = "/api/webhooks/{id}", tag = "webhooks", params(("id" = WebhookId, Path)),
    request_body = WebhookChange, responses((status = 200, body = Webhook)))]
pub(super) async fn update(
    app: Host,
    caller: Admin,
    Address(address): Address,
    Id(id): Id<WebhookId>,
    IfMatch(expected): IfMatch,
    Input(change): Input<WebhookChange>,
) -> Versioned<Webhook> {
    Ok(versioned(webhooks::update(&app, &caller, &address, (id, expected), change).await?))
}

/// Deletes a webhook; the events that it has made are kept
#[utoipa::path(delete, path = "/api/webhooks/{id}", tag = "webhooks", params(("id" = WebhookId, Path)),
    responses((status = 204)))]
pub(super) async fn delete(
    app: Host,
    caller: Admin,
    Address(address): Address,
    Id(id): Id<WebhookId>,
    IfMatch(expected): IfMatch,
) -> Done {
    webhooks::delete(&app, &caller, &address, (id, expected)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Gives a webhook a new secret; only this response contains it, and the old secret stops working
#[utoipa::path(post, path = "/api/webhooks/{id}/rotate", tag = "webhooks", params(("id" = WebhookId, Path)),
    responses((status = 200, body = ShownWebhook)))]
pub(super) async fn rotate(
    app: Host,
    caller: Admin,
    Address(address): Address,
    Id(id): Id<WebhookId>,
) -> Answer<ShownWebhook> {
    Ok(Json(webhooks::rotate(&app, &caller, &address, id).await?))
}

/// Makes an event of a request of a system outside
///
/// The request has no API key: it is signed with the secret of the webhook, or has the secret as its bearer token. The
/// status is 401 if the webhook is unknown or the request is not authentic. The body is JSON, at most 60 KiB. The status is
/// 200 if an earlier request with the same value of the `dedupe_header` has made the event, and 429 after 120 requests in a
/// minute.
#[utoipa::path(post, path = "/hooks/{id}", tag = "webhooks", params(("id" = String, Path)), security(()),
    request_body = serde_json::Value,
    responses((status = 202, description = "The event", body = WebhookEvent),
        (status = 200, description = "The event of an earlier request", body = WebhookEvent),
        (status = "4XX", body = ProblemBody, content_type = "application/problem+json")))]
pub(super) async fn receive(
    app: Host,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Created<WebhookEvent> {
    let body = whole_body_of(body, BODY_BYTES_MAX).await?;
    // A path that is not text names no webhook.
    let id = id.map(|Path(id)| id).unwrap_or_default();
    let headers: RequestHeaders = headers
        .iter()
        .filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned())))
        .collect();
    let received = webhooks::receive(&app, &id, &headers, &body).await.map_err(|error| match error {
        OperationError::Unauthenticated(detail) => Problem::unsigned(detail),
        error => error.into(),
    })?;
    Ok(match received {
        Received::Made(event_id) => (StatusCode::ACCEPTED, Json(WebhookEvent { event_id })),
        Received::Repeated(event_id) => (StatusCode::OK, Json(WebhookEvent { event_id })),
    })
}
