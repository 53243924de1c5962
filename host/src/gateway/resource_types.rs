//! `/api/resource-types`: the contracts of the plugins that serve, in the caller's language. Forms and pickers are made
//! from these.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use monstrum_manifest::{
    AuthFlow, AuthKind, Cost, CredentialCheck, Field as FieldModel, FieldKind, InjectRule, MatchMode, Mode,
    OauthConfig, OriginPattern, ToolDiscovery,
};
use monstrum_types::{Digest, PluginName, ResourceTypeId, ToolName};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::gateway::extract::{Id, Operator, PageQuery, Params, page_by_name};
use crate::gateway::language::InLanguage;
use crate::gateway::problem::{Problem, ProblemBody};
use monstrum_core::app::App;
use monstrum_core::language::Language;
use monstrum_core::plugins::Plugin;

/// The contract of a resource type.
#[derive(Serialize, ToSchema)]
pub struct ResourceType {
    pub id: ResourceTypeId,
    pub name: String,
    #[schema(value_type = String)]
    pub mode: Mode,
    pub description: String,
    pub icon: String,
    #[schema(value_type = String)]
    pub auth_flow: AuthFlow,
    #[schema(value_type = String)]
    pub tool_discovery: ToolDiscovery,
    pub tools: Vec<ContractTool>,
    pub scope_dimensions: Vec<Dimension>,
    pub auth_methods: Vec<AuthMethod>,
    pub config_schema: Vec<Field>,
    pub credential_schema: Vec<Field>,
    /// The call by which a credential can be tested; null: it cannot be.
    #[schema(value_type = Option<Object>)]
    pub credential_check: Option<CredentialCheck>,
    pub plugin: Origin,
}

/// The plugin that serves a type.
#[derive(Serialize, ToSchema)]
pub struct Origin {
    pub name: PluginName,
    pub version: String,
    /// SHA-256 of the component; null for what the platform serves itself.
    pub digest: Option<Digest>,
    /// What the plugin's author says of it, in the caller's language where there is a translation.
    pub description: String,
    pub author: String,
    pub license: String,
    pub tags: Vec<String>,
    pub homepage: Option<String>,
    pub repository: Option<String>,
}

/// A tool of a type.
#[derive(Serialize, ToSchema)]
pub struct ContractTool {
    pub name: ToolName,
    pub description: String,
    /// What roles speak of.
    pub operation: String,
    /// JSON Schema of the parameters.
    pub input_schema: Map<String, Value>,
    /// JSON Schema of the answer.
    pub output_schema: Option<Map<String, Value>>,
    #[schema(value_type = Option<Object>)]
    pub cost: Option<Cost>,
}

/// A rule about parameter values, which roles and bindings constrain under its key.
#[derive(Serialize, ToSchema)]
pub struct Dimension {
    pub key: String,
    pub param_paths: Vec<String>,
    #[schema(value_type = String)]
    pub match_mode: MatchMode,
    pub operation_filter: Option<String>,
    pub error_template: String,
}

/// A way of authenticating to the upstream.
#[derive(Serialize, ToSchema)]
pub struct AuthMethod {
    #[schema(value_type = String)]
    pub method: AuthKind,
    pub label: String,
    pub description: String,
    pub credential_schema: Vec<Field>,
    #[schema(value_type = Option<Object>)]
    pub oauth_config: Option<OauthConfig>,
    /// How the host adds the credential to a request.
    #[schema(value_type = Vec<Object>)]
    pub inject: Vec<InjectRule>,
    /// The origins that may get the credential; null: that of the configured api_base, else those of egress.
    #[schema(value_type = Option<Vec<String>>)]
    pub audience: Option<Vec<OriginPattern>>,
}

/// A field of a configuration or a credential.
#[derive(Serialize, ToSchema)]
pub struct Field {
    pub field: String,
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    pub kind: FieldKind,
    pub required: bool,
    pub default: Option<Value>,
    pub enum_values: Option<Vec<String>>,
    pub description: String,
}

/// A page of resource types.
#[derive(Serialize, ToSchema)]
pub struct ResourceTypeList {
    pub items: Vec<ResourceType>,
    pub next_cursor: Option<String>,
}

/// Lists resource types
#[utoipa::path(get, path = "/api/resource-types", tag = "resource types", params(PageQuery),
    responses((status = 200, body = ResourceTypeList), (status = "4XX", body = ProblemBody)))]
pub async fn list(
    State(app): State<Arc<App>>,
    _: Operator,
    InLanguage(language): InLanguage,
    Params(query): Params<PageQuery>,
) -> Result<Json<ResourceTypeList>, Problem> {
    let snapshot = app.policy.load();
    let (plugins, next_cursor) =
        page_by_name(snapshot.resource_types(), &query.page()?, |plugin| plugin.manifest.resource_type.id.as_str());
    let items = plugins.into_iter().map(|plugin| contract(plugin, &language)).collect();
    Ok(Json(ResourceTypeList { items, next_cursor }))
}

/// Shows a resource type
#[utoipa::path(get, path = "/api/resource-types/{id}", tag = "resource types", params(("id" = String, Path)),
    responses((status = 200, body = ResourceType), (status = "4XX", body = ProblemBody)))]
pub async fn show(
    State(app): State<Arc<App>>,
    _: Operator,
    InLanguage(language): InLanguage,
    Id(id): Id<ResourceTypeId>,
) -> Result<Json<ResourceType>, Problem> {
    let snapshot = app.policy.load();
    let plugin = snapshot.resource_type(&id).ok_or_else(|| Problem::not_found("resource type"))?;
    Ok(Json(contract(plugin, &language)))
}

fn contract(plugin: &Plugin, language: &Language) -> ResourceType {
    let resource_type = &plugin.manifest.resource_type;
    let tag = language.best(&plugin.locales);
    let text = |key: &str, own: &str| plugin.locales.text(tag, key, own).to_owned();
    let own_description = match resource_type.description.as_str() {
        "" => &plugin.manifest.description,
        own => own,
    };
    let tools = resource_type.tools.iter().map(|tool| ContractTool {
        name: tool.name.clone(),
        description: text(&format!("tools.{}.description", tool.name), &tool.description),
        operation: tool.operation.clone(),
        input_schema: tool.input_schema.clone(),
        output_schema: tool.output_schema.clone(),
        cost: tool.cost,
    });
    let dimensions = resource_type.scope_dimensions.iter().map(|dimension| Dimension {
        key: dimension.key.clone(),
        param_paths: dimension.param_paths.clone(),
        match_mode: dimension.match_mode,
        operation_filter: dimension.operation_filter.clone(),
        error_template: text(&format!("scope_dimensions.{}.error_template", dimension.key), &dimension.error_template),
    });
    let methods = resource_type.auth_methods.iter().enumerate().map(|(index, method)| AuthMethod {
        method: method.method,
        label: text(&format!("auth_methods.{index}.label"), &method.label),
        description: text(&format!("auth_methods.{index}.description"), &method.description),
        credential_schema: fields(method.credential_fields(resource_type)),
        oauth_config: method.oauth_config.clone(),
        inject: method.inject_rules(),
        audience: method.audience.clone(),
    });
    ResourceType {
        id: resource_type.id.clone(),
        name: resource_type.name.clone(),
        mode: resource_type.mode,
        description: text("description", own_description),
        icon: resource_type.icon.clone(),
        auth_flow: resource_type.auth_flow,
        tool_discovery: resource_type.tool_discovery,
        tools: tools.collect(),
        scope_dimensions: dimensions.collect(),
        auth_methods: methods.collect(),
        config_schema: fields(&resource_type.config_schema),
        credential_schema: fields(&resource_type.credential_schema),
        credential_check: resource_type.credential_check.clone(),
        plugin: Origin {
            name: plugin.name.clone(),
            version: plugin.manifest.version.to_string(),
            digest: plugin.digest().cloned(),
            description: text("description", &plugin.manifest.description),
            author: plugin.manifest.author.clone(),
            license: plugin.manifest.license.clone(),
            tags: plugin.manifest.tags.clone(),
            homepage: plugin.manifest.homepage.clone(),
            repository: plugin.manifest.repository.clone(),
        },
    }
}

fn fields(model: &[FieldModel]) -> Vec<Field> {
    let field = |field: &FieldModel| Field {
        field: field.field.clone(),
        kind: field.kind,
        required: field.required,
        default: field.default.clone(),
        enum_values: field.enum_values.clone(),
        description: field.description.clone(),
    };
    model.iter().map(field).collect()
}
