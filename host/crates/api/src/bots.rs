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
}

lists! {
    Bot => BotList "A page of bots.",
}
