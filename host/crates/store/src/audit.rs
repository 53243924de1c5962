//! The audit: one append-only table of events, chained by hashes that the host computes and verifies.
//!
//! A hash is over [`AuditRow::canonical`], which is computed from the columns each time, so that it reveals an edit of
//! any column. Reads are therefore strict: different contents of a column never read as the same value, and an invalid
//! value makes the row unreadable, which verification reports.

mod append;
mod canonical;
mod queries;

use monstrum_types::{BotId, RequestId, ResourceId, UtcMillis, WorkspaceId};

use crate::StoreError;
use crate::db::{ColumnValue, Row, from_row};

pub use queries::{CallFilter, ScanPage, UnreadableRow};

/// An event of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AuditKind {
    /// It is about to have effects outside of the host.
    Started,
    /// It ended.
    Finished,
    /// The host stopped before it ended.
    Interrupted,
}

impl AuditKind {
    /// The word in the column.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            AuditKind::Started => "started",
            AuditKind::Finished => "finished",
            AuditKind::Interrupted => "interrupted",
        }
    }
}

/// The flag of rows about a change of permissions instead of a call.
pub const CHANGE_FLAG: &str = "change";

/// A row of `audit_events`. Unknown values are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    /// The node whose chain it belongs to.
    pub writer: String,
    /// Its position in the chain.
    pub sequence: i64,
    pub kind: AuditKind,
    pub request_id: RequestId,
    pub workspace_id: Option<WorkspaceId>,
    pub bot_id: Option<BotId>,
    pub task_id: Option<String>,
    pub resource_id: Option<ResourceId>,
    /// The requested name, even if the tool does not exist.
    pub tool: Option<String>,
    pub operation: Option<String>,
    pub plugin: Option<String>,
    pub plugin_digest: Option<String>,
    pub status: Option<String>,
    pub code: Option<String>,
    pub message: Option<String>,
    pub rule: Option<String>,
    /// JSON; for large parameters, their digest and their beginning.
    pub params: Option<String>,
    pub duration_ms: Option<i64>,
    /// When the call began.
    pub started_at: UtcMillis,
    /// When this event happened.
    pub at: UtcMillis,
    pub parent_request_id: Option<RequestId>,
    /// JSON.
    pub delegation: Option<String>,
    pub flags: Option<String>,
    /// The version of the audit key.
    pub key_version: i64,
    /// The hash of the previous row in the chain; zeros for the first row.
    pub previous_hash: [u8; 32],
    pub hash: [u8; 32],
}

impl AuditRow {
    /// Whether the event is a change of permissions instead of a call.
    #[must_use]
    pub fn is_of_change(&self) -> bool {
        self.flags.as_deref() == Some(CHANGE_FLAG)
    }

    /// The status of the call in the API: `running` before it ends, `interrupted` if the host stopped.
    #[must_use]
    pub fn call_status(&self) -> Option<&str> {
        match self.kind {
            AuditKind::Started => Some("running"),
            AuditKind::Interrupted => Some("interrupted"),
            AuditKind::Finished => self.status.as_deref(),
        }
    }

    /// When the call ended; `None` while it is running.
    #[must_use]
    pub fn finished_at(&self) -> Option<UtcMillis> {
        (self.kind != AuditKind::Started).then_some(self.at)
    }

    /// Replaces every U+0000, which PostgreSQL cannot store, by U+FFFD. Callers choose the names of tools and tasks, so
    /// this must happen before the row is hashed.
    #[must_use]
    pub fn without_nul(mut self) -> Self {
        let optional = [
            &mut self.task_id,
            &mut self.tool,
            &mut self.operation,
            &mut self.plugin,
            &mut self.plugin_digest,
            &mut self.status,
            &mut self.code,
            &mut self.message,
            &mut self.rule,
            &mut self.params,
            &mut self.delegation,
            &mut self.flags,
        ];
        for text in optional.into_iter().flatten().chain([&mut self.writer]) {
            if text.contains('\0') {
                *text = text.replace('\0', "\u{fffd}");
            }
        }
        self
    }
}

/// The columns, in the order of the values that [`append`] writes.
macro_rules! columns {
    () => {
        "writer, sequence, kind, request_id, workspace_id, bot_id, task_id, resource_id, tool, operation, plugin, \
         plugin_digest, status, code, message, rule, params, duration_ms, started_at, at, parent_request_id, \
         delegation, flags, key_version, previous_hash, hash"
    };
}
use columns;

const COLUMNS: usize = 26;

from_row! {
    AuditRow {
        writer, sequence, kind, request_id, workspace_id, bot_id, task_id, resource_id, tool, operation, plugin,
        plugin_digest, status, code, message, rule, params, duration_ms, started_at, at, parent_request_id, delegation,
        flags, key_version, previous_hash, hash,
    }
}

impl ColumnValue for AuditKind {
    fn read(row: &Row, column: &'static str) -> Result<Option<Self>, StoreError> {
        row.parse(column, |word| {
            let kinds = [AuditKind::Started, AuditKind::Finished, AuditKind::Interrupted];
            kinds.into_iter().find(|kind| kind.as_str() == word)
        })
    }
}

/// A hash, which has only one valid spelling: 64 lower-case hex digits.
impl ColumnValue for [u8; 32] {
    fn read(row: &Row, column: &'static str) -> Result<Option<Self>, StoreError> {
        row.parse(column, |text| {
            let mut bytes = [0; 32];
            hex::decode_to_slice(text, &mut bytes).ok()?;
            (!text.bytes().any(|byte| byte.is_ascii_uppercase())).then_some(bytes)
        })
    }
}
