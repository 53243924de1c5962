//! The tasks of bots: the runner of their turns, the schedules and events that start them, and the operations on them.

use std::sync::Arc;

use monstrum_agent::schedules::ScheduleTurns;
use monstrum_agent::{LiveTasks, Runner, Tasks};
use monstrum_core::app::App;
use monstrum_core::call_types::starts_tasks::StartsTasks;
use monstrum_engine::{Engine, Local};
use monstrum_store::NewWake;
use monstrum_work::runs::{Definitions, KnownRuns, RunTurns, Runs, StepTurns};
use monstrum_work::{DeliveryTurns, EventTurns};

/// Lets the engine run the tasks, the schedules, the events, the deliveries and the runs of workflows of a host. Returns the
/// operations on tasks and on runs.
pub(super) fn register(app: &Arc<App>, local: &Local) -> (Arc<Tasks>, Arc<Runs>) {
    let (live, engine) = (Arc::new(LiveTasks::default()), Arc::new(local.clone()) as Arc<dyn Engine>);
    local.register(Arc::new(Runner::new(Arc::clone(app), Arc::clone(&live))));
    local.register(Arc::new(EventTurns::new(Arc::clone(app), Arc::clone(&engine))));
    let definitions = Arc::new(Definitions::new(app.store.clone()));
    local.register(Arc::new(DeliveryTurns::new(Arc::clone(app), Arc::clone(&engine), Arc::clone(&definitions))));
    local.register(Arc::new(ScheduleTurns::new(Arc::clone(app), Arc::clone(&engine))));
    local.register(Arc::new(StepTurns::new(Arc::clone(app), Arc::clone(&engine))));
    app.emitter.connect_runs(Arc::new(KnownRuns::new(app.store.clone(), Arc::clone(&app.vault))));
    let tasks = Arc::new(Tasks::new(Arc::clone(app), Arc::clone(&engine), live));
    let turns = RunTurns::new(Arc::clone(app), Arc::clone(&engine), Arc::clone(&definitions), Arc::clone(&tasks));
    local.register(Arc::new(turns));
    let starts: Arc<dyn StartsTasks> = Arc::clone(&tasks) as _;
    // The operations hold the app, so the app does not hold them.
    app.calls.executor.start_tasks_with(Arc::downgrade(&starts));
    let runs = Arc::new(Runs::new(Arc::clone(app), Arc::clone(&engine), definitions));
    let engine = Arc::downgrade(&engine);
    let signals = move |wakes: &[NewWake]| {
        if let Some(engine) = engine.upgrade() {
            engine.signal(wakes);
        }
    };
    app.emitter.connect(Box::new(signals), Arc::downgrade(&starts));
    (tasks, runs)
}
