//! Decides what happens to a call whose end is not in the journal, when a task is resumed.
//!
//! A side effect that may have happened is never repeated, unless the tool says that a repetition is harmless.

use monstrum_core::call_types::resumed::{Recorded, Resumed, resumed};
use monstrum_store::StoreError;
use monstrum_types::RequestId;

use crate::calls::ended;
use crate::journal::StepOutcome;
use crate::rounds::Offered;
use crate::runner::{Interrupted, TaskTurn};
use crate::state::{PlannedCall, State};

impl TaskTurn<'_> {
    /// Decides about the calls that an earlier turn has planned and not ended.
    pub(crate) async fn resume(&self, state: &mut State) -> Result<(), Interrupted> {
        let app = &self.runner.app;
        let unended = state.unended();
        if unended.is_empty() {
            return Ok(());
        }
        let offered = self.offered().await?;
        let mut ends = Vec::new();
        for planned in unended {
            let Some(request_id) = planned.request_id() else { continue };
            // The row of a plugin's call precedes the rows of the calls that the plugin makes.
            let has_started = self.has_started(&planned, request_id).await?;
            let recorded = if has_started { Recorded::Started } else { Recorded::NotStarted };
            let tool = planned.row.tool.as_deref().unwrap_or_default();
            if !has_started && self.expired.contains(&planned.row.sequence) {
                let outcome = StepOutcome::not_approved();
                ends.push(ended(&app.vault, &*app.clock, self.turn.claim(), &planned, &outcome)?);
                state.end(planned.row.sequence, outcome);
                continue;
            }
            let declared = offered.get(tool).map(Offered::effect);
            if resumed(recorded, planned.effect(), declared) == Resumed::Uncertain {
                let outcome = StepOutcome::uncertain();
                ends.push(ended(&app.vault, &*app.clock, self.turn.claim(), &planned, &outcome)?);
                state.end(planned.row.sequence, outcome);
            }
        }
        app.store.end_task_steps(&ends).await?;
        self.live.changed();
        Ok(())
    }

    /// Returns whether a planned call has started.
    pub(crate) async fn has_started(&self, planned: &PlannedCall, request_id: RequestId) -> Result<bool, StoreError> {
        let store = &self.runner.app.store;
        store.has_started(self.row.workspace_id, request_id, planned.row.started_at).await
    }
}
