//! The servers with which the real server is compared. These servers do the same work in the cheapest correct way: axum
//! parses the body once, the component is called as the host calls it, and the answer is sent unchanged. With a
//! database, the raw texts of the parameters and the answer are one row. A group commit with fsync writes the row
//! before the answer leaves.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use clap::Args;
use monstrum_types::{Clock, RequestId, SystemClock};
use rusqlite::{Connection, params};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};

use crate::bare::{Bare, ExecuteRequest, request_of_echo};

const LISTENING: &str = "listening on ";
/// The limits of the host's audit writer.
const BATCH_ROWS_MAX: usize = 512;
const QUEUE_ROWS_MAX: usize = 4096;

/// Serves a floor. The benches run the floor in another process, like the real server.
#[derive(Args)]
pub struct Floor {
    /// The component
    #[arg(long)]
    wasm: PathBuf,
    /// The file with the host's request to the component, as the component has echoed it
    #[arg(long)]
    echo: PathBuf,
    /// The database for the rows. Without a database, no rows are written
    #[arg(long)]
    database: Option<PathBuf>,
}

/// A running floor. Dropping the value kills the process.
pub struct Running {
    pub address: String,
    pub pid: u32,
    _process: Child,
}

impl Running {
    /// Starts this program as a floor.
    pub async fn start(wasm: &Path, echo: &Path, database: Option<&Path>) -> Result<Running> {
        let mut command = Command::new(std::env::current_exe().context("cannot find the path of this program")?);
        command.arg("floor").arg("--wasm").arg(wasm).arg("--echo").arg(echo);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        if let Some(database) = database {
            command.arg("--database").arg(database);
        }
        let mut process = command.spawn().context("cannot run the floor")?;
        let pid = process.id().context("the floor ended early")?;
        let stdout = process.stdout.take().context("the floor has no standard output")?;
        let line = BufReader::new(stdout).lines().next_line().await?;
        match line.as_deref().and_then(|line| line.strip_prefix(LISTENING)) {
            Some(address) => Ok(Running { address: address.to_owned(), pid, _process: process }),
            None => bail!("the floor did not start"),
        }
    }
}

impl Floor {
    /// Serves until the process is killed.
    pub async fn serve(self) -> Result<()> {
        let echo = std::fs::read(&self.echo).with_context(|| format!("cannot read {}", self.echo.display()))?;
        let request = request_of_echo(&serde_json::from_slice(&echo)?)?;
        let rows = self.database.as_deref().map(group_commit).transpose()?;
        let shared = Arc::new(Shared { bare: Bare::load(&self.wasm)?, request, rows });
        let router = Router::new().route("/api/bots/{id}/tools/{tool}/call", post(call)).with_state(shared);
        let listener = TcpListener::bind("127.0.0.1:0").await.context("the floor cannot listen on a port")?;
        println!("{LISTENING}{}", listener.local_addr()?);
        axum::serve(listener, router).await.context("the floor failed")
    }
}

struct Shared {
    bare: Bare,
    /// The host's request to the component, except for the id and the parameters.
    request: ExecuteRequest,
    rows: Option<mpsc::Sender<Pending>>,
}

/// A row, and the channel to the call that waits for it.
struct Pending {
    id: RequestId,
    params: String,
    answer: Arc<str>,
    committed: oneshot::Sender<()>,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    params: &'a RawValue,
}

async fn call(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    match answer(&shared, &body).await {
        Ok(body) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")).into_response(),
    }
}

async fn answer(shared: &Shared, body: &[u8]) -> Result<String> {
    let Body { params } = serde_json::from_slice(body)?;
    let id = RequestId::new();
    let request =
        ExecuteRequest { request_id: id.to_string(), params: params.get().to_owned(), ..shared.request.clone() };
    let data: Arc<str> = shared.bare.call(&request).await?.into();
    let body = format!(r#"{{"status":"success","data":{data}}}"#);
    if let Some(rows) = &shared.rows {
        let (committed, done) = oneshot::channel();
        let pending = Pending { id, params: request.params, answer: data, committed };
        rows.send(pending).await.ok().context("the writer ended early")?;
        done.await.context("the row was not written")?;
    }
    Ok(body)
}

/// Starts a thread that writes all waiting rows in one transaction, and then the next batch.
fn group_commit(path: &Path) -> Result<mpsc::Sender<Pending>> {
    let mut connection = Connection::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.execute("create table rows (id text not null, at text not null, params text, answer text)", [])?;
    let (queue, mut waiting) = mpsc::channel::<Pending>(QUEUE_ROWS_MAX);
    std::thread::spawn(move || {
        let mut batch = Vec::new();
        while waiting.blocking_recv_many(&mut batch, BATCH_ROWS_MAX) > 0 {
            let is_written = write(&mut connection, &batch).is_ok();
            // If the row was not written, its sender is dropped, and the waiting call reports the failure.
            for pending in batch.drain(..).filter(|_| is_written) {
                // Sending fails only if the waiting call was dropped.
                let _ = pending.committed.send(());
            }
        }
    });
    Ok(queue)
}

fn write(connection: &mut Connection, batch: &[Pending]) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    {
        let mut insert = transaction.prepare_cached("insert into rows (id, at, params, answer) values (?, ?, ?, ?)")?;
        let at = SystemClock.now().to_string();
        for Pending { id, params, answer, .. } in batch {
            insert.execute(params![id.to_string(), at, params, answer.as_ref()])?;
        }
    }
    transaction.commit()
}
