//! `/api/oauth/providers`: the OAuth providers of resource types, which an admin confirms. A manifest only proposes a
//! provider: its values are copied once, when an admin creates the provider. The client secret can be written but not
//! read.

use axum::Json;
use http::StatusCode;
use monstrum_api::oauth_providers::{NewOauthProvider, OauthProvider, OauthProviderChange, OauthProviderList};
use monstrum_core::operations::{Admin, Operator, oauth_providers};
use monstrum_types::OauthProviderId;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::answer::{Answer, Created, Done};
use crate::gateway::http::extract::{Id, Input, PageQuery, Params};
use crate::gateway::http::state::Host;
use crate::gateway::http::versions::{IfMatch, Versioned, versioned};

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct OauthProviderQuery {
    /// The resource type of the provider. By default, all providers are listed.
    resource_type: Option<String>,
}

/// Lists OAuth providers
#[utoipa::path(get, path = "/api/oauth/providers", tag = "oauth", params(OauthProviderQuery, PageQuery),
    responses((status = 200, body = OauthProviderList)))]
pub(crate) async fn list(
    app: Host,
    caller: Operator,
    Params(query): Params<OauthProviderQuery>,
    Params(page): Params<PageQuery>,
) -> Answer<OauthProviderList> {
    Ok(Json(oauth_providers::list(&app, &caller, query.resource_type.as_deref(), &page.page()?).await?))
}

/// Creates the OAuth provider of a resource type
#[utoipa::path(post, path = "/api/oauth/providers", tag = "oauth", request_body = NewOauthProvider,
    responses((status = 201, body = OauthProvider)))]
pub(crate) async fn create(app: Host, caller: Admin, Input(new): Input<NewOauthProvider>) -> Created<OauthProvider> {
    Ok((StatusCode::CREATED, Json(oauth_providers::create(&app, &caller, new).await?)))
}

/// Changes an OAuth provider
#[utoipa::path(patch, path = "/api/oauth/providers/{id}", tag = "oauth", params(("id" = OauthProviderId, Path)),
    request_body = OauthProviderChange, responses((status = 200, body = OauthProvider)))]
pub(crate) async fn update(
    app: Host,
    caller: Admin,
    Id(id): Id<OauthProviderId>,
    IfMatch(expected): IfMatch,
    Input(change): Input<OauthProviderChange>,
) -> Versioned<OauthProvider> {
    Ok(versioned(oauth_providers::update(&app, &caller, id, expected, change).await?))
}

/// Deletes an OAuth provider and stops refreshing the credentials that it issued
#[utoipa::path(delete, path = "/api/oauth/providers/{id}", tag = "oauth", params(("id" = OauthProviderId, Path)),
    responses((status = 204)))]
pub(crate) async fn delete(app: Host, caller: Admin, Id(id): Id<OauthProviderId>, IfMatch(expected): IfMatch) -> Done {
    oauth_providers::delete(&app, &caller, id, expected).await?;
    Ok(StatusCode::NO_CONTENT)
}
