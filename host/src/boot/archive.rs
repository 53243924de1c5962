//! Archives rows of the audit, by command while the server is stopped, or once a day in a running server.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use monstrum_store::{DEFAULT_WORKSPACE, StoreError};
use monstrum_types::{Clock, Code, UtcMillis, WorkspaceId, with_causes};
use serde_json::Value;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::{Data, OfflineChange, OfflineError, recorded};
use monstrum_core::app::App;
use monstrum_core::audit::{
    ARCHIVE_FOLDER, ARCHIVE_OPERATION, Archive, ArchiveError, AuditUnavailable, Change, Segment,
};
use monstrum_core::meters;

/// How often a server archives rows.
const INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// How often a server checks whether archiving is due, and the interval between attempts after a failure.
const RETRY: Duration = Duration::from_secs(3600);
const DAY_MS: i64 = 24 * 3600 * 1000;
/// The key kind in the audit row of a segment that a server archives.
const SERVER: &str = "server";

/// An error while archiving rows. Earlier segments may already have been archived.
#[derive(Debug, thiserror::Error)]
pub enum ArchivingError {
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error("the archived segment cannot be recorded in the audit")]
    Record(#[from] OfflineError),
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
    #[error("the audit cannot be written, so the rows of the segment were not deleted")]
    Unavailable(#[from] AuditUnavailable),
    #[error("the database has no workspace `{DEFAULT_WORKSPACE}`")]
    NoWorkspace,
}

/// Archives the rows of a stopped server that are older than `before`. Returns the archived segments.
pub async fn archive_offline(
    data: &Data,
    clock: Arc<dyn Clock>,
    folder: &Path,
    before: UtcMillis,
) -> Result<Vec<Segment>, ArchivingError> {
    let (store, keys) = (&data.store, &data.audit_keys);
    let mut archive = Archive::open(store, keys, &data.path, folder, before).await?;
    let mut done = Vec::new();
    while let Some(segment) = archive.next().await? {
        let (object, after) = (segment.manifest.writer.clone(), segment.summary());
        let change = OfflineChange { what: ARCHIVE_OPERATION, object, before: Value::Null, after };
        let delete = async {
            segment.delete_rows(store, keys, clock.now()).await?;
            Ok::<(), ArchivingError>(())
        };
        recorded(data, Arc::clone(&clock), change, delete).await?;
        done.push(segment);
    }
    Ok(done)
}

/// Archives the rows that are older than `keep_days` once a day. After a failure, tries again every hour.
pub(super) async fn archive_daily(app: Arc<App>, keep_days: u32, stop: CancellationToken) {
    let mut tick = tokio::time::interval(RETRY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut done: Option<Instant> = None;
    while stop.run_until_cancelled(tick.tick()).await.is_some() {
        // Ticks are not exact, so a run may begin up to half of `RETRY` before a full day has passed.
        if done.is_some_and(|done| done.elapsed() + RETRY / 2 < INTERVAL) {
            continue;
        }
        let before = app.clock.now().plus_ms(-i64::from(keep_days).saturating_mul(DAY_MS));
        match archive_online(&app, before).await {
            Ok(rows) => {
                done = Some(Instant::now());
                tracing::info!(rows, %before, "archived old audit rows");
            }
            Err(error) => {
                meters::archive_failed();
                let error = with_causes(&error);
                tracing::warn!(error, "cannot archive old audit rows; the server tries again in an hour");
            }
        }
    }
}

/// Archives the rows of a running server that are older than `before`. Returns the number of archived rows.
pub async fn archive_online(app: &App, before: UtcMillis) -> Result<u64, ArchivingError> {
    let workspace = app.store.workspace_named(DEFAULT_WORKSPACE).await?.ok_or(ArchivingError::NoWorkspace)?;
    let folder = app.data_dir.join(ARCHIVE_FOLDER);
    let mut archive = Archive::open(&app.store, &app.audit_keys, &app.data_dir, &folder, before).await?;
    let mut rows = 0;
    while let Some(segment) = archive.next().await? {
        replace(app, workspace.id, &segment).await?;
        meters::archived(segment.manifest.rows);
        rows += segment.manifest.rows;
    }
    Ok(rows)
}

/// Records the archive of a segment in the audit, and deletes its rows.
async fn replace(app: &App, workspace: WorkspaceId, segment: &Segment) -> Result<(), ArchivingError> {
    let (writer, after) = (segment.manifest.writer.clone(), segment.summary());
    let change = Change { key_kind: Some(SERVER), after, ..Change::new(workspace, ARCHIVE_OPERATION, writer) };
    let delete = async { segment.delete_rows(&app.store, &app.audit_keys, app.clock.now()).await };
    let (deleted, closed) = app.auditor.record(change, delete, |_| Code::Unavailable).await?;
    closed?;
    Ok(deleted?)
}
