//! Insertion of audit rows. Every call waits for this insertion.

use std::sync::LazyLock;

use super::AuditRow;
use crate::db::{Arg, BulkInsert};
use crate::{Store, StoreError, StoreRow};

static INSERT: LazyLock<BulkInsert> = LazyLock::new(|| {
    BulkInsert::new(
        "audit_rows",
        &[
            ("writer", "text"),
            ("sequence", "bigint"),
            ("hash", "bytea"),
            ("body", "text"),
            ("kind", "text"),
            ("flags", "text"),
            ("request_id", "bytea"),
            ("workspace_id", "bytea"),
            ("bot_id", "bytea"),
            ("tool", "text"),
            ("operation", "text"),
            ("status", "text"),
            ("started_at", "bigint"),
        ],
    )
});

/// A row that is linked to its chain, and the canonical text that its hash covers.
#[derive(Clone, Copy)]
pub struct ChainedRow<'a> {
    pub row: &'a AuditRow,
    pub body: &'a str,
}

impl ChainedRow<'_> {
    /// The values of the columns, in the order of the insert.
    fn values(&self) -> [Arg<'_>; 13] {
        let row = self.row;
        [
            Arg::from(&row.writer),
            Arg::from(row.sequence),
            Arg::from(row.hash.as_slice()),
            Arg::from(self.body),
            Arg::from(row.kind.as_str()),
            Arg::from(&row.flags),
            Arg::from(row.request_id.as_bytes().as_slice()),
            Arg::Bytes(row.workspace_id.as_ref().map(|id| id.as_bytes().as_slice())),
            Arg::Bytes(row.bot_id.as_ref().map(|id| id.as_bytes().as_slice())),
            Arg::from(&row.tool),
            Arg::from(&row.operation),
            Arg::from(row.call_status().unwrap_or_default()),
            Arg::from(row.started_at),
        ]
    }
}

impl Store {
    /// Appends rows to a chain, and writes `with`, in one transaction. If this function succeeds, they are on disk.
    /// Returns, for each item of `with`, whether it was written. A charge that exceeds its budget is not written; the
    /// other items are written nevertheless. If the connection is lost during the operation, the transaction may or may
    /// not have been committed.
    pub async fn append(&self, rows: &[ChainedRow<'_>], with: &[StoreRow]) -> Result<Vec<bool>, StoreError> {
        if rows.is_empty() && with.is_empty() {
            return Ok(Vec::new());
        }
        self.db.append(&INSERT, rows.iter().map(ChainedRow::values), with).await
    }
}
