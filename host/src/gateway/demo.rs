//! `/api/demo`: the demo of the console, which is set up step by step and removed as a whole. The routes require a root
//! key.

mod upstream;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use monstrum_api::demo::{Demo, DemoStep, DemoStepInput};
use monstrum_core::operations::{OperationError, Root, demo};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::gateway::http::answer::{Answer, Done};
use crate::gateway::http::extract::Input;
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::Host;
use upstream::Running;

/// The upstream of the demo. Only a step of the demo starts it.
pub(crate) struct DemoServer {
    /// The upstream while it runs. The lock is held during a step, so that two steps never run at the same time.
    running: Mutex<Option<Running>>,
    /// Ends the upstream with the server.
    stop: CancellationToken,
}

impl DemoServer {
    pub(crate) fn new(stop: CancellationToken) -> DemoServer {
        DemoServer { running: Mutex::new(None), stop }
    }
}

/// Shows the demo: its steps, its objects, and the calls to try
#[utoipa::path(get, path = "/api/demo", tag = "demo", responses((status = 200, body = Demo)))]
pub(super) async fn show(app: Host, State(server): State<Arc<DemoServer>>, caller: Root) -> Answer<Demo> {
    let running = server.running.lock().await;
    Ok(Json(demo::show(&app, &caller, running.as_ref().map(Running::upstream)).await?))
}

/// Makes a step of the demo; a step that is done is not made again
#[utoipa::path(post, path = "/api/demo", tag = "demo", request_body = DemoStepInput,
    responses((status = 200, body = Demo)))]
pub(super) async fn step(
    Host(app): Host,
    State(server): State<Arc<DemoServer>>,
    caller: Root,
    Input(input): Input<DemoStepInput>,
) -> Answer<Demo> {
    // The work runs in a task. Otherwise, if the caller disconnected, a step could be made in part.
    let work = tokio::spawn(async move {
        let mut running = server.running.lock().await;
        let is_started = running.is_none() && input.step == DemoStep::Plugin;
        if is_started {
            *running = Some(Running::start(&server.stop).await.map_err(OperationError::internal)?);
        }
        let made = demo::make(&app, &caller, input.step, running.as_ref().map(Running::upstream)).await;
        if made.is_err() && is_started {
            *running = None;
        }
        made
    });
    Ok(Json(work.await.map_err(|error| Problem::internal(&error))??))
}

/// Removes the demo with everything that belongs to it
#[utoipa::path(delete, path = "/api/demo", tag = "demo", responses((status = 204)))]
pub(super) async fn remove(Host(app): Host, State(server): State<Arc<DemoServer>>, caller: Root) -> Done {
    let work = tokio::spawn(async move {
        let mut running = server.running.lock().await;
        demo::remove(&app, &caller).await?;
        *running = None;
        Ok::<(), OperationError>(())
    });
    work.await.map_err(|error| Problem::internal(&error))??;
    Ok(StatusCode::NO_CONTENT)
}
