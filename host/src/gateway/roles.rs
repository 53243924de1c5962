//! `/api/roles`: named sets of permissions, which bindings use.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use monstrum_api::roles::{NewRole, Role, RoleChange, RoleList};
use monstrum_core::app::App;
use monstrum_core::operations::{Admin, Operator, roles};
use monstrum_types::RoleId;

use crate::gateway::http::extract::{Id, Input, PageQuery, Params};
use crate::gateway::http::problem::{Problem, ProblemBody};

/// Creates a role
#[utoipa::path(post, path = "/api/roles", tag = "roles", request_body = NewRole,
    responses((status = 201, body = Role), (status = "4XX", body = ProblemBody)))]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Admin,
    Input(new): Input<NewRole>,
) -> Result<(StatusCode, Json<Role>), Problem> {
    Ok((StatusCode::CREATED, Json(roles::create(&app, &caller, new).await?)))
}

/// Lists roles
#[utoipa::path(get, path = "/api/roles", tag = "roles", params(PageQuery),
    responses((status = 200, body = RoleList), (status = "4XX", body = ProblemBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Operator,
    Params(query): Params<PageQuery>,
) -> Result<Json<RoleList>, Problem> {
    Ok(Json(roles::list(&app, &caller, &query.page()?).await?))
}

/// Shows a role
#[utoipa::path(get, path = "/api/roles/{id}", tag = "roles", params(("id" = RoleId, Path)),
    responses((status = 200, body = Role), (status = "4XX", body = ProblemBody)))]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    caller: Operator,
    Id(id): Id<RoleId>,
) -> Result<Json<Role>, Problem> {
    Ok(Json(roles::show(&app, &caller, id).await?))
}

/// Changes a role
#[utoipa::path(patch, path = "/api/roles/{id}", tag = "roles", params(("id" = RoleId, Path)), request_body = RoleChange,
    responses((status = 200, body = Role), (status = "4XX", body = ProblemBody)))]
pub(super) async fn update(
    State(app): State<Arc<App>>,
    caller: Admin,
    Id(id): Id<RoleId>,
    Input(change): Input<RoleChange>,
) -> Result<Json<Role>, Problem> {
    Ok(Json(roles::update(&app, &caller, id, change).await?))
}

/// Deletes a role; fails if a binding uses the role
#[utoipa::path(delete, path = "/api/roles/{id}", tag = "roles", params(("id" = RoleId, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody)))]
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    caller: Admin,
    Id(id): Id<RoleId>,
) -> Result<StatusCode, Problem> {
    roles::delete(&app, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
