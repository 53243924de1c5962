//! `monstrum key`: keys for programs that call the API.

use std::process::ExitCode;

use clap::{Subcommand, ValueEnum};
use serde_json::json;

use super::client::Client;
use super::failure::Failure;
use super::{Options, output};

const EXAMPLES: &str = "\
Examples:
  monstrum key create --name ci --kind operator
  monstrum key create --name triage --kind bot --bot-id 01998a3c-…
  KEY=$(monstrum key create --name backup --kind admin)     only the key goes to standard output";

/// Make API keys
#[derive(Subcommand)]
pub(super) enum Key {
    /// Make a key and print it, once
    #[command(after_help = EXAMPLES)]
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
        let Key::Create { name, kind, bot_id } = self;
        let mut body = json!({ "name": name, "kind": kind.as_str() });
        if let Some(bot) = bot_id {
            body["bot_id"] = json!(bot);
        }
        let created = Client::new(options)?.post(&["api", "keys"], Some(&body)).await?;
        if options.json {
            output::json(&created)?;
        } else {
            output::note(&format!(
                "{} key {}; it is shown only now:",
                kind.as_str(),
                output::plain(&output::cell(&created["id"]))
            ));
            output::line(output::plain(&output::cell(&created["key"])))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
