//! The audit's rows of what these routes read: whose key, which path and how much, never the content.

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

/// The row of one request.
pub struct Record(Entry);

impl Record {
    /// Has it on disk that a path is about to be read. Without that nothing is.
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

    /// Records how it ended. `told` names what was read and counts it; it is on disk before it leaves.
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

    /// Records that nothing was read.
    pub(super) fn failed(&self, error: &OperationError) {
        self.0.close_at_once(&CallOutcome::error(Code::Unavailable, error.to_string()));
    }

    /// The content on its way. How much of it has left is recorded when it ends, or when its client takes no more.
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

/// What has left of a content.
struct Sent {
    record: Arc<Record>,
    bytes: u64,
    /// How much there is, where that is known.
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
        // A body whose length is told is not asked for more once it has that length.
        let is_whole = self.length == Some(self.bytes);
        self.end(&if is_whole { success() } else { broken_off() });
    }
}

fn success() -> CallOutcome {
    CallOutcome::success(JsonText::from(&Value::Null))
}

fn broken_off() -> CallOutcome {
    CallOutcome::error(Code::Unavailable, "the download was broken off")
}

fn unrecorded() -> OperationError {
    OperationError::unavailable("the audit cannot be written, so nothing is read")
}
