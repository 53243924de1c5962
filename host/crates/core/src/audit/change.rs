//! Changes of permissions. A change is recorded before it is made, with the old and the new state.
//!
//! Changes are in the same chains as calls, as rows `started` and `finished` with the flag `change`. If the host ends
//! during a change, the next start marks it as interrupted, like a call.

use std::sync::Arc;

use monstrum_store::{AuditRow, CHANGE_FLAG};
use monstrum_types::{BotId, KeyId, RequestId, ResourceId, WorkspaceId};
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

impl Auditor {
    /// Opens the entry of a change. The change must not be made before [`Entry::started`] has returned, because its row
    /// is on disk only then.
    pub fn open_change(&self, change: Change) -> Result<Entry, AuditUnavailable> {
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
