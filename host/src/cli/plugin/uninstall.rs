//! `monstrum plugin uninstall`: removes a plugin from the server.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::super::client::Client;
use super::super::failure::Failure;
use super::super::{Options, output};

const EXAMPLES: &str = "\
Examples:
  monstrum plugin uninstall github

A plugin whose resources are bound to bots cannot be removed: the error names the bindings. The server keeps its record
of a removed plugin. A later installation therefore cannot bypass the checks for older versions and new permissions.";

/// Remove a plugin from the server
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(in crate::cli) struct Uninstall {
    name: String,
}

impl Uninstall {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        Client::new(options)?.delete(&["api", "plugins", &self.name]).await?;
        let result = json!({ "name": self.name, "removed": true });
        output::done(options.json, &result, &format!("plugin `{}` is removed", self.name))?;
        Ok(ExitCode::SUCCESS)
    }
}
