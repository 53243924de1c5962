//! Checkpoints of an SQLite file: a separate thread copies the write-ahead log into the database file, so that no
//! commit waits for the copy.
//!
//! A checkpoint runs concurrently with commits and never waits for a reader or a writer. After a checkpoint has copied
//! the whole log, SQLite reuses the log from its beginning. Under load, commits append to the log during a checkpoint.
//! If the log has become large, the thread therefore runs a second checkpoint while no transaction can begin, so that
//! little of the log remains to be copied.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::StoreError;
use crate::error::{of_rusqlite, unavailable};

/// The size in bytes (64 MiB) to which SQLite truncates the log when it reuses the log from its beginning, so that one
/// large transaction does not occupy disk space permanently.
pub(crate) const LOG_BYTES_KEPT: i64 = 64 << 20;
/// The interval between checkpoints while few bytes are written.
const INTERVAL: Duration = Duration::from_secs(1);
/// The number of written bytes after which a checkpoint runs before the interval has passed.
const BYTES_MAX: usize = 4 << 20;
/// The size of the log, in pages of 4 KiB, at which a second checkpoint runs while no transaction can begin. The value
/// corresponds to 16 MiB.
const LARGE_LOG_PAGES: i64 = 4096;

/// The checkpoint thread. The thread ends when this value is dropped.
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
    /// The number of bytes written since the last checkpoint.
    bytes: usize,
    is_closing: bool,
}

impl Checkpointer {
    /// Starts the thread, which is the only user of `connection`. Every transaction that writes to the file must hold
    /// `turn`.
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
            .map_err(|source| unavailable("the checkpoint thread cannot be started", source))?;
        Ok(Checkpointer { shared, ended: Mutex::new(Some(ended)) })
    }

    /// Records that a transaction wrote `bytes`. Wakes the thread if [`BYTES_MAX`] is reached.
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

    /// Waits until the next checkpoint is due. Returns `false` if the thread must end.
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
            Err(error) if is_failing => {
                tracing::debug!(%error, place, "still cannot copy the write-ahead log into the database");
            }
            Err(error) => {
                is_failing = true;
                tracing::warn!(
                    %error,
                    place,
                    "cannot copy the write-ahead log into the database; the log grows until a copy succeeds"
                );
            }
        }
    }
}

/// Runs a checkpoint. If the log is large, runs a second checkpoint while no transaction can begin.
fn copy(connection: &Connection, turn: &tokio::sync::Mutex<()>) -> Result<(), StoreError> {
    if checkpoint(connection)? >= LARGE_LOG_PAGES {
        let _turn = turn.blocking_lock();
        checkpoint(connection)?;
    }
    Ok(())
}

/// Copies as much of the log as current readers allow, without waiting for them. Returns the size of the log in pages.
fn checkpoint(connection: &Connection) -> Result<i64, StoreError> {
    connection.query_row("pragma wal_checkpoint(passive)", [], |row| row.get(1)).map_err(of_rusqlite)
}
