//! `monstrum plugin update`: updates installed plugins to the newest version in the registry.

use std::process::ExitCode;

use clap::Args;
use semver::Version;
use serde_json::{Value, json};

use super::super::client::Client;
use super::super::failure::Failure;
use super::super::{Options, output};
use super::install::named;
use super::show_loaded;

const EXAMPLES: &str = "\
Examples:
  monstrum plugin update                  update every installed plugin that is in the registry
  monstrum plugin update github

Installs the newest version in the server's registry that is not a pre-release. A version that requests more permissions
than the previous version waits for `monstrum plugin approve`. Without a name, the command reports each plugin that
cannot be updated, continues with the next plugin, and exits with code 1.";

/// Update plugins from the registry
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(in crate::cli) struct Update {
    /// The plugin [default: every installed plugin that is in the registry]
    name: Option<String>,
    /// Update all plugins (the default without a name)
    #[arg(long, conflicts_with = "name", hide = true)]
    all: bool,
}

impl Update {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        let installed = match &self.name {
            Some(name) => vec![client.get(&["api", "plugins", name], &[]).await?],
            None => client.items(&["api", "plugins"], &[]).await?,
        };
        let query = self.name.iter().map(|name| ("q", name.clone())).collect::<Vec<_>>();
        let available = client.items(&["api", "registry"], &query).await?;
        let mut outcome = ExitCode::SUCCESS;
        let mut updated = Vec::new();
        for entry in &installed {
            let name = output::cell(&entry["name"]);
            let Some(newest) = newest(&available, &name) else {
                if self.name.is_some() {
                    let message = format!("the registry has no release of plugin `{name}`");
                    return Err(Failure::new(
                        message,
                        "run `monstrum plugin search` to see the plugins in the registry",
                    ));
                }
                continue;
            };
            // A version that waits for approval is already installed.
            let present = [&entry["pending"]["version"], &entry["version"]].into_iter().find_map(version);
            if present.is_some_and(|present| present.cmp_precedence(&newest).is_ge()) {
                continue;
            }
            match named(&client, &name, Some(&newest.to_string()), false).await {
                Ok(entry) => updated.push(entry),
                Err(failure) if self.name.is_none() => outcome = failure.report(options.json),
                Err(failure) => return Err(failure),
            }
        }
        if options.json {
            output::json(&json!({ "updated": updated }))?;
        } else if updated.is_empty() {
            output::note("no plugin was updated; run `monstrum plugin search` to see the plugins in the registry");
        }
        for entry in updated.iter().filter(|_| !options.json) {
            show_loaded(&output::cell(&entry["name"]), entry, false)?;
        }
        Ok(outcome)
    }
}

fn newest(available: &[Value], name: &str) -> Option<Version> {
    version(&available.iter().find(|listing| listing["name"] == name)?["version"])
}

fn version(value: &Value) -> Option<Version> {
    value.as_str()?.parse().ok()
}
