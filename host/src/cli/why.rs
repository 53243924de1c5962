//! `monstrum why`: shows whether a bot may call a tool, the rule that decides, and the smallest change that would allow
//! the call.

use std::process::ExitCode;

use clap::Args;
use monstrum_types::ResourceId;
use serde_json::Value;

use super::client::{Client, NOT_MONSTRUM};
use super::failure::Failure;
use super::names::{self, Noun};
use super::params::Params;
use super::{Options, output};

const EXAMPLES: &str = "\
Examples:
  monstrum why helper github_list_issues '{\"repo\": \"acme/site\"}'
  monstrum why 01998a3c-… github_create_issue '{\"repo\": \"acme/site\", \"title\": \"x\"}' --resource 01998a3d-…
  monstrum why helper github_list_issues '{\"repo\": \"acme/site\"}' --json

This command does not call the tool. The exit code is 0 if the call would be allowed, and 1 otherwise. The decision `ask`
means that the call would wait until a person approves it. A bot key gets only the decision and the message, and
requires the bot's id.";

/// Explain whether a bot may call a tool
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Why {
    /// The id or the name of the bot
    bot: String,
    /// The tool
    tool: String,
    /// The parameters of the call, as a JSON object
    #[arg(default_value = "{}")]
    params: Params,
    /// The resource, if the bot has the tool through several resources
    #[arg(long, value_name = "ID")]
    resource: Option<ResourceId>,
}

impl Why {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        let bot = names::id(&client, Noun::Bot, &self.bot).await?;
        let body = self.params.body(self.resource);
        let verdict = client.post(&["api", "bots", &bot, "tools", &self.tool, "check"], Some(&body)).await?;
        let is_allowed = match verdict["decision"].as_str() {
            Some("allow") => true,
            Some("ask" | "deny") => false,
            _ => return Err(Failure::new("the server's response contains no decision", NOT_MONSTRUM)),
        };
        if options.json {
            output::json(&verdict)?;
        } else {
            show(&verdict)?;
        }
        Ok(if is_allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn show(verdict: &Value) -> Result<(), Failure> {
    const FIELDS: [(&str, &str); 5] = [
        ("decision", "decision"),
        ("message", "message"),
        ("rule", "rule"),
        ("reason", "reason"),
        ("smallest change", "smallest_change"),
    ];
    let said = FIELDS.iter().filter(|(_, field)| !verdict[*field].is_null());
    let mut said: Vec<_> = said.map(|(name, field)| (*name, output::cell(&verdict[*field]))).collect();
    for gate in verdict["gates"].as_array().into_iter().flatten() {
        let (holder, reason) = (output::cell(&gate["holder"]), &gate["reason"]);
        let text = if reason.is_null() { holder } else { format!("{holder}: {}", output::cell(reason)) };
        said.push(("gate", text));
    }
    output::fields(&said)
}
