//! The servers that the real one is measured against: axum, JSON in and out, and the bare component call; with a
//! database, every call waits for a plain row that a group commit with fsync has written.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use clap::Args;
use monstrum_store::{AuditKind, AuditRow, Store, StoreOptions};
use monstrum_types::{BotId, Clock, RequestId, ResourceId, SystemClock, WorkspaceId};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};

use crate::bare::{Bare, ExecuteRequest};
use crate::scene::{OPERATION, PLUGIN, TOOL};

const LISTENING: &str = "listening on ";
/// As the audit's writer has it.
const BATCH_ROWS_MAX: usize = 512;
const QUEUE_ROWS_MAX: usize = 4096;

/// Serves a floor; the benches run this as a process of its own, as the real server is one.
#[derive(Args)]
pub struct Floor {
    /// The component
    #[arg(long)]
    wasm: PathBuf,
    /// The database for the rows; without one there are none
    #[arg(long)]
    database: Option<PathBuf>,
}

/// A floor that runs; it is killed when this is dropped.
pub struct Running {
    pub address: String,
    _process: Child,
}

impl Running {
    /// Starts this program as a floor.
    pub async fn start(wasm: &Path, database: Option<&Path>) -> Result<Running> {
        let mut command = Command::new(std::env::current_exe().context("a program does not know where it is")?);
        command.arg("floor").arg("--wasm").arg(wasm).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        if let Some(database) = database {
            command.arg("--database").arg(database);
        }
        let mut process = command.spawn().context("cannot run the floor")?;
        let stdout = process.stdout.take().context("the floor has no standard output")?;
        let line = BufReader::new(stdout).lines().next_line().await?;
        match line.as_deref().and_then(|line| line.strip_prefix(LISTENING)) {
            Some(address) => Ok(Running { address: address.to_owned(), _process: process }),
            None => bail!("the floor does not start"),
        }
    }
}

impl Floor {
    /// Serves until the process is ended.
    pub async fn serve(self) -> Result<()> {
        let rows = match self.database {
            Some(path) => Some(group_commit(Store::open(StoreOptions::sqlite(path)).await?)),
            None => None,
        };
        let shared = Arc::new(Shared { bare: Bare::load(&self.wasm)?, rows });
        let router = Router::new().route("/api/bots/{id}/tools/{tool}/call", post(call)).with_state(shared);
        let listener = TcpListener::bind("127.0.0.1:0").await.context("the floor finds no port")?;
        println!("{LISTENING}{}", listener.local_addr()?);
        axum::serve(listener, router).await.context("the floor failed")
    }
}

struct Shared {
    bare: Bare,
    rows: Option<mpsc::Sender<Pending>>,
}

struct Pending {
    row: AuditRow,
    committed: oneshot::Sender<()>,
}

async fn call(State(shared): State<Arc<Shared>>, Json(body): Json<Value>) -> Json<Value> {
    match answer(&shared, &body).await {
        Ok(data) => Json(json!({ "status": "success", "data": data })),
        Err(error) => Json(json!({ "status": "error", "message": format!("{error:#}") })),
    }
}

async fn answer(shared: &Shared, body: &Value) -> Result<Value> {
    let request_id = RequestId::new();
    let params = body["params"].to_string();
    let request = ExecuteRequest {
        request_id: request_id.to_string(),
        bot_id: BotId::new().to_string(),
        task_id: request_id.to_string(),
        operation: OPERATION.to_owned(),
        tool_name: TOOL.to_owned(),
        params,
        scope: Some("[]".to_owned()),
        resource_id: Some(ResourceId::new().to_string()),
        resource_config: "{}".to_owned(),
        delegate: None,
        locale: "en".to_owned(),
        deadline_ms: 30_000,
        context: "{}".to_owned(),
    };
    let data = serde_json::from_str(&shared.bare.call(&request).await?)?;
    if let Some(rows) = &shared.rows {
        let (committed, done) = oneshot::channel();
        let row = row(request_id, request.params);
        rows.send(Pending { row, committed }).await.context("the writer has ended")?;
        done.await.context("the row was not written")?;
    }
    Ok(data)
}

/// One transaction for all rows that wait.
fn group_commit(store: Store) -> mpsc::Sender<Pending> {
    let (queue, mut waiting) = mpsc::channel::<Pending>(QUEUE_ROWS_MAX);
    tokio::spawn(async move {
        let mut sequence = 0;
        let mut batch = Vec::new();
        while waiting.recv_many(&mut batch, BATCH_ROWS_MAX).await > 0 {
            let (mut rows, callers): (Vec<_>, Vec<_>) = batch.drain(..).map(|one| (one.row, one.committed)).unzip();
            for row in &mut rows {
                sequence += 1;
                row.sequence = sequence;
            }
            let is_written = store.append(&rows).await.is_ok();
            // A caller whose sender is dropped reports that its row was not written.
            for caller in callers.into_iter().filter(|_| is_written) {
                // It fails only where the caller has gone away.
                let _ = caller.send(());
            }
        }
    });
    queue
}

/// As many columns filled as in a row of the audit.
fn row(request_id: RequestId, params: String) -> AuditRow {
    let now = SystemClock.now();
    AuditRow {
        writer: "01939d2c-7f6a-7000-8000-000000000000".to_owned(),
        sequence: 0,
        kind: AuditKind::Finished,
        request_id,
        workspace_id: Some(WorkspaceId::new()),
        bot_id: Some(BotId::new()),
        task_id: Some(request_id.to_string()),
        resource_id: Some(ResourceId::new()),
        tool: Some(TOOL.to_owned()),
        operation: Some(OPERATION.to_owned()),
        plugin: Some(PLUGIN.to_owned()),
        plugin_digest: Some(format!("sha256:{}", "0".repeat(64))),
        status: Some("success".to_owned()),
        code: None,
        message: None,
        rule: None,
        params: Some(params),
        duration_ms: Some(1),
        started_at: now,
        at: now,
        parent_request_id: None,
        delegation: None,
        flags: None,
        key_version: 1,
        previous_hash: [0; 32],
        hash: [0; 32],
    }
}
