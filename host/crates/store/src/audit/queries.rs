//! Queries of audit events: calls for the API, and chains for verification.

use monstrum_types::{BotId, RequestId, UtcMillis, WorkspaceId};

use super::{AuditRow, columns};
use crate::db::{FromRow as _, args};
use crate::{Listed, Page, Store, StoreError};

/// A filter for a list of calls. A field that is `None` matches every call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallFilter {
    pub bot_id: Option<BotId>,
    pub tool: Option<String>,
    pub operation: Option<String>,
    /// The status as the API reports it, which includes `running` and `interrupted`.
    pub status: Option<String>,
    /// Matches calls that started at or after this time.
    pub since: Option<UtcMillis>,
    /// Matches calls that started before this time.
    pub until: Option<UtcMillis>,
}

/// A row of an audit chain that cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableRow {
    /// The position of the row in its chain, if it can be decoded.
    pub sequence: Option<i64>,
    /// The name of the invalid column and a description of the error.
    pub what: String,
}

/// Consecutive rows of an audit chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanPage {
    pub rows: Vec<Result<AuditRow, UnreadableRow>>,
    /// The sequence number of the first row of the next page; `None` on the last page.
    pub next: Option<i64>,
}

macro_rules! select {
    ($rest:literal) => {
        concat!("select ", columns!(), " from audit_events ", $rest)
    };
}

// Selects one event per call: its end if that exists, otherwise its interruption, otherwise its start. The initial
// cursor `g` sorts after all ids, which are hexadecimal, because the list is in descending order.
const CALLS: &str = select!(
    "as event where workspace_id = $1 and request_id < $2 and (flags is null or flags <> 'change') \
     and ($3 is null or bot_id = $3) and ($4 is null or tool = $4) \
     and ($5 is null \
          or case kind when 'started' then 'running' when 'interrupted' then 'interrupted' else status end = $5) \
     and ($6 is null or started_at >= $6) and ($7 is null or started_at < $7) and ($8 is null or operation = $8) \
     and not exists (select 1 from audit_events as other where other.request_id = event.request_id \
                     and case other.kind when 'finished' then 2 when 'interrupted' then 1 else 0 end \
                       > case event.kind when 'finished' then 2 when 'interrupted' then 1 else 0 end) \
     order by request_id desc limit $9"
);
const CHANGES: &str = select!(
    "as event where workspace_id = $1 and request_id < $2 and flags = 'change' \
     and not exists (select 1 from audit_events as other where other.request_id = event.request_id \
                     and case other.kind when 'finished' then 2 when 'interrupted' then 1 else 0 end \
                       > case event.kind when 'finished' then 2 when 'interrupted' then 1 else 0 end) \
     order by request_id desc limit $3"
);
const FIRST_CURSOR: &str = "g";
const EVENTS: &str = select!(
    "where workspace_id = $1 and request_id = $2 order by case kind when 'started' then 0 else 1 end, at, writer, sequence"
);
const LAST: &str = select!("where writer = $1 order by sequence desc limit 1");
const OPEN_STARTS: &str = select!(
    "as event where writer = $1 and kind = 'started' and not exists (select 1 from audit_events as other \
     where other.request_id = event.request_id and other.kind <> 'started') order by sequence"
);
const SCAN: &str = select!("where writer = $1 and sequence >= $2 order by sequence limit $3");

impl Store {
    /// Returns a page of the calls in a workspace, newest first. Each call has one row.
    pub async fn calls(
        &self,
        workspace: WorkspaceId,
        filter: &CallFilter,
        page: &Page<RequestId>,
    ) -> Result<Listed<AuditRow, RequestId>, StoreError> {
        let before = page.cursor.map_or_else(|| FIRST_CURSOR.to_owned(), |id| id.to_string());
        let args = args![
            workspace,
            &before,
            filter.bot_id,
            &filter.tool,
            &filter.status,
            filter.since,
            filter.until,
            &filter.operation,
            page.rows(),
        ];
        let rows = self.db.all(CALLS, args).await?;
        Ok(page.of(rows, |row: &AuditRow| row.request_id))
    }

    /// Returns a page of the permission changes in a workspace, newest first. Each change has one row.
    pub async fn changes(
        &self,
        workspace: WorkspaceId,
        page: &Page<RequestId>,
    ) -> Result<Listed<AuditRow, RequestId>, StoreError> {
        let before = page.cursor.map_or_else(|| FIRST_CURSOR.to_owned(), |id| id.to_string());
        let rows = self.db.all(CHANGES, args![workspace, &before, page.rows()]).await?;
        Ok(page.of(rows, |row: &AuditRow| row.request_id))
    }

    /// Returns the events of a call in a workspace, in order.
    pub async fn events(&self, workspace: WorkspaceId, request: RequestId) -> Result<Vec<AuditRow>, StoreError> {
        self.db.all(EVENTS, args![workspace, request]).await
    }

    /// Returns the last row of a chain.
    pub async fn last(&self, writer: &str) -> Result<Option<AuditRow>, StoreError> {
        self.db.one(LAST, args![writer]).await
    }

    /// Returns the start events of a writer's calls that have not ended.
    pub async fn open_starts(&self, writer: &str) -> Result<Vec<AuditRow>, StoreError> {
        self.db.all(OPEN_STARTS, args![writer]).await
    }

    /// Returns up to `limit` rows of a chain, starting at `from_sequence`. A row that cannot be decoded is returned
    /// as an `UnreadableRow` in its place.
    pub async fn scan(&self, writer: &str, from_sequence: i64, limit: u32) -> Result<ScanPage, StoreError> {
        let rows = self.db.read().await?.fetch(SCAN, args![writer, from_sequence, i64::from(limit.max(1))]).await?;
        let full = rows.len() >= limit.max(1) as usize;
        // SQLite sorts a sequence that is not a number after all numbers. A page that ends with such a sequence is
        // therefore the last page.
        let next = match rows.last() {
            Some(last) if full => last.get("sequence").ok().and_then(|sequence: i64| sequence.checked_add(1)),
            _ => None,
        };
        let rows = rows.iter().map(|row| {
            AuditRow::from_row(row)
                .map_err(|error| UnreadableRow { sequence: row.get("sequence").ok(), what: error.to_string() })
        });
        Ok(ScanPage { rows: rows.collect(), next })
    }

    /// Returns all writers that have a chain.
    pub async fn writers(&self) -> Result<Vec<String>, StoreError> {
        let sql = "select distinct writer as value from audit_events order by writer";
        self.db.read_at_length().await?.all(sql, args![]).await
    }

    /// Returns the total number of events.
    pub async fn count_events(&self) -> Result<i64, StoreError> {
        let sql = "select count(*) as value from audit_events";
        Ok(self.db.read_at_length().await?.one(sql, args![]).await?.unwrap_or(0))
    }
}
