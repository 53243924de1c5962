//! The ends of tasks that schedules started: a firing may wait for them.

use std::sync::Arc;

use async_trait::async_trait;
use monstrum_core::app::App;
use monstrum_engine::{Engine, Handler, Turn, TurnError, TurnOutcome};
use monstrum_types::{TaskId, WakeKind};

use super::wake;

/// Runs the turns of tasks, and tells the engine about the schedules of tasks that have ended. The end of a task has
/// written the wake of its schedule; without this, the wake would be found later.
pub struct TasksOfSchedules {
    tasks: Arc<dyn Handler>,
    app: Arc<App>,
    engine: Arc<dyn Engine>,
}

impl TasksOfSchedules {
    /// Creates a handler of tasks around `tasks`.
    #[must_use]
    pub fn new(tasks: Arc<dyn Handler>, app: Arc<App>, engine: Arc<dyn Engine>) -> TasksOfSchedules {
        TasksOfSchedules { tasks, app, engine }
    }

    async fn tell(&self, turn: &Turn) {
        let Ok(id) = turn.key().id().parse::<TaskId>() else { return };
        match self.app.store.schedule_of_task(id).await {
            Ok(Some(row)) => self.engine.signal(&[wake(row.workspace_id, row.id, self.app.clock.now())]),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, task.id = %id, "cannot find the schedule of a task"),
        }
    }
}

#[async_trait]
impl Handler for TasksOfSchedules {
    fn kind(&self) -> WakeKind {
        self.tasks.kind()
    }

    async fn turn(&self, turn: &Turn) -> Result<TurnOutcome, TurnError> {
        let outcome = self.tasks.turn(turn).await;
        if let Ok(TurnOutcome::Ended(_)) = outcome {
            self.tell(turn).await;
        }
        outcome
    }
}
