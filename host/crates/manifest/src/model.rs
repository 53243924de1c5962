//! The types of `monstrum.yaml`. Serde checks the structure, and the module `validate` checks the content.

use monstrum_types::{PluginName, ResourceTypeId, ToolName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::origin::OriginPattern;

/// A whole `monstrum.yaml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Lower-case letters, digits and hyphens; the folder has the same name.
    pub name: PluginName,
    /// A semantic version.
    #[schemars(with = "String")]
    pub version: semver::Version,
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub author: String,
    #[serde(default = "mit")]
    pub license: String,
    #[serde(default)]
    pub tags: Vec<String>,
    #[serde(default)]
    pub homepage: Option<String>,
    #[serde(default)]
    pub repository: Option<String>,
    /// The folder of the translations, relative to the plugin's folder.
    #[serde(default = "locales")]
    pub locales_dir: String,
    pub resource_type: ResourceType,
    #[serde(default)]
    pub executor: Executor,
}

fn mit() -> String {
    "MIT".to_owned()
}

fn locales() -> String {
    "locales".to_owned()
}

/// The resource type that the plugin provides: the contract between its author and operators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResourceType {
    pub id: ResourceTypeId,
    pub name: String,
    #[serde(default)]
    pub mode: Mode,
    #[serde(default)]
    pub description: String,
    /// A semantic name, or a PNG or WebP file in the plugin's folder.
    #[serde(default)]
    pub icon: String,
    #[serde(default)]
    pub auth_flow: AuthFlow,
    #[serde(default)]
    pub tool_discovery: ToolDiscovery,
    #[serde(default)]
    pub tools: Vec<Tool>,
    #[serde(default)]
    pub scope_dimensions: Vec<ScopeDimension>,
    #[serde(default)]
    pub auth_methods: Vec<AuthMethod>,
    #[serde(default)]
    pub config_schema: Vec<Field>,
    #[serde(default)]
    pub credential_schema: Vec<Field>,
    /// The call by which an administrator tests a credential.
    #[serde(default)]
    pub credential_check: Option<CredentialCheck>,
}

/// A call that tests whether a credential works. It should only read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CredentialCheck {
    /// A tool of this manifest.
    pub tool: ToolName,
    /// The fixed parameters of the call.
    #[serde(default)]
    pub params: Map<String, Value>,
}

/// The origin of the resource type. In a plugin folder only `plugin` is allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    #[default]
    Plugin,
    Endpoint,
    System,
}

/// How an operator usually provides a credential.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuthFlow {
    Oauth,
    #[default]
    Manual,
    None,
}

/// The source of the tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolDiscovery {
    #[default]
    Static,
    Dynamic,
    Configured,
}

/// One tool that a bot may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// Unique across all plugins.
    pub name: ToolName,
    pub description: String,
    /// The operation that roles refer to, such as `issue.read`; several tools may share one.
    pub operation: String,
    /// JSON Schema of the parameters. Without `additionalProperties` it is closed.
    pub input_schema: Map<String, Value>,
    /// JSON Schema of the result.
    #[serde(default)]
    pub output_schema: Option<Map<String, Value>>,
    #[serde(default)]
    pub cost: Option<Cost>,
}

/// The cost of one call.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    #[serde(default)]
    pub tokens: u64,
    #[serde(default)]
    pub credits: f64,
}

impl Cost {
    /// Returns the credits in millionths, as an integer, because sums of floats are not exact.
    #[must_use]
    pub fn credits_millionths(&self) -> i64 {
        // The cast saturates: a float that is too large becomes the largest integer.
        #[expect(clippy::cast_possible_truncation, reason = "it saturates")]
        let millionths = (self.credits * 1e6).round() as i64;
        millionths.max(0)
    }

    /// Returns whether the cost is zero.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.tokens == 0 && self.credits_millionths() == 0
    }
}

/// A kind of parameter value that bindings and roles can constrain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScopeDimension {
    /// The key in `scope_constraints`.
    pub key: String,
    /// The parameters to check, if they are present; dots separate the keys of nested objects.
    pub param_paths: Vec<String>,
    #[serde(default)]
    pub match_mode: MatchMode,
    /// A glob for operations; if absent, the dimension applies to all.
    #[serde(default)]
    pub operation_filter: Option<String>,
    /// The message that the LLM reads on a violation; `{value}` is replaced by the value.
    #[serde(default)]
    pub error_template: String,
}

/// How a value is compared with an entry of a constraint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MatchMode {
    /// A glob as in `fnmatch`, matched with the unchanged text; `*` also matches `/`.
    #[default]
    Pattern,
    /// A pattern for file paths, which are normalised first.
    Path,
    /// Equal text.
    Exact,
}

/// One way of authenticating to the upstream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuthMethod {
    pub method: AuthKind,
    #[serde(default)]
    pub label: String,
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub credential_schema: Vec<Field>,
    #[serde(default)]
    pub oauth_config: Option<OauthConfig>,
    /// How the host adds the credential to a request; if absent, the method's default.
    #[serde(default)]
    pub inject: Option<Vec<InjectRule>>,
    /// The origins that may receive the credential; if absent, the origin of `api_base`, else those of executor.egress.
    #[serde(default)]
    pub audience: Option<Vec<OriginPattern>>,
}

/// The kinds of authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuthKind {
    #[serde(rename = "oauth2_auth_code")]
    Oauth2AuthCode,
    #[serde(rename = "oauth2_client_creds")]
    Oauth2ClientCreds,
    #[serde(rename = "oauth2_device_code")]
    Oauth2DeviceCode,
    ApiKey,
    Token,
    SshKey,
    Basic,
    None,
}

/// Endpoints that a manifest proposes for OAuth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OauthConfig {
    #[serde(default)]
    pub authorization_url: Option<String>,
    #[serde(default)]
    pub token_url: Option<String>,
    #[serde(default)]
    pub device_authorization_url: Option<String>,
    #[serde(default)]
    pub scopes: Vec<String>,
    #[serde(default)]
    pub pkce_required: bool,
}

/// How the host adds a part of the credential to a request. `{field}` is replaced by the value of that field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected one of `{ header, value }`, `{ query, value }`, `{ basic: { username, password } }`, `{ body, value }`, `{ path, value }`"
)]
pub enum InjectRule {
    Header(HeaderRule),
    Query(QueryRule),
    Basic(BasicRule),
    Body(BodyRule),
    Path(PathRule),
}

/// `{ header: Authorization, value: "Bearer {access_token}" }`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeaderRule {
    pub header: String,
    pub value: String,
}

/// `{ query: api_key, value: "{api_key}" }`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueryRule {
    pub query: String,
    pub value: String,
}

/// `{ basic: { username: "{email}", password: "{api_token}" } }`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BasicRule {
    pub basic: BasicPair,
}

/// The user name and password of HTTP Basic (RFC 7617).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BasicPair {
    pub username: String,
    pub password: String,
}

/// `{ body: "/auth/key", value: "{api_key}" }`: a JSON pointer to an absent leaf.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BodyRule {
    pub body: String,
    pub value: String,
}

/// `{ path: "{token}", value: "{bot_token}" }`: exactly one placeholder in the URL path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PathRule {
    pub path: String,
    pub value: String,
}

/// A field of a configuration or a credential.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Field {
    pub field: String,
    #[serde(rename = "type", default)]
    pub kind: FieldKind,
    #[serde(default = "yes")]
    pub required: bool,
    #[serde(default)]
    pub default: Option<Value>,
    #[serde(default)]
    pub enum_values: Option<Vec<String>>,
    #[serde(default)]
    pub description: String,
}

fn yes() -> bool {
    true
}

/// The type of a field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FieldKind {
    #[default]
    String,
    Integer,
    Secret,
    Url,
    Enum,
}

/// The component and its permissions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Executor {
    /// The component's file, relative to the plugin's folder.
    #[serde(default = "component")]
    pub component: String,
    #[serde(default = "http_only")]
    pub capabilities: Vec<Capability>,
    /// Origins that the plugin may reach besides that of `api_base`.
    #[serde(default)]
    pub egress: Vec<OriginPattern>,
    /// Globs for tools of other plugins that this one may call with capability `tools`.
    #[serde(default)]
    pub calls: Vec<String>,
    #[serde(default)]
    pub limits: Limits,
    /// The number of redirects that the host follows; 0 by default.
    #[serde(default)]
    pub follow_redirects: u8,
}

impl Default for Executor {
    fn default() -> Self {
        Executor {
            component: component(),
            capabilities: http_only(),
            egress: Vec::new(),
            calls: Vec::new(),
            limits: Limits::default(),
            follow_redirects: 0,
        }
    }
}

fn component() -> String {
    "plugin.wasm".to_owned()
}

fn http_only() -> Vec<Capability> {
    vec![Capability::Http]
}

/// A group of host functions that the component may import. `log` and `credentials.status` are always available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    Http,
    Sandbox,
    Tools,
    Events,
}

/// The limits that a plugin requests, within the operator's maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Fuel, about one unit per WebAssembly instruction.
    #[serde(default)]
    pub fuel: Option<u64>,
    /// Total of all memories and tables, in MiB.
    #[serde(default)]
    pub memory_mib: Option<u32>,
    /// Wall-clock time in seconds, including host calls.
    #[serde(default)]
    pub timeout_s: Option<u32>,
}
