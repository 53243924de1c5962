//! The events for which steps wait.

use monstrum_core::app::App;
use monstrum_store::{RunRow, RunStepRow, StoreError};
use monstrum_types::{UtcMillis, WorkspaceId};
use serde_json::Value;

use super::record::StepContent;

/// The maximum number of steps of a workspace that wait for events of one type. Each is compared with every such event.
const OPEN_MAX: i64 = 10_000;

/// Returns whether one more step of a workspace can wait for events of a type.
///
/// # Errors
///
/// The database failed.
pub async fn has_room(app: &App, workspace: WorkspaceId, event_type: &str) -> Result<bool, StoreError> {
    Ok(app.store.count_event_waits(workspace, event_type).await? < OPEN_MAX)
}

/// An adapter until waits for events are there.
pub async fn found(
    _app: &App,
    _run: &RunRow,
    _row: &RunStepRow,
    _content: &StepContent,
    _now: UtcMillis,
) -> Result<Option<Value>, StoreError> {
    Ok(None)
}
