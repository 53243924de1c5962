//! Converts rows of the store to the lines of an export.

use std::fmt::Display;

use monstrum_api::export::{BindingLine, BotLine, ResourceLine, RoleLine, WorkspaceLine};
use monstrum_store::{BindingRow, BotRow, ResourceRow, RoleRow, WorkspaceRow};
use monstrum_types::BotId;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::plugins::built_in;

/// The error for a row whose stored JSON does not have the form that this version writes.
#[derive(Debug, thiserror::Error)]
#[error("the stored {0} cannot be read")]
pub(super) struct Unreadable(String);

impl Unreadable {
    pub(super) fn of(kind: &str, id: impl Display) -> Unreadable {
        Unreadable(format!("{kind} {id}"))
    }
}

fn typed<T: DeserializeOwned>(value: &Value, kind: &str, id: impl Display) -> Result<T, Unreadable> {
    T::deserialize(value).map_err(|_| Unreadable::of(kind, id))
}

/// Returns a list of gates or labels, which is empty if the column is null.
fn optional<T: DeserializeOwned>(list: Option<&Value>, kind: &str, id: impl Display) -> Result<Vec<T>, Unreadable> {
    list.map_or(Ok(Vec::new()), |list| typed(list, kind, id))
}

pub(super) fn workspace(row: &WorkspaceRow) -> Result<WorkspaceLine, Unreadable> {
    let sandbox = row.sandbox.as_ref().map(|sandbox| typed(sandbox, "workspace", row.id)).transpose()?;
    Ok(WorkspaceLine { name: row.name.clone(), sandbox })
}

pub(super) fn role(row: &RoleRow, workspace: Option<String>) -> Result<RoleLine, Unreadable> {
    let list = |list: &Option<Value>| list.as_ref().map(|list| typed(list, "role", row.id)).transpose();
    Ok(RoleLine {
        workspace,
        name: row.name.clone(),
        allowed_operations: list(&row.allowed_operations)?,
        allowed_tools: list(&row.allowed_tools)?,
        scope_constraints: typed(&row.scope_constraints, "role", row.id)?,
        gates: optional(row.gates.as_ref(), "role", row.id)?,
    })
}

pub(super) fn bot(row: &BotRow, workspace: Option<String>) -> Result<BotLine, Unreadable> {
    Ok(BotLine {
        workspace,
        name: row.name.clone(),
        description: row.description.clone(),
        system_prompt: row.system_prompt.clone(),
        model: row.model.clone(),
        use_agent_sandbox: row.use_agent_sandbox,
        monthly_token_budget: row.monthly_token_budget,
        gates: optional(row.gates.as_ref(), "bot", row.id)?,
        model_fallbacks: optional(row.model_fallbacks.as_ref(), "bot", row.id)?,
        task_limits: row.task_limits.as_ref().map(|limits| typed(limits, "bot", row.id)).transpose()?,
        session_idle_s: row.session_idle_s,
        client_tools: row.admits_client_tools(),
    })
}

/// Returns the bot that a resource of the built-in type `bot` stands for.
pub(super) fn bot_behind(row: &ResourceRow) -> Option<BotId> {
    let is_of_type = row.resource_type.as_str() == built_in::BOT;
    row.config.get(built_in::BOT).filter(|_| is_of_type)?.as_str()?.parse().ok()
}

/// Converts a resource. `bot` is the name of the bot that the resource stands for. If that bot no longer exists, the
/// line has its id.
pub(super) fn resource(
    row: &ResourceRow,
    workspace: Option<String>,
    bot: Option<&str>,
) -> Result<ResourceLine, Unreadable> {
    let mut config: serde_json::Map<String, Value> = typed(&row.config, "resource", row.id)?;
    if let Some(bot) = bot.filter(|_| bot_behind(row).is_some()) {
        config.insert(built_in::BOT.to_owned(), Value::String(bot.to_owned()));
    }
    Ok(ResourceLine {
        workspace,
        resource_type: row.resource_type.clone(),
        name: row.name.clone(),
        config,
        network: typed(&row.network, "resource", row.id)?,
        labels: optional(row.labels.as_ref(), "resource", row.id)?,
    })
}

/// Converts a binding. `bot`, `resource` and `role` are the names of the objects to which the binding refers.
pub(super) fn binding(
    row: &BindingRow,
    workspace: Option<String>,
    bot: &str,
    resource: &str,
    role: Option<&str>,
) -> Result<BindingLine, Unreadable> {
    let unreadable = || Unreadable::of("binding", row.id);
    Ok(BindingLine {
        workspace,
        bot: bot.to_owned(),
        resource: resource.to_owned(),
        role: role.map(str::to_owned),
        permissions: row.permissions.as_ref().map(|own| typed(own, "binding", row.id)).transpose()?,
        scope_constraints: typed(&row.scope_constraints, "binding", row.id)?,
        delegate: row.delegate.as_ref().map(|link| typed(link, "binding", row.id)).transpose()?,
        gates: optional(row.gates.as_ref(), "binding", row.id)?,
        allow_calls: typed(&row.allow_calls, "binding", row.id)?,
        allow_subscribe: row.allow_subscribe,
        limits: row.limits.as_ref().map(|limits| typed(limits, "binding", row.id)).transpose()?,
        calls_per_minute: row.calls_per_minute.map(u32::try_from).transpose().map_err(|_| unreadable())?,
        enabled: row.enabled,
        expires_at: row.expires_at,
    })
}
