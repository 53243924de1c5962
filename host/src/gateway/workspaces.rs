//! `/api/workspaces`: workspaces, which separate tenants. The routes require a root key.

use axum::Json;
use http::StatusCode;
use monstrum_api::workspaces::{NewWorkspace, Workspace, WorkspaceChange, WorkspaceList};
use monstrum_core::operations::{Root, workspaces};
use monstrum_types::WorkspaceId;

use crate::gateway::http::answer::{Answer, Created, Done};
use crate::gateway::http::extract::{Id, Input, PageQuery, Params};
use crate::gateway::http::state::Host;

/// Creates a workspace
#[utoipa::path(post, path = "/api/workspaces", tag = "workspaces", request_body = NewWorkspace,
    responses((status = 201, body = Workspace)))]
pub(super) async fn create(app: Host, caller: Root, Input(new): Input<NewWorkspace>) -> Created<Workspace> {
    Ok((StatusCode::CREATED, Json(workspaces::create(&app, &caller, new).await?)))
}

/// Lists workspaces
#[utoipa::path(get, path = "/api/workspaces", tag = "workspaces", params(PageQuery),
    responses((status = 200, body = WorkspaceList)))]
pub(super) async fn list(app: Host, caller: Root, Params(query): Params<PageQuery>) -> Answer<WorkspaceList> {
    Ok(Json(workspaces::list(&app, &caller, &query.page()?).await?))
}

/// Shows a workspace
#[utoipa::path(get, path = "/api/workspaces/{id}", tag = "workspaces", params(("id" = WorkspaceId, Path)),
    responses((status = 200, body = Workspace)))]
pub(super) async fn show(app: Host, caller: Root, Id(id): Id<WorkspaceId>) -> Answer<Workspace> {
    Ok(Json(workspaces::show(&app, &caller, id).await?))
}

/// Changes the name or the sandbox limits of a workspace
#[utoipa::path(patch, path = "/api/workspaces/{id}", tag = "workspaces", params(("id" = WorkspaceId, Path)),
    request_body = WorkspaceChange, responses((status = 200, body = Workspace)))]
pub(super) async fn update(
    app: Host,
    caller: Root,
    Id(id): Id<WorkspaceId>,
    Input(change): Input<WorkspaceChange>,
) -> Answer<Workspace> {
    Ok(Json(workspaces::update(&app, &caller, id, change).await?))
}

/// Deletes a workspace and its keys; fails if the workspace contains bots, resources, roles or OAuth providers
#[utoipa::path(delete, path = "/api/workspaces/{id}", tag = "workspaces", params(("id" = WorkspaceId, Path)),
    responses((status = 204)))]
pub(super) async fn delete(app: Host, caller: Root, Id(id): Id<WorkspaceId>) -> Done {
    workspaces::delete(&app, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
