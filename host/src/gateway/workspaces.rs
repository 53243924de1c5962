//! `/api/workspaces`: the walls between tenants. Root keys only.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use monstrum_store::{DEFAULT_WORKSPACE, StoreError, WorkspaceRow};
use monstrum_types::{UtcMillis, WorkspaceId, WorkspaceSandbox};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::gateway::changes::{Change, changed_at};
use crate::gateway::extract::{Faults, Id, Input, PageQuery, Params, Root, given, named};
use crate::gateway::problem::{Problem, ProblemBody};
use crate::gateway::rules;
use monstrum_core::app::App;
use monstrum_core::sandboxes;

/// Everything but plugins belongs to a workspace, and nothing is seen across them.
#[derive(Serialize, ToSchema)]
pub struct Workspace {
    pub id: WorkspaceId,
    pub name: String,
    /// What its sandboxes may be; null for what the server gives to all.
    #[schema(value_type = Option<WorkspaceSandbox>)]
    pub sandbox: Option<Value>,
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
    /// Replaced whole; null for what the server gives to all.
    #[serde(default, deserialize_with = "named")]
    #[schema(value_type = Option<WorkspaceSandbox>)]
    sandbox: Option<Option<WorkspaceSandbox>>,
}

impl From<WorkspaceRow> for Workspace {
    fn from(row: WorkspaceRow) -> Self {
        Workspace {
            id: row.id,
            name: row.name,
            sandbox: row.sandbox,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

/// Creates a workspace
#[utoipa::path(post, path = "/api/workspaces", tag = "workspaces", request_body = NewWorkspace,
    responses((status = 201, body = Workspace), (status = "4XX", body = ProblemBody)))]
pub async fn create(
    State(app): State<Arc<App>>,
    Root(caller): Root,
    Input(new): Input<NewWorkspace>,
) -> Result<(StatusCode, Json<Workspace>), Problem> {
    check_name(&new.name)?;
    let now = app.clock.now();
    let row = WorkspaceRow { id: WorkspaceId::new(), name: new.name, sandbox: None, created_at: now, updated_at: now };
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
    _: Root,
    Params(query): Params<PageQuery>,
) -> Result<Json<WorkspaceList>, Problem> {
    let listed = app.store.workspaces(&query.page()?).await?;
    let items = listed.items.into_iter().map(Workspace::from).collect();
    Ok(Json(WorkspaceList { items, next_cursor: listed.next_cursor.map(String::from) }))
}

/// Shows a workspace
#[utoipa::path(get, path = "/api/workspaces/{id}", tag = "workspaces", params(("id" = WorkspaceId, Path)),
    responses((status = 200, body = Workspace), (status = "4XX", body = ProblemBody)))]
pub async fn show(State(app): State<Arc<App>>, _: Root, Id(id): Id<WorkspaceId>) -> Result<Json<Workspace>, Problem> {
    Ok(Json(workspace(&app, id).await?.into()))
}

/// Renames a workspace, or says what its sandboxes may be
#[utoipa::path(patch, path = "/api/workspaces/{id}", tag = "workspaces", params(("id" = WorkspaceId, Path)),
    request_body = WorkspaceChange,
    responses((status = 200, body = Workspace), (status = "4XX", body = ProblemBody)))]
pub async fn update(
    State(app): State<Arc<App>>,
    Root(caller): Root,
    Id(id): Id<WorkspaceId>,
    Input(change): Input<WorkspaceChange>,
) -> Result<Json<Workspace>, Problem> {
    let before = workspace(&app, id).await?;
    let mut row = before.clone();
    if let Some(name) = change.name.filter(|name| *name != before.name) {
        check_name(&name)?;
        if before.name == DEFAULT_WORKSPACE {
            return Err(Problem::conflict("root keys act in the workspace `default`; it keeps its name"));
        }
        row.name = name;
    }
    if let Some(sandbox) = change.sandbox {
        row.sandbox = sandbox.map(|sandbox| checked_sandbox(&sandbox)).transpose()?;
    }
    if row == before {
        return Ok(Json(row.into()));
    }
    row.updated_at = changed_at(&app, before.updated_at);
    let made = async {
        if !app.store.update_workspace(&row, before.updated_at).await? {
            return Err(Problem::changed_meanwhile());
        }
        Ok(app.changed().await?)
    };
    let change = Change::new("workspace.update", &id).from(&Workspace::from(before.clone()));
    change.to(&Workspace::from(row.clone())).made(&app, &caller, made).await?;
    app.sandboxes.settings_have_changed();
    Ok(Json(row.into()))
}

/// Deletes a workspace that is empty, with its keys
#[utoipa::path(delete, path = "/api/workspaces/{id}", tag = "workspaces", params(("id" = WorkspaceId, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody)))]
pub async fn delete(
    State(app): State<Arc<App>>,
    Root(caller): Root,
    Id(id): Id<WorkspaceId>,
) -> Result<StatusCode, Problem> {
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

fn checked_sandbox(sandbox: &WorkspaceSandbox) -> Result<Value, Problem> {
    let mut faults = Faults::default();
    for (place, message) in sandboxes::out_of_range(sandbox) {
        faults.add(format!("/sandbox{place}"), message);
    }
    faults.check()?;
    Ok(serde_json::to_value(sandbox).expect("settings are JSON"))
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
