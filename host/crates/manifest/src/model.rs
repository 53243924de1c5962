//! The types of `monstrum.yaml`. Serde checks the structure, and the module `validate` checks the content.

use monstrum_types::{PluginName, ResourceTypeId, ToolName, words};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::origin::OriginPattern;

/// The manifest of a plugin, `monstrum.yaml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The plugin's name: lower-case letters, digits and hyphens. The plugin's folder must have the same name.
    pub name: PluginName,
    /// The plugin's version, which must be a semantic version.
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
    /// The icon of the resource type: a semantic name such as `github`, or a PNG or WebP file in the plugin's folder.
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
    /// The call that tests a credential when an administrator requests a check.
    #[serde(default)]
    pub credential_check: Option<CredentialCheck>,
}

/// A call that tests whether a credential works. The call should not change anything in the upstream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CredentialCheck {
    /// A tool of this manifest.
    pub tool: ToolName,
    /// The fixed parameters of the call.
    #[serde(default)]
    pub params: Map<String, Value>,
}

/// The origin of the resource type. Plugin folders must use `plugin`.
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

/// A tool that a bot may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// The tool's name, unique across all plugins.
    pub name: ToolName,
    pub description: String,
    /// The operation that roles refer to, such as `issue.read`. Several tools may share an operation.
    pub operation: String,
    /// The JSON Schema of the parameters. If `additionalProperties` is absent, undeclared parameters are rejected.
    pub input_schema: Map<String, Value>,
    /// The JSON Schema of the result or, if `result` is `content`, of its member `structured`.
    #[serde(default)]
    pub output_schema: Option<Map<String, Value>>,
    #[serde(default)]
    pub cost: Option<Cost>,
    /// The effect of a call on the upstream.
    #[serde(default)]
    pub effect: Effect,
    /// The form of the result.
    #[serde(default)]
    pub result: ResultForm,
}

words! {
    /// The effect of a call on the upstream. The values are ordered: a later value permits more.
    #[derive(Default, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum Effect {
        /// The call changes nothing.
        Read = "read",
        /// Two calls with the same request id have the effect of one call. The plugin sends the request id to the
        /// upstream as an idempotency key, for example.
        Idempotent = "idempotent",
        /// The call may change something, and a second call may change something again.
        #[default]
        Write = "write",
    }
}

/// The form of a tool's result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ResultForm {
    /// Any JSON value.
    #[default]
    Json,
    /// An object with `content`, a list of content blocks as in the Model Context Protocol (`text`, `image`, `audio`,
    /// `resource` and `resource_link`), and optionally `structured`, a JSON value.
    Content,
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

/// A dimension along which bindings and roles can constrain parameter values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScopeDimension {
    /// The key in `scope_constraints`.
    pub key: String,
    /// The paths of the parameters to check, if present. Dots separate the keys of nested objects.
    pub param_paths: Vec<String>,
    #[serde(default)]
    pub match_mode: MatchMode,
    /// A glob for the operations to which the dimension applies. If absent, the dimension applies to all operations.
    #[serde(default)]
    pub operation_filter: Option<String>,
    /// The message that the LLM reads on a violation. `{value}` is replaced by the value.
    #[serde(default)]
    pub error_template: String,
}

/// The method of comparing a value with an entry of a constraint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MatchMode {
    /// A glob with the semantics of `fnmatch`; `*` also matches `/`. The value is not normalised.
    #[default]
    Pattern,
    /// A pattern for file paths. Paths are normalised before matching.
    Path,
    /// An exact, case-sensitive comparison.
    Exact,
}

/// An authentication method for the upstream.
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
    /// The rules for adding the credential to a request. If absent, the method's default rules apply.
    #[serde(default)]
    pub inject: Option<Vec<InjectRule>>,
    /// The origins that may receive the credential. If absent, the origin of `api_base`, otherwise `executor.egress`.
    #[serde(default)]
    pub audience: Option<Vec<OriginPattern>>,
}

words! {
    /// The kinds of authentication.
    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum AuthKind {
        Oauth2AuthCode = "oauth2_auth_code",
        Oauth2ClientCreds = "oauth2_client_creds",
        Oauth2DeviceCode = "oauth2_device_code",
        ApiKey = "api_key",
        Token = "token",
        SshKey = "ssh_key",
        Basic = "basic",
        None = "none",
    }
}

/// The OAuth endpoints that a manifest suggests.
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

/// `{ body: "/auth/key", value: "{api_key}" }`: a JSON pointer to a member that the body does not have yet.
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
    /// The JSON Schema of the value. Only built-in types can have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub schema: Option<Map<String, Value>>,
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
    // A JSON value that matches the `schema` of the field. Only built-in types can have such a field. A comment for the
    // documentation would change the form of the schema of the other values.
    #[schemars(skip)]
    Json,
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
    /// Origins that the plugin may access in addition to the origin of `api_base`.
    #[serde(default)]
    pub egress: Vec<OriginPattern>,
    /// Globs for the tools of other plugins that this plugin may call. Requires the capability `tools`.
    #[serde(default)]
    pub calls: Vec<String>,
    #[serde(default)]
    pub limits: Limits,
    /// The maximum number of redirects that the host follows; 0 by default.
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
    /// The maximum fuel of a call. One WebAssembly instruction uses about one unit.
    #[serde(default)]
    pub fuel: Option<u64>,
    /// The maximum total size of all memories and tables of a call, in MiB.
    #[serde(default)]
    pub memory_mib: Option<u32>,
    /// The maximum wall-clock time of a call in seconds, including host calls.
    #[serde(default)]
    pub timeout_s: Option<u32>,
}
