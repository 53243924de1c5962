//! `/api/workspaces`: workspaces, which separate tenants. The routes require a root key.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use monstrum_api::workspaces::{NewWorkspace, Workspace, WorkspaceChange, WorkspaceList};
use monstrum_core::app::App;
use monstrum_core::operations::{Root, workspaces};
use monstrum_types::WorkspaceId;

use crate::gateway::http::extract::{Id, Input, PageQuery, Params};
use crate::gateway::http::problem::{Problem, ProblemBody};

/// Creates a workspace
#[utoipa::path(post, path = "/api/workspaces", tag = "workspaces", request_body = NewWorkspace,
    responses((status = 201, body = Workspace), (status = "4XX", body = ProblemBody)))]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Root,
    Input(new): Input<NewWorkspace>,
) -> Result<(StatusCode, Json<Workspace>), Problem> {
    Ok((StatusCode::CREATED, Json(workspaces::create(&app, &caller, new).await?)))
}

/// Lists workspaces
#[utoipa::path(get, path = "/api/workspaces", tag = "workspaces", params(PageQuery),
    responses((status = 200, body = WorkspaceList), (status = "4XX", body = ProblemBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Root,
    Params(query): Params<PageQuery>,
) -> Result<Json<WorkspaceList>, Problem> {
    Ok(Json(workspaces::list(&app, &caller, &query.page()?).await?))
}

/// Shows a workspace
#[utoipa::path(get, path = "/api/workspaces/{id}", tag = "workspaces", params(("id" = WorkspaceId, Path)),
    responses((status = 200, body = Workspace), (status = "4XX", body = ProblemBody)))]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    caller: Root,
    Id(id): Id<WorkspaceId>,
) -> Result<Json<Workspace>, Problem> {
    Ok(Json(workspaces::show(&app, &caller, id).await?))
}

/// Changes the name or the sandbox limits of a workspace
#[utoipa::path(patch, path = "/api/workspaces/{id}", tag = "workspaces", params(("id" = WorkspaceId, Path)),
    request_body = WorkspaceChange,
    responses((status = 200, body = Workspace), (status = "4XX", body = ProblemBody)))]
pub(super) async fn update(
    State(app): State<Arc<App>>,
    caller: Root,
    Id(id): Id<WorkspaceId>,
    Input(change): Input<WorkspaceChange>,
) -> Result<Json<Workspace>, Problem> {
    Ok(Json(workspaces::update(&app, &caller, id, change).await?))
}

/// Deletes a workspace and its keys; fails if the workspace contains bots, resources, roles or OAuth providers
#[utoipa::path(delete, path = "/api/workspaces/{id}", tag = "workspaces", params(("id" = WorkspaceId, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody)))]
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    caller: Root,
    Id(id): Id<WorkspaceId>,
) -> Result<StatusCode, Problem> {
    workspaces::delete(&app, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
