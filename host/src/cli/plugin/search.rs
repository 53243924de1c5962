//! `monstrum plugin search`: searches the server's registry.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

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
        if options.json {
            output::json(&json!({ "items": items, "next_cursor": null }))?;
        } else if items.is_empty() {
            output::note("no plugin in the registry matches the search");
        } else {
            let row = |item: &Value| {
                let mut row: Vec<String> =
                    ["name", "version", "description"].iter().map(|field| output::cell(&item[*field])).collect();
                let tags = item["tags"].as_array().into_iter().flatten();
                row.push(tags.map(output::cell).collect::<Vec<_>>().join(", "));
                row
            };
            output::table(&["NAME", "VERSION", "DESCRIPTION", "TAGS"], items.iter().map(row).collect())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
