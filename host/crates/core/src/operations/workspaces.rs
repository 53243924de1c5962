//! Workspaces, which separate tenants. These operations require a root key.

use monstrum_api::workspaces::{NewWorkspace, Workspace, WorkspaceChange, WorkspaceList};
use monstrum_store::{DEFAULT_WORKSPACE, Page, StoreError, WorkspaceRow};
use monstrum_types::{UtcMillis, WorkspaceId, WorkspaceSandbox};
use serde_json::Value;

use super::change::{Change, changed_at};
use super::list;
use super::{InputErrors, OperationError, Root, rules};
use crate::app::App;
use crate::sandboxes;

fn view(row: WorkspaceRow) -> Workspace {
    Workspace {
        id: row.id,
        name: row.name,
        sandbox: row.sandbox,
        created_at: row.created_at,
        updated_at: row.updated_at,
    }
}

/// Creates a workspace.
pub async fn create(app: &App, caller: &Root, new: NewWorkspace) -> Result<Workspace, OperationError> {
    check_name(&new.name)?;
    let row = row(new, app.clock.now());
    insert(app, caller, &row).await?;
    Ok(view(row))
}

/// Creates a row from an input.
pub(super) fn row(new: NewWorkspace, now: UtcMillis) -> WorkspaceRow {
    WorkspaceRow { id: WorkspaceId::new(), name: new.name, sandbox: None, created_at: now, updated_at: now }
}

/// Records and inserts a workspace that has been checked.
pub(super) async fn insert(app: &App, caller: &Root, row: &WorkspaceRow) -> Result<(), OperationError> {
    let change = Change::new("workspace.create", &row.id).to(&view(row.clone()));
    change.create(app, caller, app.store.insert_workspace(row)).await
}

/// Lists workspaces.
pub async fn list(app: &App, _: &Root, page: &Page<WorkspaceId>) -> Result<WorkspaceList, OperationError> {
    Ok(list::page(app.store.workspaces(page).await?, view))
}

/// Shows a workspace.
pub async fn show(app: &App, _: &Root, id: WorkspaceId) -> Result<Workspace, OperationError> {
    Ok(view(workspace(app, id).await?))
}

/// Changes the name or the sandbox limits of a workspace.
pub async fn update(
    app: &App,
    caller: &Root,
    id: WorkspaceId,
    change: WorkspaceChange,
) -> Result<Workspace, OperationError> {
    let before = workspace(app, id).await?;
    let mut row = before.clone();
    if let Some(name) = change.name.filter(|name| *name != before.name) {
        check_name(&name)?;
        if before.name == DEFAULT_WORKSPACE {
            return Err(OperationError::conflict(
                "the workspace `default` cannot be renamed, because root keys act in it",
            ));
        }
        row.name = name;
    }
    if let Some(sandbox) = change.sandbox {
        row.sandbox = sandbox.map(|sandbox| checked_sandbox(&sandbox)).transpose()?;
    }
    if row == before {
        return Ok(view(row));
    }
    row.updated_at = changed_at(app, before.updated_at);
    replace(app, caller, before, &row).await?;
    Ok(view(row))
}

/// Records a checked change of a workspace and makes it.
pub(super) async fn replace(
    app: &App,
    caller: &Root,
    before: WorkspaceRow,
    row: &WorkspaceRow,
) -> Result<(), OperationError> {
    let updated_at = before.updated_at;
    let change = Change::new("workspace.update", &row.id).from(&view(before)).to(&view(row.clone()));
    change.update(app, caller, app.store.update_workspace(row, updated_at)).await?;
    app.sandboxes.settings_have_changed();
    Ok(())
}

/// Deletes an empty workspace and its keys.
pub async fn delete(app: &App, caller: &Root, id: WorkspaceId) -> Result<(), OperationError> {
    let before = workspace(app, id).await?;
    if before.name == DEFAULT_WORKSPACE {
        return Err(OperationError::conflict("the workspace `default` cannot be deleted"));
    }
    let delete = async {
        match app.store.delete_workspace(id).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(OperationError::not_found("workspace")),
            Err(StoreError::InUse) => {
                let detail = "the workspace is not empty: delete its bots, resources, roles and OAuth providers first";
                Err(OperationError::conflict(detail))
            }
            Err(error) => Err(error.into()),
        }
    };
    Change::new("workspace.delete", &id).from(&view(before)).apply(app, caller, delete).await
}

async fn workspace(app: &App, id: WorkspaceId) -> Result<WorkspaceRow, OperationError> {
    app.store.workspace(id).await?.ok_or_else(|| OperationError::not_found("workspace"))
}

/// Checks the settings of sandboxes and returns them as they are stored.
pub(super) fn checked_sandbox(sandbox: &WorkspaceSandbox) -> Result<Value, OperationError> {
    let mut errors = InputErrors::default();
    for (place, message) in sandboxes::out_of_range(sandbox) {
        errors.add(format!("/sandbox{place}"), message);
    }
    errors.check()?;
    Ok(serde_json::to_value(sandbox).expect("settings are JSON"))
}

/// Checks a workspace's name. The name must not look like an id, because a header names a workspace by name or by id.
pub(super) fn check_name(name: &str) -> Result<(), OperationError> {
    let mut errors = InputErrors::default();
    rules::name(&mut errors, "/name", name);
    if name.parse::<WorkspaceId>().is_ok() {
        errors.add("/name", "must not look like an id");
    }
    errors.check()
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
