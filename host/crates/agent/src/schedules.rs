//! Schedules: the times at which tasks of bots and runs of workflows start.
//!
//! timing.rs computes times, plan.rs decides what a turn does, firing.rs runs the turns, and operations.rs has what people
//! do with schedules. A schedule has no rights: its tasks and runs have those of their bot, of that moment. runs.rs is what the
//! crate work does for schedules.

mod firing;
mod input;
mod operations;
mod plan;
mod record;
mod runs;
pub(crate) mod task;
mod timing;

use std::sync::Arc;

use monstrum_core::app::App;
use monstrum_core::operations::OperationError;
use monstrum_engine::Engine;
use monstrum_store::{FiredSchedule, NewWake, ScheduleRow, ScheduledWork, StoreError};
use monstrum_types::{ScheduleId, UtcMillis, WakeKey, WakeKind, WorkspaceId};

pub use firing::ScheduleTurns;
pub use record::place;
pub use runs::{PreparedRun, RunOfSchedule, RunsOfSchedules};

use self::plan::delay_ms;
use self::record::{Record, RecordError};
use crate::tasks;

/// The schedules of a host.
#[derive(Clone)]
pub struct Schedules {
    app: Arc<App>,
    engine: Arc<dyn Engine>,
    runs: Arc<dyn RunsOfSchedules>,
}

impl Schedules {
    /// Creates the schedules of the host `app`.
    #[must_use]
    pub fn new(app: Arc<App>, engine: Arc<dyn Engine>, runs: Arc<dyn RunsOfSchedules>) -> Schedules {
        Schedules { app, engine, runs }
    }

    /// Tells the engine about the work of a firing and its events.
    fn signal(&self, work: &ScheduledWork) {
        self.engine.signal(std::slice::from_ref(work.wake()));
        match work {
            ScheduledWork::Task(task) => {
                self.app.emitter.signal(&task.event);
                self.app.emitter.signal(&task.session.created);
            }
            ScheduledWork::Run(run) => self.app.emitter.signal(&run.event),
        }
    }

    fn open(&self, row: &ScheduleRow) -> Result<Record, RecordError> {
        Record::open(&self.app.vault, row)
    }

    /// Returns whether a schedule is one of the rows that the seal of its workspace counts. The MAC of a row that was
    /// deleted or changed, and then restored by another program, is valid too.
    async fn is_in_force(&self, row: &ScheduleRow) -> Result<bool, StoreError> {
        let App { store, policy, .. } = &*self.app;
        if store.is_verified_schedule(row)? {
            return Ok(true);
        }
        // This process may not have read the last change of the workspace yet.
        policy.renew_if_behind().await?;
        store.is_verified_schedule(row)
    }
}

/// Returns the wake of a schedule.
fn wake(workspace_id: WorkspaceId, id: ScheduleId, due_at: UtcMillis) -> NewWake {
    let key = WakeKey::new(WakeKind::Schedule, id).expect("an id has only characters of keys");
    NewWake { key, workspace_id, due_at, claim: None }
}

/// Returns the time of the turn for a planned time: the schedule's own delay comes on top.
fn due_at(row: &ScheduleRow, record: &Record) -> Option<UtcMillis> {
    row.next_at.map(|planned| planned.plus_ms(delay_ms(row.id, planned, record.jitter_s)))
}

/// Returns why the database refused the work of a firing.
fn refusal(work: &ScheduledWork, refused: FiredSchedule) -> OperationError {
    match (work, refused) {
        (ScheduledWork::Task(_), FiredSchedule::Full) => tasks::full(),
        (ScheduledWork::Run(_), FiredSchedule::Full) => {
            OperationError::OverLimit("the workspace has too many runs that have not ended".to_owned())
        }
        (_, FiredSchedule::Skipped) => {
            OperationError::conflict("the workflow has as many runs as it allows, and starts none beyond them")
        }
        (_, FiredSchedule::Disabled) => OperationError::conflict("the workflow is disabled or was deleted"),
        (_, FiredSchedule::Fired { .. } | FiredSchedule::Changed) => OperationError::changed_meanwhile(),
    }
}
