//! The policy by which a turn judges.

use std::sync::Arc;

use monstrum_core::app::App;
use monstrum_core::policy::Snapshot;
use monstrum_engine::TurnError;
use monstrum_types::WorkspaceId;

/// The maximum number of times that a turn reads the policy anew, because the workspace has changed in the meantime.
pub(crate) const ATTEMPTS_MAX: u32 = 8;

/// Returns the policy, and the generation at which the rows of a workspace were verified. Fails if these rows may be forged:
/// then nothing starts.
pub(crate) fn verified(app: &App, workspace: WorkspaceId) -> Result<(Arc<Snapshot>, i64), TurnError> {
    let snapshot = app.policy.load();
    if app.policy.is_stale() {
        return Err(TurnError::Failed("the policy could not be read".to_owned()));
    }
    if snapshot.verification.unverified_for(workspace).is_some() {
        return Err(TurnError::Failed("the rows of the workspace do not match their seals".to_owned()));
    }
    match snapshot.verification.generation_of(workspace) {
        Some(generation) => Ok((snapshot, generation)),
        None => Err(TurnError::Failed("the rows of the workspace are not verified".to_owned())),
    }
}

/// Returns the error of a turn whose workspace has changed each time that it has read the policy.
pub(crate) fn too_many_changes() -> TurnError {
    TurnError::Failed("the workspace changes too often".to_owned())
}
