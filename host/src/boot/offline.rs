//! Changes that commands make while no server runs. The audit records these changes in the same way as changes through
//! the API.

use std::sync::Arc;

use monstrum_store::{DEFAULT_WORKSPACE, StoreError};
use monstrum_types::{Clock, Code};
use serde_json::Value;

use super::Data;
use monstrum_core::audit::{
    AuditUnavailable, Auditor, Change, HEADS_FILE, Heads, HeadsError, RollbackError, RollbackList, find_rollback,
};

/// The key kind in the audit row of a change without an API key.
const OFFLINE: &str = "offline";

/// A change that a command makes.
pub struct OfflineChange {
    /// The type of the object and the action, such as `audit.accept_loss`.
    pub what: &'static str,
    /// The id or name of the changed object.
    pub object: String,
    pub before: Value,
    pub after: Value,
}

/// An error while making or recording a change.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
    #[error("the audit heads cannot be used")]
    Heads(#[from] HeadsError),
    #[error("the database is older than the signed heads of its audit: {0}")]
    OlderDatabase(RollbackList),
    #[error("the signed heads of the audit cannot be compared with the database")]
    Rollback(#[from] RollbackError),
    #[error("the audit cannot be written; nothing was changed")]
    Unavailable(#[from] AuditUnavailable),
    #[error("the database has no workspace `{DEFAULT_WORKSPACE}`")]
    NoWorkspace,
    #[error("the audit writer failed")]
    Writer(#[source] tokio::task::JoinError),
}

/// Records `change` in the audit of this folder, runs `work` to make it, and records the result. If the first record
/// fails, `work` does not run. A database that is older than its signed heads is rejected, because signing a head after
/// this change would hide that the database is older.
pub async fn recorded<T, E: From<OfflineError> + std::fmt::Display>(
    data: &Data,
    clock: Arc<dyn Clock>,
    change: OfflineChange,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let older = find_rollback(&data.store, &data.audit_keys, &data.path).await.map_err(OfflineError::from)?;
    if !older.is_empty() {
        return Err(OfflineError::OlderDatabase(RollbackList(older)).into());
    }
    let heads = Heads::open(&data.path.join(HEADS_FILE), &data.audit_keys).map_err(OfflineError::from)?;
    recorded_with(data, heads, clock, change, work).await
}

/// Like [`recorded`], but signs heads into `heads`.
pub async fn recorded_with<T, E: From<OfflineError> + std::fmt::Display>(
    data: &Data,
    heads: Heads,
    clock: Arc<dyn Clock>,
    change: OfflineChange,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let store = &data.store;
    let workspace = store.workspace_named(DEFAULT_WORKSPACE).await.map_err(OfflineError::from)?;
    let workspace = workspace.ok_or(OfflineError::NoWorkspace)?;
    let generation = store.sealed_generations().await.map_err(OfflineError::from)?;
    let (keys, node) = (data.newest_audit_keys(), data.node.clone());
    let started = Auditor::start(store.clone(), keys, heads, node, generation, clock).await;
    let (auditor, writer) = started.map_err(OfflineError::from)?;
    let OfflineChange { what, object, before, after } = change;
    let change = Change { key_kind: Some(OFFLINE), before, after, ..Change::new(workspace.id, what, object) };
    let recorded = auditor.record(change, work, |_| Code::Unavailable).await;
    let (done, closed) = recorded.map_err(OfflineError::from)?;
    if closed.is_err() {
        tracing::error!("the result of a change could not be recorded in the audit");
    }
    // The last head includes the policy's generations after the change.
    auditor.policy_is_at(store.sealed_generations().await.map_err(OfflineError::from)?);
    auditor.close();
    writer.await.map_err(OfflineError::Writer)?;
    done
}
