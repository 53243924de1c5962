//! Reads the audit: calls, changes, verification and export. Operators read calls, admins read changes, and only root
//! keys verify the chains, which cover all workspaces.

mod export;
mod ocsf;

use monstrum_api::audit::{
    AuditEvent, AuditList, AuditedCall, AuditedCallWithEvents, AuditedChange, AuditedChangeList, Report,
};
use monstrum_api::list::List;
use monstrum_store::{AuditKind, AuditRow, CallFilter, CallTree, Page};
use monstrum_types::{AppUser, RequestId};
use serde_json::Value;

pub use self::export::{ExportBroken, ExportFormat, export};

use super::list;
use super::{Admin, OperationError, Operator, Root};
use crate::app::App;
use crate::audit::{self, SinceHead};

pub(super) fn view(row: AuditRow) -> AuditedCall {
    AuditedCall {
        status: row.call_status().map(str::to_owned),
        finished_at: row.finished_at(),
        request_id: row.request_id,
        bot_id: row.bot_id,
        user: row.app_id.zip(row.user_id).map(|(app_id, user_id)| AppUser { app_id, user_id }),
        task_id: row.task_id,
        resource_id: row.resource_id,
        tool: row.tool,
        operation: row.operation,
        plugin: row.plugin,
        plugin_digest: row.plugin_digest,
        code: row.code,
        message: row.message,
        rule: row.rule,
        params: json_or_text(row.params),
        duration_ms: row.duration_ms,
        started_at: row.started_at,
        parent_request_id: row.parent_request_id,
        delegation: json_or_text(row.delegation),
    }
}

/// Parses JSON that was stored as text. Text that is not JSON is returned as a string.
fn json_or_text(text: Option<String>) -> Value {
    text.map_or(Value::Null, |text| serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

fn event(row: &AuditRow) -> AuditEvent {
    AuditEvent {
        sequence: row.sequence,
        writer: row.writer.clone(),
        kind: row.kind.as_str().to_owned(),
        at: row.at,
        status: row.status.clone(),
        code: row.code.clone(),
        flags: row.flags.clone(),
        key_version: row.key_version,
        previous_hash: hex::encode(row.previous_hash),
        hash: hex::encode(row.hash),
    }
}

/// Lists calls, newest first.
pub async fn list(
    app: &App,
    caller: &Operator,
    filter: &CallFilter,
    page: &Page<RequestId>,
) -> Result<AuditList, OperationError> {
    let List { items, next_cursor } = list::page(app.store.calls(caller.workspace, filter, page).await?, view);
    Ok(AuditList { items, next_cursor, omitted: None })
}

/// The maximum number of calls of a tree.
pub const TREE_CALLS_MAX: u32 = 200;

/// Lists a call and the calls below it, oldest first.
pub async fn tree(app: &App, caller: &Operator, root: RequestId, limit: u32) -> Result<AuditList, OperationError> {
    let CallTree { rows, omitted } =
        app.store.call_tree(caller.workspace, root, limit.clamp(1, TREE_CALLS_MAX)).await?;
    if rows.is_empty() {
        return Err(OperationError::not_found("call"));
    }
    let items = rows.into_iter().map(view).collect();
    Ok(AuditList { items, next_cursor: None, omitted: (omitted > 0).then_some(omitted) })
}

/// Shows a call with its events and their hashes.
pub async fn show(app: &App, caller: &Operator, request: RequestId) -> Result<AuditedCallWithEvents, OperationError> {
    let mut rows = app.store.events(caller.workspace, request).await?;
    if rows.iter().any(AuditRow::is_of_change) {
        caller.admin()?;
    }
    // A call that was repeated has several starts and ends, each pair after the one before.
    rows.sort_by(|one, other| (one.at, &one.writer, one.sequence).cmp(&(other.at, &other.writer, other.sequence)));
    let events = rows.iter().map(event).collect();
    // Show the last event with the most information: the end, or else the interruption, or else the start.
    let telling = rows.into_iter().max_by_key(|row| match row.kind {
        AuditKind::Started => 0,
        AuditKind::Interrupted => 1,
        AuditKind::Finished => 2,
    });
    let call = view(telling.ok_or_else(|| OperationError::not_found("call"))?);
    Ok(AuditedCallWithEvents { call, events })
}

/// Verifies every chain against the signed heads, or only the rows after a signed head.
pub async fn verify(app: &App, _: &Root, since: Option<SinceHead>) -> Result<Report, OperationError> {
    audit::verify(&app.store, &app.audit_keys, &app.data_dir, since).await.map_err(OperationError::internal)
}

fn change(row: AuditRow) -> AuditedChange {
    let mut params: Value = row.params.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let mut member = |name: &str| params.get_mut(name).map(Value::take).unwrap_or_default();
    AuditedChange {
        status: row.call_status().map(str::to_owned),
        finished_at: row.finished_at(),
        key_id: member("key_id"),
        key_kind: member("key_kind"),
        object: member("object"),
        before: member("before"),
        after: member("after"),
        request_id: row.request_id,
        change: row.operation,
        bot_id: row.bot_id,
        resource_id: row.resource_id,
        message: row.message,
        started_at: row.started_at,
    }
}

/// Lists changes to permissions, newest first.
pub async fn changes(app: &App, caller: &Admin, page: &Page<RequestId>) -> Result<AuditedChangeList, OperationError> {
    Ok(list::page(app.store.changes(caller.workspace, &CallFilter::default(), page).await?, change))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_json_is_shown_as_json() {
        assert_eq!(json_or_text(Some(r#"{"a":1}"#.to_owned())), serde_json::json!({"a": 1}));
        assert_eq!(json_or_text(Some("{cut".to_owned())), Value::String("{cut".to_owned()));
        assert_eq!(json_or_text(None), Value::Null);
    }
}
