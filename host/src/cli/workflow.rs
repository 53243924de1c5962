//! `monstrum workflow`: checks definitions of workflows without a server, saves them on one, and starts, follows and steers their
//! runs.

mod run;
mod saved;
mod shown;
mod trigger;
mod watch;

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use monstrum_flow::{Checked, DEFINITION_BYTES_MAX, Fault};
use serde_json::json;

use super::failure::Failure;
use super::{Options, output};

const VALIDATE_EXAMPLES: &str = "\
Examples:
  monstrum workflow validate release.yaml
  monstrum workflow validate release.yaml --json

This command needs no server, so it does not know the tools of the bot. The exit code is 1 if the definition has a fault.
docs/workflows.md describes the format.";

/// The maximum length of a displayed source line. A longer line is not readable on a screen.
const LINE_CHARS_MAX: usize = 200;

/// Check, save, run and follow workflows: documents with steps that bots run
#[derive(Subcommand)]
pub(super) enum Workflow {
    /// Check the definition in a file, and show each fault with its line
    #[command(after_help = VALIDATE_EXAMPLES)]
    Validate {
        /// The file, in YAML or JSON
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    #[command(flatten)]
    Saved(saved::Saved),
    #[command(flatten)]
    Runs(run::Runs),
}

impl Workflow {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        match self {
            Workflow::Validate { file } => validate(&file, options.json),
            Workflow::Saved(saved) => saved.run(options).await,
            Workflow::Runs(runs) => runs.run(options).await,
        }
    }
}

fn validate(file: &Path, is_json: bool) -> Result<ExitCode, Failure> {
    let text = read(file)?;
    match monstrum_flow::check(&text, None) {
        Ok(Checked { definition, warnings }) if is_json => {
            let mut steps = 0_usize;
            definition.walk(&mut |_| steps += 1);
            let name = &definition.workflow;
            output::json(
                &json!({ "valid": true, "workflow": name, "steps": steps, "errors": [], "warnings": warnings }),
            )?;
            Ok(ExitCode::SUCCESS)
        }
        Ok(Checked { definition, warnings }) => {
            for warning in &warnings {
                output::warning(&fault_text(file, warning, &text));
            }
            let mut steps = 0_usize;
            definition.walk(&mut |_| steps += 1);
            let count = if steps == 1 { "1 step".to_owned() } else { format!("{steps} steps") };
            output::line(output::plain(&format!("{} is valid: {count}", definition.workflow)))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(faults) if is_json => {
            output::json(&json!({ "valid": false, "errors": faults, "warnings": [] }))?;
            Ok(ExitCode::FAILURE)
        }
        Err(faults) => {
            for fault in &faults {
                output::note(&output::plain(&fault_text(file, fault, &text)));
            }
            let count = if faults.len() == 1 { "1 error".to_owned() } else { format!("{} errors", faults.len()) };
            let message = format!("{} is not a valid workflow: {count}", file.display());
            Err(Failure::new(message, "correct the errors above and run this command again"))
        }
    }
}

/// Reads the file, at most one byte more than a definition may have.
fn read(file: &Path) -> Result<String, Failure> {
    let failed = |error: &std::io::Error| {
        Failure::of(format!("cannot read {}", file.display()), error, "give the path of a file in YAML or JSON")
    };
    let opened = File::open(file).map_err(|error| failed(&error))?;
    let mut bytes = Vec::new();
    let bytes_max = u64::try_from(DEFINITION_BYTES_MAX).unwrap_or(u64::MAX);
    opened.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
    String::from_utf8(bytes).or_else(|error| {
        // The limit may have cut a character; the size is the fault to show then.
        if error.as_bytes().len() > DEFINITION_BYTES_MAX {
            return Ok(String::from_utf8_lossy(error.as_bytes()).into_owned());
        }
        Err(Failure::new(format!("{} is not text in UTF-8", file.display()), "save the file in UTF-8"))
    })
}

/// Formats a fault: its place, its line of the file with a mark under it, and the hint.
fn fault_text(file: &Path, fault: &Fault, source: &str) -> String {
    let mut text = format!("{}:{}:{}: ", file.display(), fault.line, fault.column);
    if !fault.path.is_empty() {
        text.push_str(&fault.path);
        text.push_str(": ");
    }
    text.push_str(&fault.message);
    if let Some((number, line)) = line_of(fault, source) {
        let margin = " ".repeat(number.len());
        // A tab is as wide as the terminal makes it, so the mark is moved by the same tab.
        let before = line.chars().take(fault.column.saturating_sub(1));
        let indent: String = before.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        text.push_str(&format!("\n {number} | {line}\n {margin} | {indent}^"));
    }
    if let Some(hint) = &fault.hint {
        text.push_str(&format!("\n hint: {hint}"));
    }
    text
}

fn line_of<'s>(fault: &Fault, source: &'s str) -> Option<(String, &'s str)> {
    let line = source.lines().nth(fault.line.checked_sub(1)?)?;
    let is_short = line.chars().count() <= LINE_CHARS_MAX;
    is_short.then(|| (fault.line.to_string(), line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(line: usize, column: usize) -> Fault {
        let hint = Some("h".to_owned());
        Fault { path: "/a".to_owned(), line, column, message: "m".to_owned(), hint }
    }

    #[test]
    fn a_fault_is_shown_with_its_line() {
        let text = fault_text(Path::new("r.yaml"), &fault(2, 5), "a: 1\n\tb: 2\n");
        assert_eq!(text, "r.yaml:2:5: /a: m\n 2 | \tb: 2\n   | \t   ^\n hint: h");
    }

    #[test]
    fn a_place_outside_of_the_text_is_shown_without_a_line() {
        for place in [fault(0, 1), fault(9, 9)] {
            assert!(fault_text(Path::new("r"), &place, "a").ends_with("/a: m\n hint: h"));
        }
        fault_text(Path::new("r"), &fault(1, 99), "ä");
        assert!(!fault_text(Path::new("r"), &fault(1, 1), &"x".repeat(500)).contains('^'));
    }
}
