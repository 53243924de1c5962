//! The tasks of bots: the engine that gives them turns, the runner of the turns, and the operations on tasks.

use std::sync::Arc;
use std::time::Duration;

use monstrum_agent::{LiveTasks, Runner, Tasks};
use monstrum_core::app::App;
use monstrum_core::meters;
use monstrum_engine::{Local, LocalOptions, Observer, TurnResult};
use monstrum_store::DueCount;
use monstrum_types::WakeKind;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Counts turns in the metrics.
struct Measured;

impl Observer for Measured {
    fn turn(&self, kind: WakeKind, result: TurnResult, took: Duration) {
        meters::turn(kind.as_str(), result.as_str(), took);
    }

    fn due(&self, due: DueCount) {
        meters::wakes_due(due.wakes, due.oldest_ms);
    }
}

/// Starts the engine of a host, which ends after `stop` is cancelled. Turns begin after the start-up scan, because the
/// tools of tasks are not known before.
pub(super) fn start(app: &Arc<App>, node: String, stop: &CancellationToken) -> (Arc<Tasks>, JoinHandle<()>) {
    let options =
        LocalOptions { store: app.store.clone(), node, clock: Arc::clone(&app.clock), observer: Arc::new(Measured) };
    let engine = Local::new(options);
    let live = Arc::new(LiveTasks::default());
    engine.register(Arc::new(Runner::new(Arc::clone(app), Arc::clone(&live))));
    let tasks = Arc::new(Tasks::new(Arc::clone(app), Arc::new(engine.clone()), live));
    let (mut scanned, stop) = (app.scanned.subscribe(), stop.clone());
    let running = async move {
        // The sender belongs to the app, which the runner holds.
        if matches!(stop.run_until_cancelled(scanned.wait_for(|is_scanned| *is_scanned)).await, Some(Ok(_))) {
            engine.run(stop).await;
        }
    };
    (tasks, tokio::spawn(running))
}
