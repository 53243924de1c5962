//! `monstrum logs`: the newest calls, and with `--follow` each call as it ends.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::audit::Filters;
use super::client::Client;
use super::failure::Failure;
use super::stream::{Event, Events};
use super::{Options, output};

const EXAMPLES: &str = "\
Examples:
  monstrum logs                                     the newest 20 calls, the newest last
  monstrum logs --follow                            each call as it ends, until Ctrl-C
  monstrum logs --follow --status permission_denied
  monstrum logs --follow --json | jq .tool          one JSON object on each line";

/// Print the newest calls, and follow calls as they end
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Logs {
    /// Print each call as it ends, until the command is stopped
    #[arg(long, short)]
    follow: bool,
    #[command(flatten)]
    filters: Filters,
    /// The maximum number of calls, without --follow
    #[arg(
        long, value_name = "ROWS", default_value_t = 20, conflicts_with = "follow",
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    limit: u32,
}

impl Logs {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        let query = self.filters.query();
        if self.follow {
            return follow(&client, &query, options.json).await;
        }
        let (calls, _) = client.list(&["api", "audit"], &query, self.limit as usize).await?;
        if calls.is_empty() && !options.json {
            output::note("no calls");
        }
        for call in calls.iter().rev() {
            tell(call, options.json)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints calls until the process is stopped. After a lost connection, continues after the last call.
async fn follow(client: &Client, query: &[(&str, String)], json: bool) -> Result<ExitCode, Failure> {
    let mut events = Events::open(client, &["api", "audit", "stream"], query).await?;
    loop {
        show(&events.next().await?, json)?;
    }
}

fn show(event: &Event, json: bool) -> Result<(), Failure> {
    match event.name.as_str() {
        "call" => tell(&event.json()?, json),
        "lost" => {
            let what = match event.json()?["count"].as_u64() {
                Some(count) => format!("{count} calls were left out"),
                None => "calls were left out".to_owned(),
            };
            output::note(&format!("{what}; `monstrum audit list` shows them"));
            Ok(())
        }
        "error" => {
            let problem = event.json()?;
            let message = problem["title"].as_str().unwrap_or("the server cannot read the audit").to_owned();
            Err(Failure::new(message, "check the server's log"))
        }
        _ => Ok(()),
    }
}

/// Prints one call on one line.
fn tell(call: &Value, json: bool) -> Result<(), Failure> {
    if json {
        return output::json_line(call);
    }
    let name = if call["tool"].is_null() { &call["operation"] } else { &call["tool"] };
    let mut line = ["started_at", "status"].map(|field| output::cell(&call[field])).join("  ");
    for text in [output::cell(name), output::cell(&call["request_id"])] {
        line.push_str("  ");
        line.push_str(&text);
    }
    if let Some(ms) = call["duration_ms"].as_i64() {
        line.push_str(&format!("  {ms} ms"));
    }
    if let Some(message) = call["message"].as_str() {
        line.push_str("  ");
        line.push_str(message);
    }
    // A message of several lines would look like several calls.
    output::line(output::plain(&line.replace('\n', " ")))
}
