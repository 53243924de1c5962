//! The ends of calls in the order in which hosts wrote them, for feeds of calls.

use super::queries::OfBody;
use super::{AuditRow, CallFilter};
use crate::db::{FromRow, Row, args, from_row};
use crate::{Store, StoreError};

/// The last row of each chain. Each step of the recursion finds the next writer in the index.
const CHAIN_ENDS: &str = "with recursive writers (writer) as (\
      select min(writer) from audit_rows \
      union all \
      select (select min(other.writer) from audit_rows as other where other.writer > writers.writer) \
        from writers where writers.writer is not null) \
    select writer, (select max(sequence) from audit_rows as link where link.writer = writers.writer) as sequence \
      from writers where writer is not null";
const AFTER: &str = "select sequence, body, hash, kind, flags from audit_rows where writer = $1 and sequence > $2 \
    order by sequence limit $3";

/// The last row of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainEnd {
    pub writer: String,
    pub sequence: i64,
}
from_row!(ChainEnd { writer, sequence });

/// A row of a chain, with the call if the row ended one. Rows that cannot be read end no call; verification reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowedRow {
    pub sequence: i64,
    pub ended: Option<AuditRow>,
}

impl CallFilter {
    /// Whether the filter selects the call with this row.
    #[must_use]
    pub fn matches(&self, row: &AuditRow) -> bool {
        fn is<T: PartialEq>(wanted: &Option<T>, found: &Option<T>) -> bool {
            wanted.is_none() || wanted == found
        }
        let CallFilter { bot_id, tool, operation, status, resource_id, rule, since, until } = self;
        is(bot_id, &row.bot_id)
            && is(tool, &row.tool)
            && is(operation, &row.operation)
            && is(resource_id, &row.resource_id)
            && is(rule, &row.rule)
            && status.as_deref().is_none_or(|status| row.call_status() == Some(status))
            && since.is_none_or(|since| row.started_at >= since)
            && until.is_none_or(|until| row.started_at < until)
    }
}

impl FromRow for FollowedRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        let (kind, flags) = (row.get::<String>("kind")?, row.get::<Option<String>>("flags")?);
        let is_end = kind != "started" && flags.as_deref() != Some(super::CHANGE_FLAG);
        let ended = if is_end { OfBody::from_row(row).ok().map(|OfBody(row)| row) } else { None };
        Ok(FollowedRow { sequence: row.get("sequence")?, ended })
    }
}

impl Store {
    /// Returns the last row of each chain that has rows of version 2.
    pub async fn chain_ends(&self) -> Result<Vec<ChainEnd>, StoreError> {
        self.db.all(CHAIN_ENDS, args![]).await
    }

    /// Returns up to `limit` rows of version 2 of a chain after the row `sequence`, of all workspaces.
    pub async fn followed(&self, writer: &str, sequence: i64, limit: u32) -> Result<Vec<FollowedRow>, StoreError> {
        self.db.all(AFTER, args![writer, sequence, i64::from(limit)]).await
    }
}
