//! The tasks of bots: the runner of their turns, and the operations on tasks.

use std::sync::Arc;

use monstrum_agent::{LiveTasks, Runner, Tasks};
use monstrum_core::app::App;
use monstrum_engine::Local;

/// Lets the engine run the tasks of a host. Returns the operations on tasks.
pub(super) fn register(app: &Arc<App>, engine: &Local) -> Arc<Tasks> {
    let live = Arc::new(LiveTasks::default());
    engine.register(Arc::new(Runner::new(Arc::clone(app), Arc::clone(&live))));
    Arc::new(Tasks::new(Arc::clone(app), Arc::new(engine.clone()), live))
}
