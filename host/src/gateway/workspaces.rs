//! `/api/workspaces`: the walls between tenants. Root keys only.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use monstrum_store::{DEFAULT_WORKSPACE, StoreError, WorkspaceRow};
use monstrum_types::{UtcMillis, WorkspaceId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::app::App;
use crate::gateway::changes::Change;
use crate::gateway::extract::{Caller, Faults, Id, Input, PageQuery, Params, given};
use crate::gateway::problem::{Problem, ProblemBody};
use crate::gateway::rules;

/// Everything but plugins belongs to a workspace, and nothing is seen across them.
#[derive(Serialize, ToSchema)]
pub struct Workspace {
    pub id: WorkspaceId,
    pub name: String,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

/// A page of workspaces.
#[derive(Serialize, ToSchema)]
pub struct WorkspaceList {
    pub items: Vec<Workspace>,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWorkspace {
    name: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceChange {
    #[serde(default, deserialize_with = "given")]
    name: Option<String>,
}

impl From<WorkspaceRow> for Workspace {
    fn from(row: WorkspaceRow) -> Self {
        Workspace { id: row.id, name: row.name, created_at: row.created_at, updated_at: row.updated_at }
    }
}

/// Creates a workspace
#[utoipa::path(post, path = "/api/workspaces", tag = "workspaces", request_body = NewWorkspace,
    responses((status = 201, body = Workspace), (status = "4XX", body = ProblemBody)))]
pub async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    Input(new): Input<NewWorkspace>,
) -> Result<(StatusCode, Json<Workspace>), Problem> {
    caller.root()?;
    check_name(&new.name)?;
    let now = app.clock.now();
    let row = WorkspaceRow { id: WorkspaceId::new(), name: new.name, created_at: now, updated_at: now };
    let made = async {
        app.store.insert_workspace(&row).await?;
        Ok(app.changed().await?)
    };
    Change::new("workspace.create", &row.id).to(&Workspace::from(row.clone())).made(&app, &caller, made).await?;
    Ok((StatusCode::CREATED, Json(row.into())))
}

/// Lists workspaces
#[utoipa::path(get, path = "/api/workspaces", tag = "workspaces", params(PageQuery),
    responses((status = 200, body = WorkspaceList), (status = "4XX", body = ProblemBody)))]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(query): Params<PageQuery>,
) -> Result<Json<WorkspaceList>, Problem> {
    caller.root()?;
    let listed = app.store.workspaces(&query.page()?).await?;
    let items = listed.items.into_iter().map(Workspace::from).collect();
    Ok(Json(WorkspaceList { items, next_cursor: listed.next_cursor.map(String::from) }))
}

/// Shows a workspace
#[utoipa::path(get, path = "/api/workspaces/{id}", tag = "workspaces", params(("id" = WorkspaceId, Path)),
    responses((status = 200, body = Workspace), (status = "4XX", body = ProblemBody)))]
pub async fn show(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<WorkspaceId>,
) -> Result<Json<Workspace>, Problem> {
    caller.root()?;
    Ok(Json(workspace(&app, id).await?.into()))
}

/// Renames a workspace
#[utoipa::path(patch, path = "/api/workspaces/{id}", tag = "workspaces", params(("id" = WorkspaceId, Path)),
    request_body = WorkspaceChange,
    responses((status = 200, body = Workspace), (status = "4XX", body = ProblemBody)))]
pub async fn update(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<WorkspaceId>,
    Input(change): Input<WorkspaceChange>,
) -> Result<Json<Workspace>, Problem> {
    caller.root()?;
    let mut row = workspace(&app, id).await?;
    if let Some(name) = change.name.filter(|name| *name != row.name) {
        check_name(&name)?;
        if row.name == DEFAULT_WORKSPACE {
            return Err(Problem::conflict("root keys act in the workspace `default`; it keeps its name"));
        }
        let before = row.clone();
        row.name = name;
        row.updated_at = app.clock.now();
        let change = Change::new("workspace.update", &id).from(&Workspace::from(before));
        let made = async {
            app.store.update_workspace(&row).await?;
            Ok(app.changed().await?)
        };
        change.to(&Workspace::from(row.clone())).made(&app, &caller, made).await?;
    }
    Ok(Json(row.into()))
}

/// Deletes a workspace that is empty, with its keys
#[utoipa::path(delete, path = "/api/workspaces/{id}", tag = "workspaces", params(("id" = WorkspaceId, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody)))]
pub async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<WorkspaceId>,
) -> Result<StatusCode, Problem> {
    caller.root()?;
    let before = workspace(&app, id).await?;
    if before.name == DEFAULT_WORKSPACE {
        return Err(Problem::conflict("the workspace `default` cannot be deleted"));
    }
    let made = async {
        match app.store.delete_workspace(id).await {
            Ok(true) => Ok(app.changed().await?),
            Ok(false) => Err(Problem::not_found("workspace")),
            Err(StoreError::InUse) => {
                let detail = "the workspace is not empty: delete its bots, resources, roles and OAuth providers first";
                Err(Problem::conflict(detail))
            }
            Err(error) => Err(error.into()),
        }
    };
    Change::new("workspace.delete", &id).from(&Workspace::from(before)).made(&app, &caller, made).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn workspace(app: &App, id: WorkspaceId) -> Result<WorkspaceRow, Problem> {
    app.store.workspace(id).await?.ok_or_else(|| Problem::not_found("workspace"))
}

/// A header names a workspace by its name or its id, so a name must not look like an id.
fn check_name(name: &str) -> Result<(), Problem> {
    let mut faults = Faults::default();
    rules::name(&mut faults, "/name", name);
    if name.parse::<WorkspaceId>().is_ok() {
        faults.add("/name", "must not look like an id");
    }
    faults.check()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_pass_for_the_id_of_another_workspace() {
        assert!(check_name("acme").is_ok());
        assert!(check_name(&WorkspaceId::new().to_string()).is_err());
    }
}
