//! Resources: instances of resource types, with their configuration and network rules.

mod health;

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use monstrum_api::resources::{Network, NewResource, Resource, ResourceChange, ResourceList};
use monstrum_manifest::{ToolDiscovery, check_config, full_tool_name};
use monstrum_store::{KeyKind, Page, ResourceRow};
use monstrum_types::{InputError, ResourceId, ResourceTypeId, ToolName, UtcMillis, WorkspaceId};
use serde_json::{Map, Value, json};

use super::change::{Change, changed_at};
use super::credentials::credential_of;
use super::{Caller, Expected, InputErrors, OperationError, Operator, gates, pins, rules, user_credentials};
use crate::app::App;
use crate::beside::Beside;
use crate::models;
use crate::plugins::{Plugin, built_in};

pub use health::health;

/// The maximum number of address ranges. An operator cannot keep track of more.
const ADDRESSES_MAX: usize = 256;

/// Creates a resource.
pub async fn create(app: &App, caller: &Operator, new: NewResource) -> Result<Resource, OperationError> {
    create_as(app, caller, ResourceId::new(), new).await
}

/// Creates a resource with this id.
pub(super) async fn create_as(
    app: &App,
    caller: &Operator,
    id: ResourceId,
    mut new: NewResource,
) -> Result<Resource, OperationError> {
    if !new.config.is_empty() || new.network != Network::default() || !new.labels.is_empty() {
        configures(caller)?;
    }
    let mut errors = InputErrors::default();
    rules::name(&mut errors, "/name", &new.name);
    check_network(&mut errors, &new.network);
    gates::check_labels(&mut errors, "/labels", &new.labels);
    match app.policy.load().resource_type(&new.resource_type) {
        Some(plugin) => {
            check_configuration(&mut errors, plugin, &new.name, &new.config).await?;
            settle_bot(&mut errors, app, caller, &new.resource_type, &mut new.config);
        }
        None => errors.add("/resource_type", NOT_SERVED),
    }
    errors.check()?;
    if new.labels.is_empty()
        && app.policy.load().resource_type(&new.resource_type).is_some_and(|it| it.has_remote_tools())
    {
        new.labels.push(UNTRUSTED.to_owned());
    }
    let row = ResourceRow { id, ..row(new, caller.workspace, app.clock.now()) };
    let change = Change::new("resource.create", &row.id).of_resource(row.id).to(&view(row.clone()));
    change.create(app, caller, app.store.insert_resource(&row)).await?;
    shown(app, row).await
}

/// The label of the results of tools that come from outside. Only an admin can remove it.
const UNTRUSTED: &str = "untrusted";

/// Creates a row from an input.
pub(super) fn row(new: NewResource, workspace: WorkspaceId, now: UtcMillis) -> ResourceRow {
    ResourceRow {
        id: ResourceId::new(),
        workspace_id: workspace,
        resource_type: new.resource_type,
        name: new.name,
        config: Value::Object(new.config),
        network: json!(new.network),
        labels: gates::stored(&new.labels),
        created_at: now,
        updated_at: now,
    }
}

/// Lists resources.
pub async fn list(app: &App, caller: &Operator, page: &Page<ResourceId>) -> Result<ResourceList, OperationError> {
    let listed = app.store.resources(caller.workspace, page).await?;
    let mut items = Vec::with_capacity(listed.items.len());
    for row in listed.items {
        items.push(shown(app, row).await?);
    }
    Ok(ResourceList { items, next_cursor: listed.next_cursor.map(|cursor| cursor.to_string()) })
}

/// Shows a resource.
pub async fn show(app: &App, caller: &Operator, id: ResourceId) -> Result<Resource, OperationError> {
    let row = resource(app, caller, id).await?;
    shown(app, row).await
}

/// Changes a resource. A change of the configuration, the network, the labels, or a name that is part of tool names
/// requires an admin key.
pub async fn update(
    app: &App,
    caller: &Operator,
    id: ResourceId,
    expected: Expected,
    change: ResourceChange,
) -> Result<Resource, OperationError> {
    if change.config.is_some() || change.network.is_some() || change.labels.is_some() {
        configures(caller)?;
    }
    let mut row = resource(app, caller, id).await?;
    expected.check(row.updated_at)?;
    let before = view(row.clone());
    let mut errors = InputErrors::default();
    let is_renamed = change.name.as_ref().is_some_and(|name| *name != row.name);
    if is_renamed {
        renames(app, caller, &row.resource_type)?;
    }
    if let Some(name) = change.name {
        rules::name(&mut errors, "/name", &name);
        row.name = name;
    }
    let is_configured = change.config.is_some();
    if let Some(config) = change.config {
        row.config = Value::Object(config.unwrap_or_default());
    }
    match (app.policy.load().resource_type(&row.resource_type), &mut row.config) {
        (Some(plugin), Value::Object(config)) if is_configured || is_renamed && names_tools(plugin) => {
            check_configuration(&mut errors, plugin, &row.name, config).await?;
            settle_bot(&mut errors, app, caller, &row.resource_type, config);
        }
        (None, _) if is_configured => errors.add("/config", NOT_SERVED),
        _ => {}
    }
    if is_renamed {
        check_tool_names(&mut errors, app, &row).await?;
    }
    if let Some(network) = change.network {
        let network = network.unwrap_or_default();
        check_network(&mut errors, &network);
        row.network = json!(network);
    }
    if let Some(labels) = change.labels {
        let labels = labels.unwrap_or_default();
        gates::check_labels(&mut errors, "/labels", &labels);
        row.labels = gates::stored(&labels);
    }
    errors.check()?;
    row.updated_at = changed_at(app, before.updated_at);
    let change = Change::new("resource.update", &id).at(expected).of_resource(id).from(&before);
    change.to(&view(row.clone())).update(app, caller, app.store.update_resource(&row, before.updated_at)).await?;
    shown(app, row).await
}

/// Deletes a resource and its credential. Fails if a binding uses the resource. Deleting a resource that has a
/// credential or an OAuth provider requires an admin key.
pub async fn delete(app: &App, caller: &Operator, id: ResourceId, expected: Expected) -> Result<(), OperationError> {
    // Deleting a credential requires an admin key, even if the credential is deleted with its resource.
    let row = resource(app, caller, id).await?;
    if caller.kind == KeyKind::Operator
        && (app.store.credential(caller.workspace, id).await?.is_some()
            || app.store.oauth_provider_of_resource(caller.workspace, id).await?.is_some()
            || user_credentials::exist(app, &row).await?)
    {
        caller.admin()?;
    }
    expected.check(row.updated_at)?;
    let before = view(row);
    Change::new("resource.delete", &id)
        .of_resource(id)
        .from(&before)
        .delete(app, caller, "resource", app.store.delete_resource(caller.workspace, id))
        .await
}

pub(super) const NOT_SERVED: &str = "no loaded plugin has this resource type";

/// Rejects operators, because the configuration and the network decide where a credential is sent, and gates depend on
/// the labels.
fn configures(caller: &Caller) -> Result<(), OperationError> {
    caller.admin().map_err(|_| {
        OperationError::forbidden("changing the configuration, network or labels of a resource requires an admin key")
    })
}

pub async fn resource(app: &App, caller: &Caller, id: ResourceId) -> Result<ResourceRow, OperationError> {
    app.store.resource(caller.workspace, id).await?.ok_or_else(|| OperationError::not_found("resource"))
}

async fn shown(app: &App, row: ResourceRow) -> Result<Resource, OperationError> {
    let credential = credential_of(app, &row).await?;
    let discovery = pins::discovery(app, &row).await?;
    Ok(Resource { credential, discovery, ..view(row) })
}

/// Converts a row to a resource. Leaves `credential` and `discovery` empty, because a change of the resource can change
/// them.
fn view(row: ResourceRow) -> Resource {
    Resource {
        id: row.id,
        resource_type: row.resource_type,
        name: row.name,
        config: row.config,
        network: row.network,
        labels: gates::shown(row.labels),
        credential: None,
        discovery: None,
        created_at: row.created_at,
        updated_at: row.updated_at,
    }
}

/// Rejects an operator if the resource's name is part of tool names, which roles, bindings and delegations match. If
/// the plugin is not loaded, tool names may include the resource's name, so the operator is rejected too.
fn renames(app: &App, caller: &Caller, resource_type: &ResourceTypeId) -> Result<(), OperationError> {
    let snapshot = app.policy.load();
    let reason = match snapshot.resource_type(resource_type) {
        Some(plugin) if names_tools(plugin) => "the name of this resource is part of the names of its tools",
        Some(_) => return Ok(()),
        None => "no loaded plugin has this resource type, so the name may be part of the names of its tools",
    };
    caller.admin().map_err(|_| OperationError::forbidden(format!("{reason}: changing the name requires an admin key")))
}

/// Returns whether the names of a resource's tools include the resource's name.
fn names_tools(plugin: &Plugin) -> bool {
    plugin.manifest.resource_type.tool_discovery != ToolDiscovery::Static
}

/// Checks that the tools of a renamed resource that come from outside get valid names.
async fn check_tool_names(errors: &mut InputErrors, app: &App, row: &ResourceRow) -> Result<(), OperationError> {
    let tools = app.store.resource_tools(row.workspace_id, row.id).await?;
    let names = tools.iter().map(|tool| full_tool_name(&row.name, &tool.slug));
    if let Some(long) = names.into_iter().find(|name| name.parse::<ToolName>().is_err()) {
        errors.add("/name", format!("the tool name `{long}` would be longer than 64 characters"));
    }
    Ok(())
}

/// Checks a configuration. The schemas of its tools are compiled on threads that serve no requests.
async fn check_configuration(
    errors: &mut InputErrors,
    plugin: &Arc<Plugin>,
    name: &str,
    config: &Map<String, Value>,
) -> Result<(), OperationError> {
    // These threads are separate from the threads for manifests, so that a tenant's configurations do not delay the
    // loading of a plugin.
    static CONFIGURATIONS: Beside = Beside::new();
    let (plugin, name, config) = (Arc::clone(plugin), name.to_owned(), config.clone());
    let found = CONFIGURATIONS.run(move || configuration_errors(&plugin, &name, config)).await;
    errors.add_under("", found.map_err(OperationError::internal)?);
    Ok(())
}

/// Returns the errors of a configuration. This compiles the schemas of the tools in it, so it runs beside the serving
/// threads.
pub(super) fn configuration_errors(plugin: &Plugin, name: &str, config: Map<String, Value>) -> Vec<InputError> {
    let found = match check_config(&plugin.manifest.resource_type, name, config) {
        Ok(checked) if plugin.name.as_str() == built_in::LLM => models::config_errors(&checked.values),
        Ok(_) => return Vec::new(),
        Err(found) => found,
    };
    // `/name` is a field of the resource; all other paths are in its configuration.
    let in_resource = |InputError { path, message }: InputError| {
        let path = if path == "/name" { path } else { format!("/config{path}") };
        InputError { path, message }
    };
    found.into_iter().map(in_resource).collect()
}

/// Checks that a resource of the built-in type names an existing bot, and replaces the bot's name with its id.
/// Otherwise, a caller who may rename bots could decide which bot acts for another bot.
fn settle_bot(
    errors: &mut InputErrors,
    app: &App,
    caller: &Caller,
    resource_type: &ResourceTypeId,
    config: &mut Map<String, Value>,
) {
    let Some(Value::String(bot)) = config.get_mut(built_in::BOT).filter(|_| resource_type.as_str() == built_in::BOT)
    else {
        return;
    };
    match app.policy.load().bot_called(caller.workspace, bot) {
        Some(found) => *bot = found.row.id.to_string(),
        None => errors.add("/config/bot", "no such bot in this workspace"),
    }
}

/// Checks the network rules of a resource.
pub(super) fn check_network(errors: &mut InputErrors, network: &Network) {
    if network.allow_addresses.len() > ADDRESSES_MAX {
        errors.add("/network/allow_addresses", format!("must have at most {ADDRESSES_MAX} entries"));
        return;
    }
    for (index, text) in network.allow_addresses.iter().enumerate() {
        if text.parse::<IpNet>().is_err() {
            let message = match text.parse::<IpAddr>() {
                Ok(IpAddr::V4(_)) => "expected an address range; write a single address with /32",
                Ok(IpAddr::V6(_)) => "expected an address range; write a single address with /128",
                Err(_) => "expected an address range such as 10.1.0.0/16",
            };
            errors.add(format!("/network/allow_addresses/{index}"), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bad_range_is_named() {
        let texts = ["10.0.0.0/8", "10.0.0.1", "::1", "fd00::/8", "10.0.0.0/33", "localhost", ""];
        let network = Network { allow_addresses: texts.map(str::to_owned).to_vec(), allow_http: false };
        let mut errors = InputErrors::default();
        check_network(&mut errors, &network);
        let expected = [1, 2, 4, 5, 6].map(|index| format!("/network/allow_addresses/{index}"));
        assert_eq!(errors.paths(), expected);
    }
}
