//! `monstrum delivery`: the deliveries of events to their targets.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::Value;

use super::client::Client;
use super::failure::Failure;
use super::{Options, output};

const LIST_EXAMPLES: &str = "\
Examples:
  monstrum delivery list
  monstrum delivery list --status dead
  monstrum delivery list --status pending --json";

const RETRY_EXAMPLES: &str = "\
Examples:
  monstrum delivery retry 01998a3c-…

A delivery that is dead becomes pending again. After a change of the workflow, this repeats a delivery with the reason
`input`, whose data did not fit.";

/// List the deliveries of events, and repeat those that are dead
#[derive(Subcommand)]
pub(super) enum Delivery {
    /// List deliveries, newest first
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// Only deliveries with this status
        #[arg(long, value_parser = ["pending", "done", "dead"])]
        status: Option<String>,
        /// The maximum number of deliveries
        #[arg(long, value_name = "ROWS", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
    },
    /// Repeat a delivery that is dead
    #[command(after_help = RETRY_EXAMPLES)]
    Retry { id: String },
}

impl Delivery {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        match self {
            Delivery::List { status, limit } => {
                let query: Vec<_> = status.into_iter().map(|status| ("status", status)).collect();
                let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                let (items, _) = client.list(&["api", "deliveries"], &query, limit).await?;
                if options.json || items.is_empty() {
                    output::list(&items, options.json, "there are no such deliveries", ["ID"], ["id"])?;
                } else {
                    table(&items)?;
                }
            }
            Delivery::Retry { id } => {
                let delivery = client.post(&["api", "deliveries", &id, "retry"], None).await?;
                output::done(options.json, &delivery, &format!("delivery {id} is pending"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns why a delivery is dead, with the parts of the data that do not fit.
fn reason(delivery: &Value) -> String {
    let reason = output::cell(&delivery["reason"]);
    let paths = delivery["invalid_paths"].as_array().map(Vec::as_slice).unwrap_or_default();
    let path = |path: &Value| if path == "" { "the whole".to_owned() } else { output::cell(path) };
    match paths.iter().map(path).collect::<Vec<_>>() {
        paths if paths.is_empty() => reason,
        paths => format!("{reason}: {}", paths.join(", ")),
    }
}

/// Prints deliveries as a table.
pub(super) fn table(deliveries: &[Value]) -> Result<(), Failure> {
    let row = |delivery: &Value| {
        let target = &delivery["target"];
        let started = if delivery["task_id"].is_null() { &delivery["run_id"] } else { &delivery["task_id"] };
        vec![
            output::cell(&delivery["id"]),
            output::cell(&delivery["event_id"]),
            format!("{}/{}", output::cell(&target["kind"]), output::cell(&target["id"])),
            output::cell(&delivery["status"]),
            reason(delivery),
            output::cell(started),
            output::cell(&delivery["created_at"]),
        ]
    };
    let header = ["ID", "EVENT", "TARGET", "STATUS", "REASON", "STARTED", "CREATED"];
    output::table(&header, deliveries.iter().map(row).collect())
}
