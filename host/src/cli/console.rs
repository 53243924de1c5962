//! `monstrum console`: opens the console in a browser, logged in with the key of the command.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::client::Client;
use super::failure::Failure;
use super::{Options, browser, names, output};

const EXAMPLES: &str = "\
Examples:
  monstrum console
  monstrum console --no-open           only prints the link
  monstrum console --ttl-s 300         the link expires after five minutes

The link logs a browser in with the key of this command. It works once, and expires after a minute. Bot and agent keys
cannot log in. Without a terminal, the command only prints the link.";

/// Open the console in a browser
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Console {
    /// Do not open a browser
    #[arg(long)]
    no_open: bool,
    /// Seconds after which the link expires, 1 to 600 [default: 60]
    #[arg(long, value_name = "SECONDS")]
    ttl_s: Option<u32>,
}

impl Console {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        let body = json!({ "ttl_s": self.ttl_s });
        let ticket = client.post(&["api", "console", "tickets"], Some(&body)).await?;
        if options.json {
            output::json(&ticket)?;
            return Ok(ExitCode::SUCCESS);
        }
        let link = names::text(&ticket, "url")?;
        output::line(output::plain(&link))?;
        let opens = !self.no_open && std::io::stdout().is_terminal();
        if opens && browser::open(&link) {
            output::note("opened the link in the browser");
        }
        Ok(ExitCode::SUCCESS)
    }
}
