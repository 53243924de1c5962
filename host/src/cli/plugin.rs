//! `monstrum plugin`: manages the plugins of a server, and checks, tests and packs the folder of a plugin without a
//! server.

mod dev;
mod faults;
mod feed;
mod install;
mod new;
mod pack;
mod permissions;
mod search;
mod signing;
mod source;
mod test;
mod uninstall;
mod update;
mod validate;
mod workbench;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use serde_json::Value;

use super::client::Client;
use super::failure::Failure;
use super::{Options, output};

const LIST_EXAMPLES: &str = "\
Examples:
  monstrum plugin list
  monstrum plugin list --json --url https://monstrum.example";

const INFO_EXAMPLES: &str = "\
Examples:
  monstrum plugin info github
  monstrum plugin info github --json";

const RELOAD_EXAMPLES: &str = "\
Examples:
  monstrum plugin reload github

Running calls finish with the version with which they started. If the new version does not load, the previous version
continues to serve, and the exit code is 1.";

const APPROVE_EXAMPLES: &str = "\
Examples:
  monstrum plugin info github
  monstrum plugin approve github --digest sha256:0123… --manifest-digest sha256:4567…

A version that requests more permissions than the previous version waits for approval: `plugin info` shows the
difference under `pending`. With the digests shown there, the command fails if another version is waiting.";

const VALIDATE_EXAMPLES: &str = "\
Examples:
  monstrum plugin validate plugins/github
  monstrum plugin validate . --json

This command needs no server. It checks manifest, translations and component like a server, and prints the permissions
of the plugin. The exit code is 1 if the plugin would not load.";

const TEST_EXAMPLES: &str = "\
Examples:
  monstrum plugin test .
  monstrum plugin test plugins/github --json

Runs each case of DIR/tests/*.yaml with the real component in the real host; the case simulates only the network. The
exit code is 1 if a case fails. docs/authors-guide.md describes the format of a case.";

const SCHEMA_EXAMPLES: &str = "\
Examples:
  monstrum plugin schema > monstrum.schema.json

An editor with a YAML language server uses the schema to validate a manifest with this first line:
  # yaml-language-server: $schema=./monstrum.schema.json";

/// Create, test, pack, install, list, show, reload and check plugins
#[derive(Subcommand)]
pub(super) enum Plugin {
    /// List the plugins of the server
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Show one plugin
    #[command(after_help = INFO_EXAMPLES)]
    Info {
        name: String,
    },
    /// Reload a plugin from its folder
    #[command(after_help = RELOAD_EXAMPLES)]
    Reload {
        name: String,
    },
    /// Approve a version that waits for approval
    #[command(after_help = APPROVE_EXAMPLES)]
    Approve {
        /// The plugin
        name: String,
        /// The digest of the component to approve
        #[arg(long)]
        digest: Option<String>,
        /// The digest of the manifest to approve
        #[arg(long)]
        manifest_digest: Option<String>,
    },
    /// Check a plugin's folder
    #[command(after_help = VALIDATE_EXAMPLES)]
    Validate {
        /// The folder with monstrum.yaml
        dir: PathBuf,
    },
    Pack(pack::Pack),
    Install(install::Install),
    Uninstall(uninstall::Uninstall),
    Update(update::Update),
    Search(search::Search),
    New(new::New),
    Dev(dev::Dev),
    /// Run a plugin's test cases in the real host
    #[command(after_help = TEST_EXAMPLES)]
    Test {
        /// The folder with monstrum.yaml, the component and tests/
        dir: PathBuf,
    },
    /// Print the JSON Schema of the manifest
    #[command(after_help = SCHEMA_EXAMPLES)]
    Schema,
}

impl Plugin {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        match self {
            Plugin::List => list(options).await,
            Plugin::Info { name } => {
                let entry = Client::new(options)?.get(&["api", "plugins", &name], &[]).await?;
                show(&entry, options.json)?;
                Ok(ExitCode::SUCCESS)
            }
            Plugin::Reload { name } => {
                let entry = Client::new(options)?.post(&["api", "plugins", &name, "reload"], None).await?;
                show_loaded(&name, &entry, options.json)
            }
            Plugin::Approve { name, digest, manifest_digest } => {
                let digests = [("digest", digest), ("manifest_digest", manifest_digest)];
                let body = digests.into_iter().filter_map(|(field, digest)| Some((field.to_owned(), digest?.into())));
                let body = Value::Object(body.collect());
                let entry = Client::new(options)?.post(&["api", "plugins", &name, "approve"], Some(&body)).await?;
                show(&entry, options.json)?;
                Ok(ExitCode::SUCCESS)
            }
            Plugin::Validate { dir } => validate::run(&dir, options.json).await,
            Plugin::Pack(pack) => pack.run(options).await,
            Plugin::Install(install) => install.run(options).await,
            Plugin::Uninstall(uninstall) => uninstall.run(options).await,
            Plugin::Update(update) => update.run(options).await,
            Plugin::Search(search) => search.run(options).await,
            Plugin::New(new) => new.run(options.json),
            Plugin::Dev(dev) => dev.run().await,
            Plugin::Test { dir } => test::run(&dir, options.json).await,
            Plugin::Schema => {
                output::line(monstrum_manifest::json_schema_text().trim_end()).map(|()| ExitCode::SUCCESS)
            }
        }
    }
}

async fn list(options: &Options) -> Result<ExitCode, Failure> {
    let items = Client::new(options)?.items(&["api", "plugins"], &[]).await?;
    if options.json {
        output::json(&serde_json::json!({ "items": items, "next_cursor": null }))?;
    } else if items.is_empty() {
        output::note(
            "no plugins; run `monstrum plugin install`, or copy a plugin's folder into the server's plugins folder",
        );
    } else {
        output::table(&["NAME", "VERSION", "STATUS", "TOOLS", "AUTHOR", "ERROR"], items.iter().map(row).collect())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn row(entry: &Value) -> Vec<String> {
    let tools = entry["tools"].as_array().map_or(0, Vec::len).to_string();
    let mut error = output::cell(&entry["error"]).lines().next().unwrap_or_default().to_owned();
    if let Some(version) = entry["version"].as_str().filter(|_| !error.is_empty()) {
        error.push_str(&format!(" (version {version} stays in force)"));
    }
    if let Some(version) = entry["pending"]["version"].as_str() {
        error = format!("version {version} waits for approval: see `monstrum plugin info`");
    }
    let cell = |field: &str| output::cell(&entry[field]);
    vec![cell("name"), cell("version"), cell("status"), tools, cell("author"), error]
}

/// Shows the result of loading a plugin.
fn show_loaded(name: &str, entry: &Value, json: bool) -> Result<ExitCode, Failure> {
    show(entry, json)?;
    if entry["status"] == "failed" {
        let hint = "run `monstrum plugin validate DIR` on the server's machine to see each error with its line";
        return Err(Failure::new(format!("plugin `{name}` was not loaded"), hint));
    }
    if entry["status"] == "needs_approval" {
        let pending = &entry["pending"];
        let digests = ["digest", "manifest_digest"].map(|field| output::cell(&pending[field]));
        output::note(&format!(
            "version {} requests more permissions and waits for approval; to approve it: \
             monstrum plugin approve {name} --digest {} --manifest-digest {}",
            output::cell(&pending["version"]),
            digests[0],
            digests[1]
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn show(entry: &Value, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(entry);
    }
    let fields: Vec<(&str, String)> = entry
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, value)| !value.is_null() && **value != Value::Array(Vec::new()))
        .map(|(name, value)| (name.as_str(), many_lines(value)))
        .collect();
    output::fields(&fields)
}

/// Formats a value with one line for each item of a list.
fn many_lines(value: &Value) -> String {
    match value {
        Value::Array(items) => items.iter().map(output::cell).collect::<Vec<_>>().join("\n"),
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| format!("{name} {}", many_lines(value).replace('\n', "; "));
            members.iter().map(member).collect::<Vec<_>>().join("\n")
        }
        other => output::cell(other),
    }
}
