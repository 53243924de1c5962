//! `monstrum budget`: sets how many tokens the calls of a bot may cost in a month, and shows what they cost.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Value, json};

use super::client::Client;
use super::failure::Failure;
use super::names::{self, Noun};
use super::{Options, objects, output};

const SET_EXAMPLES: &str = "\
Examples:
  monstrum budget set triage 1000000

A call that may exceed the budget is refused. Months are those of UTC.";

/// Set, show, list and delete the monthly token budgets of bots
#[derive(Subcommand)]
pub(super) enum Budget {
    /// Set or change the budget of a bot
    #[command(after_help = SET_EXAMPLES, visible_aliases = ["create", "edit"])]
    Set {
        /// The name or the id of the bot
        bot: String,
        /// The number of tokens that the bot's calls may cost in a month
        tokens: u64,
    },
    /// List the bots that have a budget, with the cost of this month
    #[command(after_help = "Examples:\n  monstrum budget list")]
    List,
    /// Show the budget of a bot and the cost of its calls by month
    #[command(after_help = "Examples:\n  monstrum budget show triage")]
    Show {
        /// The name or the id of the bot
        bot: String,
    },
    /// Remove the budget of a bot, whose calls then have no limit
    #[command(after_help = "Examples:\n  monstrum budget delete triage")]
    Delete {
        /// The name or the id of the bot
        bot: String,
    },
}

impl Budget {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        match self {
            Budget::Set { bot, tokens } => set(&client, &bot, json!(tokens), options.json).await?,
            Budget::Delete { bot } => set(&client, &bot, Value::Null, options.json).await?,
            Budget::List => list(&client, options.json).await?,
            Budget::Show { bot } => show(&client, &bot, options.json).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn set(client: &Client, bot: &str, tokens: Value, json: bool) -> Result<(), Failure> {
    let id = names::id(client, Noun::Bot, bot).await?;
    let changed = client.patch(&["api", "bots", &id], &json!({ "monthly_token_budget": tokens })).await?;
    objects::tell_changed(&changed, "the budget of bot", &output::cell(&changed["name"]), json)
}

async fn list(client: &Client, json: bool) -> Result<(), Failure> {
    let mut items = Vec::new();
    for bot in client.items(&["api", "bots"], &[]).await? {
        if bot["monthly_token_budget"].is_null() {
            continue;
        }
        let usage = usage(client, &names::text(&bot, "id")?).await?;
        items.push(json!({
            "bot_id": bot["id"], "name": bot["name"], "monthly_token_budget": bot["monthly_token_budget"],
            "month": usage[0]["month"], "tokens": usage[0]["tokens"].as_u64().unwrap_or_default(),
        }));
    }
    let fields = ["name", "monthly_token_budget", "tokens", "month"];
    let empty = "no bot has a budget; `monstrum budget set` sets one";
    output::list(&items, json, empty, ["BOT", "BUDGET", "LATEST COST", "MONTH"], fields)
}

async fn show(client: &Client, bot: &str, json: bool) -> Result<(), Failure> {
    let bot = names::find(client, Noun::Bot, bot).await?;
    let months = usage(client, &names::text(&bot, "id")?).await?;
    let budget = &bot["monthly_token_budget"];
    if json {
        return output::json(&json!({ "bot_id": bot["id"], "monthly_token_budget": budget, "items": months }));
    }
    let limit = if budget.is_null() { "none".to_owned() } else { output::cell(budget) };
    output::fields(&[("bot", output::cell(&bot["name"])), ("monthly token budget", limit)])?;
    output::line("")?;
    let months = months.as_array().cloned().unwrap_or_default();
    let fields = ["month", "tokens", "calls"];
    output::list(&months, false, "no call has cost anything yet", ["MONTH", "TOKENS", "CALLS"], fields)
}

/// Returns the cost of the bot's calls by month, newest month first.
async fn usage(client: &Client, bot: &str) -> Result<Value, Failure> {
    let mut answer = client.get(&["api", "bots", bot, "usage"], &[]).await?;
    Ok(answer["items"].take())
}
