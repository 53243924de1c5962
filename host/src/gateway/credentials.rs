//! `/api/resources/{id}/credential`: credentials, which clients can write but not read. Answers contain only metadata.
//! No error of these routes repeats any part of a request body, because a secret may have been sent in the wrong field.

use axum::Json;
use axum::extract::{FromRequest, Request};
use http::StatusCode;
use monstrum_api::credentials::{CredentialInput, CredentialMetadata, CredentialTest, UserCredentialList};
use monstrum_core::operations::credentials::NewCredential;
use monstrum_core::operations::{Admin, credentials, user_credentials};
use monstrum_types::{AppUser, ResourceId};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::answer::{Answer, Done};
use crate::gateway::http::extract::{Id, PageQuery, Params, whole_body};
use crate::gateway::http::language::InLanguage;
use crate::gateway::http::problem::{Problem, ProblemBody};
use crate::gateway::http::state::{Host, HttpState};
use crate::gateway::http::versions::IfReplaced;
use crate::gateway::oauth::users::ForUsers;

/// Saves the credential of a resource, or of one of its users; replaces an existing credential
///
/// With `user`, the credential is a token or an API key that serves this user only. A bot key of a bot that is bound to
/// the resource can save credentials of users; otherwise, an admin key is required.
///
/// With the method `oauth2_client_creds` and no fields, the platform fetches a token with the client of the OAuth
/// provider.
#[utoipa::path(put, path = "/api/resources/{id}/credential", tag = "credentials", params(("id" = ResourceId, Path)),
    request_body = CredentialInput, responses((status = 200, body = CredentialMetadata)))]
pub(super) async fn save(
    app: Host,
    ForUsers { caller, id }: ForUsers,
    IfReplaced(replacing): IfReplaced,
    Given(given): Given,
) -> Answer<CredentialMetadata> {
    Ok(Json(credentials::save(&app, &caller, id, replacing, given).await?))
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

/// Deletes the credential of a resource, or of one of its users
///
/// A bot key of a bot that is bound to the resource can delete credentials of users; otherwise, an admin key is required.
#[utoipa::path(delete, path = "/api/resources/{id}/credential", tag = "credentials",
    params(("id" = ResourceId, Path), UserQuery), responses((status = 204)))]
pub(super) async fn delete(app: Host, ForUsers { caller, id }: ForUsers, Params(query): Params<UserQuery>) -> Done {
    match query.user()? {
        Some(user) => user_credentials::delete(&app, &caller, id, &user).await?,
        None => credentials::delete(&app, &caller.try_into()?, id).await?,
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the credentials of the users of a resource, without their secrets
///
/// A bot key of a bot that is bound to the resource reads the credential of one user, whom it must name; otherwise, an
/// admin key is required.
#[utoipa::path(get, path = "/api/resources/{id}/credentials", tag = "credentials", operation_id = "credentials_of_users",
    params(("id" = ResourceId, Path), UserQuery, PageQuery), responses((status = 200, body = UserCredentialList)))]
pub(super) async fn of_users(
    app: Host,
    ForUsers { caller, id }: ForUsers,
    Params(user): Params<UserQuery>,
    Params(page): Params<PageQuery>,
) -> Answer<UserCredentialList> {
    Ok(Json(user_credentials::list(&app, &caller, id, user.user()?, &page.page()?).await?))
}

/// The user of a credential.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct UserQuery {
    /// The app of the user.
    app_id: Option<String>,
    /// The id of the user in the app.
    user_id: Option<String>,
}

impl UserQuery {
    /// Returns the user, or `None` if the query names none.
    fn user(self) -> Result<Option<AppUser>, Problem> {
        match (self.app_id, self.user_id) {
            (Some(app_id), Some(user_id)) => Ok(Some(AppUser { app_id, user_id })),
            (None, None) => Ok(None),
            (Some(_), None) => Err(Problem::invalid_at("user_id", "a user is named by `app_id` and `user_id`")),
            (None, Some(_)) => Err(Problem::invalid_at("app_id", "a user is named by `app_id` and `user_id`")),
        }
    }
}

/// The body of a PUT. Its parser differs from the parser of other bodies, whose errors may repeat parts of the body.
pub(super) struct Given(NewCredential);

impl FromRequest<HttpState> for Given {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &HttpState) -> Result<Self, Problem> {
        Ok(Given(NewCredential::parse(&whole_body(request.into_body()).await?)?))
    }
}
