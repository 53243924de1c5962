//! `monstrum workflow`: documents with steps that bots run.

mod saved;
mod trigger;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use super::client::Client;
use super::failure::Failure;
use super::fields::Source;
use super::names::Noun;
use super::{Options, objects};

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

/// Save workflows: documents with steps that bots run
#[derive(Subcommand)]
pub(super) enum Workflow {
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
    Trigger(trigger::Trigger),
}

impl Workflow {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let (client, is_json) = (Client::new(options)?, options.json);
        match self {
            Workflow::Apply { file } => {
                // Reading removes the final line feed.
                let text = format!("{}\n", Source::File(file.clone()).read()?.expose());
                saved::apply(&client, &file, text, is_json).await?;
            }
            Workflow::List { bot } => saved::list(&client, bot, is_json).await?,
            Workflow::Show { workflow, version } => saved::show(&client, &workflow, version, is_json).await?,
            Workflow::Versions { workflow } => saved::versions(&client, &workflow, is_json).await?,
            Workflow::Enable { workflow } => saved::enable(&client, &workflow, true, is_json).await?,
            Workflow::Disable { workflow } => saved::enable(&client, &workflow, false, is_json).await?,
            Workflow::Delete { workflow } => objects::delete(&client, Noun::Workflow, &workflow, is_json).await?,
            Workflow::Trigger(trigger) => trigger.run(&client, is_json).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
