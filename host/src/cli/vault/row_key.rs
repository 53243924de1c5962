//! `monstrum vault rotate --row-key`: rotates the row key, which authenticates rows with a MAC.

use std::process::ExitCode;
use std::sync::Arc;

use monstrum_types::SystemClock;
use serde_json::json;

use crate::boot::connections_of_servers;
use crate::boot::rotation::row_key::{self, RowKeyReport, RowKeyRotationError};
use crate::cli::failure::Failure;
use crate::cli::{DATABASE_HINT, FolderFlags, Options, folder, output};

const RUNNING: &str = "stop every server that uses this database first";

pub(super) async fn run(options: &Options, folder: FolderFlags) -> Result<ExitCode, Failure> {
    let settings = options.settings(folder)?;
    // The connections are counted before the database is opened. Otherwise, the count would include this process.
    let servers = connections_of_servers(&settings).await;
    let data = folder::open(&settings, RUNNING).await?;
    if servers.map_err(|error| Failure::from_error(&error, DATABASE_HINT))? > 0 {
        return Err(Failure::new("other servers use this database", RUNNING));
    }
    let bar = output::progress(Some(0), "{wide_bar} {pos}/{len} rows");
    let progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    let store = data.store.clone();
    let rotated = row_key::run(data, Arc::new(SystemClock), &progress).await;
    bar.finish_and_clear();
    store.close().await;
    let report = rotated.map_err(|error| failure(&error))?;
    if options.json {
        output::json(&json!(report))?;
    } else {
        tell(&report)?;
    }
    for row in &report.refused {
        output::warning(&format!("row {row} was left unchanged: its MAC is missing or wrong"));
    }
    Ok(ExitCode::SUCCESS)
}

fn tell(report: &RowKeyReport) -> Result<(), Failure> {
    let RowKeyReport { key_version, resumed, scopes, rewritten, .. } = report;
    if *resumed {
        output::line("finished an interrupted rotation")?;
    }
    output::line(format!("activated row key version {key_version} and deleted the older version"))?;
    output::line(format!("{rewritten} rows in {scopes} scopes were verified and written again"))?;
    output::note("start each server that uses this database once, so that its signed heads name the new version");
    Ok(())
}

fn failure(error: &RowKeyRotationError) -> Failure {
    let hint = match error {
        RowKeyRotationError::Unverified(_) => {
            "find the cause first; seal the rows with `monstrum vault seal --scope`; then run this command again"
        }
        RowKeyRotationError::Key(_) => "use the master keys that belong to this database",
        RowKeyRotationError::Store(_) | RowKeyRotationError::Record(_) | RowKeyRotationError::OtherProcess => {
            "nothing is lost; run the command again when the database is available"
        }
    };
    Failure::from_error(error, hint)
}
