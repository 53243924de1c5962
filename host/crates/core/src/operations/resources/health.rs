//! The health of a resource, from its credential and its recent calls in the audit.

use monstrum_api::resources::{LastFailure, RecentCalls, ResourceHealth};
use monstrum_store::{AuditRow, CallFilter, Page};
use monstrum_types::{Code, RequestId, ResourceId, UtcMillis, WorkspaceId};

use super::super::credentials::credential_of;
use super::super::{OperationError, Operator};
use super::resource;
use crate::app::App;

const HOUR_MS: i64 = 3600 * 1000;
/// The maximum number of calls that are counted. The median of more calls does not differ noticeably.
const COUNTED_MAX: usize = 1000;
/// The number of rows that one query reads.
const PAGE_ROWS: u32 = 1000;
/// The maximum number of queries. The audit has no index by resource, so the calls of all resources are read.
const PAGES_MAX: usize = 5;

const SUCCESS: &str = "success";
const ERROR: &str = "error";
/// The codes of errors that say nothing about the resource: the host refused the call, or the caller left.
const OF_THE_CALLER: [Code; 5] = [Code::InvalidParams, Code::Limit, Code::Busy, Code::Budget, Code::Cancelled];

/// Shows the health of a resource.
pub async fn health(app: &App, caller: &Operator, id: ResourceId) -> Result<ResourceHealth, OperationError> {
    let row = resource(app, caller, id).await?;
    let credential = credential_of(app, &row).await?;
    let since = app.clock.now().plus_ms(-HOUR_MS);
    Ok(ResourceHealth {
        credential,
        last_hour: last_hour(app, caller.workspace, id, since).await?,
        last_failure: last_failure(app, caller.workspace, id).await?,
    })
}

async fn last_hour(
    app: &App,
    workspace: WorkspaceId,
    id: ResourceId,
    since: UtcMillis,
) -> Result<RecentCalls, OperationError> {
    let mut counted = Vec::new();
    let mut page: Page<RequestId> = Page { limit: PAGE_ROWS, cursor: None };
    for _ in 0..PAGES_MAX {
        let listed = app.store.calls(workspace, &CallFilter::default(), &page).await?;
        // Rows are ordered by request id and therefore, except for differences of clocks, by time.
        let is_last = listed.items.last().is_none_or(|row| row.started_at < since);
        let of_resource = listed.items.into_iter().filter(|row| row.resource_id == Some(id) && row.started_at >= since);
        counted.extend(of_resource.filter(has_run));
        match listed.next_cursor {
            Some(cursor) if !is_last && counted.len() < COUNTED_MAX => page.cursor = Some(cursor),
            _ => break,
        }
    }
    counted.truncate(COUNTED_MAX);
    let mut durations: Vec<i64> = counted.iter().filter_map(|row| row.duration_ms).collect();
    durations.sort_unstable();
    Ok(RecentCalls {
        calls: counted.len(),
        succeeded: counted.iter().filter(|row| row.call_status() == Some(SUCCESS)).count(),
        p50_ms: durations.get(durations.len().saturating_sub(1) / 2).copied(),
    })
}

/// Returns whether the call has ended and says something about the resource.
fn has_run(row: &AuditRow) -> bool {
    row.call_status() == Some(SUCCESS) || has_failed(row)
}

fn has_failed(row: &AuditRow) -> bool {
    let is_of_caller = OF_THE_CALLER.iter().any(|code| row.code.as_deref() == Some(code.as_str()));
    row.call_status() == Some(ERROR) && !is_of_caller
}

async fn last_failure(
    app: &App,
    workspace: WorkspaceId,
    id: ResourceId,
) -> Result<Option<LastFailure>, OperationError> {
    let filter = CallFilter { status: Some(ERROR.to_owned()), ..CallFilter::default() };
    let listed = app.store.calls(workspace, &filter, &Page { limit: PAGE_ROWS, cursor: None }).await?;
    let failed = listed.items.into_iter().find(|row| row.resource_id == Some(id) && has_failed(row));
    Ok(failed.map(|row| LastFailure { request_id: row.request_id, at: row.at, code: row.code, message: row.message }))
}
