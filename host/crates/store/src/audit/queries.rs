//! Queries of audit rows for the API. A list reads each version's table with one query, and merges the results by
//! request id.

use std::cmp::Reverse;

use monstrum_types::{BotId, RequestId, ResourceId, UtcMillis, WorkspaceId};

use super::first::columns;
use super::{AuditKind, AuditRow};
use crate::db::{Arg, FromRow, Row, args, invalid_column, values};
use crate::{Listed, Page, Store, StoreError};

/// A filter for a list of calls. A field that is `None` matches every call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallFilter {
    pub bot_id: Option<BotId>,
    pub tool: Option<String>,
    pub operation: Option<String>,
    /// The status as the API reports it, which includes `running` and `interrupted`.
    pub status: Option<String>,
    pub resource_id: Option<ResourceId>,
    /// The rule that rejected the call.
    pub rule: Option<String>,
    /// Matches calls that started at or after this time.
    pub since: Option<UtcMillis>,
    /// Matches calls that started before this time.
    pub until: Option<UtcMillis>,
}

/// Selects one row per request: the end row if it exists, otherwise the interruption, otherwise the last start row.
macro_rules! latest {
    ($table:literal, $columns:expr, $condition:expr, $limit:literal) => {
        concat!(
            "select ",
            $columns,
            " from ",
            $table,
            " as event where workspace_id = $1 and request_id < $2 and ",
            $condition,
            " and not exists (select 1 from ",
            $table,
            " as other where other.workspace_id = $1 and other.request_id = event.request_id \
             and (case other.kind when 'finished' then 2 when 'interrupted' then 1 else 0 end, \
                  other.started_at, other.writer, other.sequence) \
               > (case event.kind when 'finished' then 2 when 'interrupted' then 1 else 0 end, \
                  event.started_at, event.writer, event.sequence)) \
             order by request_id desc limit ",
            $limit
        )
    };
}

/// The conditions of a [`CallFilter`], after `$of`, which selects calls or changes. `$indexed` repeats one of the
/// conditions in a form that matches an index.
macro_rules! filtered {
    ($table:literal, $columns:expr, $of:literal, $status:literal, $by:literal, $indexed:literal) => {
        latest!(
            $table,
            $columns,
            concat!(
                $of,
                " and ($3 is null or bot_id = $3) and ($4 is null or tool = $4) and ($5 is null or ",
                $status,
                " = $5) and ($6 is null or started_at >= $6) and ($7 is null or started_at < $7) \
                 and ($8 is null or operation = $8)",
                $by,
                $indexed
            ),
            "$11"
        )
    };
}

macro_rules! of_version_1 {
    ($of:literal, $indexed:literal) => {
        filtered!(
            "audit_events",
            columns!(),
            $of,
            "case kind when 'started' then 'running' when 'interrupted' then 'interrupted' else status end",
            " and ($9 is null or resource_id = $9) and ($10 is null or rule = $10)",
            $indexed
        )
    };
}

/// In version 2, the resource and the rule are only in the text of a row. `$10` is the rule with its key, as
/// [`rule_of_body`] returns it.
macro_rules! of_version_2 {
    ($of:literal, $indexed:literal) => {
        filtered!(
            "audit_rows",
            "body, hash",
            $of,
            "status",
            " and ($9 is null or substr(body, instr(body, '\"resource_id\":\"') + 15, 36) = $9) \
             and ($10 is null or instr(body, $10) > 0)",
            $indexed
        )
    };
}

macro_rules! calls_of_version_1 {
    ($indexed:literal) => {
        of_version_1!("(flags is null or flags <> 'change')", $indexed)
    };
}

macro_rules! calls_of_version_2 {
    ($indexed:literal) => {
        of_version_2!("(flags is null or flags <> 'change')", $indexed)
    };
}

/// The two statements of a list.
struct Statements {
    version_1: &'static str,
    version_2: &'static str,
}

/// The statements of lists of calls. Each statement except `CALLS` repeats one filter in a form that matches an index.
const CALLS: Statements = Statements { version_1: calls_of_version_1!(""), version_2: calls_of_version_2!("") };
const OF_BOT: Statements = Statements {
    version_1: calls_of_version_1!(" and bot_id = $3"),
    version_2: calls_of_version_2!(" and bot_id = $3"),
};
const OF_TOOL: Statements =
    Statements { version_1: calls_of_version_1!(" and tool = $4"), version_2: calls_of_version_2!(" and tool = $4") };
const OF_OPERATION: Statements = Statements {
    version_1: calls_of_version_1!(" and operation = $8"),
    version_2: calls_of_version_2!(" and operation = $8"),
};
const OF_STATUS: Statements = Statements {
    version_1: calls_of_version_1!(""),
    version_2: calls_of_version_2!(" and status = $5 and status <> 'success' and status <> 'running'"),
};
const OF_RESOURCE: Statements = Statements {
    version_1: calls_of_version_1!(" and resource_id = $9"),
    version_2: calls_of_version_2!(
        " and instr(body, '\"resource_id\":\"') > 0 \
         and substr(body, instr(body, '\"resource_id\":\"') + 15, 36) = $9"
    ),
};
const OF_RULE: Statements = Statements {
    version_1: calls_of_version_1!(""),
    version_2: calls_of_version_2!(" and status <> 'success' and status <> 'running'"),
};
const CHANGES: Statements =
    Statements { version_1: of_version_1!("flags = 'change'", ""), version_2: of_version_2!("flags = 'change'", "") };

impl CallFilter {
    /// Returns the statements with the index that matches the fewest rows.
    fn statements(&self) -> &'static Statements {
        match self {
            CallFilter { tool: Some(_), .. } => &OF_TOOL,
            CallFilter { operation: Some(_), .. } => &OF_OPERATION,
            CallFilter { status: Some(status), .. } if status != "success" && status != "running" => &OF_STATUS,
            CallFilter { rule: Some(_), .. } => &OF_RULE,
            CallFilter { resource_id: Some(_), .. } => &OF_RESOURCE,
            CallFilter { bot_id: Some(_), .. } => &OF_BOT,
            _ => &CALLS,
        }
    }
}

/// The values of a [`CallFilter`] in the order of the parameters `$3` to `$10`.
pub(super) struct FilterValues<'a> {
    filter: &'a CallFilter,
    bot_is_blob: bool,
    resource: Option<String>,
    rule: Option<String>,
}

impl CallFilter {
    pub(super) fn of_version_1(&self) -> FilterValues<'_> {
        FilterValues { filter: self, bot_is_blob: false, resource: self.resource(), rule: self.rule.clone() }
    }

    pub(super) fn of_version_2(&self) -> FilterValues<'_> {
        let rule = self.rule.as_deref().map(rule_of_body);
        FilterValues { filter: self, bot_is_blob: true, resource: self.resource(), rule }
    }

    fn resource(&self) -> Option<String> {
        self.resource_id.map(|id| id.to_string())
    }
}

impl FilterValues<'_> {
    pub(super) fn args(&self) -> Vec<Arg<'_>> {
        let CallFilter { bot_id, tool, operation, status, since, until, .. } = self.filter;
        let bot = if self.bot_is_blob {
            Arg::Bytes(bot_id.as_ref().map(|id| id.as_bytes().as_slice()))
        } else {
            Arg::from(bot_id)
        };
        let mut args = vec![bot];
        args.extend(values![tool, status, since, until, operation, &self.resource, &self.rule]);
        args
    }
}

/// Returns how the canonical text of a row shows a rule.
fn rule_of_body(rule: &str) -> String {
    let rule = serde_json::Value::from(rule);
    format!("\"rule\":{rule}")
}

const EVENTS_1: &str = concat!(
    "select ",
    columns!(),
    " from audit_events where workspace_id = $1 and request_id = $2 \
     order by case kind when 'started' then 0 else 1 end, at, writer, sequence"
);
const EVENTS_2: &str = "select body, hash from audit_rows where workspace_id = $1 and request_id = $2 \
    order by case kind when 'started' then 0 else 1 end, writer, sequence";
const HAS_ROWS_2: &str = "select 1 as value from audit_rows where workspace_id = $1 and request_id = $2 limit 1";
const LAST_1: &str =
    concat!("select ", columns!(), " from audit_events where writer = $1 order by sequence desc limit 1");
const LAST_2: &str = "select body, hash from audit_rows where writer = $1 order by sequence desc limit 1";
const OPEN_STARTS_1: &str = concat!(
    "select ",
    columns!(),
    " from audit_events as event where writer = $1 and sequence >= $2 and kind = 'started' \
     and not exists (select 1 from audit_events as other where other.request_id = event.request_id \
                     and other.kind <> 'started') order by sequence"
);
const OPEN_STARTS_2: &str = "select body, hash from audit_rows as event where writer = $1 \
    and sequence >= $2 and kind = 'started' \
    and not exists (select 1 from audit_rows as other where other.workspace_id = event.workspace_id \
                    and other.request_id = event.request_id and other.kind <> 'started') order by sequence";

/// A row of version 2, decoded from its text. Lists are not verified; a row whose text is malformed is an error.
pub(super) struct OfBody(pub(super) AuditRow);

impl FromRow for OfBody {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        let (body, hash) = (row.get::<String>("body")?, row.get::<Vec<u8>>("hash")?);
        let hash = hash.try_into().map_err(|_| invalid_column("hash", "not 32 bytes"))?;
        AuditRow::of_body(&body, hash).map(OfBody)
    }
}

/// The initial cursors of the two versions, which sort after all ids. Lists are in descending order.
pub(super) const FIRST_CURSOR_1: &str = "g";
pub(super) const FIRST_CURSOR_2: [u8; 17] = [0xff; 17];

impl Store {
    /// Returns a page of the calls in a workspace, newest first. Each call has one row.
    pub async fn calls(
        &self,
        workspace: WorkspaceId,
        filter: &CallFilter,
        page: &Page<RequestId>,
    ) -> Result<Listed<AuditRow, RequestId>, StoreError> {
        self.listed(filter.statements(), workspace, filter, page).await
    }

    /// Returns a page of the permission changes in a workspace, newest first. Each change has one row. Changes have no
    /// tool and no rule, so a filter by one of these matches no change.
    pub async fn changes(
        &self,
        workspace: WorkspaceId,
        filter: &CallFilter,
        page: &Page<RequestId>,
    ) -> Result<Listed<AuditRow, RequestId>, StoreError> {
        self.listed(&CHANGES, workspace, filter, page).await
    }

    async fn listed(
        &self,
        statements: &Statements,
        workspace: WorkspaceId,
        filter: &CallFilter,
        page: &Page<RequestId>,
    ) -> Result<Listed<AuditRow, RequestId>, StoreError> {
        let (of_version_1, of_version_2) = (filter.of_version_1(), filter.of_version_2());
        let before = page.cursor.as_ref().map_or(&FIRST_CURSOR_2[..], |id| id.as_bytes());
        let mut args = vec![Arg::from(workspace.as_bytes().as_slice()), Arg::from(before)];
        args.extend(of_version_2.args());
        args.push(Arg::from(page.rows()));
        let rows: Vec<OfBody> = self.db.all(statements.version_2, &args).await?;
        let mut rows: Vec<AuditRow> = rows.into_iter().map(|OfBody(row)| row).collect();
        rows.extend(self.listed_of_version_1(statements.version_1, workspace, &of_version_1.args(), page).await?);
        // If a call was running while its host was upgraded, its end row has version 2 and is sorted first.
        rows.sort_by_key(|row| Reverse(row.request_id));
        rows.dedup_by_key(|row| row.request_id);
        Ok(page.of(rows, |row: &AuditRow| row.request_id))
    }

    /// Returns the rows of version 1 of a page, without start rows whose end row has version 2.
    async fn listed_of_version_1(
        &self,
        sql: &'static str,
        workspace: WorkspaceId,
        filters: &[Arg<'_>],
        page: &Page<RequestId>,
    ) -> Result<Vec<AuditRow>, StoreError> {
        let mut cursor = page.cursor;
        let mut listed = Vec::new();
        loop {
            let before = cursor.map_or_else(|| FIRST_CURSOR_1.to_owned(), |id| id.to_string());
            let mut args = vec![Arg::from(workspace), Arg::from(&before)];
            args.extend(filters.iter().map(Arg::borrowed));
            args.push(Arg::from(page.rows()));
            let rows: Vec<AuditRow> = self.db.all(sql, &args).await?;
            let was_last = i64::try_from(rows.len()).is_ok_and(|found| found < page.rows());
            cursor = rows.last().map(|row| row.request_id);
            for row in rows {
                if row.kind != AuditKind::Started || !self.has_rows_of_version_2(workspace, row.request_id).await? {
                    listed.push(row);
                }
            }
            if was_last || i64::try_from(listed.len()).is_ok_and(|found| found >= page.rows()) {
                return Ok(listed);
            }
        }
    }

    async fn has_rows_of_version_2(&self, workspace: WorkspaceId, request: RequestId) -> Result<bool, StoreError> {
        let args = args![workspace.as_bytes().as_slice(), request.as_bytes().as_slice()];
        Ok(self.db.one::<i64>(HAS_ROWS_2, args).await?.is_some())
    }

    /// Returns the events of a call in a workspace, in order.
    pub async fn events(&self, workspace: WorkspaceId, request: RequestId) -> Result<Vec<AuditRow>, StoreError> {
        let mut events: Vec<AuditRow> = self.db.all(EVENTS_1, args![workspace, request]).await?;
        let args = args![workspace.as_bytes().as_slice(), request.as_bytes().as_slice()];
        let of_version_2: Vec<OfBody> = self.db.all(EVENTS_2, args).await?;
        events.extend(of_version_2.into_iter().map(|OfBody(row)| row));
        Ok(events)
    }

    /// Returns the last row of a chain.
    pub async fn last(&self, writer: &str) -> Result<Option<AuditRow>, StoreError> {
        match self.db.one(LAST_2, args![writer]).await? {
            Some(OfBody(row)) => Ok(Some(row)),
            None => self.db.one(LAST_1, args![writer]).await,
        }
    }

    /// Returns the start events of a writer's calls that have not ended, from the row `from` on.
    pub async fn open_starts(&self, writer: &str, from: i64) -> Result<Vec<AuditRow>, StoreError> {
        let mut open = Vec::new();
        let of_version_1: Vec<AuditRow> = self.db.all(OPEN_STARTS_1, args![writer, from]).await?;
        for row in of_version_1 {
            let has_ended = match row.workspace_id {
                Some(workspace) => self.has_rows_of_version_2(workspace, row.request_id).await?,
                None => false,
            };
            if !has_ended {
                open.push(row);
            }
        }
        let of_version_2: Vec<OfBody> = self.db.all(OPEN_STARTS_2, args![writer, from]).await?;
        open.extend(of_version_2.into_iter().map(|OfBody(row)| row));
        Ok(open)
    }

    /// Returns all writers that have a chain.
    pub async fn writers(&self) -> Result<Vec<String>, StoreError> {
        let sql = "select writer as value from (select writer from audit_events union select writer from audit_rows) \
                   as writers order by writer";
        self.db.read_at_length().await?.all(sql, args![]).await
    }

    /// Returns the total number of events.
    pub async fn count_events(&self) -> Result<i64, StoreError> {
        let sql = "select (select count(*) from audit_events) + (select count(*) from audit_rows) as value";
        Ok(self.db.read_at_length().await?.one(sql, args![]).await?.unwrap_or(0))
    }
}
