//! Budgets of workspaces, bots and users, and reports of usage.

use monstrum_types::{AppUser, BotId, words};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use utoipa::ToSchema;

use crate::list::lists;
use crate::patch::nullable;

words! {
    /// The subject of a budget: all calls of the workspace, the calls of a bot, or the calls on behalf of a user.
    #[derive(Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum BudgetOf {
        Workspace = "workspace",
        Bot = "bot",
        User = "user",
    }
}

/// A number of credits, with at most six decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    pub millionths: i64,
}

/// The number of parts into which credits are divided.
const PARTS: i64 = 1_000_000;

impl Credits {
    #[must_use]
    pub fn of_millionths(millionths: i64) -> Credits {
        Credits { millionths }
    }
}

impl Serialize for Credits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.millionths % PARTS == 0 {
            return serializer.serialize_i64(self.millionths / PARTS);
        }
        #[expect(clippy::cast_precision_loss, reason = "a float has 15 digits")]
        let millionths = self.millionths as f64;
        serializer.serialize_f64(millionths / 1e6)
    }
}

impl<'de> Deserialize<'de> for Credits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Credits, D::Error> {
        let credits = f64::deserialize(deserializer)?;
        // The cast saturates: a float that is too large becomes the largest integer.
        #[expect(clippy::cast_possible_truncation, reason = "it saturates")]
        let millionths = (credits * 1e6).round() as i64;
        Ok(Credits { millionths })
    }
}

/// The id of the subject of a budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum BudgetHolder {
    /// The id of a bot.
    Bot(BotId),
    /// A user.
    User(AppUser),
    /// `*`: each user without a budget of its own.
    EachUser(String),
}

/// A monthly budget. Months are those of UTC.
#[derive(Serialize, ToSchema)]
pub struct Budget {
    pub subject: BudgetOf,
    /// The id of the bot, the user, or `*` for each user without a budget of its own. Null for the workspace.
    pub id: Option<BudgetHolder>,
    /// The maximum number of tokens in a month. Null means no limit.
    pub monthly_tokens: Option<i64>,
    /// The maximum number of credits in a month. Null means no limit.
    #[schema(value_type = Option<f64>)]
    pub monthly_credits: Option<Credits>,
    /// What the subject has spent in this month. Null for the budget of each user.
    pub spent: Option<BudgetSpent>,
}

/// What a subject has spent in a month, and what is reserved for rounds that are running.
#[derive(Serialize, ToSchema)]
pub struct BudgetSpent {
    #[schema(example = "2026-11")]
    pub month: String,
    pub tokens: i64,
    #[schema(value_type = f64)]
    pub credits: Credits,
    pub tokens_reserved: i64,
    #[schema(value_type = f64)]
    pub credits_reserved: Credits,
}

/// A change of a budget. An absent limit is unchanged; null removes a limit.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetChange {
    pub subject: BudgetOf,
    /// The id of the bot, the user, or `*` for each user without a budget of its own. Absent for the workspace, whose
    /// budget requires a root key.
    #[serde(default)]
    #[schema(value_type = Option<BudgetHolder>)]
    pub id: Option<Value>,
    /// The maximum number of tokens in a month. For a bot, this is its `monthly_token_budget`.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<i64>, minimum = 0)]
    pub monthly_tokens: Option<Option<i64>>,
    /// The maximum number of credits in a month, which is rounded to millionths.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<f64>, minimum = 0)]
    pub monthly_credits: Option<Option<Credits>>,
    /// The limits that the caller knows. If the budget has others, the answer is 409.
    #[serde(default)]
    pub was: Option<KnownBudget>,
}

/// The limits of a budget before a change. An absent limit means unlimited.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KnownBudget {
    pub monthly_tokens: Option<i64>,
    #[schema(value_type = Option<f64>)]
    pub monthly_credits: Option<Credits>,
}

/// The usage of a workspace in one month, grouped by the requested columns.
#[derive(Serialize, ToSchema)]
pub struct UsageReport {
    /// The month in UTC.
    #[schema(example = "2026-11")]
    pub month: String,
    /// The groups with the most tokens, in descending order, at most 1000.
    pub items: Vec<UsageItem>,
    /// Whether there are further groups.
    pub has_more: bool,
}

/// The usage of one group. It has only those of the fields `bot_id`, `user`, `task_id` and `model` that `by` names.
#[derive(Serialize, ToSchema)]
pub struct UsageItem {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bot_id: Option<BotId>,
    /// The user on whose behalf the calls were made. Null for calls without a user.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<AppUser>)]
    pub user: Option<Option<AppUser>>,
    /// The task of the calls. Null for calls without a task.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub task_id: Option<Option<String>>,
    /// The resource and the model of the rounds, such as `openai/gpt`. Null for calls that are no rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub model: Option<Option<String>>,
    /// The number of all tokens: those of rounds, and the cost of calls.
    pub tokens: i64,
    /// The number of tokens that models have read.
    pub tokens_input: i64,
    /// The number of tokens that models have written.
    pub tokens_output: i64,
    /// The cost of rounds and calls.
    #[schema(value_type = f64)]
    pub credits: Credits,
    /// The number of rounds.
    pub rounds: i64,
    /// The number of rounds whose tokens are an estimate, because the provider reported none or the round was
    /// interrupted.
    pub rounds_estimated: i64,
    /// The number of calls with a cost, without the rounds.
    pub calls: i64,
}

lists! {
    Budget => BudgetList "A page of budgets.",
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn credits_are_numbers_with_six_decimals() {
        for (number, millionths) in [
            (json!(0), 0),
            (json!(12), 12_000_000),
            (json!(12.5), 12_500_000),
            (json!(0.399999), 399_999),
            (json!(9e-6), 9),
            (json!(-1.5), -1_500_000),
        ] {
            let credits: Credits = serde_json::from_value(number.clone()).unwrap();
            assert_eq!(credits.millionths, millionths, "{number}");
            assert_eq!(json!(credits), number);
        }
        assert_eq!(serde_json::from_value::<Credits>(json!(0.1234567)).unwrap().millionths, 123_457);
        assert_eq!(serde_json::from_value::<Credits>(json!(1e300)).unwrap().millionths, i64::MAX);
        assert!(serde_json::from_value::<Credits>(json!("1")).is_err());
    }
}
