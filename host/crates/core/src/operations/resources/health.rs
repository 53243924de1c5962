//! The health of a resource, from its credential and its recent calls in the audit.

use monstrum_api::resources::{LastFailure, RecentCalls, ResourceHealth};
use monstrum_store::{AuditRow, CallFilter, Page};
use monstrum_types::{Code, ResourceId, UtcMillis};

use super::super::credentials::credential_of;
use super::super::{OperationError, Operator};
use super::resource;
use crate::app::App;

const HOUR_MS: i64 = 3600 * 1000;
/// The maximum number of calls that are read. The median of more calls does not differ noticeably.
const CALLS_MAX: u32 = 1000;

const SUCCESS: &str = "success";
const ERROR: &str = "error";
/// The codes of errors that say nothing about the resource: the host refused the call, or the caller left.
const OF_THE_CALLER: [Code; 5] = [Code::InvalidParams, Code::Limit, Code::Busy, Code::Budget, Code::Cancelled];

/// Shows the health of a resource.
pub async fn health(app: &App, caller: &Operator, id: ResourceId) -> Result<ResourceHealth, OperationError> {
    let row = resource(app, caller, id).await?;
    let credential = credential_of(app, &row).await?;
    let filter = CallFilter { resource_id: Some(id), ..CallFilter::default() };
    let calls = app.store.calls(caller.workspace, &filter, &Page { limit: CALLS_MAX, cursor: None }).await?.items;
    let last_hour = recent(&calls, app.clock.now().plus_ms(-HOUR_MS));
    // The newest call is the first.
    let last_failure = calls.into_iter().find(has_failed).map(|row| {
        let AuditRow { request_id, at, code, message, .. } = row;
        LastFailure { request_id, at, code, message }
    });
    Ok(ResourceHealth { credential, last_hour, last_failure })
}

fn recent(calls: &[AuditRow], since: UtcMillis) -> RecentCalls {
    let has_run = |row: &&AuditRow| row.call_status() == Some(SUCCESS) || has_failed(row);
    let counted: Vec<&AuditRow> = calls.iter().filter(|row| row.started_at >= since).filter(has_run).collect();
    let mut durations: Vec<i64> = counted.iter().filter_map(|row| row.duration_ms).collect();
    durations.sort_unstable();
    RecentCalls {
        calls: counted.len(),
        succeeded: counted.iter().filter(|row| row.call_status() == Some(SUCCESS)).count(),
        p50_ms: durations.get(durations.len().saturating_sub(1) / 2).copied(),
    }
}

/// Returns whether the call has failed in a way that says something about the resource.
fn has_failed(row: &AuditRow) -> bool {
    let is_of_caller = OF_THE_CALLER.iter().any(|code| row.code.as_deref() == Some(code.as_str()));
    row.call_status() == Some(ERROR) && !is_of_caller
}
