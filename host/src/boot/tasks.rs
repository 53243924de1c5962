//! The tasks of bots: the runner of their turns, and the operations on tasks.

use std::sync::Arc;

use monstrum_agent::{LiveTasks, Runner, Tasks};
use monstrum_core::app::App;
use monstrum_core::call_types::starts_tasks::StartsTasks;
use monstrum_engine::Local;

/// Lets the engine run the tasks of a host. Returns the operations on tasks.
pub(super) fn register(app: &Arc<App>, engine: &Local) -> Arc<Tasks> {
    let live = Arc::new(LiveTasks::default());
    engine.register(Arc::new(Runner::new(Arc::clone(app), Arc::clone(&live))));
    let tasks = Arc::new(Tasks::new(Arc::clone(app), Arc::new(engine.clone()), live));
    let starts: Arc<dyn StartsTasks> = Arc::clone(&tasks) as _;
    // The operations hold the app, so the app does not hold them.
    app.calls.executor.start_tasks_with(Arc::downgrade(&starts));
    tasks
}
