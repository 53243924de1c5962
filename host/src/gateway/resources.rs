//! `/api/resources`: instances of resource types, with their configuration and their network rules.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use monstrum_api::resources::{NewResource, Resource, ResourceChange, ResourceList};
use monstrum_core::app::App;
use monstrum_core::operations::{Operator, resources};
use monstrum_types::ResourceId;

use crate::gateway::http::extract::{Id, Input, PageQuery, Params};
use crate::gateway::http::problem::{Problem, ProblemBody};

/// Creates a resource
#[utoipa::path(post, path = "/api/resources", tag = "resources", request_body = NewResource,
    responses((status = 201, body = Resource), (status = "4XX", body = ProblemBody)))]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Operator,
    Input(new): Input<NewResource>,
) -> Result<(StatusCode, Json<Resource>), Problem> {
    Ok((StatusCode::CREATED, Json(resources::create(&app, &caller, new).await?)))
}

/// Lists resources
#[utoipa::path(get, path = "/api/resources", tag = "resources", params(PageQuery),
    responses((status = 200, body = ResourceList), (status = "4XX", body = ProblemBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Operator,
    Params(query): Params<PageQuery>,
) -> Result<Json<ResourceList>, Problem> {
    Ok(Json(resources::list(&app, &caller, &query.page()?).await?))
}

/// Shows a resource
#[utoipa::path(get, path = "/api/resources/{id}", tag = "resources", params(("id" = ResourceId, Path)),
    responses((status = 200, body = Resource), (status = "4XX", body = ProblemBody)))]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    caller: Operator,
    Id(id): Id<ResourceId>,
) -> Result<Json<Resource>, Problem> {
    Ok(Json(resources::show(&app, &caller, id).await?))
}

/// Changes a resource
///
/// Only an admin can change the configuration, the network, or a name that is part of tool names.
#[utoipa::path(patch, path = "/api/resources/{id}", tag = "resources", params(("id" = ResourceId, Path)),
    request_body = ResourceChange,
    responses((status = 200, body = Resource), (status = "4XX", body = ProblemBody)))]
pub(super) async fn update(
    State(app): State<Arc<App>>,
    caller: Operator,
    Id(id): Id<ResourceId>,
    Input(change): Input<ResourceChange>,
) -> Result<Json<Resource>, Problem> {
    Ok(Json(resources::update(&app, &caller, id, change).await?))
}

/// Deletes a resource and its credential; fails if a binding uses the resource
#[utoipa::path(delete, path = "/api/resources/{id}", tag = "resources", params(("id" = ResourceId, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody)))]
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    caller: Operator,
    Id(id): Id<ResourceId>,
) -> Result<StatusCode, Problem> {
    resources::delete(&app, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
