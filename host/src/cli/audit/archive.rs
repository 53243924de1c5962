//! `monstrum audit archive`: moves old rows of the audit to signed files. `monstrum audit verify --archive`: verifies
//! these files.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use monstrum_types::{SystemClock, UtcMillis};
use serde_json::{Value, json};

use super::super::failure::Failure;
use super::super::{FolderFlags, Options, folder, output};
use crate::boot::{ArchivingError, Data, archive_offline};
use crate::config::Settings;
use monstrum_core::audit::{ARCHIVE_FOLDER, ArchiveError, Segment, verify_archive};

pub(super) const EXAMPLES: &str = "\
Examples:
  monstrum audit archive --before 2026-01-01
  monstrum audit archive --before 2026-01-01 --to /mnt/archive/monstrum --data-dir /srv/monstrum

The command writes rows from before that day (in UTC) to files with a signed manifest, and replaces the rows in the
database with a signed anchor. It archives only rows that a signed head covers, and stops before the first call that is
still open. Rows are deleted only after their files are on disk and verified. If the command is interrupted, repeat it
with the same options. `monstrum serve --audit-keep` archives old rows once a day.";

/// Parses a date, which means the start of that day in UTC, or a time in RFC 3339 format.
pub(super) fn moment(text: &str) -> Result<UtcMillis, String> {
    let is_date = text.len() == "2026-01-01".len();
    let moment = if is_date { format!("{text}T00:00:00Z").parse() } else { text.parse() };
    moment.map_err(|_: String| format!("`{text}` is not a date such as 2026-01-01 or an RFC 3339 time"))
}

pub(super) async fn run(
    options: &Options,
    flags: FolderFlags,
    before: UtcMillis,
    to: Option<PathBuf>,
) -> Result<ExitCode, Failure> {
    let settings = options.settings(flags)?;
    let running = "a server is using the data folder: stop the server first, or restart it with --audit-keep";
    let data = folder::open(&settings, running).await?;
    let to = to.unwrap_or_else(|| data.path.join(ARCHIVE_FOLDER));
    let done = archive_offline(&data, Arc::new(SystemClock), &to, before).await;
    data.store.close().await;
    let done = done.map_err(|error| Failure::from_error(&error, hint(&error)))?;
    tell(options, &done, &to.display().to_string(), before)
}

fn hint(error: &ArchivingError) -> &'static str {
    match error {
        ArchivingError::Archive(ArchiveError::NotAsWritten { .. }) => {
            "run `monstrum audit verify` to list all problems; rows that were not archived are still in the database"
        }
        ArchivingError::Archive(ArchiveError::OtherRows { .. }) => {
            "keep that file, and choose another folder with --to; rows that were not archived are still in the database"
        }
        ArchivingError::Archive(ArchiveError::Write { .. } | ArchiveError::Unsound { .. }) => {
            "check the free disk space, and that this user may write to the folder; the rows are still in the database"
        }
        _ => "run the command again; rows that were not archived are still in the database",
    }
}

fn tell(options: &Options, done: &[Segment], to: &str, before: UtcMillis) -> Result<ExitCode, Failure> {
    let rows: u64 = done.iter().map(|segment| segment.manifest.rows).sum();
    if options.json {
        let segments: Vec<Value> = done.iter().map(Segment::summary).collect();
        output::json(&json!({ "rows": rows, "folder": to, "segments": segments }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for segment in done {
        let summary = segment.summary();
        let [first, last, manifest] =
            ["first_sequence", "last_sequence", "manifest"].map(|name| output::cell(&summary[name]));
        output::line(output::plain(&format!("archived rows {first} to {last}: {manifest}")))?;
    }
    if done.is_empty() {
        output::line(format!("nothing to archive before {before}"))?;
        output::note("rows are archived only up to the latest signed head and before the first open call");
    } else {
        output::line(output::plain(&format!("archived {rows} rows to {to}")))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Verifies segments. The database is read for the keys and the anchors of the audit. A server may be running.
pub(super) async fn verify(settings: &Settings, paths: &[PathBuf], json: bool) -> Result<ExitCode, Failure> {
    let data = Data::inspect(settings).await.map_err(|error| {
        Failure::from_error(
            &error,
            folder::keys_hint(&error).unwrap_or("run the command as the user who runs the server"),
        )
    })?;
    let report = verify_archive(&data.store, &data.audit_keys, paths).await;
    data.store.close().await;
    let report = report
        .map_err(|error| Failure::from_error(&error, "pass the folder or the manifests of an archive to --archive"))?;
    if json {
        output::json(&json!(report))?;
    } else if report.valid {
        output::line(format!("audit archive verified: {} rows (segments: {})", report.rows, report.segments))?;
    } else {
        super::tell_problems(&json!(report), "archive", "keep a copy of the archive, and compare it with a backup")?;
    }
    Ok(if report.valid { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
