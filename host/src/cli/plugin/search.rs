//! `monstrum plugin search`: what the server's registry has.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::super::client::Client;
use super::super::failure::Failure;
use super::super::{Options, output};

const EXAMPLES: &str = "\
Examples:
  monstrum plugin search
  monstrum plugin search issues --json

Searches names and descriptions in the registry that the server was started with (`monstrum serve --registry`).";

/// Search the server's registry
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(in crate::cli) struct Search {
    /// A part of a name or description
    text: Option<String>,
}

impl Search {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let query = self.text.into_iter().map(|text| ("q", text)).collect::<Vec<_>>();
        let items = Client::new(options)?.items(&["api", "registry"], &query).await?;
        if options.json {
            output::json(&json!({ "items": items, "next_cursor": null }))?;
        } else if items.is_empty() {
            output::note("the registry has nothing like that");
        } else {
            let rows = items.iter().map(|item| {
                ["name", "version", "description"].iter().map(|field| output::cell(&item[field])).collect()
            });
            output::table(&["NAME", "VERSION", "DESCRIPTION"], rows.collect())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
