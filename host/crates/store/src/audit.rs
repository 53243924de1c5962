//! The audit: one append-only table of events, chained by hashes that this crate neither makes nor checks.
//!
//! What is hashed is [`AuditRow::canonical`], built anew from the columns each time, so that an edit of any column is
//! found. Reading is therefore strict: a column that holds what was never written there makes the row unreadable, which
//! is a finding too, and no two contents of a column read as the same value.

mod append;
mod canonical;
mod queries;

use monstrum_types::{BotId, RequestId, ResourceId, UtcMillis, WorkspaceId};

use crate::StoreError;
use crate::db::{FromRow, Row, unfit};

pub use queries::{CallFilter, ScanPage, UnreadableRow};

/// What happened to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AuditKind {
    /// It is about to touch the outside.
    Started,
    /// It ended.
    Finished,
    /// The host ended before it did.
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

/// The flag of rows that are of a change of what is permitted, and of no call.
pub const CHANGE_FLAG: &str = "change";

/// A row of `audit_events`. What is not known is None.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    /// The node whose chain it belongs to.
    pub writer: String,
    /// Its place in the chain.
    pub sequence: i64,
    pub kind: AuditKind,
    pub request_id: RequestId,
    pub workspace_id: Option<WorkspaceId>,
    pub bot_id: Option<BotId>,
    pub task_id: Option<String>,
    pub resource_id: Option<ResourceId>,
    /// As it was asked for, whether there is such a tool or not.
    pub tool: Option<String>,
    pub operation: Option<String>,
    pub plugin: Option<String>,
    pub plugin_digest: Option<String>,
    pub status: Option<String>,
    pub code: Option<String>,
    pub message: Option<String>,
    pub rule: Option<String>,
    /// JSON; of large parameters, the digest and the beginning.
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
    /// The hash of the row before it in the chain; zeros for the first.
    pub previous_hash: [u8; 32],
    pub hash: [u8; 32],
}

impl AuditRow {
    /// Whether it is of a change of what is permitted, and of no call.
    #[must_use]
    pub fn is_of_change(&self) -> bool {
        self.flags.as_deref() == Some(CHANGE_FLAG)
    }

    /// The status of the call as its callers see it: `running` before its end, `interrupted` where it has none.
    #[must_use]
    pub fn call_status(&self) -> Option<&str> {
        match self.kind {
            AuditKind::Started => Some("running"),
            AuditKind::Interrupted => Some("interrupted"),
            AuditKind::Finished => self.status.as_deref(),
        }
    }

    /// When the call ended; None while it runs.
    #[must_use]
    pub fn finished_at(&self) -> Option<UtcMillis> {
        (self.kind != AuditKind::Started).then_some(self.at)
    }

    /// The row with U+FFFD for every U+0000, which PostgreSQL cannot store. Callers choose the names of tools and
    /// tasks, so it must happen before the row is hashed.
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

impl FromRow for AuditRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(AuditRow {
            writer: row.text("writer")?,
            sequence: row.int("sequence")?,
            kind: kind(&row.text("kind")?)?,
            request_id: row.id("request_id")?,
            workspace_id: row.id_opt("workspace_id")?,
            bot_id: row.id_opt("bot_id")?,
            task_id: row.text_opt("task_id")?,
            resource_id: row.id_opt("resource_id")?,
            tool: row.text_opt("tool")?,
            operation: row.text_opt("operation")?,
            plugin: row.text_opt("plugin")?,
            plugin_digest: row.text_opt("plugin_digest")?,
            status: row.text_opt("status")?,
            code: row.text_opt("code")?,
            message: row.text_opt("message")?,
            rule: row.text_opt("rule")?,
            params: row.text_opt("params")?,
            duration_ms: row.int_opt("duration_ms")?,
            started_at: row.time("started_at")?,
            at: row.time("at")?,
            parent_request_id: row.id_opt("parent_request_id")?,
            delegation: row.text_opt("delegation")?,
            flags: row.text_opt("flags")?,
            key_version: row.int("key_version")?,
            previous_hash: hash(row, "previous_hash")?,
            hash: hash(row, "hash")?,
        })
    }
}

fn kind(word: &str) -> Result<AuditKind, StoreError> {
    match word {
        "started" => Ok(AuditKind::Started),
        "finished" => Ok(AuditKind::Finished),
        "interrupted" => Ok(AuditKind::Interrupted),
        _ => Err(unfit("kind", "not of the right form")),
    }
}

/// A hash has one spelling only: 64 lower-case hex digits.
fn hash(row: &Row, column: &'static str) -> Result<[u8; 32], StoreError> {
    let text = row.text(column)?;
    let mut bytes = [0; 32];
    let decoded = hex::decode_to_slice(&text, &mut bytes);
    if decoded.is_err() || text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err(unfit(column, "not of the right form"));
    }
    Ok(bytes)
}
