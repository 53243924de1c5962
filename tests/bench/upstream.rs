//! An upstream that answers at once, late, or when it is told to.

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

/// What is answered at once.
pub const OK: &str = "/ok";
/// What is answered after [`SLOWNESS`].
pub const SLOW: &str = "/slow";
/// What is answered when all that is held is released, which may be never.
pub const HELD: &str = "/held";

const SLOWNESS: Duration = Duration::from_millis(300);

/// A running upstream; it ends when it is dropped.
pub struct Upstream {
    address: SocketAddr,
    held: Arc<Held>,
    task: JoinHandle<()>,
}

struct Held {
    /// Requests that are held.
    count: watch::Sender<usize>,
    /// How often they were released.
    releases: watch::Sender<usize>,
}

impl Upstream {
    /// An upstream on a port of its own.
    pub async fn start() -> Result<Upstream> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("the upstream finds no port")?;
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

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Waits until so many requests are held.
    pub async fn holds(&self, count: usize) -> Result<()> {
        let mut held = self.held.count.subscribe();
        held.wait_for(|held| *held >= count).await.context("the upstream has ended")?;
        Ok(())
    }

    /// Answers every request that is held.
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
    /// Counts one request for as long as it is held; a caller that goes away drops it.
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
