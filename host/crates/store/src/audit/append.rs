//! Writing events: the one statement that every call waits for.

use std::fmt::Write as _;
use std::sync::LazyLock;

use super::{AuditRow, COLUMNS, columns};
use crate::db::Arg;
use crate::{Store, StoreError};

/// Rows a statement: one for a lonely call, eight and sixty-four for groups. Few texts, so that each is prepared once;
/// 64 rows are 1 664 parameters, far below the 32 766 of SQLite and the 65 535 of PostgreSQL.
static STATEMENTS: LazyLock<[(usize, String); 3]> = LazyLock::new(|| [64, 8, 1].map(|rows| (rows, insert(rows))));

impl Store {
    /// Appends events, all or none. When this returns they are on disk.
    pub async fn append(&self, rows: &[AuditRow]) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        let mut session = self.db.write().await?;
        let mut rest = rows;
        for (size, sql) in STATEMENTS.iter() {
            while let Some((group, more)) = rest.split_at_checked(*size) {
                session.run(sql, &values(group)).await?;
                rest = more;
                if rest.is_empty() {
                    break;
                }
            }
        }
        session.commit().await
    }
}

fn insert(rows: usize) -> String {
    let mut sql = concat!("insert into audit_events (", columns!(), ") values").to_owned();
    for row in 0..rows {
        sql.push_str(if row == 0 { " (" } else { ", (" });
        for column in 1..=COLUMNS {
            let comma = if column == 1 { "" } else { ", " };
            write!(sql, "{comma}${}", row * COLUMNS + column).expect("writing to a String does not fail");
        }
        sql.push(')');
    }
    sql
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
