//! Bindings. A binding allows a bot to use a resource within limits. Bindings are permissions, so changing them
//! requires an admin key.

pub(super) mod input;

use monstrum_api::bindings::{Binding, BindingChange, BindingList, NewBinding};
use monstrum_store::{BindingRow, Page};
use monstrum_types::{BindingId, BotId};

use super::change::{Change, changed_at};
use super::list;
use super::{Admin, Caller, Expected, OperationError, Operator, gates, rules};
use crate::app::App;
use crate::policy::pattern_limits::{compiled_bytes, lists_of_binding};

fn view(row: BindingRow) -> Binding {
    Binding {
        id: row.id,
        bot_id: row.bot_id,
        resource_id: row.resource_id,
        role_id: row.role_id,
        permissions: row.permissions,
        scope_constraints: row.scope_constraints,
        delegate: row.delegate,
        gates: gates::shown(row.gates),
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

/// Binds a resource to a bot.
pub async fn create(app: &App, caller: &Admin, bot: BotId, new: NewBinding) -> Result<Binding, OperationError> {
    bot_exists(app, caller, bot).await?;
    let row = input::row(new, caller.workspace, bot, app.clock.now());
    let warnings = input::check(app, &row, None, true).await?;
    let _room = rules::pattern_room(app, caller.workspace, 0, compiled_bytes(lists_of_binding(&row))).await?;
    recorded("binding.create", &row).to(&view(row.clone())).create(app, caller, app.store.insert_binding(&row)).await?;
    Ok(Binding { warnings, ..view(row) })
}

/// Lists the bindings of a bot.
pub async fn list(
    app: &App,
    caller: &Operator,
    bot: BotId,
    page: &Page<BindingId>,
) -> Result<BindingList, OperationError> {
    bot_exists(app, caller, bot).await?;
    Ok(list::page(app.store.bindings(caller.workspace, bot, page).await?, view))
}

/// Shows a binding.
pub async fn show(app: &App, caller: &Operator, bot: BotId, id: BindingId) -> Result<Binding, OperationError> {
    Ok(view(found(app, caller, bot, id).await?))
}

/// Changes a binding. Its resource cannot be changed.
pub async fn update(
    app: &App,
    caller: &Admin,
    bot: BotId,
    id: BindingId,
    expected: Expected,
    change: BindingChange,
) -> Result<Binding, OperationError> {
    let before = found(app, caller, bot, id).await?;
    expected.check(before.updated_at)?;
    let row = input::changed(change, before.clone(), changed_at(app, before.updated_at));
    let scopes_are_new = before.scope_constraints != row.scope_constraints;
    let warnings = input::check(app, &row, Some(&before), scopes_are_new).await?;
    let (replaced, bytes) = (compiled_bytes(lists_of_binding(&before)), compiled_bytes(lists_of_binding(&row)));
    let _room = rules::pattern_room(app, caller.workspace, replaced, bytes).await?;
    recorded("binding.update", &row)
        .at(expected)
        .from(&view(before.clone()))
        .to(&view(row.clone()))
        .update(app, caller, app.store.update_binding(&row, before.updated_at))
        .await?;
    Ok(Binding { warnings, ..view(row) })
}

/// Deletes a binding.
pub async fn delete(
    app: &App,
    caller: &Admin,
    bot: BotId,
    id: BindingId,
    expected: Expected,
) -> Result<(), OperationError> {
    let before = found(app, caller, bot, id).await?;
    expected.check(before.updated_at)?;
    recorded("binding.delete", &before)
        .from(&view(before.clone()))
        .delete(app, caller, "binding", app.store.delete_binding(caller.workspace, bot, id))
        .await
}

async fn found(app: &App, caller: &Caller, bot: BotId, id: BindingId) -> Result<BindingRow, OperationError> {
    app.store.binding(caller.workspace, bot, id).await?.ok_or_else(|| OperationError::not_found("binding"))
}

fn recorded(what: &'static str, row: &BindingRow) -> Change {
    Change::new(what, &row.id).of_bot(row.bot_id).of_resource(row.resource_id)
}

async fn bot_exists(app: &App, caller: &Caller, bot: BotId) -> Result<(), OperationError> {
    match app.store.bot(caller.workspace, bot).await? {
        Some(_) => Ok(()),
        None => Err(OperationError::not_found("bot")),
    }
}
