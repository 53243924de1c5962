//! `/api/bots/{id}/resources`: bindings, each of which lets a bot use a resource within limits. They are permissions, so
//! writing them is an admin's.

mod input;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use monstrum_store::BindingRow;
use monstrum_types::{BindingId, BotId, ResourceId, RoleId, UtcMillis};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::gateway::changes::{Change, changed_at};
use crate::gateway::extract::{Admin, Caller, Id, Ids, Input, Operator, PageQuery, Params};
use crate::gateway::problem::{Problem, ProblemBody};
use crate::gateway::rules;
use input::{BindingChange, Delegate, Limits, NewBinding, Permissions};
use monstrum_core::app::App;
use monstrum_core::policy::pattern_limits::{compiled_bytes, lists_of_binding};

/// What a bot may do with a resource.
#[derive(Serialize, ToSchema)]
pub struct Binding {
    pub id: BindingId,
    pub bot_id: BotId,
    pub resource_id: ResourceId,
    pub role_id: Option<RoleId>,
    #[schema(value_type = Option<Permissions>)]
    pub permissions: Option<Value>,
    #[schema(value_type = std::collections::HashMap<String, Vec<String>>)]
    pub scope_constraints: Value,
    #[schema(value_type = Option<Delegate>)]
    pub delegate: Option<Value>,
    #[schema(value_type = Vec<String>)]
    pub allow_calls: Value,
    pub allow_subscribe: bool,
    #[schema(value_type = Option<Limits>)]
    pub limits: Option<Value>,
    pub calls_per_minute: Option<i64>,
    pub enabled: bool,
    /// From this moment on it grants nothing.
    pub expires_at: Option<UtcMillis>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
    /// What to know of what was just saved, a sentence each: it was saved nevertheless.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub warnings: Vec<String>,
}

/// A page of bindings.
#[derive(Serialize, ToSchema)]
pub struct BindingList {
    pub items: Vec<Binding>,
    pub next_cursor: Option<String>,
}

impl From<BindingRow> for Binding {
    fn from(row: BindingRow) -> Self {
        Binding {
            id: row.id,
            bot_id: row.bot_id,
            resource_id: row.resource_id,
            role_id: row.role_id,
            permissions: row.permissions,
            scope_constraints: row.scope_constraints,
            delegate: row.delegate,
            allow_calls: row.allow_calls,
            allow_subscribe: row.allow_subscribe,
            limits: row.limits,
            calls_per_minute: row.calls_per_minute,
            enabled: row.enabled,
            expires_at: row.expires_at,
            created_at: row.created_at,
            updated_at: row.updated_at,
            warnings: Vec::new(),
        }
    }
}

/// Binds a resource to a bot
#[utoipa::path(post, path = "/api/bots/{id}/resources", tag = "bindings", params(("id" = BotId, Path)),
    request_body = NewBinding,
    responses((status = 201, body = Binding), (status = "4XX", body = ProblemBody)))]
pub async fn create(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Id(bot): Id<BotId>,
    Input(new): Input<NewBinding>,
) -> Result<(StatusCode, Json<Binding>), Problem> {
    bot_exists(&app, &caller, bot).await?;
    let row = new.into_row(caller.workspace, bot, app.clock.now());
    let warnings = input::check(&app, &row, None, true).await?;
    let _room = rules::pattern_room(&app, caller.workspace, 0, compiled_bytes(lists_of_binding(&row))).await?;
    let made = async {
        app.store.insert_binding(&row).await?;
        Ok(app.changed().await?)
    };
    change("binding.create", &row).to(&Binding::from(row.clone())).made(&app, &caller, made).await?;
    Ok((StatusCode::CREATED, Json(Binding { warnings, ..Binding::from(row) })))
}

/// Lists the bindings of a bot
#[utoipa::path(get, path = "/api/bots/{id}/resources", tag = "bindings", params(("id" = BotId, Path), PageQuery),
    responses((status = 200, body = BindingList), (status = "4XX", body = ProblemBody)))]
pub async fn list(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Id(bot): Id<BotId>,
    Params(query): Params<PageQuery>,
) -> Result<Json<BindingList>, Problem> {
    bot_exists(&app, &caller, bot).await?;
    let listed = app.store.bindings(caller.workspace, bot, &query.page()?).await?;
    let items = listed.items.into_iter().map(Binding::from).collect();
    Ok(Json(BindingList { items, next_cursor: listed.next_cursor.map(String::from) }))
}

/// Changes a binding; its resource stays
#[utoipa::path(patch, path = "/api/bots/{id}/resources/{binding_id}", tag = "bindings",
    params(("id" = BotId, Path), ("binding_id" = BindingId, Path)), request_body = BindingChange,
    responses((status = 200, body = Binding), (status = "4XX", body = ProblemBody)))]
pub async fn update(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Ids(bot, id): Ids<BotId, BindingId>,
    Input(input): Input<BindingChange>,
) -> Result<Json<Binding>, Problem> {
    let before = app.store.binding(caller.workspace, bot, id).await?.ok_or_else(|| Problem::not_found("binding"))?;
    let scopes_are_new = input.names_scopes();
    let row = input.apply(before.clone(), changed_at(&app, before.updated_at));
    let warnings = input::check(&app, &row, Some(&before), scopes_are_new).await?;
    let (replaced, bytes) = (compiled_bytes(lists_of_binding(&before)), compiled_bytes(lists_of_binding(&row)));
    let _room = rules::pattern_room(&app, caller.workspace, replaced, bytes).await?;
    let made = async {
        if !app.store.update_binding(&row, before.updated_at).await? {
            return Err(Problem::changed_meanwhile());
        }
        Ok(app.changed().await?)
    };
    change("binding.update", &row)
        .from(&Binding::from(before.clone()))
        .to(&Binding::from(row.clone()))
        .made(&app, &caller, made)
        .await?;
    Ok(Json(Binding { warnings, ..Binding::from(row) }))
}

/// Deletes a binding
#[utoipa::path(delete, path = "/api/bots/{id}/resources/{binding_id}", tag = "bindings",
    params(("id" = BotId, Path), ("binding_id" = BindingId, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody)))]
pub async fn delete(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Ids(bot, id): Ids<BotId, BindingId>,
) -> Result<StatusCode, Problem> {
    let before = app.store.binding(caller.workspace, bot, id).await?.ok_or_else(|| Problem::not_found("binding"))?;
    let made = async {
        if !app.store.delete_binding(caller.workspace, bot, id).await? {
            return Err(Problem::not_found("binding"));
        }
        Ok(app.changed().await?)
    };
    change("binding.delete", &before).from(&Binding::from(before.clone())).made(&app, &caller, made).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn change(what: &'static str, row: &BindingRow) -> Change {
    Change::new(what, &row.id).of_bot(row.bot_id).of_resource(row.resource_id)
}

async fn bot_exists(app: &App, caller: &Caller, bot: BotId) -> Result<(), Problem> {
    match app.store.bot(caller.workspace, bot).await? {
        Some(_) => Ok(()),
        None => Err(Problem::not_found("bot")),
    }
}
