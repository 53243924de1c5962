//! The commands on saved workflows.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Value, json};

use super::trigger::Trigger;
use crate::cli::client::Client;
use crate::cli::failure::Failure;
use crate::cli::fields::Source;
use crate::cli::names::{self, Noun};
use crate::cli::{Options, objects, output};

const APPLY_EXAMPLES: &str = "\
Examples:
  monstrum workflow apply release.yaml
  monstrum workflow apply - < release.yaml

The command creates the workflow that the definition names, or saves a new version of it. A definition that equals the newest
version makes none.";

const LIST_EXAMPLES: &str = "\
Examples:
  monstrum workflow list
  monstrum workflow list --bot triage --json";

const SHOW_EXAMPLES: &str = "\
Examples:
  monstrum workflow show release
  monstrum workflow show release --version 1
  monstrum workflow show release --json

The command prints the definition as it was saved, so that the output can be applied again.";

const VERSIONS_EXAMPLES: &str = "\
Examples:
  monstrum workflow versions release";

const ENABLE_EXAMPLES: &str = "\
Examples:
  monstrum workflow enable release";

const DISABLE_EXAMPLES: &str = "\
Examples:
  monstrum workflow disable release

Runs that have started go on.";

const DELETE_EXAMPLES: &str = "\
Examples:
  monstrum workflow delete release

The command deletes the workflow with its versions and triggers.";

/// The commands that need a server.
#[derive(Subcommand)]
pub(in crate::cli) enum Saved {
    /// Create a workflow, or save a new version of it
    #[command(after_help = APPLY_EXAMPLES)]
    Apply {
        /// The file with the definition, or - for standard input
        file: PathBuf,
    },
    /// List workflows, newest first
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// The name or the id of the bot
        #[arg(long)]
        bot: Option<String>,
    },
    /// Show the definition of a workflow
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// The name or the id of the workflow
        workflow: String,
        /// The number of the version [default: the newest]
        #[arg(long, value_name = "N")]
        version: Option<u64>,
    },
    /// List the versions of a workflow, newest first
    #[command(after_help = VERSIONS_EXAMPLES)]
    Versions {
        /// The name or the id of the workflow
        workflow: String,
    },
    /// Let new runs of a workflow start
    #[command(after_help = ENABLE_EXAMPLES)]
    Enable {
        /// The name or the id of the workflow
        workflow: String,
    },
    /// Stop new runs of a workflow
    #[command(after_help = DISABLE_EXAMPLES)]
    Disable {
        /// The name or the id of the workflow
        workflow: String,
    },
    /// Delete a workflow
    #[command(after_help = DELETE_EXAMPLES)]
    Delete {
        /// The name or the id of the workflow
        workflow: String,
    },
    #[command(subcommand)]
    Trigger(Trigger),
}

impl Saved {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let (client, is_json) = (Client::new(options)?, options.json);
        match self {
            Saved::Apply { file } => {
                // Reading removes the final line feed.
                let text = format!("{}\n", Source::File(file.clone()).read()?.expose());
                apply(&client, &file, text, is_json).await?;
            }
            Saved::List { bot } => list(&client, bot, is_json).await?,
            Saved::Show { workflow, version } => show(&client, &workflow, version, is_json).await?,
            Saved::Versions { workflow } => versions(&client, &workflow, is_json).await?,
            Saved::Enable { workflow } => enable(&client, &workflow, true, is_json).await?,
            Saved::Disable { workflow } => enable(&client, &workflow, false, is_json).await?,
            Saved::Delete { workflow } => objects::delete(&client, Noun::Workflow, &workflow, is_json).await?,
            Saved::Trigger(trigger) => trigger.run(&client, is_json).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Saves a definition: creates the workflow that it names, or a new version of it.
async fn apply(client: &Client, file: &Path, text: String, is_json: bool) -> Result<(), Failure> {
    let body = json!({ "definition": text });
    let valid =
        client.post(&["api", "workflows", "validate"], Some(&body)).await.map_err(|error| about(error, file))?;
    let name = names::text(&valid, "name")?;
    let items = client.items(&["api", "workflows"], &[]).await?;
    let Some(known) = items.iter().find(|item| item["name"] == name.as_str()) else {
        let created = client.post(&["api", "workflows"], Some(&body)).await.map_err(|error| about(error, file))?;
        warn(&created, file);
        return objects::tell_created(&without_warnings(created), "workflow", &name, is_json);
    };
    let id = names::text(known, "id")?;
    let changed = client.patch(&["api", "workflows", &id], &body).await.map_err(|error| about(error, file))?;
    warn(&changed, file);
    if changed["version"] == known["version"] {
        return output::done(is_json, &changed, &format!("workflow {name} has not changed"));
    }
    let text = format!("saved version {} of workflow {name}", output::cell(&changed["version"]));
    output::done(is_json, &changed, &text)
}

fn about(error: Failure, file: &Path) -> Failure {
    error.about(&output::plain(&file.display().to_string()))
}

/// Prints the warnings about a definition, with their places.
fn warn(workflow: &Value, file: &Path) {
    for warning in workflow["warnings"].as_array().into_iter().flatten() {
        let [line, column, message] = ["line", "column", "message"].map(|field| output::cell(&warning[field]));
        output::warning(&output::plain(&format!("{}:{line}:{column}: {message}", file.display())));
    }
}

fn without_warnings(mut workflow: Value) -> Value {
    if let Some(fields) = workflow.as_object_mut() {
        fields.remove("warnings");
    }
    workflow
}

async fn list(client: &Client, bot: Option<String>, is_json: bool) -> Result<(), Failure> {
    let mut query = Vec::new();
    if let Some(bot) = bot {
        query.push(("bot_id", names::id(client, Noun::Bot, &bot).await?));
    }
    let items = client.items(&["api", "workflows"], &query).await?;
    let header = ["ID", "NAME", "BOT", "VERSION", "ENABLED", "UPDATED"];
    let fields = ["id", "name", "bot_id", "version", "enabled", "updated_at"];
    output::list(&items, is_json, "there are no workflows; `monstrum workflow apply` creates one", header, fields)
}

/// Prints the definition of a workflow as it was saved, so that the output can be applied again.
async fn show(client: &Client, workflow: &str, version: Option<u64>, is_json: bool) -> Result<(), Failure> {
    let id = names::id(client, Noun::Workflow, workflow).await?;
    let shown = match version {
        Some(version) => client.get(&["api", "workflows", &id, "versions", &version.to_string()], &[]).await?,
        None => client.get(&["api", "workflows", &id], &[]).await?,
    };
    if is_json {
        return output::json(&shown);
    }
    match shown["definition"].as_str() {
        // The text may contain characters that a terminal would interpret.
        Some(text) => text.lines().try_for_each(|line| output::line(output::plain(line))),
        None => output::json(&shown["definition"]),
    }
}

async fn versions(client: &Client, workflow: &str, is_json: bool) -> Result<(), Failure> {
    let id = names::id(client, Noun::Workflow, workflow).await?;
    let mut items = client.items(&["api", "workflows", &id, "versions"], &[]).await?;
    if !is_json {
        for item in &mut items {
            item["saved_by"] = item["saved_by"]["id"].clone();
        }
    }
    let header = ["VERSION", "SAVED", "BY KEY", "DIGEST"];
    output::list(
        &items,
        is_json,
        "the workflow has no versions",
        header,
        ["version", "created_at", "saved_by", "digest"],
    )
}

async fn enable(client: &Client, workflow: &str, is_enabled: bool, is_json: bool) -> Result<(), Failure> {
    let id = names::id(client, Noun::Workflow, workflow).await?;
    let changed = client.patch(&["api", "workflows", &id], &json!({ "enabled": is_enabled })).await?;
    let name = output::cell(&changed["name"]);
    objects::tell_changed(&without_warnings(changed), "workflow", &name, is_json)
}
