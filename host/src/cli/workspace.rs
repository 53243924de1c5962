//! `monstrum workspace`: manages workspaces.

use std::process::ExitCode;

use clap::Subcommand;

use super::client::Client;
use super::failure::Failure;
use super::fields::{Body, Extra, NamedChanges};
use super::names::{self, Noun};
use super::{Options, objects, output};

const CREATE_EXAMPLES: &str = "\
Examples:
  monstrum workspace create acme
  monstrum --workspace acme key create --name ops --kind admin

A workspace needs a root key. Give the people of the workspace admin or operator keys of their own.";

const EDIT_EXAMPLES: &str = "\
Examples:
  monstrum workspace edit acme --name acme-europe
  monstrum workspace edit acme --clear sandbox     use the server's settings of sandboxes";

/// Create, list, show, edit and delete workspaces
#[derive(Subcommand)]
pub(super) enum Workspace {
    /// Create a workspace
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// The name
        name: String,
    },
    /// List workspaces
    #[command(after_help = "Examples:\n  monstrum workspace list")]
    List,
    /// Show a workspace
    #[command(after_help = "Examples:\n  monstrum workspace show acme")]
    Show {
        /// The name or the id of the workspace
        #[arg(value_name = "WORKSPACE")]
        name_or_id: String,
    },
    /// Change a workspace
    #[command(after_help = EDIT_EXAMPLES)]
    Edit {
        /// The name or the id of the workspace
        #[arg(value_name = "WORKSPACE")]
        name_or_id: String,
        #[command(flatten)]
        changes: NamedChanges,
    },
    /// Delete an empty workspace
    #[command(after_help = "Examples:\n  monstrum workspace delete acme")]
    Delete {
        /// The name or the id of the workspace
        #[arg(value_name = "WORKSPACE")]
        name_or_id: String,
    },
}

impl Workspace {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        const FIELDS: [(&str, &str); 5] = [
            ("name", "name"),
            ("id", "id"),
            ("sandboxes", "sandbox"),
            ("created", "created_at"),
            ("updated", "updated_at"),
        ];
        let client = Client::new(options)?;
        match self {
            Workspace::Create { name } => {
                objects::create(&client, Noun::Workspace, name, (Body::default(), Extra::default()), options.json)
                    .await?;
            }
            Workspace::List => {
                let items = client.items(&["api", "workspaces"], &[]).await?;
                let fields = ["name", "id", "created_at"];
                output::list(&items, options.json, "no workspaces", ["NAME", "ID", "CREATED"], fields)?;
            }
            Workspace::Show { name_or_id } => {
                let found = names::find(&client, Noun::Workspace, &name_or_id).await?;
                if options.json {
                    output::json(&found)?;
                } else {
                    objects::fields(&found, &FIELDS)?;
                }
            }
            Workspace::Edit { name_or_id, changes } => {
                let body = (Body::default(), changes);
                objects::edit(&client, Noun::Workspace, &name_or_id, body, options.json).await?;
            }
            Workspace::Delete { name_or_id } => {
                objects::delete(&client, Noun::Workspace, &name_or_id, options.json).await?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
