//! Readings of what a conversation keeps: recorded like calls, with what was asked for and how much was read, and without
//! the content.

use std::sync::Arc;

use monstrum_store::AuditRow;
use monstrum_types::{BotId, CallOutcome, KeyId, RequestId, WorkspaceId};
use serde_json::{Value, json};

use super::{AuditUnavailable, Auditor, Entry, started};

/// What is read, by whom.
pub struct Reading {
    pub request_id: RequestId,
    pub workspace: WorkspaceId,
    /// The API key that asked, and its kind.
    pub key: KeyId,
    pub key_kind: &'static str,
    /// The operation, such as `sandbox.read`.
    pub operation: &'static str,
    /// The id of what is read from.
    pub object: String,
    pub bot: BotId,
    pub path: String,
}

impl Auditor {
    /// Opens the entry of a reading. It is on disk when [`Entry::started`] returns; only then is anything read.
    pub fn open_reading(&self, reading: Reading) -> Result<Entry, AuditUnavailable> {
        self.must_be_healthy()?;
        let Reading { request_id, workspace, key, key_kind, operation, object, bot, path } = reading;
        let params = json!({ "key_id": key, "key_kind": key_kind, "object": object, "path": path });
        let row = AuditRow {
            bot_id: Some(bot),
            operation: Some(operation.to_owned()),
            params: Some(params.to_string()),
            ..started(request_id, workspace, self.clock.now())
        };
        Ok(self.entry(row, Arc::default()))
    }
}

impl Entry {
    /// Adds what a reading has found out, such as how many bytes were read, to what its end says.
    pub fn found(&self, name: &str, value: u64) {
        let mut row = self.row.lock();
        let params = row.params.as_deref().and_then(|params| serde_json::from_str(params).ok());
        if let Some(Value::Object(mut params)) = params {
            params.insert(name.to_owned(), json!(value));
            row.params = Some(Value::Object(params).to_string());
        }
    }

    /// Queues the end without waiting for its row: what was read has left already.
    pub fn close_at_once(&self, outcome: &CallOutcome) {
        self.close_with(self.finished(outcome));
    }
}
