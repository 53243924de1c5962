//! The contract of a resource type.

use monstrum_manifest::{
    AuthFlow, AuthKind, Cost, CredentialCheck, Effect, FieldKind, InjectRule, MatchMode, Mode, OauthConfig,
    OriginPattern, ResultForm, ToolDiscovery,
};
use monstrum_types::{Digest, PluginName, ResourceTypeId, ToolName};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::list::lists;

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
    /// The call that tests a credential; null if credentials of this type cannot be tested.
    #[schema(value_type = Option<Object>)]
    pub credential_check: Option<CredentialCheck>,
    pub plugin: Origin,
}

/// The plugin that defines a resource type.
#[derive(Serialize, ToSchema)]
pub struct Origin {
    pub name: PluginName,
    pub version: String,
    /// SHA-256 of the component; null for a built-in type.
    pub digest: Option<Digest>,
    /// The description in the plugin's manifest, in the caller's language if the plugin has a translation.
    pub description: String,
    pub author: String,
    pub license: String,
    pub tags: Vec<String>,
    pub homepage: Option<String>,
    pub repository: Option<String>,
}

/// A tool of a resource type.
#[derive(Serialize, ToSchema)]
pub struct ContractTool {
    pub name: ToolName,
    pub description: String,
    /// The operation to which the tool belongs. Roles allow tools by their operations.
    pub operation: String,
    /// JSON Schema of the parameters.
    pub input_schema: Map<String, Value>,
    /// JSON Schema of the result.
    pub output_schema: Option<Map<String, Value>>,
    /// `read`, `idempotent` or `write`: the effect of a call on the upstream.
    #[schema(value_type = String)]
    pub effect: Effect,
    /// `json` for any JSON value, or `content` for content blocks as in the Model Context Protocol.
    #[schema(value_type = String)]
    pub result: ResultForm,
    #[schema(value_type = Option<Object>)]
    pub cost: Option<Cost>,
}

/// A scope dimension: a rule for parameter values. Roles and bindings constrain these values under the key of the
/// dimension.
#[derive(Serialize, ToSchema)]
pub struct Dimension {
    pub key: String,
    pub param_paths: Vec<String>,
    #[schema(value_type = String)]
    pub match_mode: MatchMode,
    pub operation_filter: Option<String>,
    pub error_template: String,
}

/// A method of authentication to the upstream.
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
    /// The origins to which the credential may be sent. Null means the origin of the configured `api_base` or, without
    /// `api_base`, the origins that the manifest lists under `executor.egress`.
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
    /// The JSON Schema of the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Map<String, Value>>,
    pub description: String,
}

lists! {
    ResourceType => ResourceTypeList "A page of resource types.",
}
