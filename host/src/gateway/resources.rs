//! `/api/resources`: instances of resource types, with their configuration and their network rules.

use axum::Json;
use http::StatusCode;
use monstrum_api::resources::{NewResource, Resource, ResourceChange, ResourceHealth, ResourceList};
use monstrum_core::operations::{Operator, resources};
use monstrum_types::ResourceId;

use crate::gateway::http::answer::{Answer, Created, Done};
use crate::gateway::http::extract::{Id, Input, PageQuery, Params};
use crate::gateway::http::state::Host;
use crate::gateway::http::versions::{IfMatch, Versioned, versioned};

/// Creates a resource
#[utoipa::path(post, path = "/api/resources", tag = "resources", request_body = NewResource,
    responses((status = 201, body = Resource)))]
pub(super) async fn create(app: Host, caller: Operator, Input(new): Input<NewResource>) -> Created<Resource> {
    Ok((StatusCode::CREATED, Json(resources::create(&app, &caller, new).await?)))
}

/// Lists resources
#[utoipa::path(get, path = "/api/resources", tag = "resources", params(PageQuery),
    responses((status = 200, body = ResourceList)))]
pub(super) async fn list(app: Host, caller: Operator, Params(query): Params<PageQuery>) -> Answer<ResourceList> {
    Ok(Json(resources::list(&app, &caller, &query.page()?).await?))
}

/// Shows a resource
#[utoipa::path(get, path = "/api/resources/{id}", tag = "resources", params(("id" = ResourceId, Path)),
    responses((status = 200, body = Resource)))]
pub(super) async fn show(app: Host, caller: Operator, Id(id): Id<ResourceId>) -> Versioned<Resource> {
    Ok(versioned(resources::show(&app, &caller, id).await?))
}

/// Shows the health of a resource: its credential, its calls of the last hour, and its last failure
#[utoipa::path(get, path = "/api/resources/{id}/health", tag = "resources", params(("id" = ResourceId, Path)),
    responses((status = 200, body = ResourceHealth)))]
pub(super) async fn health(app: Host, caller: Operator, Id(id): Id<ResourceId>) -> Answer<ResourceHealth> {
    Ok(Json(resources::health(&app, &caller, id).await?))
}

/// Changes a resource
///
/// Only an admin can change the configuration, the network, or a name that is part of tool names.
#[utoipa::path(patch, path = "/api/resources/{id}", tag = "resources", params(("id" = ResourceId, Path)),
    request_body = ResourceChange, responses((status = 200, body = Resource)))]
pub(super) async fn update(
    app: Host,
    caller: Operator,
    Id(id): Id<ResourceId>,
    IfMatch(expected): IfMatch,
    Input(change): Input<ResourceChange>,
) -> Versioned<Resource> {
    Ok(versioned(resources::update(&app, &caller, id, expected, change).await?))
}

/// Deletes a resource and its credential; fails if a binding uses the resource
#[utoipa::path(delete, path = "/api/resources/{id}", tag = "resources", params(("id" = ResourceId, Path)),
    responses((status = 204)))]
pub(super) async fn delete(app: Host, caller: Operator, Id(id): Id<ResourceId>, IfMatch(expected): IfMatch) -> Done {
    resources::delete(&app, &caller, id, expected).await?;
    Ok(StatusCode::NO_CONTENT)
}
