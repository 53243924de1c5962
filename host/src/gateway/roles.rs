//! `/api/roles`: what a binding allows, under a name.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use monstrum_guardian::ScopeConstraints;
use monstrum_store::RoleRow;
use monstrum_types::{RoleId, UtcMillis};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::gateway::changes::{Change, changed_at};
use crate::gateway::extract::{Admin, Faults, Id, Input, Operator, PageQuery, Params, given, named};
use crate::gateway::problem::{Problem, ProblemBody};
use crate::gateway::{rules, scope_warnings};
use monstrum_core::app::App;
use monstrum_core::policy::pattern_limits::{compiled_bytes, lists_of_role};

/// What a binding with this role allows. A list that is absent does not restrict; if both are, nothing is allowed.
#[derive(Serialize, ToSchema)]
pub struct Role {
    pub id: RoleId,
    pub name: String,
    /// fnmatch globs over operations, such as `issue.*`.
    #[schema(value_type = Option<Vec<String>>)]
    pub allowed_operations: Option<Value>,
    /// fnmatch globs over tool names, such as `github_*`.
    #[schema(value_type = Option<Vec<String>>)]
    pub allowed_tools: Option<Value>,
    /// Scope key to patterns.
    #[schema(value_type = std::collections::HashMap<String, Vec<String>>)]
    pub scope_constraints: Value,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
    /// What to know of what was just saved, a sentence each: it was saved nevertheless.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub warnings: Vec<String>,
}

/// A page of roles.
#[derive(Serialize, ToSchema)]
pub struct RoleList {
    pub items: Vec<Role>,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewRole {
    name: String,
    allowed_operations: Option<Vec<String>>,
    allowed_tools: Option<Vec<String>>,
    #[serde(default)]
    #[schema(value_type = std::collections::HashMap<String, Vec<String>>)]
    scope_constraints: ScopeConstraints,
}

/// Each field that is named is replaced whole; null clears it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RoleChange {
    #[serde(default, deserialize_with = "given")]
    name: Option<String>,
    #[serde(default, deserialize_with = "named")]
    #[schema(value_type = Option<Vec<String>>)]
    allowed_operations: Option<Option<Vec<String>>>,
    #[serde(default, deserialize_with = "named")]
    #[schema(value_type = Option<Vec<String>>)]
    allowed_tools: Option<Option<Vec<String>>>,
    #[serde(default, deserialize_with = "named")]
    #[schema(value_type = Option<std::collections::HashMap<String, Vec<String>>>)]
    scope_constraints: Option<Option<ScopeConstraints>>,
}

impl From<RoleRow> for Role {
    fn from(row: RoleRow) -> Self {
        Role {
            id: row.id,
            name: row.name,
            allowed_operations: row.allowed_operations,
            allowed_tools: row.allowed_tools,
            scope_constraints: row.scope_constraints,
            created_at: row.created_at,
            updated_at: row.updated_at,
            warnings: Vec::new(),
        }
    }
}

/// Creates a role
#[utoipa::path(post, path = "/api/roles", tag = "roles", request_body = NewRole,
    responses((status = 201, body = Role), (status = "4XX", body = ProblemBody)))]
pub async fn create(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Input(new): Input<NewRole>,
) -> Result<(StatusCode, Json<Role>), Problem> {
    let mut faults = Faults::default();
    rules::name(&mut faults, "/name", &new.name);
    let now = app.clock.now();
    let row = RoleRow {
        id: RoleId::new(),
        workspace_id: caller.workspace,
        name: new.name,
        allowed_operations: new.allowed_operations.map(|globs| json!(globs)),
        allowed_tools: new.allowed_tools.map(|globs| json!(globs)),
        scope_constraints: json!(new.scope_constraints),
        created_at: now,
        updated_at: now,
    };
    rules::scope_keys("/scope_constraints", &row.scope_constraints, None)?;
    rules::patterns(&mut faults, lists_of_role(&row), Vec::new());
    faults.check()?;
    let _room = rules::pattern_room(&app, caller.workspace, 0, compiled_bytes(lists_of_role(&row))).await?;
    let made = async {
        app.store.insert_role(&row).await?;
        Ok(app.changed().await?)
    };
    Change::new("role.create", &row.id).to(&Role::from(row.clone())).made(&app, &caller, made).await?;
    Ok((StatusCode::CREATED, Json(with_warnings(&app, row))))
}

/// Lists roles
#[utoipa::path(get, path = "/api/roles", tag = "roles", params(PageQuery),
    responses((status = 200, body = RoleList), (status = "4XX", body = ProblemBody)))]
pub async fn list(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Params(query): Params<PageQuery>,
) -> Result<Json<RoleList>, Problem> {
    let page = app.store.roles(caller.workspace, &query.page()?).await?;
    Ok(Json(RoleList {
        items: page.items.into_iter().map(Role::from).collect(),
        next_cursor: page.next_cursor.map(|id| id.to_string()),
    }))
}

/// Shows a role
#[utoipa::path(get, path = "/api/roles/{id}", tag = "roles", params(("id" = RoleId, Path)),
    responses((status = 200, body = Role), (status = "4XX", body = ProblemBody)))]
pub async fn show(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Id(id): Id<RoleId>,
) -> Result<Json<Role>, Problem> {
    let row = app.store.role(caller.workspace, id).await?.ok_or_else(|| Problem::not_found("role"))?;
    Ok(Json(row.into()))
}

/// Changes a role
#[utoipa::path(patch, path = "/api/roles/{id}", tag = "roles", params(("id" = RoleId, Path)), request_body = RoleChange,
    responses((status = 200, body = Role), (status = "4XX", body = ProblemBody)))]
pub async fn update(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Id(id): Id<RoleId>,
    Input(change): Input<RoleChange>,
) -> Result<Json<Role>, Problem> {
    let before = app.store.role(caller.workspace, id).await?.ok_or_else(|| Problem::not_found("role"))?;
    let mut row = before.clone();
    let mut faults = Faults::default();
    if let Some(name) = change.name {
        rules::name(&mut faults, "/name", &name);
        row.name = name;
    }
    if let Some(operations) = change.allowed_operations {
        row.allowed_operations = operations.map(|globs| json!(globs));
    }
    if let Some(tools) = change.allowed_tools {
        row.allowed_tools = tools.map(|globs| json!(globs));
    }
    if let Some(constraints) = change.scope_constraints {
        row.scope_constraints = json!(constraints.unwrap_or_default());
    }
    row.updated_at = changed_at(&app, before.updated_at);
    rules::scope_keys("/scope_constraints", &row.scope_constraints, Some(&before.scope_constraints))?;
    rules::patterns(&mut faults, lists_of_role(&row), lists_of_role(&before));
    faults.check()?;
    let (replaced, bytes) = (compiled_bytes(lists_of_role(&before)), compiled_bytes(lists_of_role(&row)));
    let _room = rules::pattern_room(&app, caller.workspace, replaced, bytes).await?;
    let made = async {
        if !app.store.update_role(&row, before.updated_at).await? {
            return Err(Problem::changed_meanwhile());
        }
        Ok(app.changed().await?)
    };
    let change = Change::new("role.update", &id).from(&Role::from(before.clone())).to(&Role::from(row.clone()));
    change.made(&app, &caller, made).await?;
    Ok(Json(with_warnings(&app, row)))
}

fn with_warnings(app: &App, row: RoleRow) -> Role {
    let warnings = scope_warnings::of_role(&app.policy.load(), row.workspace_id, row.id, &row.scope_constraints);
    Role { warnings, ..Role::from(row) }
}

/// Deletes a role that no binding uses
#[utoipa::path(delete, path = "/api/roles/{id}", tag = "roles", params(("id" = RoleId, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody)))]
pub async fn delete(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Id(id): Id<RoleId>,
) -> Result<StatusCode, Problem> {
    let before = app.store.role(caller.workspace, id).await?.ok_or_else(|| Problem::not_found("role"))?;
    let made = async {
        if !app.store.delete_role(caller.workspace, id).await? {
            return Err(Problem::not_found("role"));
        }
        Ok(app.changed().await?)
    };
    Change::new("role.delete", &id).from(&Role::from(before)).made(&app, &caller, made).await?;
    Ok(StatusCode::NO_CONTENT)
}
