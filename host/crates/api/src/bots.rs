//! Bots, their usage and their prompt.

use monstrum_types::{BotId, UtcMillis};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::list::lists;
use crate::patch::{not_null, nullable};

/// An agent.
#[derive(Serialize, ToSchema)]
pub struct Bot {
    pub id: BotId,
    pub name: String,
    pub description: String,
    pub system_prompt: String,
    pub model: Option<String>,
    /// Whether it has a sandbox of its own; this is a grant.
    pub use_agent_sandbox: bool,
    /// Tokens that its tools and models may cost in a month; no limit where it is null.
    pub monthly_token_budget: Option<i64>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

/// What calls of a bot have cost, the newest month first.
#[derive(Serialize, ToSchema)]
pub struct Usage {
    pub items: Vec<MonthlyUsage>,
}

/// What the calls of one month have cost, by the manifests of their tools. Calls that cost nothing are not counted.
#[derive(Serialize, ToSchema)]
pub struct MonthlyUsage {
    /// In UTC.
    #[schema(example = "2026-11")]
    pub month: String,
    pub tokens: i64,
    pub credits_millionths: i64,
    pub calls: i64,
}

/// What a bot is told before anybody speaks to it.
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
}

/// Each field that is named is replaced whole; null clears it.
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
}

lists! {
    Bot => BotList "A page of bots.",
}
