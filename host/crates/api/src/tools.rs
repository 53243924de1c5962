//! The tools of a bot, calls and their results.

use monstrum_manifest::{Cost, Effect, ResultForm};
use monstrum_types::{
    AwaitedApproval, AwaitedAuthorization, BotId, Code, JsonText, RequestId, ResourceId, ResourceTypeId, Status,
    ToolName,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A tool that a bot may use.
#[derive(Serialize, ToSchema)]
pub struct Tool {
    pub name: ToolName,
    /// The name for people, if the MCP server that declares the tool gives one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    pub description: String,
    /// JSON Schema of the parameters. If the bot has the tool through several resources, the schema requires the
    /// parameter `_resource`.
    #[schema(value_type = Map<String, Value>)]
    pub input_schema: JsonText,
    /// JSON Schema of the result or, if `result` is `content`, of its member `structured`.
    #[schema(value_type = Option<Map<String, Value>>)]
    pub output_schema: Option<JsonText>,
    /// `read`, `idempotent` or `write`: the effect of a call on the upstream.
    #[schema(value_type = String)]
    pub effect: Effect,
    /// `json` for any JSON value, or `content` for content blocks as in the Model Context Protocol.
    #[schema(value_type = String)]
    pub result: ResultForm,
    pub operation: String,
    /// Whether a gate may ask a person before a call of this tool. Whether a gate asks depends on the parameters of the
    /// call.
    pub asks: bool,
    pub resource_type: ResourceTypeId,
    /// The resources through which the bot has the tool.
    pub resources: Vec<NamedResource>,
    #[schema(value_type = Option<Object>)]
    pub cost: Option<Cost>,
}

/// A resource by id and name.
#[derive(Serialize, ToSchema)]
pub struct NamedResource {
    pub id: ResourceId,
    pub name: String,
}

/// The tools of a bot. With `format=openai`, each tool is a function definition for models.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum ToolList {
    Plain { items: Vec<Tool> },
    OpenAi { items: Vec<OpenAiTool> },
}

/// A tool as a function definition for models.
#[derive(Serialize, ToSchema)]
pub struct OpenAiTool {
    #[serde(rename = "type")]
    #[schema(example = "function")]
    pub kind: &'static str,
    pub function: OpenAiFunction,
}

#[derive(Serialize, ToSchema)]
pub struct OpenAiFunction {
    pub name: ToolName,
    pub description: String,
    #[schema(value_type = Map<String, Value>)]
    pub parameters: JsonText,
}

/// A call of a tool.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CallInput {
    /// The parameters, which must match the tool's `input_schema`.
    #[serde(default = "no_params")]
    #[schema(value_type = Object)]
    pub params: Value,
    /// An id that the caller chooses. The audit and the usage of a bot group calls by this id.
    pub task_id: Option<String>,
    /// The resource to use, if the bot has the tool through several resources.
    pub resource_id: Option<ResourceId>,
    /// The conversation in which the call happens.
    pub chat: Option<Chat>,
    /// The time in seconds, 0 to 300, for which the server holds a call that a person must approve. If a person decides
    /// within this time, the call continues. The default is 0.
    #[schema(minimum = 0, maximum = 300)]
    pub wait_for_approval_s: Option<u32>,
}

/// A conversation. The caller chooses the ids of the conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Chat {
    pub app_id: String,
    pub user_id: String,
    pub chat_id: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckInput {
    #[serde(default = "no_params")]
    #[schema(value_type = Object)]
    pub params: Value,
    pub resource_id: Option<ResourceId>,
}

/// The outcome of a call.
#[derive(Serialize, ToSchema)]
pub struct CallResult {
    pub request_id: RequestId,
    /// The status. Later versions can add values: treat an unknown status as a failed call.
    pub status: Status,
    /// The reason for a status other than success. Absent on success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// The exact text that the model receives. Absent on success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The result of the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub data: Option<JsonText>,
    /// The approval that the call waits for, if the status is `approval_required`. Repeat the call after the approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<AwaitedApproval>,
    /// The authorization that the call lacks, if its resource needs a credential of the user. Repeat the call after the
    /// user has authorized the resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorization: Option<AwaitedAuthorization>,
    pub duration_ms: i64,
}

/// The result of a check: whether the call would be permitted. A bot key receives only the decision and the message.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum CheckResult {
    Full {
        decision: CheckDecision,
        message: Option<String>,
        rule: Option<String>,
        reason: Option<String>,
        smallest_change: Option<String>,
        /// Changes that, together, would allow this call. Empty if no change of a role or a binding allows it. Each change is
        /// made by sending the changed field with PATCH.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schema(required = false)]
        changes: Vec<RuleChange>,
        /// The gates that ask, if the decision is `ask`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schema(required = false)]
        gates: Vec<AskingGate>,
    },
    Bot {
        decision: CheckDecision,
        message: Option<String>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Decision)]
pub enum CheckDecision {
    Allow,
    /// The call runs only after a person has approved it.
    Ask,
    Deny,
}

/// A change of one field of a role or a binding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct RuleChange {
    /// `add`: add the entry to the list, which is created if it is absent. `remove`: remove the entry from the list, or the
    /// key from the map. `set`: replace the value.
    #[schema(example = "add")]
    pub action: String,
    pub holder: ChangedHolder,
    /// The path of the field in the object.
    #[schema(example = "scope_constraints.repos")]
    pub field: String,
    #[schema(value_type = Value)]
    pub entry: Value,
}

/// The object that a change is made to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ChangedHolder {
    /// `role`, `permissions`, `binding`, `delegation` or `bot`. Permissions and delegations are parts of the binding with
    /// this id.
    #[schema(example = "role")]
    pub kind: String,
    pub id: String,
    /// The bots whose permissions the change reaches.
    pub bots: Vec<NamedBot>,
}

/// A bot by id and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct NamedBot {
    pub id: BotId,
    pub name: String,
}

/// A gate that asks for a call.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct AskingGate {
    /// `bot`, `role`, `binding` or `delegation`.
    #[schema(example = "role")]
    pub holder: String,
    pub reason: Option<String>,
}

impl From<Tool> for OpenAiTool {
    fn from(tool: Tool) -> Self {
        let Tool { name, description, input_schema, .. } = tool;
        OpenAiTool { kind: "function", function: OpenAiFunction { name, description, parameters: input_schema } }
    }
}

fn no_params() -> Value {
    Value::Object(Map::new())
}
