//! Reads of the files of a conversation. A read is recorded like a call, with the path and the amount of data, but
//! without the content.

use std::sync::Arc;

use monstrum_store::AuditRow;
use monstrum_types::{BotId, CallOutcome, KeyId, RequestId, WorkspaceId};
use serde_json::{Value, json};

use super::{AuditUnavailable, Auditor, Entry, started};

/// A read of a file or folder, and the key that requests it.
pub struct Reading {
    pub request_id: RequestId,
    pub workspace: WorkspaceId,
    /// The API key of the request.
    pub key: KeyId,
    /// The kind of that key.
    pub key_kind: &'static str,
    /// The operation, such as `sandbox.read`.
    pub operation: &'static str,
    /// The id of the object from which data is read.
    pub object: String,
    pub bot: BotId,
    pub path: String,
}

impl Auditor {
    /// Opens the entry of a read. Data must not be read before [`Entry::started`] has returned, because the row is on
    /// disk only then.
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
    /// Adds a result of a read, such as the number of bytes, to the row `finished`.
    pub fn found(&self, name: &str, value: u64) {
        let mut row = self.row.lock();
        let params = row.params.as_deref().and_then(|params| serde_json::from_str(params).ok());
        if let Some(Value::Object(mut params)) = params {
            params.insert(name.to_owned(), json!(value));
            row.params = Some(Value::Object(params).to_string());
        }
    }

    /// Queues the row `finished` without waiting, because the data has already left the host.
    pub fn close_at_once(&self, outcome: &CallOutcome) {
        self.close_with(self.finished(outcome));
    }
}
