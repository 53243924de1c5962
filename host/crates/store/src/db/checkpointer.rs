//! Copies the write-ahead log of an SQLite file into the file, on a thread of its own, so that no commit waits for it.
//!
//! A checkpoint runs beside commits and never waits for a reader or a writer. The log starts from its beginning again
//! after a checkpoint has copied all of it. Under load, commits add to the log while it is copied. A log that has
//! become large is therefore copied again while no transaction can begin; what is left is then small.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::StoreError;
use crate::error::{of_rusqlite, unavailable};

/// The size in bytes (64 MiB) to which the log is truncated when it starts from its beginning again, so that one large
/// transaction does not occupy disk space permanently.
pub(crate) const LOG_BYTES_KEPT: i64 = 64 << 20;
/// The interval at which the log is copied when few bytes are written.
const INTERVAL: Duration = Duration::from_secs(1);
/// The number of bytes of rows after which the log is copied before the interval has passed.
const BYTES_MAX: usize = 4 << 20;
/// The number of pages of 4 KiB at which a log is copied while no transaction can begin: 16 MiB.
const LARGE_LOG_PAGES: i64 = 4096;

/// The thread. It ends when this is dropped.
pub(crate) struct Checkpointer {
    shared: Arc<Shared>,
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The number of bytes that were written since the last checkpoint.
    bytes: usize,
    is_closing: bool,
}

impl Checkpointer {
    /// Starts the thread with a connection of its own. A transaction that writes holds `turn`.
    pub(crate) fn start(
        connection: Connection,
        turn: Arc<tokio::sync::Mutex<()>>,
        path: &Path,
    ) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared::default());
        let (running, ended) = oneshot::channel();
        let state = Arc::clone(&shared);
        let place = path.display().to_string();
        std::thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(move || {
                run(&connection, &turn, &state, &place);
                drop(connection);
                drop(running);
            })
            .map_err(|source| unavailable("the thread that copies the write-ahead log cannot be started", source))?;
        Ok(Checkpointer { shared, ended: Mutex::new(Some(ended)) })
    }

    /// Reports that a transaction wrote `bytes`.
    pub(crate) fn wrote(&self, bytes: usize) {
        let mut state = self.shared.state.lock();
        state.bytes += bytes;
        if state.bytes >= BYTES_MAX {
            self.shared.changed.notify_one();
        }
    }

    /// Ends the thread and waits until it has closed its connection.
    pub(crate) async fn close(&self) {
        self.shared.end();
        let ended = self.ended.lock().take();
        if let Some(ended) = ended {
            // The sender is dropped when the thread has ended.
            let _: Result<(), _> = ended.await;
        }
    }
}

impl Drop for Checkpointer {
    /// Ends the thread without waiting for it.
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl Shared {
    fn end(&self) {
        self.state.lock().is_closing = true;
        self.changed.notify_one();
    }

    /// Waits until the log is to be copied. Returns `false` when the thread is to end.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        if !state.is_closing && state.bytes < BYTES_MAX {
            self.changed.wait_for(&mut state, INTERVAL);
        }
        state.bytes = 0;
        !state.is_closing
    }
}

fn run(connection: &Connection, turn: &tokio::sync::Mutex<()>, shared: &Shared, place: &str) {
    let mut is_failing = false;
    while shared.wait() {
        match copy(connection, turn) {
            Ok(()) => is_failing = false,
            Err(error) if is_failing => tracing::debug!(%error, place, "the write-ahead log still cannot be copied"),
            Err(error) => {
                is_failing = true;
                tracing::warn!(%error, place, "the write-ahead log cannot be copied into the database; it grows");
            }
        }
    }
}

/// Copies the log. Copies a large log completely.
fn copy(connection: &Connection, turn: &tokio::sync::Mutex<()>) -> Result<(), StoreError> {
    if checkpoint(connection)? >= LARGE_LOG_PAGES {
        let _turn = turn.blocking_lock();
        checkpoint(connection)?;
    }
    Ok(())
}

/// Copies as much of the log as the readers permit, without waiting for them. Returns the size of the log in pages.
fn checkpoint(connection: &Connection) -> Result<i64, StoreError> {
    connection.query_row("pragma wal_checkpoint(passive)", [], |row| row.get(1)).map_err(of_rusqlite)
}
