//! OAuth by discovery: the routes with which an admin finds and confirms the authorization server of an MCP server, and
//! the document that describes this server as an OAuth client.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, header};
use monstrum_api::oauth::{ClientDocument, Nothing, OauthConfirmation, OauthProposal};
use monstrum_api::oauth_providers::OauthProvider;
use monstrum_core::operations::Admin;
use monstrum_core::operations::oauth_discovery::{self, Unconfirmed};
use monstrum_types::ResourceId;

use crate::gateway::http::answer::Answer;
use crate::gateway::http::extract::{Id, Input, OptionalInput};
use crate::gateway::http::problem::{Problem, ProblemBody};
use crate::gateway::http::state::Host;

/// The time for which an authorization server may keep the document. A changed public URL is seen soon.
const DOCUMENT_KEPT: HeaderValue = HeaderValue::from_static("public, max-age=300");

/// Looks for the authorization server of the MCP server behind a resource
///
/// The server reads the metadata of the MCP server (RFC 9728) and of its authorization server (RFC 8414), without a
/// credential. The result is a proposal, which is kept for an hour and has no effect before it is confirmed. The status
/// is 409 if the resource has another type, and 502 if no usable metadata were found.
#[utoipa::path(post, path = "/api/resources/{id}/oauth/discover", tag = "oauth", operation_id = "discover_oauth",
    params(("id" = ResourceId, Path)), request_body = Nothing,
    responses((status = 200, body = OauthProposal),
        (status = 502, description = "No usable metadata were found", body = ProblemBody)))]
pub(crate) async fn discover(
    app: Host,
    caller: Admin,
    Id(id): Id<ResourceId>,
    OptionalInput(Nothing {}): OptionalInput<Nothing>,
) -> Answer<OauthProposal> {
    Ok(Json(oauth_discovery::discover(&app, &caller, id).await?))
}

/// Makes the proposed authorization server the OAuth provider of a resource
///
/// If `registration` is `dynamic` and the request names no client, the server registers one. The status is 409 if the
/// digest is not that of the current proposal; the body then has the current one as `proposal`. A proposal of another
/// issuer needs a client of that issuer, and existing credentials need a new authorization.
#[utoipa::path(post, path = "/api/resources/{id}/oauth/confirm", tag = "oauth", operation_id = "confirm_oauth",
    params(("id" = ResourceId, Path)), request_body = OauthConfirmation,
    responses((status = 200, body = OauthProvider),
        (status = 502, description = "The registration of a client failed", body = ProblemBody)))]
pub(crate) async fn confirm(
    app: Host,
    caller: Admin,
    Id(id): Id<ResourceId>,
    Input(input): Input<OauthConfirmation>,
) -> Answer<OauthProvider> {
    oauth_discovery::confirm(&app, &caller, id, input).await.map(Json).map_err(|refused| match refused {
        Unconfirmed::OtherDigest(proposal) => {
            Problem::conflict("the digest is not that of the current proposal; nothing was changed")
                .with_proposal(*proposal)
        }
        Unconfirmed::Operation(error) => error.into(),
    })
}

/// Describes this server as an OAuth client
///
/// The URL of this document is the client id of this server at authorization servers that accept such ids. The status is
/// 404 if browsers do not reach this server by https.
#[utoipa::path(get, path = "/oauth/client.json", tag = "oauth", operation_id = "oauth_client", security(()),
    responses((status = 200, body = ClientDocument), (status = "4XX", body = ProblemBody)))]
pub(crate) async fn client(app: Host) -> Result<Response, Problem> {
    let document = app.oauth.client_document().ok_or_else(|| Problem::not_found("client"))?;
    Ok(([(header::CACHE_CONTROL, DOCUMENT_KEPT)], Json(document)).into_response())
}
