//! The tools of a bot, calls and their results.

use monstrum_manifest::Cost;
use monstrum_types::{Code, JsonText, RequestId, ResourceId, ResourceTypeId, Status, ToolName};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A tool as a bot sees it.
#[derive(Serialize, ToSchema)]
pub struct Tool {
    pub name: ToolName,
    pub description: String,
    /// JSON Schema of the parameters. Where the bot has the tool through several resources, it requires `_resource`.
    #[schema(value_type = Map<String, Value>)]
    pub input_schema: JsonText,
    /// JSON Schema of the answer.
    #[schema(value_type = Option<Map<String, Value>>)]
    pub output_schema: Option<JsonText>,
    pub operation: String,
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

/// The tools of a bot; with `format=openai`, as function-calling JSON.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum ToolList {
    Plain { items: Vec<Tool> },
    OpenAi { items: Vec<OpenAiTool> },
}

/// A tool as models of that interface take it.
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
    /// By the tool's `input_schema`.
    #[serde(default = "no_params")]
    #[schema(value_type = Object)]
    pub params: Value,
    /// Groups calls in the audit.
    pub task_id: Option<String>,
    /// Which resource, where the bot has the tool through several.
    pub resource_id: Option<ResourceId>,
    /// The conversation in which the call happens.
    pub chat: Option<Chat>,
}

/// A conversation. Its ids are the caller's.
#[derive(Serialize, Deserialize, ToSchema)]
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

/// How a call ended.
#[derive(Serialize, ToSchema)]
pub struct CallResult {
    pub request_id: RequestId,
    /// An open set: treat one that you do not know as not done.
    pub status: Status,
    /// On anything but success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// Exactly what the LLM reads, on anything but success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What the tool answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub data: Option<JsonText>,
    pub duration_ms: i64,
}

/// What would become of a call. A bot key sees decision and message only.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum CheckResult {
    Full {
        decision: CheckDecision,
        message: Option<String>,
        rule: Option<String>,
        reason: Option<String>,
        smallest_change: Option<String>,
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
    Deny,
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
