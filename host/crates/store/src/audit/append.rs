//! Insertion of audit events. Every call waits for this insertion.

use std::sync::LazyLock;

use super::{AuditRow, COLUMNS, columns};
use crate::db::{Arg, BulkInsert};
use crate::{Store, StoreError};

static INSERT: LazyLock<BulkInsert> = LazyLock::new(|| {
    let types = columns!().split(", ").map(|column| match column {
        "sequence" | "duration_ms" | "started_at" | "at" | "key_version" => "bigint",
        _ => "text",
    });
    BulkInsert::new(concat!("insert into audit_events (", columns!(), ")"), &types.collect::<Vec<_>>())
});

impl Store {
    /// Appends events in one transaction. If this returns successfully, the events are on disk. If the connection is
    /// lost during the operation, the events may or may not have been written.
    pub async fn append(&self, rows: &[AuditRow]) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        self.db.insert_rows(&INSERT, &values(rows)).await
    }
}

fn values(rows: &[AuditRow]) -> Vec<Arg<'_>> {
    let mut values = Vec::with_capacity(rows.len() * COLUMNS);
    for row in rows {
        values.extend([
            Arg::from(&row.writer),
            Arg::from(row.sequence),
            Arg::from(row.kind.as_str()),
            Arg::from(row.request_id),
            Arg::from(row.workspace_id),
            Arg::from(row.bot_id),
            Arg::from(&row.task_id),
            Arg::from(row.resource_id),
            Arg::from(&row.tool),
            Arg::from(&row.operation),
            Arg::from(&row.plugin),
            Arg::from(&row.plugin_digest),
            Arg::from(&row.status),
            Arg::from(&row.code),
            Arg::from(&row.message),
            Arg::from(&row.rule),
            Arg::from(&row.params),
            Arg::from(row.duration_ms),
            Arg::from(row.started_at),
            Arg::from(row.at),
            Arg::from(row.parent_request_id),
            Arg::from(&row.delegation),
            Arg::from(&row.flags),
            Arg::from(row.key_version),
            Arg::hex(&row.previous_hash),
            Arg::hex(&row.hash),
        ]);
    }
    values
}

impl Arg<'_> {
    fn hex(bytes: &[u8; 32]) -> Self {
        Arg::Text(Some(hex::encode(bytes).into()))
    }
}
