//! The ends of tasks that deliveries started: another delivery may wait for them.

use std::sync::Arc;

use async_trait::async_trait;
use monstrum_core::app::App;
use monstrum_engine::{Engine, Handler, Turn, TurnError, TurnOutcome};
use monstrum_types::{TaskId, WakeKind};

/// Runs the turns of tasks, and tells the engine about the deliveries that wait for tasks that have ended. The end of a task
/// has written the wake of such a delivery; without this, the wake would be found later.
pub struct TasksOfDeliveries {
    tasks: Arc<dyn Handler>,
    app: Arc<App>,
    engine: Arc<dyn Engine>,
}

impl TasksOfDeliveries {
    /// Creates a handler of tasks around `tasks`.
    #[must_use]
    pub fn new(tasks: Arc<dyn Handler>, app: Arc<App>, engine: Arc<dyn Engine>) -> TasksOfDeliveries {
        TasksOfDeliveries { tasks, app, engine }
    }

    async fn tell(&self, turn: &Turn) {
        let Ok(id) = turn.key().id().parse::<TaskId>() else { return };
        match self.app.store.wake_after_task(turn.workspace(), id, self.app.clock.now()).await {
            Ok(wake) => self.engine.signal(wake.as_slice()),
            Err(error) => tracing::warn!(%error, task.id = %id, "cannot find the delivery that waits for a task"),
        }
    }
}

#[async_trait]
impl Handler for TasksOfDeliveries {
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
