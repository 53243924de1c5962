//! The engine, which runs the turns of objects that work in the background.

use std::sync::Arc;
use std::time::Duration;

use monstrum_core::app::App;
use monstrum_core::meters;
use monstrum_engine::{Local, LocalOptions, Observer, TurnResult};
use monstrum_store::{DueCount, StoreError};
use monstrum_types::WakeKind;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The time limit, at shutdown, for the end of turns and the release of their claims. Claims that were not released expire.
const ENGINE_MAX: Duration = Duration::from_secs(15);

/// Records what the engine measures as metrics.
struct Meters;

impl Observer for Meters {
    fn turn(&self, kind: WakeKind, result: TurnResult, took: Duration) {
        meters::turn(kind.as_str(), result.as_str(), took);
    }

    fn due(&self, due: DueCount) {
        meters::wakes(due.wakes, due.oldest_ms);
    }
}

/// Creates the engine of a server. Handlers are registered before it starts. The claims of an earlier process are dropped
/// here, before the server accepts requests, because a request can claim the wake of its task.
pub(super) async fn create(app: &App, node: String) -> Result<Local, StoreError> {
    let (store, clock) = (app.store.clone(), Arc::clone(&app.clock));
    let engine = Local::new(LocalOptions { store, node, clock, observer: Arc::new(Meters) });
    engine.drop_claims().await?;
    Ok(engine)
}

/// Starts the engine, if it has a handler. Without handlers, no object has turns, so nothing reads the wakes. Turns begin
/// after the start-up scan, because the tools of tasks are not known before.
pub(super) fn start(engine: Local, app: &App, stop: &CancellationToken) -> Option<JoinHandle<()>> {
    let has_handlers = engine.has_handlers();
    let (mut scanned, stop) = (app.scanned.subscribe(), stop.clone());
    let running = async move {
        // The sender belongs to the app, which outlives the engine.
        if matches!(stop.run_until_cancelled(scanned.wait_for(|is_scanned| *is_scanned)).await, Some(Ok(_))) {
            engine.run(stop).await;
        }
    };
    has_handlers.then(|| tokio::spawn(running))
}

/// Waits until the engine has ended, after its stop was requested.
pub(super) async fn stopped(engine: Option<JoinHandle<()>>) {
    let Some(mut engine) = engine else { return };
    match tokio::time::timeout(ENGINE_MAX, &mut engine).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%error, "the engine ended unexpectedly"),
        Err(_) => engine.abort(),
    }
}
