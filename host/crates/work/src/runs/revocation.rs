//! Runs that a bot key has started end with the key. Runs of other keys go on without them.

use monstrum_core::app::App;
use monstrum_core::policy::Snapshot;
use monstrum_store::{RunRow, StoreError};

use super::record::RunContent;

/// Returns whether the bot key that has started a run was deleted or rotated.
///
/// # Errors
///
/// The database failed.
pub(super) async fn is_revoked(app: &App, run: &RunRow, content: &RunContent) -> Result<bool, StoreError> {
    let Some(hash) = &content.bot_key_hash else { return Ok(false) };
    // A run that a step has started ends with the key of the first run.
    let Some(id) = content.starters.first() else { return Ok(true) };
    // The policy of this host may be older than the run.
    let key = app.store.key(Some(run.workspace_id), *id).await?;
    Ok(key.is_none_or(|key| key.hash != *hash))
}

/// Returns whether the policy of this host has the bot key that has started a run, if the run ends with it.
pub(super) fn has_its_key(content: &RunContent, snapshot: &Snapshot) -> bool {
    let Some(hash) = &content.bot_key_hash else { return true };
    let known = content.starters.first().and_then(|key| snapshot.key_hash(*key));
    known.is_some_and(|known| hex::encode(known) == *hash)
}
