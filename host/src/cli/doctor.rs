//! `monstrum doctor`: reports weak settings and broken parts, each with its remedy.

use std::process::ExitCode;

use clap::Args;

use super::failure::Failure;
use super::output;
use crate::boot::doctor::{Severity, examine};
use crate::config::ServeFlags;

const EXAMPLES: &str = "\
Examples:
  monstrum doctor
  monstrum doctor --data-dir /var/lib/monstrum
  monstrum doctor --json

Run this command on the server's machine, as the server's user, with the server's flags and settings (monstrum.toml,
MONSTRUM_…). The command changes nothing, so the server may be running. The exit code is 0 if there are no findings, and
1 otherwise.";

/// Find weak settings and broken parts
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Doctor {
    #[command(flatten)]
    flags: ServeFlags,
}

impl Doctor {
    pub(super) async fn run(self, json: bool) -> Result<ExitCode, Failure> {
        let settings = super::resolve(self.flags)?;
        let findings = examine(&settings).await;
        if json {
            output::json(&serde_json::json!({ "healthy": findings.is_empty(), "findings": findings }))?;
        } else if findings.is_empty() {
            output::line(format!("no findings in {}", settings.data_dir.display()))?;
        }
        for finding in findings.iter().filter(|_| !json) {
            let severity = match finding.severity {
                Severity::Weak => "weak",
                Severity::Broken => "broken",
            };
            output::line(output::plain(&format!("{severity}: {}: {}", finding.about, finding.what)))?;
            output::line(output::plain(&format!("    {}", finding.remedy)))?;
        }
        Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
