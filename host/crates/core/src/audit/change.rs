//! Changes of permissions. A change is recorded before it is made, with the old and the new state.
//!
//! Changes are in the same chains as calls, as rows `started` and `finished` with the flag `change`. If the host ends
//! during a change, the next start marks it as interrupted, like a call.

use std::fmt::Display;
use std::sync::Arc;

use monstrum_store::{AuditRow, CHANGE_FLAG};
use monstrum_types::{BotId, CallOutcome, Code, JsonText, KeyId, RequestId, ResourceId, WorkspaceId};
use serde_json::{Value, json};

use super::{AuditUnavailable, Auditor, Entry, started};

/// A change of permissions, and the key that makes it.
pub struct Change {
    pub request_id: RequestId,
    pub workspace: WorkspaceId,
    /// The API key of the request; `None` for a command on the data folder.
    pub key: Option<KeyId>,
    /// The kind of that key, if it is known.
    pub key_kind: Option<&'static str>,
    /// The kind of change, such as `role.update`.
    pub what: &'static str,
    /// The id or the name of the changed object.
    pub object: String,
    pub bot: Option<BotId>,
    pub resource: Option<ResourceId>,
    /// The old state in the form of the API; null for a new object.
    pub before: Value,
    /// The new state in the form of the API; null for a deleted object.
    pub after: Value,
}

impl Change {
    /// Creates a change with a new request id, which no API key makes.
    pub fn new(workspace: WorkspaceId, what: &'static str, object: String) -> Change {
        Change {
            request_id: RequestId::new(),
            workspace,
            key: None,
            key_kind: None,
            what,
            object,
            bot: None,
            resource: None,
            before: Value::Null,
            after: Value::Null,
        }
    }
}

impl Auditor {
    /// Records `change`, makes it by running `work`, and records the outcome. `code` is the code of an error of `work`.
    /// If the first record cannot be written, `work` does not run: the row `started` is on disk before the change.
    ///
    /// Returns the result of `work`, and whether the row of the outcome is on disk. If it is not, the audit's writer
    /// writes the row as soon as it can.
    pub async fn record<T, E: Display>(
        &self,
        change: Change,
        work: impl Future<Output = Result<T, E>>,
        code: impl FnOnce(&E) -> Code,
    ) -> Result<(Result<T, E>, Result<(), AuditUnavailable>), AuditUnavailable> {
        self.record_all(vec![change], work, code).await
    }

    /// Records several changes that `work` makes together, like [`Auditor::record`]. They have one outcome.
    pub async fn record_all<T, E: Display>(
        &self,
        changes: Vec<Change>,
        work: impl Future<Output = Result<T, E>>,
        code: impl FnOnce(&E) -> Code,
    ) -> Result<(Result<T, E>, Result<(), AuditUnavailable>), AuditUnavailable> {
        let mut entries = Vec::with_capacity(changes.len());
        for change in changes {
            let entry = self.open_change(change)?;
            entry.started().await?;
            entries.push(entry);
        }
        let done = work.await;
        let outcome = match &done {
            Ok(_) => CallOutcome::success(JsonText::from(&Value::Null)),
            Err(error) => CallOutcome::error(code(error), error.to_string()),
        };
        let closed = async {
            for entry in &entries {
                entry.close(&outcome, Vec::new()).await?.committed().await?;
            }
            Ok(())
        };
        Ok((done, closed.await))
    }

    fn open_change(&self, change: Change) -> Result<Entry, AuditUnavailable> {
        self.must_be_healthy()?;
        let Change { request_id, workspace, key, key_kind, what, object, bot, resource, before, after } = change;
        let params = json!({
            "key_id": key, "key_kind": key_kind, "object": object, "before": before, "after": after,
        });
        let row = AuditRow {
            bot_id: bot,
            resource_id: resource,
            operation: Some(what.to_owned()),
            params: Some(params.to_string()),
            flags: Some(CHANGE_FLAG.to_owned()),
            ..started(request_id, workspace, self.clock.now())
        };
        Ok(self.entry(row, Arc::default()))
    }
}
