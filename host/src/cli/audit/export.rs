//! `monstrum audit export`: writes calls, or the events of a SIEM, as JSON Lines.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use reqwest::Response;
use serde_json::json;
use tokio::time::timeout;

use super::super::client::Client;
use super::super::failure::Failure;
use super::super::{Options, output};
use super::Filters;

pub(super) const EXAMPLES: &str = "\
Examples:
  monstrum audit export --output audit.jsonl
  monstrum audit export --format ocsf --since 2026-11-21T00:00:00Z --output events.jsonl
  monstrum audit export --status permission_denied | jq -c '{tool, message}'

With --format ocsf, each line is an event of OCSF 1.9.0, which SIEMs read. Only an admin or root key exports changes. The
file is written only when the export is complete. Archived calls are not exported.";

/// The time limit for each chunk. If a chunk takes longer, the export is considered stalled.
const PIECE_MAX: Duration = Duration::from_secs(60);
/// The hint for a local file that cannot be written.
const FILE_HINT: &str = "set --output to a file in an existing folder with free space";

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// Calls, as `audit list --json` shows them
    Calls,
    /// Calls and changes, as events of OCSF 1.9.0
    Ocsf,
}

#[derive(Args)]
pub(in crate::cli) struct Export {
    /// The format of the lines
    #[arg(long, value_enum, default_value_t = Format::Calls)]
    format: Format,
    #[command(flatten)]
    filters: Filters,
    /// The local file, which is replaced if it exists [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Export {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        let format = match self.format {
            Format::Calls => "calls",
            Format::Ocsf => "ocsf",
        };
        let query = [vec![("format", format.to_owned())], self.filters.query()].concat();
        let answer = client.stream(&["api", "audit", "export"], &query).await?;
        let mut pieces = Pieces { client: &client, answer };
        let Some(file) = self.output else {
            let mut out = std::io::stdout();
            pieces.copy(&mut out, |error| Failure::of_output(&error)).await?;
            out.flush().map_err(|error| Failure::of_output(&error))?;
            return Ok(ExitCode::SUCCESS);
        };
        let lines = save(&mut pieces, &file).await?;
        if options.json {
            output::json(&json!({ "file": file, "lines": lines }))?;
        } else {
            output::note(&output::plain(&format!("{}: {lines} lines", file.display())));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes a temporary file beside `file`, and renames it when it is complete. Returns the number of lines.
async fn save(pieces: &mut Pieces<'_>, file: &Path) -> Result<usize, Failure> {
    let failed = |error: std::io::Error| Failure::of(format!("cannot write {}", file.display()), &error, FILE_HINT);
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut beside = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    let lines = pieces.copy(&mut beside, failed).await?;
    beside.as_file().sync_all().map_err(failed)?;
    beside.persist(file).map_err(|error| failed(error.error))?;
    Ok(lines)
}

/// The body of an export.
struct Pieces<'a> {
    client: &'a Client,
    answer: Response,
}

impl Pieces<'_> {
    /// Writes the body to `out`. Returns the number of lines. `failed` describes an error of `out`.
    async fn copy(
        &mut self,
        out: &mut impl std::io::Write,
        failed: impl Fn(std::io::Error) -> Failure,
    ) -> Result<usize, Failure> {
        let mut lines = 0;
        loop {
            let late = |_| Failure::new("the export has stalled", "check that the server is running, and try again");
            let piece = timeout(PIECE_MAX, self.answer.chunk()).await.map_err(late)?;
            let Some(piece) = piece.map_err(|error| self.client.broken_off(&error))? else { return Ok(lines) };
            out.write_all(&piece).map_err(&failed)?;
            lines += piece.iter().filter(|byte| **byte == b'\n').count();
        }
    }
}
