//! The audit log: append-only tables of events. Hashes, which the host computes and verifies, link the events into
//! chains.
//!
//! New rows have version 2 and are in `audit_rows`: the column `body` is the canonical text that the hash covers, and
//! the other columns only select rows. Rows of version 1, which earlier releases wrote, stay in `audit_events`. Their
//! hash covers the canonical text of all columns, which is computed each time. A chain begins in `audit_events`, if it
//! has rows there, and continues in `audit_rows`.
//!
//! Rows that were archived are deleted from the beginning of a chain, and an anchor remains in their place.
//!
//! An edit of any column is detected, because decoding is strict: two different stored values of a column never decode
//! to the same value, and verification compares the columns of version 2 with `body`. An invalid value makes the row
//! unreadable, and verification reports the row.

mod anchors;
mod append;
mod body;
mod canonical;
mod ends;
mod first;
mod queries;
mod scan;
mod spans;
mod stats;
mod tree;

use monstrum_types::{BotId, RequestId, ResourceId, UtcMillis, WorkspaceId, words};

pub use anchors::AnchorRow;
pub use append::ChainedRow;
pub use ends::{ChainEnd, FollowedRow};
pub use queries::CallFilter;
pub use scan::{ScanFrom, ScanPage, ScannedRow, UnreadableRow};
pub use spans::{SpanRow, SpanScanner};
pub use stats::{CallCount, CallCounts, CallProperty, STATS_GROUPS_MAX, STATS_ROWS_MAX, StatsQuery};
pub use tree::{CallTree, TREE_COUNTED_MAX};

words! {
    /// The kind of an audit event.
    pub enum AuditKind {
        /// The call or change is about to have effects outside the host.
        Started = "started",
        /// The call or change has ended.
        Finished = "finished",
        /// The host stopped before the call or change ended.
        Interrupted = "interrupted",
    }
}

/// The value of `flags` in rows about a permission change instead of a call.
pub const CHANGE_FLAG: &str = "change";

/// A row of the audit, of either version. Fields with unknown values are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    /// The node whose chain contains the row.
    pub writer: String,
    /// The position of the row in its chain.
    pub sequence: i64,
    pub kind: AuditKind,
    pub request_id: RequestId,
    pub workspace_id: Option<WorkspaceId>,
    pub bot_id: Option<BotId>,
    /// The app of the user on whose behalf the call was made. Rows of version 1 have no user.
    pub app_id: Option<String>,
    /// The user of the app.
    pub user_id: Option<String>,
    pub task_id: Option<String>,
    pub resource_id: Option<ResourceId>,
    /// The requested tool name, even if the tool does not exist.
    pub tool: Option<String>,
    pub operation: Option<String>,
    pub plugin: Option<String>,
    pub plugin_digest: Option<String>,
    pub status: Option<String>,
    pub code: Option<String>,
    pub message: Option<String>,
    pub rule: Option<String>,
    /// The parameters as JSON. Large parameters are replaced by their digest and their beginning.
    pub params: Option<String>,
    pub duration_ms: Option<i64>,
    /// The time when the call started.
    pub started_at: UtcMillis,
    /// The time of this event.
    pub at: UtcMillis,
    pub parent_request_id: Option<RequestId>,
    /// The delegation as JSON.
    pub delegation: Option<String>,
    pub flags: Option<String>,
    /// The version of the audit key that computed the hash.
    pub key_version: i64,
    /// The hash of the previous row in the chain; all zeros for the first row.
    pub previous_hash: [u8; 32],
    pub hash: [u8; 32],
}

impl AuditKind {
    /// The information that a row of this kind has about a call: the end more than the interruption, and the
    /// interruption more than the start.
    fn rank(self) -> u8 {
        match self {
            AuditKind::Started => 0,
            AuditKind::Interrupted => 1,
            AuditKind::Finished => 2,
        }
    }
}

impl AuditRow {
    /// Whether the event is about a permission change instead of a call.
    #[must_use]
    pub fn is_of_change(&self) -> bool {
        self.flags.as_deref() == Some(CHANGE_FLAG)
    }

    /// Returns the status of the call in the API: `running` before the call ends, `interrupted` if the host stopped.
    #[must_use]
    pub fn call_status(&self) -> Option<&str> {
        match self.kind {
            AuditKind::Started => Some("running"),
            AuditKind::Interrupted => Some("interrupted"),
            AuditKind::Finished => self.status.as_deref(),
        }
    }

    /// Returns the time when the call ended, or `None` while the call is running.
    #[must_use]
    pub fn finished_at(&self) -> Option<UtcMillis> {
        (self.kind != AuditKind::Started).then_some(self.at)
    }

    /// Replaces every U+0000, which PostgreSQL cannot store, with U+FFFD. Callers choose tool and task names, so
    /// U+0000 can occur. The replacement must happen before the row is hashed.
    #[must_use]
    pub fn without_nul(mut self) -> Self {
        let optional = [
            &mut self.app_id,
            &mut self.user_id,
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
