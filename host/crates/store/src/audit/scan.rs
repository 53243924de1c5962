//! Scans of audit chains, for verification.

use monstrum_types::UtcMillis;

use super::AuditRow;
use super::first::columns;
use crate::db::{FromRow, Row, args, invalid_column};
use crate::{Store, StoreError};

/// A row of an audit chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedRow {
    /// The row, at the place where it is stored.
    pub row: AuditRow,
    /// The text that the hash covers after the previous hash.
    pub canonical: Vec<u8>,
    /// The first column that contradicts the text, because another program has changed one of them.
    pub contradiction: Option<&'static str>,
}

/// A row of an audit chain that cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableRow {
    /// The position of the row in its chain, if it can be decoded.
    pub sequence: Option<i64>,
    /// The name of the invalid column and a description of the error.
    pub what: String,
}

/// A position from which a chain is scanned. A chain begins with its rows of version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanFrom {
    /// The rows of version 1 from this sequence number on, and all rows of version 2.
    Version1(i64),
    /// The rows of version 2 from this sequence number on.
    Version2(i64),
}

impl ScanFrom {
    /// The beginning of a chain.
    pub const START: ScanFrom = ScanFrom::Version1(i64::MIN);
}

/// Consecutive rows of an audit chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanPage {
    pub rows: Vec<Result<ScannedRow, UnreadableRow>>,
    /// The position of the next page; `None` on the last page.
    pub next: Option<ScanFrom>,
}

const VERSION_1: &str = concat!(
    "select ",
    columns!(),
    " from audit_events where writer = $1 and sequence >= $2 order by sequence limit $3"
);
const VERSION_2: &str = "select writer, sequence, hash, body, kind, flags, request_id, workspace_id, bot_id, tool, \
    operation, status, started_at from audit_rows where writer = $1 and sequence >= $2 order by sequence limit $3";

impl Store {
    /// Returns up to `limit` rows of a chain. A row that cannot be decoded is returned as an `UnreadableRow` in its
    /// place.
    pub async fn scan(&self, writer: &str, from: ScanFrom, limit: u32) -> Result<ScanPage, StoreError> {
        let (sql, sequence) = match from {
            ScanFrom::Version1(sequence) => (VERSION_1, sequence),
            ScanFrom::Version2(sequence) => (VERSION_2, sequence),
        };
        let rows = self.db.read().await?.fetch(sql, args![writer, sequence, i64::from(limit.max(1))]).await?;
        let is_full = rows.len() >= limit.max(1) as usize;
        // SQLite sorts a sequence that is not a number after all numbers. A page that ends with such a sequence is
        // therefore the last page of its version.
        let behind = match rows.last() {
            Some(last) if is_full => last.get("sequence").ok().and_then(|sequence: i64| sequence.checked_add(1)),
            _ => None,
        };
        let next = match from {
            ScanFrom::Version1(_) => Some(behind.map_or(ScanFrom::Version2(i64::MIN), ScanFrom::Version1)),
            ScanFrom::Version2(_) => behind.map(ScanFrom::Version2),
        };
        let decode = match from {
            ScanFrom::Version1(_) => of_version_1,
            ScanFrom::Version2(_) => of_version_2,
        };
        let rows = rows.iter().map(|row| {
            decode(row).map_err(|error| UnreadableRow { sequence: row.get("sequence").ok(), what: error.to_string() })
        });
        Ok(ScanPage { rows: rows.collect(), next })
    }
}

fn of_version_1(row: &Row) -> Result<ScannedRow, StoreError> {
    let row = AuditRow::from_row(row)?;
    Ok(ScannedRow { canonical: row.canonical_of_version_1(), row, contradiction: None })
}

fn of_version_2(found: &Row) -> Result<ScannedRow, StoreError> {
    let (body, hash) = (found.get::<String>("body")?, found.get::<Vec<u8>>("hash")?);
    let hash = hash.try_into().map_err(|_| invalid_column("hash", "not 32 bytes"))?;
    let mut row = AuditRow::of_body(&body, hash)?;
    let (writer, sequence) = (found.get::<String>("writer")?, found.get::<i64>("sequence")?);
    let id = |column: &'static str| found.get::<Option<Vec<u8>>>(column);
    let request: &[u8] = row.request_id.as_bytes();
    let agree = [
        ("writer", writer == row.writer),
        ("sequence", sequence == row.sequence),
        ("kind", found.get::<String>("kind")? == row.kind.as_str()),
        ("flags", found.get::<Option<String>>("flags")? == row.flags),
        ("request_id", id("request_id")?.as_deref() == Some(request)),
        ("workspace_id", id("workspace_id")? == row.workspace_id.map(|id| id.as_bytes().to_vec())),
        ("bot_id", id("bot_id")? == row.bot_id.map(|id| id.as_bytes().to_vec())),
        ("tool", found.get::<Option<String>>("tool")? == row.tool),
        ("operation", found.get::<Option<String>>("operation")? == row.operation),
        ("status", found.get::<String>("status")? == row.call_status().unwrap_or_default()),
        ("started_at", found.get::<UtcMillis>("started_at")? == row.started_at),
    ];
    let contradiction = agree.iter().find(|(_, agrees)| !agrees).map(|(column, _)| *column);
    (row.writer, row.sequence) = (writer, sequence);
    Ok(ScannedRow { row, canonical: body.into_bytes(), contradiction })
}
