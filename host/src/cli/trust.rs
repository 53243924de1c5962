//! `monstrum trust`: manages the public keys that may sign packages of plugins.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::json;

use super::client::Client;
use super::failure::Failure;
use super::{Options, output};

const ADD_EXAMPLES: &str = "\
Examples:
  monstrum trust add ed25519:qg8w… --name github
  monstrum trust add ed25519:qg8w… --name 'acme-*'
  monstrum trust add ed25519:qg8w… --name acme-tracker --type tracker

`monstrum plugin pack` prints the line for its key. The holder of the key can then put code before this server's bots: trust
the key for the plugins that it is for, and no more. A plugin that brings a new resource type, or takes one over from another
plugin, must match --type as well, where `-` and `_` count as the same.";

const LIST_EXAMPLES: &str = "\
Examples:
  monstrum trust list
  monstrum trust list --json";

const REMOVE_EXAMPLES: &str = "\
Examples:
  monstrum trust list
  monstrum trust remove 01998a3c-…

What the key has signed and is installed stays: `monstrum plugin uninstall` removes it.";

/// Say whose packages may be installed
#[derive(Subcommand)]
pub(super) enum Trust {
    /// Trust a key to sign some plugins
    #[command(after_help = ADD_EXAMPLES)]
    Add {
        /// A public key, as `monstrum plugin pack` prints it
        public_key: String,
        /// The plugins, as a name or a glob
        #[arg(long, value_name = "GLOB")]
        name: String,
        /// The resource types that these plugins may bring, as an id or a glob; by default the same as --name
        #[arg(long = "type", value_name = "GLOB")]
        type_glob: Option<String>,
    },
    /// List the keys that are trusted
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Trust a key no longer
    #[command(after_help = REMOVE_EXAMPLES)]
    Remove { id: String },
}

impl Trust {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        match self {
            Trust::Add { public_key, name, type_glob } => {
                let mut body = json!({ "public_key": public_key, "name_glob": name });
                if let Some(type_glob) = type_glob {
                    body["type_glob"] = json!(type_glob);
                }
                let row = client.post(&["api", "trust"], Some(&body)).await?;
                if options.json {
                    output::json(&row)?;
                } else {
                    let cell = |field: &str| output::plain(&output::cell(&row[field]));
                    let (key, name, types, id) = (cell("public_key"), cell("name_glob"), cell("type_glob"), cell("id"));
                    output::line(format!("{key} may sign `{name}` of resource types `{types}` ({id})"))?;
                }
            }
            Trust::List => {
                let items = client.items(&["api", "trust"], &[]).await?;
                if options.json {
                    output::json(&json!({ "items": items, "next_cursor": null }))?;
                } else if items.is_empty() {
                    output::note("no key is trusted, so no package can be installed; see `monstrum trust add --help`");
                } else {
                    let rows = items.iter().map(|item| {
                        ["id", "name_glob", "type_glob", "public_key", "created_at"]
                            .iter()
                            .map(|field| output::cell(&item[field]))
                            .collect()
                    });
                    output::table(&["ID", "PLUGINS", "TYPES", "KEY", "SINCE"], rows.collect())?;
                }
            }
            Trust::Remove { id } => {
                client.delete(&["api", "trust", &id]).await?;
                if options.json {
                    output::json(&json!({ "id": id, "removed": true }))?;
                } else {
                    output::note(&format!("{} is trusted no longer", output::plain(&id)));
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
