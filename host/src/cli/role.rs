//! `monstrum role`: manages roles.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::client::Client;
use super::failure::Failure;
use super::fields::{Body, Extra, NamedChanges, Scope};
use super::names::{self, Noun};
use super::{Options, objects, output};

const CREATE_EXAMPLES: &str = "\
Examples:
  monstrum role create reader --allow-operation '*.read'
  monstrum role create writer --allow-operation 'issue.*' --scope 'repos=acme/*'
  monstrum role create tools --allow-tool github_list_issues --allow-tool github_get_issue

A role without --allow-operation and --allow-tool allows nothing. If both are given, both must match.";

const EDIT_EXAMPLES: &str = "\
Examples:
  monstrum role edit reader --allow-operation '*.read' --allow-operation '*.list'
  monstrum role edit reader --scope 'repos=acme/*' --scope 'repos=beta/*'
  monstrum role edit reader --clear scope_constraints

Flags that can be repeated replace the whole list. The change takes effect for all bindings with this role.";

const DELETE_EXAMPLES: &str = "\
Examples:
  monstrum role delete reader

A role that a binding uses cannot be deleted.";

/// Create, list, show, edit and delete roles
#[derive(Subcommand)]
pub(super) enum Role {
    /// Create a role
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// The name
        name: String,
        #[command(flatten)]
        grant: Grant,
        #[command(flatten)]
        extra: Extra,
    },
    /// List roles
    #[command(after_help = "Examples:\n  monstrum role list\n  monstrum role list --json")]
    List,
    /// Show a role
    #[command(after_help = "Examples:\n  monstrum role show reader")]
    Show {
        /// The name or the id of the role
        role: String,
    },
    /// Change a role
    #[command(after_help = EDIT_EXAMPLES)]
    Edit {
        /// The name or the id of the role
        role: String,
        #[command(flatten)]
        grant: Grant,
        #[command(flatten)]
        changes: NamedChanges,
    },
    /// Delete a role
    #[command(after_help = DELETE_EXAMPLES)]
    Delete {
        /// The name or the id of the role
        role: String,
    },
}

/// What a role or a binding allows.
#[derive(Args)]
pub(super) struct Grant {
    /// A glob for operations, such as issue.*; can be repeated
    #[arg(long, value_name = "GLOB")]
    pub(super) allow_operation: Vec<String>,
    /// A glob for names of tools, such as github_*; can be repeated
    #[arg(long, value_name = "GLOB")]
    pub(super) allow_tool: Vec<String>,
    /// An allowed value of a scope dimension, such as 'repos=acme/*'; can be repeated
    #[arg(long, value_name = "DIMENSION=ENTRY")]
    pub(super) scope: Vec<Scope>,
}

impl Grant {
    fn into_body(self) -> Body {
        let mut body = Body::default();
        body.set_list("allowed_operations", self.allow_operation);
        body.set_list("allowed_tools", self.allow_tool);
        body.set_scopes(self.scope);
        body
    }
}

impl Role {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        match self {
            Role::Create { name, grant, extra } => {
                objects::create(&client, Noun::Role, name, (grant.into_body(), extra), options.json).await?;
            }
            Role::List => list(&client, options.json).await?,
            Role::Show { role } => show(&client, &role, options.json).await?,
            Role::Edit { role, grant, changes } => {
                objects::edit(&client, Noun::Role, &role, (grant.into_body(), changes), options.json).await?;
            }
            Role::Delete { role } => objects::delete(&client, Noun::Role, &role, options.json).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn list(client: &Client, json: bool) -> Result<(), Failure> {
    let items = client.items(&["api", "roles"], &[]).await?;
    if json || items.is_empty() {
        let empty = "no roles; `monstrum role create` creates one";
        return output::list(&items, json, empty, ["NAME"], ["name"]);
    }
    let rows = items.iter().map(|role| {
        vec![
            output::cell(&role["name"]),
            output::cell(&role["id"]),
            objects::globs(&role["allowed_operations"]),
            objects::globs(&role["allowed_tools"]),
            objects::scopes(&role["scope_constraints"]),
        ]
    });
    output::table(&["NAME", "ID", "OPERATIONS", "TOOLS", "SCOPES"], rows.collect())
}

async fn show(client: &Client, role: &str, json: bool) -> Result<(), Failure> {
    let role = names::find(client, Noun::Role, role).await?;
    if json {
        return output::json(&role);
    }
    output::fields(&[
        ("name", output::cell(&role["name"])),
        ("id", output::cell(&role["id"])),
        ("operations", objects::globs(&role["allowed_operations"])),
        ("tools", objects::globs(&role["allowed_tools"])),
        ("scopes", objects::scopes(&role["scope_constraints"])),
        ("gates", output::cell(&role["gates"])),
        ("created", output::cell(&role["created_at"])),
        ("updated", output::cell(&role["updated_at"])),
    ])
}
