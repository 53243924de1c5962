//! Roles: named permissions for bindings.

use monstrum_api::roles::{NewRole, Role, RoleChange, RoleList};
use monstrum_store::{Page, RoleRow};
use monstrum_types::{RoleId, UtcMillis, WorkspaceId};
use serde_json::json;

use super::change::{Change, changed_at, set};
use super::list;
use super::{Admin, Expected, InputErrors, OperationError, Operator, gates, rules, scope_warnings};
use crate::app::App;
use crate::policy::pattern_limits::{compiled_bytes, lists_of_role};

fn view(row: RoleRow) -> Role {
    Role {
        id: row.id,
        name: row.name,
        allowed_operations: row.allowed_operations,
        allowed_tools: row.allowed_tools,
        scope_constraints: row.scope_constraints,
        gates: gates::shown(row.gates),
        created_at: row.created_at,
        updated_at: row.updated_at,
        warnings: Vec::new(),
    }
}

/// Creates a role.
pub async fn create(app: &App, caller: &Admin, new: NewRole) -> Result<Role, OperationError> {
    let row = row(new, caller.workspace, app.clock.now());
    check(&row, None)?;
    let _room = rules::pattern_room(app, caller.workspace, 0, compiled_bytes(lists_of_role(&row))).await?;
    Change::new("role.create", &row.id).to(&view(row.clone())).create(app, caller, app.store.insert_role(&row)).await?;
    Ok(with_warnings(app, row))
}

/// Creates a row from an input.
pub(super) fn row(new: NewRole, workspace: WorkspaceId, now: UtcMillis) -> RoleRow {
    RoleRow {
        id: RoleId::new(),
        workspace_id: workspace,
        name: new.name,
        allowed_operations: new.allowed_operations.map(|globs| json!(globs)),
        allowed_tools: new.allowed_tools.map(|globs| json!(globs)),
        scope_constraints: json!(new.scope_constraints),
        gates: gates::stored(&new.gates),
        created_at: now,
        updated_at: now,
    }
}

/// Checks a role as it would be stored. What is equal in `before` is not checked.
pub(super) fn check(row: &RoleRow, before: Option<&RoleRow>) -> Result<(), OperationError> {
    let mut errors = InputErrors::default();
    if before.is_none_or(|before| before.name != row.name) {
        rules::name(&mut errors, "/name", &row.name);
    }
    rules::scope_keys("/scope_constraints", &row.scope_constraints, before.map(|before| &before.scope_constraints))?;
    gates::check(&mut errors, "/gates", row.gates.as_ref(), before.and_then(|before| before.gates.as_ref()))?;
    rules::patterns(&mut errors, lists_of_role(row), before.map(lists_of_role).unwrap_or_default());
    errors.check()
}

/// Lists roles.
pub async fn list(app: &App, caller: &Operator, page: &Page<RoleId>) -> Result<RoleList, OperationError> {
    Ok(list::page(app.store.roles(caller.workspace, page).await?, view))
}

/// Shows a role.
pub async fn show(app: &App, caller: &Operator, id: RoleId) -> Result<Role, OperationError> {
    let row = app.store.role(caller.workspace, id).await?.ok_or_else(|| OperationError::not_found("role"))?;
    Ok(view(row))
}

/// Changes a role.
pub async fn update(
    app: &App,
    caller: &Admin,
    id: RoleId,
    expected: Expected,
    change: RoleChange,
) -> Result<Role, OperationError> {
    let before = app.store.role(caller.workspace, id).await?.ok_or_else(|| OperationError::not_found("role"))?;
    expected.check(before.updated_at)?;
    let mut row = before.clone();
    set(&mut row.name, change.name);
    set(&mut row.allowed_operations, change.allowed_operations.map(|globs| globs.map(|globs| json!(globs))));
    set(&mut row.allowed_tools, change.allowed_tools.map(|globs| globs.map(|globs| json!(globs))));
    set(&mut row.scope_constraints, change.scope_constraints.map(|scopes| json!(scopes.unwrap_or_default())));
    if let Some(changed) = change.gates {
        row.gates = gates::stored(&changed.unwrap_or_default());
    }
    row.updated_at = changed_at(app, before.updated_at);
    check(&row, Some(&before))?;
    let (replaced, bytes) = (compiled_bytes(lists_of_role(&before)), compiled_bytes(lists_of_role(&row)));
    let _room = rules::pattern_room(app, caller.workspace, replaced, bytes).await?;
    let change = Change::new("role.update", &id).at(expected).from(&view(before.clone())).to(&view(row.clone()));
    change.update(app, caller, app.store.update_role(&row, before.updated_at)).await?;
    Ok(with_warnings(app, row))
}

fn with_warnings(app: &App, row: RoleRow) -> Role {
    let warnings = scope_warnings::of_role(&app.policy.load(), row.workspace_id, row.id, &row.scope_constraints);
    Role { warnings, ..view(row) }
}

/// Deletes a role that no binding uses.
pub async fn delete(app: &App, caller: &Admin, id: RoleId, expected: Expected) -> Result<(), OperationError> {
    let before = app.store.role(caller.workspace, id).await?.ok_or_else(|| OperationError::not_found("role"))?;
    expected.check(before.updated_at)?;
    Change::new("role.delete", &id)
        .from(&view(before))
        .delete(app, caller, "role", app.store.delete_role(caller.workspace, id))
        .await
}
