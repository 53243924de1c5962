//! `monstrum schedule`: the times at which tasks of bots and runs of workflows start.

use std::process::ExitCode;

use clap::{ArgGroup, Args, Subcommand};
use serde_json::{Value, json};

use super::client::Client;
use super::failure::Failure;
use super::fields::{Text, json_of};
use super::names::{self, Noun};
use super::{Options, objects, output};

const ADD_EXAMPLES: &str = "\
Examples:
  monstrum schedule add nightly triage 'Label the new issues' --cron '30 2 * * *' --timezone Europe/Berlin
  monstrum schedule add hourly triage 'Look for new issues' --every-s 3600 --jitter-s 60
  monstrum schedule add launch triage 'Close the milestone' --at 2027-01-04T09:00:00Z
  monstrum schedule add report --workflow report --input '{\"repo\": \"acme/web\"}' --cron '0 6 * * mon'

A pattern has five fields: minute, hour, day of the month, month and day of the week. `monstrum schedule preview` shows its
times.";

const LIST_EXAMPLES: &str = "\
Examples:
  monstrum schedule list
  monstrum schedule list --bot triage --json";

const SHOW_EXAMPLES: &str = "\
Examples:
  monstrum schedule show nightly
  monstrum schedule show nightly --json";

const ENABLE_EXAMPLES: &str = "\
Examples:
  monstrum schedule enable nightly

A schedule that five failures in a row have paused starts again, from now on.";

const DISABLE_EXAMPLES: &str = "\
Examples:
  monstrum schedule disable nightly

Tasks and runs that the schedule has started go on.";

const DELETE_EXAMPLES: &str = "\
Examples:
  monstrum schedule delete nightly

Tasks and runs that the schedule has started go on.";

const FIRE_EXAMPLES: &str = "\
Examples:
  monstrum schedule fire nightly

The command prints the id of the task or the run. The next time of the schedule stays as it is.";

const PREVIEW_EXAMPLES: &str = "\
Examples:
  monstrum schedule preview --cron '30 2 * * *' --timezone Europe/Berlin
  monstrum schedule preview --every-s 3600";

/// Start tasks of bots and runs of workflows at certain times
#[derive(Subcommand)]
pub(super) enum Schedule {
    /// Create a schedule
    #[command(after_help = ADD_EXAMPLES, visible_alias = "create")]
    Add(Box<Add>),
    /// List schedules, newest first
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// The name or the id of the bot
        #[arg(long)]
        bot: Option<String>,
    },
    /// Show a schedule with its last firing
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// The name or the id of the schedule
        schedule: String,
    },
    /// Let a schedule fire
    #[command(after_help = ENABLE_EXAMPLES)]
    Enable {
        /// The name or the id of the schedule
        schedule: String,
    },
    /// Stop a schedule
    #[command(after_help = DISABLE_EXAMPLES)]
    Disable {
        /// The name or the id of the schedule
        schedule: String,
    },
    /// Delete a schedule
    #[command(after_help = DELETE_EXAMPLES)]
    Delete {
        /// The name or the id of the schedule
        schedule: String,
    },
    /// Start the task or the run of a schedule now
    #[command(after_help = FIRE_EXAMPLES)]
    Fire {
        /// The name or the id of the schedule
        schedule: String,
    },
    /// Show the next five times of a pattern or an interval
    #[command(after_help = PREVIEW_EXAMPLES)]
    Preview(Preview),
}

#[derive(Args)]
#[command(group(ArgGroup::new("when").required(true).args(["cron", "every_s", "at"])))]
pub(super) struct Add {
    /// The name of the schedule
    name: String,
    /// The name or the id of the bot
    #[arg(required_unless_present = "workflow", conflicts_with = "workflow", requires = "instruction")]
    bot: Option<String>,
    /// What the bot is to do
    #[arg(requires = "bot")]
    instruction: Option<String>,
    /// Start runs of this workflow instead: its name or its id
    #[arg(long)]
    workflow: Option<String>,
    /// The input of the runs: JSON, or @FILE
    #[arg(long, value_name = "JSON", requires = "workflow")]
    input: Option<Text>,
    /// A pattern of five fields, such as '30 2 * * *'
    #[arg(long, value_name = "PATTERN")]
    cron: Option<String>,
    /// An interval in seconds, at least 60
    #[arg(long, value_name = "S")]
    every_s: Option<u32>,
    /// A single time, such as 2027-01-04T09:00:00Z
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// The time zone of the pattern [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "cron")]
    timezone: Option<String>,
    /// What happens while an earlier task or run goes on
    #[arg(long, value_parser = ["skip", "queue", "allow"], default_value = "skip")]
    overlap: String,
    /// What happens to times at which no server was running
    #[arg(long, value_parser = ["once", "skip"], default_value = "once")]
    missed: String,
    /// The maximum delay of a firing in seconds
    #[arg(long, value_name = "S", default_value_t = 0)]
    jitter_s: u32,
    /// Create the schedule without letting it fire
    #[arg(long)]
    disabled: bool,
}

#[derive(Args)]
#[command(group(ArgGroup::new("when").required(true).args(["cron", "every_s"])))]
pub(super) struct Preview {
    /// A pattern of five fields, such as '30 2 * * *'
    #[arg(long, value_name = "PATTERN")]
    cron: Option<String>,
    /// An interval in seconds, at least 60
    #[arg(long, value_name = "S")]
    every_s: Option<u32>,
    /// The time zone of the pattern [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "cron")]
    timezone: Option<String>,
}

impl Schedule {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let (client, is_json) = (Client::new(options)?, options.json);
        match self {
            Schedule::Add(add) => add.run(&client, is_json).await?,
            Schedule::List { bot } => list(&client, bot, is_json).await?,
            Schedule::Show { schedule } => show(&client, &schedule, is_json).await?,
            Schedule::Enable { schedule } => enable(&client, &schedule, true, is_json).await?,
            Schedule::Disable { schedule } => enable(&client, &schedule, false, is_json).await?,
            Schedule::Delete { schedule } => objects::delete(&client, Noun::Schedule, &schedule, is_json).await?,
            Schedule::Fire { schedule } => {
                let id = names::id(&client, Noun::Schedule, &schedule).await?;
                let started = client.post(&["api", "schedules", &id, "fire"], None).await?;
                match is_json {
                    true => output::json(&started)?,
                    false => output::line(names::text(&started, "id")?)?,
                }
            }
            Schedule::Preview(preview) => preview.run(&client, is_json).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Add {
    async fn run(self, client: &Client, is_json: bool) -> Result<(), Failure> {
        let bot = match &self.bot {
            Some(bot) => Some(names::id(client, Noun::Bot, bot).await?),
            None => None,
        };
        let workflow = match &self.workflow {
            Some(workflow) => Some(names::id(client, Noun::Workflow, workflow).await?),
            None => None,
        };
        let input = self.input.clone().map(|text| json_of("input", text)).transpose()?;
        let Add { name, instruction, cron, every_s, at, timezone, overlap, missed, jitter_s, disabled, .. } = self;
        let body = json!({
            "name": name, "bot_id": bot, "instruction": instruction, "workflow_id": workflow, "input": input, "cron": cron, "every_s": every_s, "at": at,
            "timezone": timezone, "overlap": overlap, "missed": missed, "jitter_s": jitter_s, "enabled": !disabled,
        });
        let created = client.post(&["api", "schedules"], Some(&body)).await?;
        objects::tell_created(&created, "schedule", &name, is_json)
    }
}

impl Preview {
    async fn run(self, client: &Client, is_json: bool) -> Result<(), Failure> {
        let Preview { cron, every_s, timezone } = self;
        let body = json!({ "cron": cron, "every_s": every_s, "timezone": timezone });
        let times = client.post(&["api", "schedules", "preview"], Some(&body)).await?;
        if is_json {
            return output::json(&times);
        }
        for time in times["next"].as_array().into_iter().flatten() {
            output::line(output::plain(&output::cell(time)))?;
        }
        Ok(())
    }
}

async fn list(client: &Client, bot: Option<String>, is_json: bool) -> Result<(), Failure> {
    let mut query = Vec::new();
    if let Some(bot) = bot {
        query.push(("bot_id", names::id(client, Noun::Bot, &bot).await?));
    }
    let mut items = client.items(&["api", "schedules"], &query).await?;
    if !is_json {
        for item in &mut items {
            item["when"] = Value::String(when(item));
            item["last_status"] = item["last"]["status"].clone();
        }
    }
    let header = ["ID", "NAME", "BOT", "WHEN", "ENABLED", "NEXT", "LAST"];
    let fields = ["id", "name", "bot_id", "when", "enabled", "next_at", "last_status"];
    output::list(&items, is_json, "there are no schedules; `monstrum schedule add` creates one", header, fields)
}

/// Returns the times of a schedule in one cell.
fn when(schedule: &Value) -> String {
    if let Some(pattern) = schedule["cron"].as_str() {
        return format!("{pattern} {}", output::cell(&schedule["timezone"]));
    }
    match schedule["every_s"].as_u64() {
        Some(seconds) => format!("every {seconds} s"),
        None => format!("at {}", output::cell(&schedule["at"])),
    }
}

async fn show(client: &Client, schedule: &str, is_json: bool) -> Result<(), Failure> {
    const FIELDS: [(&str, &str); 18] = [
        ("id", "id"),
        ("name", "name"),
        ("bot", "bot_id"),
        ("when", "when"),
        ("overlap", "overlap"),
        ("missed", "missed"),
        ("jitter in seconds", "jitter_s"),
        ("enabled", "enabled"),
        ("next", "next_at"),
        ("last planned", "last_planned_at"),
        ("last fired", "last_fired_at"),
        ("last status", "last_status"),
        ("last task", "last_task_id"),
        ("failures", "failures"),
        ("last run", "last_run_id"),
        ("workflow", "workflow_id"),
        ("input", "input"),
        ("instruction", "instruction"),
    ];
    let id = names::id(client, Noun::Schedule, schedule).await?;
    let mut schedule = client.get(&["api", "schedules", &id], &[]).await?;
    if is_json {
        return output::json(&schedule);
    }
    schedule["when"] = Value::String(when(&schedule));
    for field in ["planned_at", "fired_at", "status", "task_id", "run_id"] {
        schedule[format!("last_{field}")] = schedule["last"][field].clone();
    }
    output::given_fields(&schedule, &FIELDS)
}

async fn enable(client: &Client, schedule: &str, is_enabled: bool, is_json: bool) -> Result<(), Failure> {
    let id = names::id(client, Noun::Schedule, schedule).await?;
    let changed = client.patch(&["api", "schedules", &id], &json!({ "enabled": is_enabled })).await?;
    objects::tell_changed(&changed, "schedule", &output::cell(&changed["name"]), is_json)
}
