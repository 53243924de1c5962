//! `/api/plugins`: what serves, what does not and why. Plugins belong to the instance, so changes are a root key's.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use monstrum_manifest::Capability;
use monstrum_types::{Digest, PluginName, ResourceTypeId, ToolName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::gateway::changes::Change;
use crate::gateway::extract::{Id, Operator, OptionalInput, PageQuery, Params, Root, page_by_name};
use crate::gateway::problem::{Problem, ProblemBody};
use monstrum_core::app::App;
use monstrum_core::plugins::{self, ApproveError, Entry, LoadError};

/// Whether a plugin serves.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PluginStatus {
    /// The version in the folder serves.
    Loaded,
    /// The version in the folder could not be loaded. The version before it, if there is one, still serves.
    Failed,
    /// The version in the folder asks for more than the version before it, which still serves, or for a name that belongs
    /// to another plugin.
    NeedsApproval,
}

impl From<plugins::PluginStatus> for PluginStatus {
    fn from(status: plugins::PluginStatus) -> Self {
        match status {
            plugins::PluginStatus::Loaded => PluginStatus::Loaded,
            plugins::PluginStatus::Failed => PluginStatus::Failed,
            plugins::PluginStatus::NeedsApproval => PluginStatus::NeedsApproval,
        }
    }
}

/// A plugin of the folder. `version`, `digest` and all that follows are those of the version that serves.
#[derive(Serialize, ToSchema)]
pub struct Plugin {
    pub name: String,
    pub version: Option<String>,
    /// SHA-256 of the component.
    pub digest: Option<Digest>,
    pub status: PluginStatus,
    /// What its author says of it, as all up to `repository`: null where no version serves.
    pub description: Option<String>,
    pub author: Option<String>,
    pub license: Option<String>,
    pub tags: Vec<String>,
    pub homepage: Option<String>,
    pub repository: Option<String>,
    /// Why the version in the folder does not serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The interfaces that the component imports.
    pub imports: Vec<String>,
    /// What its manifest asks for.
    #[schema(value_type = Vec<String>)]
    pub capabilities: Vec<Capability>,
    pub resource_type: Option<ResourceTypeId>,
    pub tools: Vec<ToolName>,
    /// What it exports for infrastructure code, beyond tools: `POST /api/platform/{type}/{function}` calls one.
    pub functions: Vec<String>,
    /// What its author should know.
    pub warnings: Vec<String>,
    /// The version that waits for approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<Pending>,
}

/// A version that asks for more than the one that serves.
#[derive(Serialize, ToSchema)]
#[schema(as = PendingVersion)]
pub struct Pending {
    pub version: String,
    /// SHA-256 of the component.
    pub digest: Digest,
    /// SHA-256 of the manifest.
    pub manifest_digest: Digest,
    /// What it asks for beyond the version that serves, a sentence each.
    pub grows: Vec<String>,
}

/// Which version is approved.
#[derive(Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// The digest that `pending` shows; where another version waits by now, nothing is approved.
    #[serde(default)]
    pub digest: Option<Digest>,
    /// The same for the manifest, in which everything stands that the version asks for.
    #[serde(default)]
    pub manifest_digest: Option<Digest>,
}

/// A page of plugins.
#[derive(Serialize, ToSchema)]
pub struct PluginList {
    pub items: Vec<Plugin>,
    pub next_cursor: Option<String>,
}

impl From<Entry> for Plugin {
    fn from(entry: Entry) -> Self {
        let Entry { name, status, error, serving, pending, is_to_retry: _ } = entry;
        let pending = pending.map(|pending| Pending {
            version: pending.plugin.manifest.version.to_string(),
            digest: pending.digest().clone(),
            manifest_digest: pending.manifest_digest().clone(),
            grows: pending.added,
        });
        let status = PluginStatus::from(status);
        let Some(plugin) = serving else {
            return Plugin {
                name,
                version: None,
                digest: None,
                status,
                description: None,
                author: None,
                license: None,
                tags: Vec::new(),
                homepage: None,
                repository: None,
                error,
                imports: Vec::new(),
                capabilities: Vec::new(),
                resource_type: None,
                tools: Vec::new(),
                functions: Vec::new(),
                warnings: Vec::new(),
                pending,
            };
        };
        let manifest = &plugin.manifest;
        Plugin {
            name,
            version: Some(manifest.version.to_string()),
            digest: plugin.digest().cloned(),
            status,
            description: Some(manifest.description.clone()),
            author: Some(manifest.author.clone()),
            license: Some(manifest.license.clone()),
            tags: manifest.tags.clone(),
            homepage: manifest.homepage.clone(),
            repository: manifest.repository.clone(),
            error,
            imports: plugin.component.as_ref().map(|component| component.imports().to_vec()).unwrap_or_default(),
            capabilities: plugin.manifest.executor.capabilities.clone(),
            resource_type: Some(plugin.manifest.resource_type.id.clone()),
            tools: plugin.tools.iter().map(|tool| tool.manifest.name.clone()).collect(),
            functions: plugin.component.as_ref().map(|one| one.functions().to_vec()).unwrap_or_default(),
            warnings: plugin.warnings.clone(),
            pending,
        }
    }
}

/// Lists plugins
#[utoipa::path(get, path = "/api/plugins", tag = "plugins", params(PageQuery),
    responses((status = 200, body = PluginList), (status = "4XX", body = ProblemBody)))]
pub async fn list(
    State(app): State<Arc<App>>,
    _: Operator,
    Params(query): Params<PageQuery>,
) -> Result<Json<PluginList>, Problem> {
    let (entries, next_cursor) = page_by_name(app.plugins.entries(), &query.page()?, |entry| &entry.name);
    Ok(Json(PluginList { items: entries.into_iter().map(Plugin::from).collect(), next_cursor }))
}

/// Shows a plugin
#[utoipa::path(get, path = "/api/plugins/{name}", tag = "plugins", params(("name" = String, Path)),
    responses((status = 200, body = Plugin), (status = "4XX", body = ProblemBody)))]
pub async fn show(State(app): State<Arc<App>>, _: Operator, Id(name): Id<String>) -> Result<Json<Plugin>, Problem> {
    let entry = app.plugins.entry(&name).ok_or_else(|| Problem::not_found("plugin"))?;
    Ok(Json(entry.into()))
}

/// Loads a plugin's folder anew; a version that fails leaves the one before it serving
#[utoipa::path(post, path = "/api/plugins/{name}/reload", tag = "plugins", params(("name" = String, Path)),
    responses((status = 200, body = Plugin), (status = "4XX", body = ProblemBody)))]
pub async fn reload(
    State(app): State<Arc<App>>,
    Root(caller): Root,
    Id(name): Id<String>,
) -> Result<Json<Plugin>, Problem> {
    // A name is a folder's: what is neither a plugin's name nor a folder that the scan has met must not become a path.
    if name.parse::<PluginName>().is_err() && app.plugins.entry(&name).is_none() {
        return Err(Problem::not_found("plugin"));
    }
    let change = Change::new("plugin.reload", &name).from(&app.plugins.entry(&name).map(Plugin::from));
    let made = async {
        let entry = app.plugins.load(&name).await;
        app.changed().await?;
        entry.ok_or_else(|| Problem::not_found("plugin"))
    };
    let entry = change.made(&app, &caller, made).await?;
    Ok(Json(entry.into()))
}

/// Puts the version that waits for approval in force
#[utoipa::path(post, path = "/api/plugins/{name}/approve", tag = "plugins", params(("name" = String, Path)),
    request_body(content = Approval, description = "May be left out"),
    responses((status = 200, body = Plugin), (status = "4XX", body = ProblemBody)))]
pub async fn approve(
    State(app): State<Arc<App>>,
    Root(caller): Root,
    Id(name): Id<String>,
    OptionalInput(approval): OptionalInput<Approval>,
) -> Result<Json<Plugin>, Problem> {
    let before = app.plugins.entry(&name).ok_or_else(|| Problem::not_found("plugin"))?;
    // What waits now is what is recorded, so that is what may be approved: not what may wait a moment later.
    let pending = before.pending.as_ref();
    let approval = Approval {
        digest: approval.digest.or_else(|| pending.and_then(|pending| pending.plugin.digest().cloned())),
        manifest_digest: approval.manifest_digest.or_else(|| pending.map(|pending| pending.manifest_digest().clone())),
    };
    let change = Change::new("plugin.approve", &name).from(&Plugin::from(before)).to(&approval);
    let made = async {
        let approved = app.plugins.approve(&name, approval.digest.as_ref(), approval.manifest_digest.as_ref()).await;
        let entry = approved.map_err(|error| match error {
            ApproveError::Load(LoadError::Store(error)) => Problem::from(error),
            refused => Problem::conflict(refused.to_string()),
        })?;
        app.changed().await?;
        Ok(entry)
    };
    let entry = change.made(&app, &caller, made).await?;
    Ok(Json(entry.into()))
}
