//! Rotation of the row key: verifies every row that has a MAC, and every seal, and writes the rows and seals again
//! under a new key.
//!
//! Each scope is one transaction, so a run can be killed at any moment and the next run continues. Until the rotation
//! is finished, both keys are in force and no server starts. The older key is deleted when everything verifies under
//! the newer key alone. An unverified scope is rejected, because the rotation would make its rows valid.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use monstrum_store::{InstanceKeyRow, Store, StoreError, UnverifiedScope};
use monstrum_types::Clock;
use monstrum_vault::Vault;
use serde::Serialize;
use serde_json::json;

use super::Progress;
use crate::boot::{Data, OfflineChange, OfflineError, recorded};
use monstrum_core::policy::row_seals::{ROW_KEY, RowKeyError, with_fresh_key, with_newest_key};

/// The result of a rotation.
#[derive(Clone, Debug, Serialize)]
pub struct RowKeyReport {
    /// The version of the key in force.
    pub key_version: u32,
    /// Whether this run finished an interrupted rotation before its own rotation.
    pub resumed: bool,
    /// The number of scopes: the instance, and each workspace.
    pub scopes: u64,
    /// The number of rows that were written again.
    pub rewritten: u64,
    /// The rows whose MAC is missing or wrong. The rotation does not change these rows, and they grant no permissions.
    pub refused: Vec<String>,
}

/// An error while rotating the row key.
#[derive(Debug, thiserror::Error)]
pub enum RowKeyRotationError {
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
    #[error("the row key cannot be used")]
    Key(#[from] RowKeyError),
    #[error(transparent)]
    Record(#[from] OfflineError),
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Unverified(Vec<UnverifiedScope>),
    #[error("another process has added a row key at the same time")]
    OtherProcess,
}

/// Rotates the row key of an open folder. No server may use the database.
///
/// A second key in the database may come from an interrupted run, or from an attacker who had the master key. The
/// rotation to that key is finished first. Then the rows are rotated to a key that this process generated.
pub async fn run(
    data: Data,
    clock: Arc<dyn Clock>,
    progress: Progress<'_>,
) -> Result<RowKeyReport, RowKeyRotationError> {
    let resumed = data.store.is_rotating_row_key();
    let mut rewritten = 0;
    let (store, record) = if resumed {
        let work = async {
            let found = rewrite(&data.store, &data.vault, progress).await?;
            // The new key is added in the same step, because a server would start as soon as only one key is in force.
            let (store, record) = with_fresh_key(&data.store, &data.vault, clock.as_ref()).await?;
            insert(&store, &record).await?;
            Ok((store, found.rewritten))
        };
        let (store, found) = step(&data, &clock, work).await?;
        rewritten += found;
        (store, None)
    } else {
        let (store, record) = with_fresh_key(&data.store, &data.vault, clock.as_ref()).await?;
        (store, Some(record))
    };
    let data = Data { store, ..data };
    let work = async {
        if let Some(record) = &record {
            insert(&data.store, record).await?;
        }
        let rewritten = rewrite(&data.store, &data.vault, progress).await?;
        data.store.retire_row_keys(ROW_KEY).await?;
        Ok(rewritten)
    };
    let last = step(&data, &clock, work).await?;
    rewritten += last.rewritten;
    let key_version = data.store.newest_row_key_version().unwrap_or_default();
    Ok(RowKeyReport { key_version, resumed, scopes: last.scopes, rewritten, refused: last.refused })
}

async fn insert(store: &Store, record: &InstanceKeyRow) -> Result<(), RowKeyRotationError> {
    if store.insert_instance_key(record).await? { Ok(()) } else { Err(RowKeyRotationError::OtherProcess) }
}

struct Rewritten {
    scopes: u64,
    rewritten: u64,
    refused: Vec<String>,
}

/// Runs `work`, which writes the rows again under the newest key of the store, and records this change in the audit.
async fn step<T>(
    data: &Data,
    clock: &Arc<dyn Clock>,
    work: impl Future<Output = Result<T, RowKeyRotationError>>,
) -> Result<T, RowKeyRotationError> {
    refuse_unverified(data.store.verify_rows().await?.unverified)?;
    let change = OfflineChange {
        what: "vault.rotate_row_key",
        object: "database".to_owned(),
        before: json!({ "version": data.store.row_key_version() }),
        after: json!({ "version": data.store.newest_row_key_version() }),
    };
    recorded(data, Arc::clone(clock), change, work).await
}

/// Writes all rows again under the newest key, and checks that all rows verify under this key alone.
async fn rewrite(store: &Store, vault: &Vault, progress: Progress<'_>) -> Result<Rewritten, RowKeyRotationError> {
    let (total, seen) = (store.count_authentic_rows().await?, AtomicU64::new(0));
    let done = |rows: u64| progress(seen.fetch_add(rows, Ordering::Relaxed) + rows, total);
    progress(0, total);
    let scopes = store.scopes().await?;
    let mut rewritten = 0;
    for scope in &scopes {
        rewritten += store.rotate_scope(*scope, &done).await?;
    }
    rewritten += store.rotate_uncounted_rows(&done).await?;
    // Deleting the older key invalidates everything that only it authenticates, so all scopes must verify without it.
    let left = with_newest_key(store, vault).await?.verify_rows().await?;
    refuse_unverified(left.unverified)?;
    let refused = left.refused.iter().map(ToString::to_string).collect();
    Ok(Rewritten { scopes: scopes.len() as u64, rewritten, refused })
}

fn refuse_unverified(found: Vec<UnverifiedScope>) -> Result<(), RowKeyRotationError> {
    if found.is_empty() { Ok(()) } else { Err(RowKeyRotationError::Unverified(found)) }
}
