//! Changes of what is permitted: recorded before they are made, with what was there before and what comes after.
//!
//! They stand in the same chains as calls, as `started` and `finished` with the flag `change`, so that a change that was
//! under way when the host ended is marked like a call that was.

use std::sync::Arc;

use monstrum_store::{AuditRow, CHANGE_FLAG};
use monstrum_types::{BotId, KeyId, RequestId, ResourceId, WorkspaceId};
use serde_json::{Value, json};

use super::{AuditUnavailable, Auditor, Entry, started};

/// What is changed, by whom.
pub struct Change {
    pub request_id: RequestId,
    pub workspace: WorkspaceId,
    /// The API key that asked, and its kind; `None` for a command on the data folder.
    pub key: Option<KeyId>,
    pub key_kind: Option<&'static str>,
    /// What is done to what, such as `role.update`.
    pub what: &'static str,
    /// The id or the name of what is changed.
    pub object: String,
    pub bot: Option<BotId>,
    pub resource: Option<ResourceId>,
    /// As the API shows it; null for what is new.
    pub before: Value,
    /// Null for what is deleted.
    pub after: Value,
}

impl Auditor {
    /// Opens the entry of a change. It is on disk when [`Entry::started`] returns; only then is the change made.
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
