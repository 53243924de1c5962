//! A call and the calls below it.

use std::cmp::Reverse;

use monstrum_types::{RequestId, WorkspaceId};

use super::AuditRow;
use super::first::columns;
use super::queries::OfBody;
use crate::db::args;
use crate::{Store, StoreError};

/// The maximum number of calls of a tree that are counted. Counting reads an index only, but a plugin can make any number
/// of calls over time.
pub const TREE_COUNTED_MAX: u32 = 10_000;

/// A call and the calls below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallTree {
    /// The calls, oldest first. A parent precedes its child calls.
    pub rows: Vec<AuditRow>,
    /// The number of calls below that `rows` lacks. Calls over [`TREE_COUNTED_MAX`] are not counted.
    pub omitted: u32,
}

/// The calls of a tree, level by level. `$1` is the workspace and `$2` the call.
macro_rules! tree_of_version_1 {
    () => {
        "with recursive tree (request_id) as (\
           select request_id from audit_events where workspace_id = $1 and request_id = $2 \
             and (flags is null or flags <> 'change') \
           union \
           select child.request_id from tree join audit_events as child on child.workspace_id = $1 \
             and child.parent_request_id is not null and child.parent_request_id = tree.request_id) "
    };
}

macro_rules! tree_of_version_2 {
    () => {
        "with recursive tree (id, request_id) as (\
           select substr(body, instr(body, '\"request_id\":\"') + 14, 36), request_id from audit_rows \
             where workspace_id = $1 and request_id = $2 and (flags is null or flags <> 'change') \
           union \
           select substr(child.body, instr(child.body, '\"request_id\":\"') + 14, 36), child.request_id \
             from tree join audit_rows as child on child.workspace_id = $1 \
             and instr(child.body, '\"parent_request_id\":\"') > 0 \
             and substr(child.body, instr(child.body, '\"parent_request_id\":\"') + 21, 36) = tree.id) "
    };
}

/// Selects the rows of the first `$3` calls of a tree.
macro_rules! rows {
    ($tree:expr, $columns:expr, $table:literal) => {
        concat!(
            $tree,
            "select ",
            $columns,
            " from ",
            $table,
            " where workspace_id = $1 and request_id in (select request_id from tree limit $3)"
        )
    };
}

const ROWS_1: &str = rows!(tree_of_version_1!(), columns!(), "audit_events");
const ROWS_2: &str = rows!(tree_of_version_2!(), "body, hash", "audit_rows");
const COUNT_1: &str =
    concat!(tree_of_version_1!(), "select count(*) as value from (select 1 from tree limit $3) as counted");
const COUNT_2: &str =
    concat!(tree_of_version_2!(), "select count(*) as value from (select 1 from tree limit $3) as counted");

impl Store {
    /// Returns a call and up to `limit` - 1 calls below it, each with its last row. Calls near the root come before calls
    /// deep in the tree. Returns no rows if the workspace has no such call.
    pub async fn call_tree(&self, workspace: WorkspaceId, root: RequestId, limit: u32) -> Result<CallTree, StoreError> {
        let (ours, root_id) = (workspace.as_bytes().as_slice(), root.as_bytes().as_slice());
        let args_2 = args![ours, root_id, i64::from(limit) + 1];
        let found: Vec<OfBody> = self.db.all(ROWS_2, args_2).await?;
        let mut rows: Vec<AuditRow> = found.into_iter().map(|OfBody(row)| row).collect();
        let of_version_1: Vec<AuditRow> = self.db.all(ROWS_1, args![workspace, root, i64::from(limit) + 1]).await?;
        rows.extend(of_version_1);
        rows.sort_by_key(|row| (row.request_id, Reverse(row.kind.rank()), Reverse(row.started_at)));
        rows.dedup_by_key(|row| row.request_id);
        let mut omitted = 0;
        if rows.len() > limit as usize {
            // The newest calls have no child calls among the rows, so the rest stays connected.
            rows.truncate(limit as usize);
            let most = i64::from(TREE_COUNTED_MAX);
            let count_2: Option<i64> = self.db.one(COUNT_2, args![ours, root_id, most]).await?;
            let count_1: Option<i64> = self.db.one(COUNT_1, args![workspace, root, most]).await?;
            let all = count_2.unwrap_or(0).max(count_1.unwrap_or(0)).max(i64::from(limit) + 1).min(most);
            omitted = u32::try_from(all).unwrap_or(TREE_COUNTED_MAX).saturating_sub(limit);
        }
        Ok(CallTree { rows, omitted })
    }
}
