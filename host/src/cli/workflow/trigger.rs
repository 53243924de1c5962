//! `monstrum workflow trigger`: the events that start runs of a workflow.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::cli::client::Client;
use crate::cli::failure::Failure;
use crate::cli::names::{self, Noun};
use crate::cli::{objects, output};

const ADD_EXAMPLES: &str = "\
Examples:
  monstrum workflow trigger add release 'custom.deploy.*'
  monstrum workflow trigger add release task.failed --from own --instruction 'A task failed: {data}'

The input of a run is the data of its event. A pattern is a glob over the types of events. A trigger that takes the events of
other bots (--from any, or --from BOT) requires an admin key.";

const LIST_EXAMPLES: &str = "\
Examples:
  monstrum workflow trigger list release
  monstrum workflow trigger list release --json";

const ENABLE_EXAMPLES: &str = "\
Examples:
  monstrum workflow trigger enable release 01939d2c-7f6a-7000-8000-000000000001";

const DISABLE_EXAMPLES: &str = "\
Examples:
  monstrum workflow trigger disable release 01939d2c-7f6a-7000-8000-000000000001";

const DELETE_EXAMPLES: &str = "\
Examples:
  monstrum workflow trigger delete release 01939d2c-7f6a-7000-8000-000000000001

Runs that the trigger has started go on.";

/// Start runs of a workflow when events happen
#[derive(Subcommand)]
pub(in crate::cli) enum Trigger {
    /// Create a trigger
    #[command(after_help = ADD_EXAMPLES, visible_alias = "create")]
    Add(Add),
    /// List the triggers of a workflow, newest first
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// The name or the id of the workflow
        workflow: String,
    },
    /// Let a trigger start runs
    #[command(after_help = ENABLE_EXAMPLES)]
    Enable {
        /// The name or the id of the workflow
        workflow: String,
        /// The id of the trigger
        trigger: String,
    },
    /// Stop a trigger
    #[command(after_help = DISABLE_EXAMPLES)]
    Disable {
        /// The name or the id of the workflow
        workflow: String,
        /// The id of the trigger
        trigger: String,
    },
    /// Delete a trigger
    #[command(after_help = DELETE_EXAMPLES)]
    Delete {
        /// The name or the id of the workflow
        workflow: String,
        /// The id of the trigger
        trigger: String,
    },
}

#[derive(Args)]
pub(in crate::cli) struct Add {
    /// The name or the id of the workflow
    workflow: String,
    /// A glob over the types of events, such as 'custom.deploy.*'
    pattern: String,
    /// A text for the runs, with placeholders such as {data}
    #[arg(long, default_value = "")]
    instruction: String,
    /// Whose events match: own, platform, any, or the name or the id of a bot; can be repeated [default: own, platform]
    #[arg(long, value_name = "SOURCE")]
    from: Vec<String>,
    /// Create the trigger without letting it start runs
    #[arg(long)]
    disabled: bool,
}

impl Trigger {
    pub(super) async fn run(self, client: &Client, is_json: bool) -> Result<(), Failure> {
        match self {
            Trigger::Add(add) => add.run(client, is_json).await,
            Trigger::List { workflow } => list(client, &workflow, is_json).await,
            Trigger::Enable { workflow, trigger } => enable(client, (&workflow, &trigger), true, is_json).await,
            Trigger::Disable { workflow, trigger } => enable(client, (&workflow, &trigger), false, is_json).await,
            Trigger::Delete { workflow, trigger } => {
                let id = names::id(client, Noun::Workflow, &workflow).await?;
                client.delete(&["api", "workflows", &id, "triggers", &trigger]).await?;
                objects::tell_deleted(&trigger, "trigger", &trigger, is_json)
            }
        }
    }
}

impl Add {
    async fn run(self, client: &Client, is_json: bool) -> Result<(), Failure> {
        let Add { workflow, pattern, instruction, from, disabled } = self;
        let id = names::id(client, Noun::Workflow, &workflow).await?;
        let mut body = json!({ "event_pattern": pattern, "instruction": instruction, "enabled": !disabled });
        if !from.is_empty() {
            let mut sources = Vec::new();
            for source in from {
                match source.as_str() {
                    "own" | "platform" | "any" => sources.push(source),
                    bot => sources.push(names::id(client, Noun::Bot, bot).await?),
                }
            }
            body["from"] = json!(sources);
        }
        let created = client.post(&["api", "workflows", &id, "triggers"], Some(&body)).await?;
        objects::tell_created(&created, "trigger for", &pattern, is_json)
    }
}

async fn list(client: &Client, workflow: &str, is_json: bool) -> Result<(), Failure> {
    let id = names::id(client, Noun::Workflow, workflow).await?;
    let items: Vec<Value> = client.items(&["api", "workflows", &id, "triggers"], &[]).await?;
    let empty = "the workflow has no triggers; `monstrum workflow trigger add` creates one";
    let header = ["ID", "EVENTS", "FROM", "ENABLED", "CREATED"];
    output::list(&items, is_json, empty, header, ["id", "event_pattern", "from", "enabled", "created_at"])
}

async fn enable(
    client: &Client,
    (workflow, trigger): (&str, &str),
    is_enabled: bool,
    is_json: bool,
) -> Result<(), Failure> {
    let id = names::id(client, Noun::Workflow, workflow).await?;
    let path = ["api", "workflows", &id, "triggers", trigger];
    let changed = client.patch(&path, &json!({ "enabled": is_enabled })).await?;
    objects::tell_changed(&changed, "trigger", trigger, is_json)
}
