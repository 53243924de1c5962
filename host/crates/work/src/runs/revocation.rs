//! Runs that a bot key has started end with the key, and so do the runs below them. Runs of other keys go on without them.

use monstrum_core::app::App;
use monstrum_core::policy::Snapshot;
use monstrum_flow::StepError;
use monstrum_store::{RunRow, StoreError};
use monstrum_types::KeyId;

use super::record::RunContent;

/// Returns whether the bot key that has started a run, or the first run above it, was deleted or rotated.
///
/// # Errors
///
/// The database failed.
pub(super) async fn is_revoked(app: &App, run: &RunRow, content: &RunContent) -> Result<bool, StoreError> {
    let Some(hash) = &content.bot_key_hash else { return Ok(false) };
    let Some(id) = starter(content) else { return Ok(true) };
    // The policy of this host may be older than the run.
    let key = app.store.key(Some(run.workspace_id), id).await?;
    Ok(key.is_none_or(|key| key.hash != *hash))
}

/// Returns whether the policy of this host has the bot key that has started a run, if the run ends with it.
pub(super) fn has_its_key(content: &RunContent, snapshot: &Snapshot) -> bool {
    let Some(hash) = &content.bot_key_hash else { return true };
    let known = starter(content).and_then(|key| snapshot.key_hash(key));
    known.is_some_and(|known| hex::encode(known) == *hash)
}

/// Returns the error of what does not start because the key is gone.
pub(super) fn revoked() -> StepError {
    StepError::new("revoked", "the key that started the run was deleted or rotated")
}

/// Returns the key that has started a run. Keys that retry the run come after it, and the column of a child names its parent.
fn starter(content: &RunContent) -> Option<KeyId> {
    content.starters.first().copied()
}
