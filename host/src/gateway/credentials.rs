//! `/api/resources/{id}/credential`: credentials, which clients can write but not read. Answers contain only metadata.
//! No error of these routes repeats any part of a request body, because a secret may have been sent in the wrong field.

use axum::Json;
use axum::extract::{FromRequest, Request};
use http::StatusCode;
use monstrum_api::credentials::{CredentialInput, CredentialMetadata, CredentialTest};
use monstrum_core::operations::credentials::NewCredential;
use monstrum_core::operations::{Admin, credentials};
use monstrum_types::ResourceId;

use crate::gateway::http::answer::{Answer, Done};
use crate::gateway::http::extract::{Id, whole_body};
use crate::gateway::http::language::InLanguage;
use crate::gateway::http::problem::{Problem, ProblemBody};
use crate::gateway::http::state::{Host, HttpState};

/// Saves the credential of a resource; replaces an existing credential
///
/// With the method `oauth2_client_creds` and no fields, the platform fetches a token with the client of the OAuth
/// provider.
#[utoipa::path(put, path = "/api/resources/{id}/credential", tag = "credentials", params(("id" = ResourceId, Path)),
    request_body = CredentialInput, responses((status = 200, body = CredentialMetadata)))]
pub(super) async fn save(
    app: Host,
    caller: Admin,
    Id(id): Id<ResourceId>,
    Given(given): Given,
) -> Answer<CredentialMetadata> {
    Ok(Json(credentials::save(&app, &caller, id, given).await?))
}

/// Confirms that the stored credential may be used as the current manifest and configuration request
///
/// A credential needs authorization if a plugin version or a configuration requests another audience or other inject
/// rules than the confirmed ones, or if another plugin has taken over the type. `requested_audience` names the origins
/// that would receive the credential.
#[utoipa::path(post, path = "/api/resources/{id}/credential/confirm", tag = "credentials",
    params(("id" = ResourceId, Path)), responses((status = 200, body = CredentialMetadata)))]
pub(super) async fn confirm(app: Host, caller: Admin, Id(id): Id<ResourceId>) -> Answer<CredentialMetadata> {
    Ok(Json(credentials::confirm(&app, &caller, id).await?))
}

/// Runs the credential check of the resource's type and shows the result
///
/// The check calls one tool with fixed parameters. The audit records the call without a bot.
#[utoipa::path(post, path = "/api/resources/{id}/credential/test", tag = "credentials",
    params(("id" = ResourceId, Path)), responses((status = 200, body = CredentialTest),
        (status = 503, body = ProblemBody, description = "The audit cannot be written, so calls are rejected")))]
pub(super) async fn test(
    app: Host,
    caller: Admin,
    InLanguage(language): InLanguage,
    Id(id): Id<ResourceId>,
) -> Answer<CredentialTest> {
    Ok(Json(credentials::test(&app, &caller, &language, id).await?))
}

/// Deletes the credential of a resource
#[utoipa::path(delete, path = "/api/resources/{id}/credential", tag = "credentials",
    params(("id" = ResourceId, Path)), responses((status = 204)))]
pub(super) async fn delete(app: Host, caller: Admin, Id(id): Id<ResourceId>) -> Done {
    credentials::delete(&app, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The body of a PUT. Its parser differs from the parser of other bodies, whose errors may repeat parts of the body.
pub(super) struct Given(NewCredential);

impl FromRequest<HttpState> for Given {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &HttpState) -> Result<Self, Problem> {
        Ok(Given(NewCredential::parse(&whole_body(request.into_body()).await?)?))
    }
}
