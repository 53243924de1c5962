//! Schedules: the times at which bots start tasks.
//!
//! timing.rs computes times, plan.rs decides what a turn does, firing.rs runs the turns, and operations.rs has what people
//! do with schedules. A schedule has no rights: its tasks have those of their bot, of that moment.

mod firing;
mod input;
mod operations;
mod plan;
mod record;
pub(crate) mod task;
mod timing;

use std::sync::Arc;

use monstrum_core::app::App;
use monstrum_engine::Engine;
use monstrum_store::{NewWake, ScheduleRow, ScheduledTask, StoreError};
use monstrum_types::{ScheduleId, UtcMillis, WakeKey, WakeKind, WorkspaceId};

pub use firing::ScheduleTurns;
pub use record::place;

use self::plan::delay_ms;
use self::record::{Record, RecordError};

/// The schedules of a host.
#[derive(Clone)]
pub struct Schedules {
    app: Arc<App>,
    engine: Arc<dyn Engine>,
}

impl Schedules {
    /// Creates the schedules of the host `app`.
    #[must_use]
    pub fn new(app: Arc<App>, engine: Arc<dyn Engine>) -> Schedules {
        Schedules { app, engine }
    }

    /// Tells the engine about the events of a firing.
    fn signal_events(&self, task: &ScheduledTask) {
        self.app.emitter.signal(&task.event);
        self.app.emitter.signal(&task.session.created);
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
