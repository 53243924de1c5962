//! Bots, their usage and their prompt.

use monstrum_types::{BotId, UtcMillis};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::gates::Gate;
use crate::list::lists;
use crate::patch::{not_null, nullable};

/// A bot: the identity under which an agent acts.
#[derive(Serialize, ToSchema)]
pub struct Bot {
    pub id: BotId,
    pub name: String,
    pub description: String,
    pub system_prompt: String,
    pub model: Option<String>,
    /// Whether the bot may use a sandbox in each conversation. Only an admin key can change this field, because
    /// sandboxes are a permission.
    pub use_agent_sandbox: bool,
    /// The number of tokens that the bot's calls may cost in a month. Null means no limit.
    pub monthly_token_budget: Option<i64>,
    /// The gates. Only an admin key can change them. The list is empty if there are none.
    #[schema(value_type = Vec<Gate>)]
    pub gates: Value,
    /// Patterns of the subjects of access tokens with which MCP clients may use the bot. Only an admin key can change
    /// them. The list is empty if the bot admits no access tokens.
    #[schema(value_type = Vec<String>)]
    pub mcp_subjects: Value,
    /// The models that are tried after `model`, each as `resource/model`. The list is empty if there are none.
    #[schema(value_type = Vec<String>)]
    pub model_fallbacks: Value,
    /// The limits of the bot's tasks. Only an admin key can change them. Null means the defaults.
    #[schema(value_type = Option<TaskLimits>)]
    pub task_limits: Value,
    /// The time in seconds after which a session without tasks ends. Null means one day.
    pub session_idle_s: Option<i64>,
    /// Whether clients may bring tools of their own, which run at the client and are not governed. Only an
    /// admin key can change this field.
    pub client_tools: bool,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

/// The cost of a bot's calls by month, newest month first.
#[derive(Serialize, ToSchema)]
pub struct Usage {
    pub items: Vec<MonthlyUsage>,
}

/// The cost of the calls in one month, as declared in the manifests of their tools, and of the rounds with models. Calls of
/// tools without a cost are not counted.
#[derive(Serialize, ToSchema)]
pub struct MonthlyUsage {
    /// The month in UTC.
    #[schema(example = "2026-11")]
    pub month: String,
    /// The number of all tokens: those of rounds, and the cost of calls.
    pub tokens: i64,
    /// The number of tokens that models have read.
    pub tokens_input: i64,
    /// The number of tokens that models have written.
    pub tokens_output: i64,
    pub credits_millionths: i64,
    /// The number of rounds.
    pub rounds: i64,
    /// The number of rounds whose tokens are an estimate.
    pub rounds_estimated: i64,
    /// The number of calls with a cost, without the rounds.
    pub calls: i64,
}

/// The system prompt of a bot, followed by a paragraph about its sandbox if the bot has one.
#[derive(Serialize, ToSchema)]
pub struct Prompt {
    pub prompt: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBot {
    pub name: String,
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub system_prompt: String,
    pub model: Option<String>,
    #[serde(default)]
    pub use_agent_sandbox: bool,
    #[schema(minimum = 0)]
    pub monthly_token_budget: Option<i64>,
    /// The gates, at most 20. Setting gates requires an admin key.
    #[serde(default)]
    #[schema(max_items = 20)]
    pub gates: Vec<Gate>,
    /// Patterns of the subjects of access tokens with which MCP clients may use the bot, at most 64. Setting patterns
    /// requires an admin key.
    #[serde(default)]
    #[schema(max_items = 64)]
    pub mcp_subjects: Vec<String>,
    /// The models that are tried after `model`, each as `resource/model`, at most 4.
    #[serde(default)]
    #[schema(max_items = 4)]
    pub model_fallbacks: Vec<String>,
    /// The limits of the bot's tasks. Setting limits requires an admin key.
    pub task_limits: Option<TaskLimits>,
    /// The time in seconds after which a session without tasks ends, 60 to 31536000; one day by default.
    #[schema(minimum = 60, maximum = 31_536_000)]
    pub session_idle_s: Option<i64>,
    /// Whether clients may bring tools of their own. Setting this field requires an admin key.
    #[serde(default)]
    pub client_tools: bool,
}

/// The limits of a bot's tasks. A task can have lower limits. An absent field has its default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskLimits {
    /// The number of steps, 1 to 1000; 50 by default. A step is a round with a model or a call of a tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub steps: Option<u32>,
    /// The number of tokens; without a limit by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub tokens: Option<u64>,
    /// The number of credits; without a limit by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0.0)]
    pub credits: Option<f64>,
    /// The time in seconds, 1 to 604800; 3600 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 604_800)]
    pub wall_s: Option<u32>,
}

/// Changes to a bot. Each field in the request replaces the whole stored field; null clears a field.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BotChange {
    #[serde(default, deserialize_with = "not_null")]
    pub name: Option<String>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<String>)]
    pub description: Option<Option<String>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<String>)]
    pub system_prompt: Option<Option<String>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<String>)]
    pub model: Option<Option<String>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<bool>)]
    pub use_agent_sandbox: Option<Option<bool>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<i64>, minimum = 0)]
    pub monthly_token_budget: Option<Option<i64>>,
    /// The gates, at most 20. Changing gates requires an admin key.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<Vec<Gate>>, max_items = 20)]
    pub gates: Option<Option<Vec<Gate>>>,
    /// Patterns of the subjects of access tokens with which MCP clients may use the bot, at most 64. Changing patterns
    /// requires an admin key.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<Vec<String>>, max_items = 64)]
    pub mcp_subjects: Option<Option<Vec<String>>>,
    /// The models that are tried after `model`, each as `resource/model`, at most 4.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<Vec<String>>, max_items = 4)]
    pub model_fallbacks: Option<Option<Vec<String>>>,
    /// The limits of the bot's tasks. Changing limits requires an admin key.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<TaskLimits>)]
    pub task_limits: Option<Option<TaskLimits>>,
    /// The time in seconds after which a session without tasks ends, 60 to 31536000.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<i64>, minimum = 60, maximum = 31_536_000)]
    pub session_idle_s: Option<Option<i64>>,
    /// Whether clients may bring tools of their own. Changing this field requires an admin key.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<bool>)]
    pub client_tools: Option<Option<bool>>,
}

lists! {
    Bot => BotList "A page of bots.",
}
