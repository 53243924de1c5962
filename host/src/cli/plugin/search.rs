//! `monstrum plugin search`: searches the server's registry.

use std::process::ExitCode;

use clap::Args;

use super::super::client::Client;
use super::super::failure::Failure;
use super::super::{Options, output};

const EXAMPLES: &str = "\
Examples:
  monstrum plugin search
  monstrum plugin search issues --json

Searches names, descriptions and tags of the plugins in the server's registry (`monstrum serve --registry`).";

/// Search the server's registry
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(in crate::cli) struct Search {
    /// Text that the name, the description or a tag contains
    text: Option<String>,
}

impl Search {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let query = self.text.into_iter().map(|text| ("q", text)).collect::<Vec<_>>();
        let items = Client::new(options)?.items(&["api", "registry"], &query).await?;
        let (header, fields) = (["NAME", "VERSION", "DESCRIPTION", "TAGS"], ["name", "version", "description", "tags"]);
        output::list(&items, options.json, "no plugin in the registry matches the search", header, fields)?;
        Ok(ExitCode::SUCCESS)
    }
}
