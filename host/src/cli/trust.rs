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

`monstrum plugin pack` prints this command for its key. The owner of a trusted key can publish code that the bots of
this server use: trust a key only for its own plugins. The resource type of a plugin must match --type too, if the type
is new or belonged to another plugin. In --type, `-` and `_` are equivalent.";

const LIST_EXAMPLES: &str = "\
Examples:
  monstrum trust list
  monstrum trust list --json";

const REMOVE_EXAMPLES: &str = "\
Examples:
  monstrum trust list
  monstrum trust remove 01998a3c-…

Installed plugins that the key signed stay installed: `monstrum plugin uninstall` removes them.";

/// Manage the keys that may sign packages
#[derive(Subcommand)]
pub(super) enum Trust {
    /// Trust a key to sign certain plugins
    #[command(after_help = ADD_EXAMPLES)]
    Add {
        /// The public key, in the format that `monstrum plugin pack` prints
        public_key: String,
        /// The plugins that the key may sign, as a name or a glob
        #[arg(long, value_name = "GLOB")]
        name: String,
        /// The resource types that these plugins may add, as an id or a glob [default: the value of --name]
        #[arg(long = "type", value_name = "GLOB")]
        type_glob: Option<String>,
    },
    /// List trusted keys
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Remove a trusted key
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
                let empty = "no trusted keys, so no package can be installed; see `monstrum trust add --help`";
                let fields = ["id", "name_glob", "type_glob", "public_key", "created_at"];
                output::list(&items, options.json, empty, ["ID", "PLUGINS", "TYPES", "KEY", "SINCE"], fields)?;
            }
            Trust::Remove { id } => {
                client.delete(&["api", "trust", &id]).await?;
                let result = json!({ "id": id, "removed": true });
                output::done(options.json, &result, &format!("{id} is no longer trusted"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
