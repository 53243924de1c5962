//! Rotation of the row key: every row that carries a MAC, and every seal, is verified and written anew under a fresh key.
//!
//! Each scope is one transaction, so a run can be killed at any moment, and the next one goes on. Until it is finished both
//! keys are in force and no server starts; the older key is deleted once everything verifies under the newer one alone.
//! A scope that is not verified is refused, for its rows would become valid with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use monstrum_store::{InstanceKeyRow, Store, StoreError, UnverifiedScope};
use monstrum_types::Clock;
use monstrum_vault::Vault;
use serde::Serialize;
use serde_json::json;

use super::Progress;
use crate::boot::{Data, OfflineChange, OfflineError, recorded};
use crate::policy::row_seals::{ROW_KEY, RowKeyError, with_fresh_key, with_newest_key};

/// What was done.
#[derive(Clone, Debug, Serialize)]
pub struct RowKeyReport {
    /// The version of the key that is in force now.
    pub key_version: u32,
    /// Whether this run has first finished one that was interrupted.
    pub resumed: bool,
    /// How many scopes there are: the instance, and each workspace.
    pub scopes: u64,
    /// How many rows were written anew.
    pub rewritten: u64,
    /// Rows that stay as they are, since their MAC is missing or wrong. They permit nothing.
    pub refused: Vec<String>,
}

/// Why the row key was not rotated, or not to its end.
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
    #[error("another process has made a row key at the same time")]
    OtherProcess,
}

/// Rotates the row key of an open folder. No server may use the database.
///
/// A key that is found beside the one in force may be what an interrupted run has left, or what somebody put there who
/// had the master key. So its rotation is finished first, and the rows then get a key that this process has made.
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
            // At once: with a single key in force a server would start.
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

/// Does `work`, which brings the rows under the newest key of the store, with its record in the audit.
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

/// Writes all rows anew under the newest key, and sees that they verify under it alone.
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
    // With the older key everything goes that only it authenticates, so all scopes must verify without it.
    let left = with_newest_key(store, vault).await?.verify_rows().await?;
    refuse_unverified(left.unverified)?;
    let refused = left.refused.iter().map(ToString::to_string).collect();
    Ok(Rewritten { scopes: scopes.len() as u64, rewritten, refused })
}

fn refuse_unverified(found: Vec<UnverifiedScope>) -> Result<(), RowKeyRotationError> {
    if found.is_empty() { Ok(()) } else { Err(RowKeyRotationError::Unverified(found)) }
}
