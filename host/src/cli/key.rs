//! `monstrum key`: manages keys of the API. Standard output contains only the text of a new key, so that scripts can
//! use it.

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Subcommand, ValueEnum};
use monstrum_types::SystemClock;
use serde_json::{Value, json};

use super::client::Client;
use super::failure::Failure;
use super::{FolderFlags, Options, folder, output};
use crate::boot::{ADMIN_KEY_FILE, RecoveryError, recover_root_key};

const CREATE_EXAMPLES: &str = "\
Examples:
  monstrum key create --name ci --kind operator
  monstrum key create --name triage --kind bot --bot-id 01998a3c-…
  KEY=$(monstrum key create --name backup --kind admin)     only the key goes to standard output";

const LIST_EXAMPLES: &str = "\
Examples:
  monstrum key list
  monstrum key list --workspace acme --json

The last use is told to the minute. A root key sees the root keys as well.";

const ROTATE_EXAMPLES: &str = "\
Examples:
  monstrum key rotate 01998a3c-…
  KEY=$(monstrum key rotate 01998a3c-…)     only the key goes to standard output

The key keeps its id, name, kind and bot. The old text stops working at once, on other hosts within a second. DATA/admin.key is
not rewritten: if it holds the key that is rotated, put the new one there, or give it as MONSTRUM_KEY.";

const DELETE_EXAMPLES: &str = "\
Examples:
  monstrum key list
  monstrum key delete 01998a3c-…

The last root key stays.";

const RECOVER_EXAMPLES: &str = "\
Examples:
  monstrum key recover                              of ./data, whose server is stopped
  monstrum key recover --data-dir /srv/monstrum
  KEY=$(monstrum key recover)                       only the key goes to standard output

For an installation whose last root key is lost. It needs the data folder, the database and the master key, as the server
does, and is recorded in the audit as `key.recover`. The other keys stay: list them with the new one, and delete what is
lost.";

/// Make, list, rotate, delete and recover API keys
#[derive(Subcommand)]
pub(super) enum Key {
    /// Make a key and print it, once
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// What the key is for
        #[arg(long)]
        name: String,
        /// What the key may do
        #[arg(long)]
        kind: Kind,
        /// The bot whose key it is
        #[arg(long, value_name = "ID", required_if_eq("kind", "bot"))]
        bot_id: Option<String>,
    },
    /// List the keys, and when each was last used
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Give a key a new text and print it, once
    #[command(after_help = ROTATE_EXAMPLES)]
    Rotate { id: String },
    /// Delete a key
    #[command(after_help = DELETE_EXAMPLES)]
    Delete { id: String },
    /// Make a new root key when the last one is lost; the server must be stopped
    #[command(after_help = RECOVER_EXAMPLES)]
    Recover {
        #[command(flatten)]
        folder: FolderFlags,
    },
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum Kind {
    /// The whole instance: workspaces, plugins, trust, verification of the audit
    Root,
    /// Everything in its workspace
    Admin,
    /// As admin, but no keys, credentials, permissions, or configuration of resources
    Operator,
    /// Calls the tools of one bot
    Bot,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Kind::Root => "root",
            Kind::Admin => "admin",
            Kind::Operator => "operator",
            Kind::Bot => "bot",
        }
    }
}

impl Key {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        match self {
            Key::Recover { folder } => recover(options, folder).await?,
            Key::Create { name, kind, bot_id } => {
                let client = Client::new(options)?;
                let mut body = json!({ "name": name, "kind": kind.as_str() });
                if let Some(bot) = bot_id {
                    body["bot_id"] = json!(bot);
                }
                show(&client.post(&["api", "keys"], Some(&body)).await?, "it is shown only now:", options.json)?;
            }
            Key::List => list(&Client::new(options)?.items(&["api", "keys"], &[]).await?, options.json)?,
            Key::Rotate { id } => {
                let rotated = Client::new(options)?.post(&["api", "keys", &id, "rotate"], None).await?;
                let what = "the old text works no longer, and the new one is shown only now:";
                show(&rotated, what, options.json)?;
                if rotated["kind"] == "root" {
                    output::warning(&format!(
                        "DATA/{ADMIN_KEY_FILE} is not rewritten; if it held this key, put the new one there"
                    ));
                }
            }
            Key::Delete { id } => {
                Client::new(options)?.delete(&["api", "keys", &id]).await?;
                if options.json {
                    output::json(&json!({ "id": id, "deleted": true }))?;
                } else {
                    output::note(&format!("key {} is deleted and works no longer", output::plain(&id)));
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Creates a root key in the data folder. It cannot use the API, because no key is left that a server would accept.
async fn recover(options: &Options, flags: FolderFlags) -> Result<(), Failure> {
    let settings = options.settings(flags)?;
    let running = "stop the server first; while it runs, a root key that you have makes another: `monstrum key create`";
    let data = folder::open(&settings, running).await?;
    let recovered = recover_root_key(&data, Arc::new(SystemClock)).await;
    data.store.close().await;
    let recovered = recovered.map_err(|error| {
        let hint = match &error {
            RecoveryError::Store(_) if settings.database_url.is_some() => super::DATABASE_HINT,
            _ => "is there room on the disk? `monstrum doctor` says what is wrong with the folder",
        };
        Failure::from_error(&error, hint)
    })?;
    let key = json!({
        "id": recovered.id, "name": recovered.name, "kind": "root", "key": recovered.text.expose(),
    });
    show(&key, "it is shown only now; give it as MONSTRUM_KEY, or put it into DATA/admin.key:", options.json)
}

/// Prints a new key, whose text the server shows only once. Only the text goes to standard output.
fn show(key: &Value, what: &str, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(key);
    }
    let cell = |field: &str| output::plain(&output::cell(&key[field]));
    output::note(&format!("{} key {}; {what}", cell("kind"), cell("id")));
    output::line(cell("key"))
}

fn list(items: &[Value], json: bool) -> Result<(), Failure> {
    const FIELDS: [&str; 7] = ["id", "name", "kind", "bot_id", "prefix", "created_at", "last_used_at"];
    if json {
        return output::json(&json!({ "items": items, "next_cursor": null }));
    }
    let row = |item: &Value| FIELDS.iter().map(|field| output::cell(&item[*field])).collect();
    let header = ["ID", "NAME", "KIND", "BOT", "BEGINS WITH", "CREATED", "LAST USED"];
    output::table(&header, items.iter().map(row).collect())
}
