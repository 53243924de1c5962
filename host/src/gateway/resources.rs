//! `/api/resources`: instances of resource types, with their configuration and what the network opens for them.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use ipnet::IpNet;
use monstrum_manifest::{ToolDiscovery, check_config};
use monstrum_store::{KeyKind, ResourceRow};
use monstrum_types::{InputError, ResourceId, ResourceTypeId, UtcMillis};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::gateway::changes::{Change, changed_at};
use crate::gateway::credentials::{CredentialMetadata, credential_of};
use crate::gateway::extract::{Caller, Faults, Id, Input, Operator, PageQuery, Params, given, named};
use crate::gateway::problem::{Problem, ProblemBody};
use crate::gateway::rules;
use monstrum_core::app::App;
use monstrum_core::beside::Beside;
use monstrum_core::plugins::{Plugin, built_in};

/// More ranges than any operator keeps in view.
const ADDRESSES_MAX: usize = 256;

/// An instance of a resource type.
#[derive(Serialize, ToSchema)]
pub struct Resource {
    pub id: ResourceId,
    pub resource_type: ResourceTypeId,
    pub name: String,
    /// As it was given; defaults of the type are not filled in.
    #[schema(value_type = Object)]
    pub config: Value,
    #[schema(value_type = Network)]
    pub network: Value,
    /// What is known of its credential; null where there is none.
    pub credential: Option<CredentialMetadata>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

/// What is opened for a resource beyond public https.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// CIDRs that may be connected to although they are not public, such as `10.1.0.0/16`.
    #[serde(default)]
    allow_addresses: Vec<String>,
    /// Whether `http://` may be used at all.
    #[serde(default)]
    allow_http: bool,
}

/// A page of resources.
#[derive(Serialize, ToSchema)]
pub struct ResourceList {
    pub items: Vec<Resource>,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewResource {
    resource_type: ResourceTypeId,
    name: String,
    #[serde(default)]
    config: Map<String, Value>,
    #[serde(default)]
    network: Network,
}

/// Each field that is named is replaced whole; null clears it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResourceChange {
    #[serde(default, deserialize_with = "given")]
    name: Option<String>,
    #[serde(default, deserialize_with = "named")]
    #[schema(value_type = Option<Object>)]
    config: Option<Option<Map<String, Value>>>,
    #[serde(default, deserialize_with = "named")]
    #[schema(value_type = Option<Network>)]
    network: Option<Option<Network>>,
}

/// Creates a resource
#[utoipa::path(post, path = "/api/resources", tag = "resources", request_body = NewResource,
    responses((status = 201, body = Resource), (status = "4XX", body = ProblemBody)))]
pub async fn create(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Input(mut new): Input<NewResource>,
) -> Result<(StatusCode, Json<Resource>), Problem> {
    if !new.config.is_empty() || new.network != Network::default() {
        configures(&caller)?;
    }
    let mut faults = Faults::default();
    rules::name(&mut faults, "/name", &new.name);
    check_network(&mut faults, &new.network);
    match app.policy.load().resource_type(&new.resource_type) {
        Some(plugin) => {
            check_configuration(&mut faults, plugin, &new.name, &new.config).await?;
            settle_bot(&mut faults, &app, &caller, &new.resource_type, &mut new.config);
        }
        None => faults.add("/resource_type", NOT_SERVED),
    }
    faults.check()?;
    let now = app.clock.now();
    let row = ResourceRow {
        id: ResourceId::new(),
        workspace_id: caller.workspace,
        resource_type: new.resource_type,
        name: new.name,
        config: Value::Object(new.config),
        network: json!(new.network),
        created_at: now,
        updated_at: now,
    };
    let made = async {
        app.store.insert_resource(&row).await?;
        Ok(app.changed().await?)
    };
    let change = Change::new("resource.create", &row.id).of_resource(row.id).to(&Resource::from(row.clone()));
    change.made(&app, &caller, made).await?;
    Ok((StatusCode::CREATED, Json(shown(&app, row).await?)))
}

/// Lists resources
#[utoipa::path(get, path = "/api/resources", tag = "resources", params(PageQuery),
    responses((status = 200, body = ResourceList), (status = "4XX", body = ProblemBody)))]
pub async fn list(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Params(query): Params<PageQuery>,
) -> Result<Json<ResourceList>, Problem> {
    let listed = app.store.resources(caller.workspace, &query.page()?).await?;
    let mut items = Vec::with_capacity(listed.items.len());
    for row in listed.items {
        items.push(shown(&app, row).await?);
    }
    Ok(Json(ResourceList { items, next_cursor: listed.next_cursor.map(String::from) }))
}

/// Shows a resource
#[utoipa::path(get, path = "/api/resources/{id}", tag = "resources", params(("id" = ResourceId, Path)),
    responses((status = 200, body = Resource), (status = "4XX", body = ProblemBody)))]
pub async fn show(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Id(id): Id<ResourceId>,
) -> Result<Json<Resource>, Problem> {
    let row = resource(&app, &caller, id).await?;
    Ok(Json(shown(&app, row).await?))
}

/// Changes a resource; configuration and network are an admin's, and so is the name where it is part of tool names
#[utoipa::path(patch, path = "/api/resources/{id}", tag = "resources", params(("id" = ResourceId, Path)),
    request_body = ResourceChange,
    responses((status = 200, body = Resource), (status = "4XX", body = ProblemBody)))]
pub async fn update(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Id(id): Id<ResourceId>,
    Input(change): Input<ResourceChange>,
) -> Result<Json<Resource>, Problem> {
    if change.config.is_some() || change.network.is_some() {
        configures(&caller)?;
    }
    let mut row = resource(&app, &caller, id).await?;
    let before = Resource::from(row.clone());
    let mut faults = Faults::default();
    let is_renamed = change.name.as_ref().is_some_and(|name| *name != row.name);
    if is_renamed {
        renames(&app, &caller, &row.resource_type)?;
    }
    if let Some(name) = change.name {
        rules::name(&mut faults, "/name", &name);
        row.name = name;
    }
    let is_configured = change.config.is_some();
    if let Some(config) = change.config {
        row.config = Value::Object(config.unwrap_or_default());
    }
    match (app.policy.load().resource_type(&row.resource_type), &mut row.config) {
        (Some(plugin), Value::Object(config)) if is_configured || is_renamed && names_tools(plugin) => {
            check_configuration(&mut faults, plugin, &row.name, config).await?;
            settle_bot(&mut faults, &app, &caller, &row.resource_type, config);
        }
        (None, _) if is_configured => faults.add("/config", NOT_SERVED),
        _ => {}
    }
    if let Some(network) = change.network {
        let network = network.unwrap_or_default();
        check_network(&mut faults, &network);
        row.network = json!(network);
    }
    faults.check()?;
    row.updated_at = changed_at(&app, before.updated_at);
    let made = async {
        if !app.store.update_resource(&row, before.updated_at).await? {
            return Err(Problem::changed_meanwhile());
        }
        Ok(app.changed().await?)
    };
    let change = Change::new("resource.update", &id).of_resource(id).from(&before);
    change.to(&Resource::from(row.clone())).made(&app, &caller, made).await?;
    Ok(Json(shown(&app, row).await?))
}

/// Deletes a resource that is not bound, with its credential
#[utoipa::path(delete, path = "/api/resources/{id}", tag = "resources", params(("id" = ResourceId, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody)))]
pub async fn delete(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Id(id): Id<ResourceId>,
) -> Result<StatusCode, Problem> {
    // Deleting a credential is an admin's, this way too.
    if caller.kind == KeyKind::Operator && app.store.credential(caller.workspace, id).await?.is_some() {
        caller.admin()?;
    }
    let before = Resource::from(resource(&app, &caller, id).await?);
    let made = async {
        if !app.store.delete_resource(caller.workspace, id).await? {
            return Err(Problem::not_found("resource"));
        }
        Ok(app.changed().await?)
    };
    Change::new("resource.delete", &id).of_resource(id).from(&before).made(&app, &caller, made).await?;
    Ok(StatusCode::NO_CONTENT)
}

const NOT_SERVED: &str = "no plugin that is loaded serves this resource type";

/// Configuration and network decide where a credential goes, so they are not an operator's.
fn configures(caller: &Caller) -> Result<(), Problem> {
    caller.admin().map_err(|_| Problem::forbidden("the configuration and network of a resource need an admin key"))
}

pub async fn resource(app: &App, caller: &Caller, id: ResourceId) -> Result<ResourceRow, Problem> {
    app.store.resource(caller.workspace, id).await?.ok_or_else(|| Problem::not_found("resource"))
}

async fn shown(app: &App, row: ResourceRow) -> Result<Resource, Problem> {
    let credential = credential_of(app, &row).await?;
    Ok(Resource { credential, ..Resource::from(row) })
}

/// Without its credential, whose state follows from what is changed and is not known before.
impl From<ResourceRow> for Resource {
    fn from(row: ResourceRow) -> Self {
        Resource {
            id: row.id,
            resource_type: row.resource_type,
            name: row.name,
            config: row.config,
            network: row.network,
            credential: None,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

/// Roles, bindings and delegations match the names of tools, so a name that is part of them is not an operator's. Without
/// the plugin nobody can say whether it is.
fn renames(app: &App, caller: &Caller, resource_type: &ResourceTypeId) -> Result<(), Problem> {
    let snapshot = app.policy.load();
    let reason = match snapshot.resource_type(resource_type) {
        Some(plugin) if names_tools(plugin) => "the name of this resource is part of the names of its tools",
        Some(_) => return Ok(()),
        None => "no plugin that is loaded serves this resource type, so the name may be part of the names of its tools",
    };
    caller.admin().map_err(|_| Problem::forbidden(format!("{reason}: changing it needs an admin key")))
}

/// Whether the name of a resource is a part of the names of its tools.
fn names_tools(plugin: &Plugin) -> bool {
    plugin.manifest.resource_type.tool_discovery == ToolDiscovery::Configured
}

/// The tools in a configuration have schemas, which are compiled beside the threads that serve.
async fn check_configuration(
    faults: &mut Faults,
    plugin: &Arc<Plugin>,
    name: &str,
    config: &Map<String, Value>,
) -> Result<(), Problem> {
    // Apart from manifests, so that a tenant's configurations do not delay the loading of a plugin.
    static CONFIGURATIONS: Beside = Beside::new();
    let (plugin, name, config) = (Arc::clone(plugin), name.to_owned(), config.clone());
    let checked = CONFIGURATIONS.run(move || check_config(&plugin.manifest.resource_type, &name, config)).await;
    let Err(found) = checked.map_err(|error| Problem::internal(&error))? else { return Ok(()) };
    for InputError { path, message } in found {
        // That of the resource itself; all others are of its configuration.
        let path = if path == "/name" { path } else { format!("/config{path}") };
        faults.add(path, message);
    }
    Ok(())
}

/// A resource of the built-in type stands for a bot that exists. What is kept is its id: whoever may rename bots must not
/// thereby decide who acts for whom.
fn settle_bot(
    faults: &mut Faults,
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
        None => faults.add("/config/bot", "no such bot in this workspace"),
    }
}

fn check_network(faults: &mut Faults, network: &Network) {
    if network.allow_addresses.len() > ADDRESSES_MAX {
        faults.add("/network/allow_addresses", format!("must have {ADDRESSES_MAX} entries at most"));
        return;
    }
    for (index, text) in network.allow_addresses.iter().enumerate() {
        if text.parse::<IpNet>().is_err() {
            let message = match text.parse::<IpAddr>() {
                Ok(IpAddr::V4(_)) => "a single address is written with /32",
                Ok(IpAddr::V6(_)) => "a single address is written with /128",
                Err(_) => "expected a range of addresses such as 10.1.0.0/16",
            };
            faults.add(format!("/network/allow_addresses/{index}"), message);
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
        let mut faults = Faults::default();
        check_network(&mut faults, &network);
        let paths: Vec<String> = faults.into_inner().into_iter().map(|fault| fault.path).collect();
        let expected = [1, 2, 4, 5, 6].map(|index| format!("/network/allow_addresses/{index}"));
        assert_eq!(paths, expected);
    }
}
