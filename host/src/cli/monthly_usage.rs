//! `monstrum usage`: shows what the bots, users, tasks and models of a workspace have cost in a month.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::budget::credits;
use super::client::Client;
use super::failure::Failure;
use super::{Options, output};

const EXAMPLES: &str = "\
Examples:
  monstrum usage
  monstrum usage --by model
  monstrum usage --by bot,user --month 2026-11";

/// The columns by which usage is grouped: the name of the API, and the header and field of the table.
const COLUMNS: [(&str, &str, &str); 4] =
    [("bot", "BOT", "bot_id"), ("user", "USER", "user"), ("task", "TASK", "task_id"), ("model", "MODEL", "model")];
const NUMBERS: [(&str, &str); 5] = [
    ("TOKENS", "tokens"),
    ("INPUT", "tokens_input"),
    ("OUTPUT", "tokens_output"),
    ("ROUNDS", "rounds"),
    ("CALLS", "calls"),
];

/// Show what bots, users, tasks and models have cost in a month
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Usage {
    /// The columns to group by: bot, user, task and model, separated by commas
    #[arg(long, value_name = "COLUMNS", default_value = "bot")]
    by: String,
    /// The month in UTC, such as 2026-11 [default: this month]
    #[arg(long)]
    month: Option<String>,
}

impl Usage {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        let mut query = vec![("by", self.by.clone())];
        query.extend(self.month.map(|month| ("month", month)));
        let report = client.get(&["api", "usage"], &query).await?;
        if options.json {
            output::json(&report)?;
            return Ok(ExitCode::SUCCESS);
        }
        let items = report["items"].as_array().cloned().unwrap_or_default();
        if items.is_empty() {
            output::note(&format!("nothing has cost anything in {}", output::plain(&output::cell(&report["month"]))));
            return Ok(ExitCode::SUCCESS);
        }
        let names: Vec<&str> = self.by.split(',').collect();
        let bots = if names.contains(&"bot") { client.items(&["api", "bots"], &[]).await? } else { Vec::new() };
        let columns: Vec<_> = COLUMNS.into_iter().filter(|(name, ..)| names.contains(name)).collect();
        let header = columns.iter().map(|(_, header, _)| *header).chain(NUMBERS.map(|(header, _)| header));
        let header: Vec<&str> = header.chain(["CREDITS"]).collect();
        let row = |item: &Value| -> Vec<String> {
            let grouped = columns.iter().map(|(.., field)| cell(&item[*field], &bots));
            let numbers = NUMBERS.iter().map(|(_, field)| output::cell(&item[*field]));
            grouped.chain(numbers).chain([credits(&item["credits"])]).collect()
        };
        output::table(&header, items.iter().map(row).collect())?;
        if report["has_more"] == true {
            output::note("there are further rows with fewer tokens");
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Formats the value of a column: the name of a bot, a user with its app, or a text.
fn cell(value: &Value, bots: &[Value]) -> String {
    if value.is_object() {
        return format!("{} of {}", output::cell(&value["user_id"]), output::cell(&value["app_id"]));
    }
    if value.is_null() {
        return "-".to_owned();
    }
    bots.iter().find(|bot| bot["id"] == *value).map_or_else(|| output::cell(value), |bot| output::cell(&bot["name"]))
}
