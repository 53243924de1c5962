//! The tasks of bots: the runner of their turns, the schedules that start them, and the operations on both.

use std::sync::Arc;

use monstrum_agent::schedules::{ScheduleTurns, TasksOfSchedules};
use monstrum_agent::{LiveTasks, Runner, Tasks};
use monstrum_core::app::App;
use monstrum_core::call_types::starts_tasks::StartsTasks;
use monstrum_engine::{Engine, Local};

/// Lets the engine run the tasks and the schedules of a host. Returns the operations on them.
pub(super) fn register(app: &Arc<App>, local: &Local) -> Arc<Tasks> {
    let (live, engine) = (Arc::new(LiveTasks::default()), Arc::new(local.clone()) as Arc<dyn Engine>);
    let runner = Arc::new(Runner::new(Arc::clone(app), Arc::clone(&live)));
    local.register(Arc::new(TasksOfSchedules::new(runner, Arc::clone(app), Arc::clone(&engine))));
    local.register(Arc::new(ScheduleTurns::new(Arc::clone(app), Arc::clone(&engine))));
    let tasks = Arc::new(Tasks::new(Arc::clone(app), engine, live));
    let starts: Arc<dyn StartsTasks> = Arc::clone(&tasks) as _;
    // The operations hold the app, so the app does not hold them.
    app.calls.executor.start_tasks_with(Arc::downgrade(&starts));
    tasks
}
