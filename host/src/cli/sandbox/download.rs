//! `monstrum sandbox download`: downloads a file or a folder of a sandbox, completely or not at all.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use monstrum_types::SandboxInstanceId;
use reqwest::Response;
use reqwest::header::CONTENT_TYPE;
use serde_json::json;
use tokio::time::timeout;

use crate::cli::client::Client;
use crate::cli::failure::Failure;
use crate::cli::{Options, output};

const EXAMPLES: &str = "\
Examples:
  monstrum sandbox download 01998a3d-…
  monstrum sandbox download 01998a3d-… report.pdf
  monstrum sandbox download 01998a3d-… src --output /tmp/src.zip

A folder is downloaded as a ZIP archive. The file is created only when the download is complete.";

/// The time limit for each chunk. If a chunk takes longer, the download is considered stalled.
const PIECE_MAX: Duration = Duration::from_secs(60);

/// Download a file or a folder of a sandbox
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(in crate::cli) struct Download {
    id: SandboxInstanceId,
    /// The path of the file or folder, below /workspace
    #[arg(default_value = monstrum_sandbox::WORKSPACE)]
    path: String,
    /// The local file [default: the same name in the working directory, if no such file exists]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Download {
    pub(super) async fn run(self, client: &Client, options: &Options) -> Result<(), Failure> {
        let sandbox = client.get(&["api", "sandboxes", &self.id.to_string()], &[]).await?;
        let body = json!({ "appId": sandbox["app_id"], "chatId": sandbox["chat_id"], "path": self.path });
        let answer = client.open(&["api", "core", "ai", "sandbox", "download"], &body).await?;
        let is_folder = answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/zip");
        let (file, is_named) = match self.output {
            Some(file) => (file, true),
            None => (default_name(&self.path, is_folder), false),
        };
        if !is_named && file.symlink_metadata().is_ok() {
            return Err(taken(&file));
        }
        let bytes = save(client, answer, &file, is_named).await.map_err(|fault| match fault {
            DownloadError::Server(failure) => failure,
            // The file was created during the download.
            DownloadError::File(error) if !is_named && error.kind() == std::io::ErrorKind::AlreadyExists => {
                taken(&file)
            }
            DownloadError::File(error) => {
                let hint = "set --output to a file in an existing folder with free space";
                Failure::of(format!("cannot write {}", file.display()), &error, hint)
            }
        })?;
        if options.json {
            return output::json(&json!({ "file": file, "bytes": bytes }));
        }
        output::note(&output::plain(&format!("{}: {bytes} bytes", file.display())));
        Ok(())
    }
}

enum DownloadError {
    Server(Failure),
    File(std::io::Error),
}

impl From<std::io::Error> for DownloadError {
    fn from(error: std::io::Error) -> Self {
        DownloadError::File(error)
    }
}

/// Returns the last component of the path, which cannot name a file outside the working directory.
fn default_name(path: &str, is_folder: bool) -> PathBuf {
    let mut names = path.split('/').filter(|name| !matches!(*name, "" | "." | ".."));
    let name = output::plain(names.next_back().unwrap_or("workspace")).replace('\n', "_");
    PathBuf::from(if is_folder { format!("{name}.zip") } else { name })
}

/// Returns the failure for a local file that already exists. A download overwrites a file only if the user names the
/// file with `--output`.
fn taken(file: &Path) -> Failure {
    let message = format!("{} already exists", output::plain(&file.display().to_string()));
    Failure::new(message, "choose another file with --output, or name this file to overwrite it")
}

async fn save(client: &Client, mut answer: Response, file: &Path, is_named: bool) -> Result<u64, DownloadError> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut beside = tempfile::NamedTempFile::new_in(folder)?;
    let length = answer.content_length();
    let template =
        if length.is_some() { "{wide_bar} {bytes}/{total_bytes} {eta}" } else { "{spinner} {bytes} {elapsed}" };
    let bar = output::progress(length, template);
    let mut bytes = 0;
    loop {
        let late = || Failure::new("the download has stalled", "check that the server is running, and try again");
        let piece = timeout(PIECE_MAX, answer.chunk()).await.map_err(|_| DownloadError::Server(late()))?;
        let broken = |error: reqwest::Error| DownloadError::Server(client.broken_off(&error));
        let Some(piece) = piece.map_err(broken)? else { break };
        beside.write_all(&piece)?;
        bytes += piece.len() as u64;
        bar.inc(piece.len() as u64);
    }
    bar.finish_and_clear();
    beside.as_file().sync_all()?;
    let kept = if is_named { beside.persist(file) } else { beside.persist_noclobber(file) };
    kept.map_err(|error| error.error)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_download_stays_in_this_folder() {
        let name = |path: &str| default_name(path, false).to_string_lossy().into_owned();
        assert_eq!((name("/workspace/a/b.txt"), name("b.txt/")), ("b.txt".into(), "b.txt".into()));
        assert_eq!((name("a/.."), name("/..")), ("a".into(), "workspace".into()));
        assert_eq!(name("a\u{1b}[2J\nb"), "a\u{fffd}[2J_b");
        assert_eq!(default_name("/workspace", true), PathBuf::from("workspace.zip"));
    }
}
