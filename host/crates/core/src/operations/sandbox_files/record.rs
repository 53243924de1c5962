//! The audit rows of reads through the file routes: the key, the path and the number of bytes or entries, but never the
//! content.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use monstrum_sandbox::{ByteStream, SandboxError};
use monstrum_store::SandboxRow;
use monstrum_types::{CallOutcome, Code, JsonText};
use serde_json::Value;

use crate::app::App;
use crate::audit::{Entry, Reading};
use crate::operations::{Caller, OperationError};

/// The audit row of one request.
pub struct Record(Entry);

impl Record {
    /// Writes the row of a read. The row is on disk before the read begins. Fails if the audit cannot be written.
    pub(super) async fn begin(
        operation: &'static str,
        app: &App,
        caller: &Caller,
        row: &SandboxRow,
        path: &str,
    ) -> Result<Arc<Record>, OperationError> {
        let entry = app.auditor.open_reading(Reading {
            request_id: caller.request,
            workspace: caller.workspace,
            key: caller.key,
            key_kind: caller.kind.as_str(),
            operation,
            object: row.id.to_string(),
            bot: row.bot_id,
            path: path.to_owned(),
        });
        let entry = entry.map_err(|_| unrecorded())?;
        entry.started().await.map_err(|_| unrecorded())?;
        Ok(Arc::new(Record(entry)))
    }

    /// Records the outcome of a read. `told` returns a name and a number, such as the number of bytes. The row is on
    /// disk before the answer leaves.
    pub(super) async fn ended<T>(
        &self,
        done: Result<T, OperationError>,
        told: impl FnOnce(&T) -> (&'static str, usize),
    ) -> Result<T, OperationError> {
        let answer = match done {
            Ok(answer) => answer,
            Err(error) => {
                self.failed(&error);
                return Err(error);
            }
        };
        let (name, count) = told(&answer);
        self.0.found(name, count as u64);
        let closed = async { self.0.close(&success(), Vec::new()).await?.committed().await };
        closed.await.map_err(|_| unrecorded())?;
        Ok(answer)
    }

    /// Records a read that failed.
    pub(super) fn failed(&self, error: &OperationError) {
        self.0.close_at_once(&CallOutcome::error(error.code(), error.to_string()));
    }

    /// Counts the content while it is sent. The number of bytes is recorded when the content ends or the client
    /// disconnects.
    pub fn follow(self: &Arc<Self>, content: ByteStream, length: Option<u64>) -> ByteStream {
        let sent = Sent { record: Arc::clone(self), bytes: 0, length, is_recorded: false };
        let next = async |(mut content, mut sent): (ByteStream, Sent)| {
            let piece = content.next().await;
            sent.count(piece.as_ref());
            piece.map(|piece| (piece, (content, sent)))
        };
        stream::unfold((content, sent), next).boxed()
    }
}

/// The progress of a transfer, and the audit row that records it.
struct Sent {
    record: Arc<Record>,
    bytes: u64,
    /// The length of the content, if it is known.
    length: Option<u64>,
    is_recorded: bool,
}

impl Sent {
    fn count(&mut self, piece: Option<&Result<Bytes, SandboxError>>) {
        match piece {
            Some(Ok(piece)) => self.bytes += piece.len() as u64,
            Some(Err(_)) => self.end(&broken_off()),
            None => self.end(&success()),
        }
    }

    fn end(&mut self, outcome: &CallOutcome) {
        if !std::mem::replace(&mut self.is_recorded, true) {
            self.record.0.found("bytes", self.bytes);
            self.record.0.close_at_once(outcome);
        }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        // If the length of a body is known, the server does not poll it again after the last byte.
        let is_whole = self.length == Some(self.bytes);
        self.end(&if is_whole { success() } else { broken_off() });
    }
}

fn success() -> CallOutcome {
    CallOutcome::success(JsonText::from(&Value::Null))
}

fn broken_off() -> CallOutcome {
    CallOutcome::error(Code::Unavailable, "the download was interrupted")
}

fn unrecorded() -> OperationError {
    OperationError::unavailable("the audit cannot be written, so nothing was read")
}
