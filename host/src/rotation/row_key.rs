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
    /// Whether this run has finished one that was interrupted.
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

/// Rotates the row key of an open folder, or finishes a rotation that was interrupted. No server may use the database.
pub async fn run(
    data: Data,
    clock: Arc<dyn Clock>,
    progress: Progress<'_>,
) -> Result<RowKeyReport, RowKeyRotationError> {
    let resumed = data.store.is_rotating_row_key();
    let (store, record) = if resumed {
        (data.store.clone(), None)
    } else {
        let (store, record) = with_fresh_key(&data.store, &data.vault, clock.as_ref()).await?;
        (store, Some(record))
    };
    refuse_unverified(store.verify_rows().await?.unverified)?;
    let change = OfflineChange {
        what: "vault.rotate_row_key",
        object: "database".to_owned(),
        before: json!({ "version": store.row_key_version() }),
        after: json!({ "version": store.newest_row_key_version() }),
    };
    let data = Data { store, ..data };
    let work = rewrite(&data.store, &data.vault, record.as_ref(), progress);
    let Rewritten { scopes, rewritten, refused } = recorded(&data, clock, change, work).await?;
    let key_version = data.store.newest_row_key_version().unwrap_or_default();
    Ok(RowKeyReport { key_version, resumed, scopes, rewritten, refused })
}

struct Rewritten {
    scopes: u64,
    rewritten: u64,
    refused: Vec<String>,
}

async fn rewrite(
    store: &Store,
    vault: &Vault,
    record: Option<&InstanceKeyRow>,
    progress: Progress<'_>,
) -> Result<Rewritten, RowKeyRotationError> {
    if let Some(record) = record
        && !store.insert_instance_key(record).await?
    {
        return Err(RowKeyRotationError::OtherProcess);
    }
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
    store.retire_row_keys(ROW_KEY).await?;
    let refused = left.refused.iter().map(ToString::to_string).collect();
    Ok(Rewritten { scopes: scopes.len() as u64, rewritten, refused })
}

fn refuse_unverified(found: Vec<UnverifiedScope>) -> Result<(), RowKeyRotationError> {
    if found.is_empty() { Ok(()) } else { Err(RowKeyRotationError::Unverified(found)) }
}
