//! `monstrum key`: manages API keys. Commands that create a key print only the key to standard output, so that scripts
//! can use the output.

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Subcommand, ValueEnum};
use monstrum_types::SystemClock;
use serde::Serialize;
use serde_json::{Value, json};

use super::client::Client;
use super::failure::Failure;
use super::names::{self, Noun};
use super::{FolderFlags, Options, folder, output};
use crate::boot::{ADMIN_KEY_FILE, RecoveryError, recover_root_key};

const CREATE_EXAMPLES: &str = "\
Examples:
  monstrum key create --name ci --kind operator
  monstrum key create --name triage --kind bot --bot-id helper
  monstrum key create --name lab --kind agent --resource-id lab
  KEY=$(monstrum key create --name backup --kind admin)     prints only the key to standard output";

const LIST_EXAMPLES: &str = "\
Examples:
  monstrum key list
  monstrum key list --workspace acme --json

The last use is accurate to one minute. A root key also lists the root keys.";

const ROTATE_EXAMPLES: &str = "\
Examples:
  monstrum key rotate 01998a3c-…
  KEY=$(monstrum key rotate 01998a3c-…)     prints only the key to standard output

The new key has the same id, name, kind and bot. The old key stops working immediately, on other hosts within a second.
This command does not rewrite DATA/admin.key: if it contains the rotated key, write the new key to it, or set
MONSTRUM_KEY.";

const DELETE_EXAMPLES: &str = "\
Examples:
  monstrum key list
  monstrum key delete 01998a3c-…

The last root key cannot be deleted.";

const RECOVER_EXAMPLES: &str = "\
Examples:
  monstrum key recover                              for ./data; the server must be stopped
  monstrum key recover --data-dir /srv/monstrum
  KEY=$(monstrum key recover)                       prints only the key to standard output

Use this command if the last root key of an installation is lost. Like the server, it needs the data folder, the
database and the master key. The audit records the new key as `key.recover`. Existing keys stay valid: list them with
the new key, and delete the lost keys.";

/// Create, list, rotate, delete and recover API keys
#[derive(Subcommand)]
pub(super) enum Key {
    /// Create a key and print it once
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// The name of the key, for example its purpose
        #[arg(long)]
        name: String,
        /// The kind of the key, which determines its rights
        #[arg(long)]
        kind: Kind,
        /// The name or the id of the bot; required if the kind is bot
        #[arg(long, value_name = "BOT", required_if_eq("kind", "bot"))]
        bot_id: Option<String>,
        /// The name or the id of the resource of type agent; required if the kind is agent
        #[arg(long, value_name = "RESOURCE", required_if_eq("kind", "agent"))]
        resource_id: Option<String>,
    },
    /// List keys with their last use
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Rotate a key: replace it with a new key, and print the new key once
    #[command(after_help = ROTATE_EXAMPLES)]
    Rotate { id: String },
    /// Delete a key
    #[command(after_help = DELETE_EXAMPLES)]
    Delete { id: String },
    /// Create a new root key if the last one is lost; the server must be stopped
    #[command(after_help = RECOVER_EXAMPLES)]
    Recover {
        #[command(flatten)]
        folder: FolderFlags,
    },
}

#[derive(Clone, Copy, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// Everything: workspaces, plugins, trusted keys, verification of the audit
    Root,
    /// Everything in its workspace
    Admin,
    /// Everything in its workspace except keys, credentials, permissions, and the configuration of resources
    Operator,
    /// Reading and deciding the approvals of its workspace
    Approver,
    /// The tools of one bot
    Bot,
    /// Connecting agents to one resource
    Agent,
}

impl Key {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        match self {
            Key::Recover { folder } => recover(options, folder).await?,
            Key::Create { name, kind, bot_id, resource_id } => {
                let client = Client::new(options)?;
                let mut body = json!({ "name": name, "kind": kind });
                if let Some(bot) = bot_id {
                    body["bot_id"] = json!(names::id(&client, Noun::Bot, &bot).await?);
                }
                if let Some(resource) = resource_id {
                    body["resource_id"] = json!(names::id(&client, Noun::Resource, &resource).await?);
                }
                show(
                    &client.post(&["api", "keys"], Some(&body)).await?,
                    "created",
                    "it will not be shown again:",
                    options.json,
                )?;
            }
            Key::List => {
                let items = Client::new(options)?.items(&["api", "keys"], &[]).await?;
                let fields = ["id", "name", "kind", "bot_id", "resource_id", "prefix", "created_at", "last_used_at"];
                let header = ["ID", "NAME", "KIND", "BOT", "RESOURCE", "BEGINS WITH", "CREATED", "LAST USED"];
                output::list(&items, options.json, "no keys", header, fields)?;
            }
            Key::Rotate { id } => {
                let rotated = Client::new(options)?.post(&["api", "keys", &id, "rotate"], None).await?;
                let what = "the old key no longer works, and the new key will not be shown again:";
                show(&rotated, "rotated", what, options.json)?;
                if rotated["kind"] == "root" {
                    output::warning(&format!(
                        "DATA/{ADMIN_KEY_FILE} was not rewritten; if it contains this key, write the new key to it"
                    ));
                }
            }
            Key::Delete { id } => {
                Client::new(options)?.delete(&["api", "keys", &id]).await?;
                let text = format!("deleted key {id}; it no longer works");
                output::done(options.json, &json!({ "id": id, "deleted": true }), &text)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Creates a root key in the data folder of a stopped server. The command cannot use the API, because the user has no
/// root key that a server would accept.
async fn recover(options: &Options, flags: FolderFlags) -> Result<(), Failure> {
    let settings = options.settings(flags)?;
    let running = "stop the server first; while it runs, create a key with an existing root key: `monstrum key create`";
    let data = folder::open(&settings, running).await?;
    let recovered = recover_root_key(&data, Arc::new(SystemClock)).await;
    data.store.close().await;
    let recovered = recovered.map_err(|error| {
        let hint = match &error {
            RecoveryError::Store(_) if settings.database_url.is_some() => super::DATABASE_HINT,
            _ => "check the free disk space, and run `monstrum doctor` to check the data folder",
        };
        Failure::from_error(&error, hint)
    })?;
    let key = json!({
        "id": recovered.id, "name": recovered.name, "kind": "root", "key": recovered.text.expose(),
    });
    let what = "it will not be shown again; set MONSTRUM_KEY to the key, or write the key to DATA/admin.key:";
    show(&key, "created", what, options.json)
}

/// Prints a new key, which the server shows only once. `done` names the action that created the key, and `what` tells
/// the user what to do with the key. Without `--json`, standard output contains only the key.
fn show(key: &Value, done: &str, what: &str, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(key);
    }
    let cell = |field: &str| output::plain(&output::cell(&key[field]));
    output::note(&format!("{done} {} key {}; {what}", cell("kind"), cell("id")));
    output::line(cell("key"))
}
