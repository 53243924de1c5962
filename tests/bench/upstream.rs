//! An upstream that answers immediately, late, or on demand.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The path that is answered immediately.
pub const OK: &str = "/ok";
/// The path that is answered after [`SLOWNESS`].
pub const SLOW: &str = "/slow";
/// The path that is answered when all held requests are released. Requests may be held forever.
pub const HELD: &str = "/held";

const SLOWNESS: Duration = Duration::from_millis(300);

/// A running upstream. Dropping the value stops it.
pub struct Upstream {
    address: SocketAddr,
    held: Arc<Held>,
    task: JoinHandle<()>,
}

struct Held {
    /// The number of held requests.
    count: watch::Sender<usize>,
    /// The number of releases so far.
    releases: watch::Sender<usize>,
}

impl Upstream {
    /// Starts an upstream on a free port.
    pub async fn start() -> Result<Upstream> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("the upstream cannot listen on a port")?;
        let address = listener.local_addr().context("the upstream has no address")?;
        let held = Arc::new(Held { count: watch::Sender::new(0), releases: watch::Sender::new(0) });
        let router = Router::new()
            .route(OK, get(answer))
            .route(SLOW, get(slow))
            .route(HELD, get(hold))
            .with_state(Arc::clone(&held));
        let task = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("the upstream serves until it is dropped");
        });
        Ok(Upstream { address, held, task })
    }

    /// Returns the URL `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Waits until at least `count` requests are held.
    pub async fn holds(&self, count: usize) -> Result<()> {
        let mut held = self.held.count.subscribe();
        held.wait_for(|held| *held >= count).await.context("the upstream ended early")?;
        Ok(())
    }

    /// Answers every held request.
    pub fn release(&self) {
        self.held.releases.send_modify(|releases| *releases += 1);
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer() -> Json<Value> {
    Json(json!({ "id": 1347, "state": "open", "title": "Found a bug", "labels": ["bug"] }))
}

async fn slow() -> Json<Value> {
    tokio::time::sleep(SLOWNESS).await;
    answer().await
}

async fn hold(State(held): State<Arc<Held>>) -> Json<Value> {
    /// Counts a request while the request is held. If the caller disconnects, the value is dropped.
    struct Counted(Arc<Held>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.count.send_modify(|count| *count -= 1);
        }
    }
    let mut releases = held.releases.subscribe();
    held.count.send_modify(|count| *count += 1);
    let counted = Counted(Arc::clone(&held));
    // `changed` fails only if the sender is dropped, and `held` owns the sender.
    let _ = releases.changed().await;
    drop(counted);
    answer().await
}
