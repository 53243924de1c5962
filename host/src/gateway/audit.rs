//! `/api/audit`: one item a call, newest first; what the file routes of sandboxes have read stands among them. Reading is for operators; the verification of the chains, which go over
//! all workspaces, is for root keys.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use futures::stream;
use http::{HeaderValue, header};
use monstrum_store::{AuditKind, AuditRow, CallFilter, Page, Store};
use monstrum_types::{BotId, RequestId, ResourceId, Status, UtcMillis, WorkspaceId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::gateway::extract::{Faults, Id, Operator, PageQuery, Params, Root};
use crate::gateway::problem::{Problem, ProblemBody};
use monstrum_core::app::App;
use monstrum_core::audit;

/// Calls read at a time for an export: few round trips, little memory.
const EXPORT_PAGE: u32 = 500;

/// A call as it was recorded.
#[derive(Serialize, ToSchema)]
pub struct AuditedCall {
    pub request_id: RequestId,
    pub bot_id: Option<BotId>,
    pub task_id: Option<String>,
    pub resource_id: Option<ResourceId>,
    /// As it was asked for, whether there is such a tool or not; null for what the file routes of sandboxes have read.
    pub tool: Option<String>,
    pub operation: Option<String>,
    pub plugin: Option<String>,
    /// SHA-256 of the component that ran.
    pub plugin_digest: Option<String>,
    /// The caller's, or `running`, or `interrupted`.
    pub status: Option<String>,
    pub code: Option<String>,
    pub message: Option<String>,
    /// The rule that refused the call.
    pub rule: Option<String>,
    /// Redacted; large ones as `{digest, bytes, first}`.
    #[schema(value_type = Object)]
    pub params: Value,
    pub duration_ms: Option<i64>,
    pub started_at: UtcMillis,
    pub finished_at: Option<UtcMillis>,
    pub parent_request_id: Option<RequestId>,
    #[schema(value_type = Object)]
    pub delegation: Value,
}

/// A call with the events of its writer's chain.
#[derive(Serialize, ToSchema)]
pub struct AuditedCallWithEvents {
    #[serde(flatten)]
    pub call: AuditedCall,
    pub events: Vec<AuditEvent>,
}

/// One row of a chain.
#[derive(Serialize, ToSchema)]
pub struct AuditEvent {
    pub sequence: i64,
    /// The node whose chain it belongs to.
    pub writer: String,
    /// `started`, `finished` or `interrupted`.
    pub kind: String,
    pub at: UtcMillis,
    pub status: Option<String>,
    pub code: Option<String>,
    /// `output_mismatch`: the result does not match the tool's output_schema.
    pub flags: Option<String>,
    /// The version of the audit key.
    pub key_version: i64,
    /// The hash of the row before it, hex.
    pub previous_hash: String,
    pub hash: String,
}

/// A page of calls, newest first.
#[derive(Serialize, ToSchema)]
pub struct AuditList {
    pub items: Vec<AuditedCall>,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct AuditFilter {
    #[param(value_type = Option<BotId>)]
    bot_id: Option<String>,
    tool: Option<String>,
    /// Such as `sandbox.read`.
    operation: Option<String>,
    /// success, error, scope_violation, permission_denied, running or interrupted.
    status: Option<String>,
    /// Calls that began at this moment or later.
    #[param(value_type = Option<UtcMillis>)]
    since: Option<String>,
    /// Calls that began before this moment.
    #[param(value_type = Option<UtcMillis>)]
    until: Option<String>,
}

impl AuditFilter {
    fn check(self) -> Result<CallFilter, Problem> {
        let mut faults = Faults::default();
        if let Some(status) = &self.status
            && Status::from_word(status).is_none()
            && !matches!(status.as_str(), "running" | "interrupted")
        {
            let known: Vec<&str> = Status::ALL.iter().map(|status| status.as_str()).collect();
            faults.add("status", format!("expected one of {}, running, interrupted", known.join(", ")));
        }
        let bot_id = parsed(&mut faults, "bot_id", self.bot_id, "an id of a bot");
        let time = "an RFC 3339 time such as 2026-11-21T22:21:49.123Z (in a URL, `+` is written %2B)";
        let since = parsed(&mut faults, "since", self.since, time);
        let until = parsed(&mut faults, "until", self.until, time);
        faults.check()?;
        Ok(CallFilter { bot_id, tool: self.tool, operation: self.operation, status: self.status, since, until })
    }
}

fn parsed<T: std::str::FromStr>(faults: &mut Faults, name: &str, text: Option<String>, expected: &str) -> Option<T> {
    let parsed = text?.parse();
    if parsed.is_err() {
        faults.add(name, format!("expected {expected}"));
    }
    parsed.ok()
}

impl From<AuditRow> for AuditedCall {
    fn from(row: AuditRow) -> Self {
        AuditedCall {
            status: row.call_status().map(str::to_owned),
            finished_at: row.finished_at(),
            request_id: row.request_id,
            bot_id: row.bot_id,
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
}

/// JSON that was stored as text; what is none is shown as the text that it is.
fn json_or_text(text: Option<String>) -> Value {
    text.map_or(Value::Null, |text| serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

impl From<&AuditRow> for AuditEvent {
    fn from(row: &AuditRow) -> Self {
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
}

/// Lists calls, newest first
#[utoipa::path(get, path = "/api/audit", tag = "audit", params(PageQuery, AuditFilter),
    responses((status = 200, body = AuditList), (status = "4XX", body = ProblemBody)))]
pub async fn list(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Params(page): Params<PageQuery>,
    Params(filter): Params<AuditFilter>,
) -> Result<Json<AuditList>, Problem> {
    let listed = app.store.calls(caller.workspace, &filter.check()?, &page.page()?).await?;
    let items = listed.items.into_iter().map(AuditedCall::from).collect();
    Ok(Json(AuditList { items, next_cursor: listed.next_cursor.map(String::from) }))
}

/// Shows a call with its events and their hashes
#[utoipa::path(get, path = "/api/audit/{request_id}", tag = "audit", params(("request_id" = RequestId, Path)),
    responses((status = 200, body = AuditedCallWithEvents), (status = "4XX", body = ProblemBody)))]
pub async fn show(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Id(request): Id<RequestId>,
) -> Result<Json<AuditedCallWithEvents>, Problem> {
    let rows = app.store.events(caller.workspace, request).await?;
    if rows.iter().any(AuditRow::is_of_change) {
        caller.admin()?;
    }
    let events = rows.iter().map(AuditEvent::from).collect();
    // The event that says most: the end, else the interruption, else the start.
    let telling = rows.into_iter().max_by_key(|row| match row.kind {
        AuditKind::Started => 0,
        AuditKind::Interrupted => 1,
        AuditKind::Finished => 2,
    });
    let call = telling.ok_or_else(|| Problem::not_found("call"))?.into();
    Ok(Json(AuditedCallWithEvents { call, events }))
}

/// The result of a verification of the audit.
#[derive(Serialize, ToSchema)]
pub struct Report {
    /// No problem was found.
    pub valid: bool,
    /// How many rows were checked.
    pub rows: u64,
    pub problems: Vec<AuditProblem>,
}

/// A row or a signed head that differs from what was written.
#[derive(Serialize, ToSchema)]
pub struct AuditProblem {
    /// The writer of the chain; empty for the file of heads.
    pub writer: String,
    /// The sequence of the row; the number of the line for the file of heads.
    pub sequence: i64,
    pub what: String,
}

impl From<audit::Report> for Report {
    fn from(report: audit::Report) -> Self {
        let audit::Report { valid, rows, problems } = report;
        let view = |audit::Problem { writer, sequence, what }| AuditProblem { writer, sequence, what };
        Report { valid, rows, problems: problems.into_iter().map(view).collect() }
    }
}

/// Verifies every chain against the signed heads
#[utoipa::path(get, path = "/api/audit/verify", tag = "audit",
    responses((status = 200, body = Report), (status = "4XX", body = ProblemBody)))]
pub async fn verify(State(app): State<Arc<App>>, _: Root) -> Result<Json<Report>, Problem> {
    let report = audit::verify(&app.store, &app.audit_keys, &app.data_dir).await;
    report.map(|report| Json(report.into())).map_err(|error| Problem::internal(&error))
}

/// Streams calls, newest first, one JSON object a line
#[utoipa::path(get, path = "/api/audit/export", tag = "audit", params(AuditFilter),
    responses((status = 200, content_type = "application/jsonl", body = AuditedCall, description = "JSONL"),
        (status = "4XX", body = ProblemBody)))]
pub async fn export(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Params(filter): Params<AuditFilter>,
) -> Result<Response, Problem> {
    let export = Export {
        store: app.store.clone(),
        workspace: caller.workspace,
        filter: filter.check()?,
        page: Some(Page::first(EXPORT_PAGE)),
        waiting: VecDeque::new(),
    };
    let lines = stream::unfold(export, |mut export| async move {
        let line = export.next().await.transpose()?;
        Some((line, export))
    });
    let mut response = Response::new(Body::from_stream(lines));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/jsonl"));
    let disposition = HeaderValue::from_static("attachment; filename=\"audit.jsonl\"");
    headers.insert(header::CONTENT_DISPOSITION, disposition);
    Ok(response)
}

/// An export under way: a page of rows is read when the lines of the one before have gone out.
struct Export {
    store: Store,
    workspace: WorkspaceId,
    filter: CallFilter,
    /// The page to read next.
    page: Option<Page<RequestId>>,
    waiting: VecDeque<AuditRow>,
}

/// The database failed in the middle of an export: the connection is broken off, so that half an export is not taken
/// for a whole one.
#[derive(Debug, thiserror::Error)]
#[error("the audit could not be read to its end")]
struct ExportBroken(#[source] monstrum_store::StoreError);

impl Export {
    async fn next(&mut self) -> Result<Option<Bytes>, ExportBroken> {
        if self.waiting.is_empty()
            && let Some(page) = self.page.take()
        {
            let listed = self.store.calls(self.workspace, &self.filter, &page).await.map_err(|error| {
                tracing::error!(%error, "an export of the audit was broken off");
                ExportBroken(error)
            })?;
            self.page = listed.next_cursor.map(|cursor| Page { limit: EXPORT_PAGE, cursor: Some(cursor) });
            self.waiting = listed.items.into();
        }
        Ok(self.waiting.pop_front().map(|row| line(&AuditedCall::from(row))))
    }
}

fn line(call: &AuditedCall) -> Bytes {
    let mut text = serde_json::to_vec(call).expect("a call is plain JSON");
    text.push(b'\n');
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(name: &str, value: &str) -> Result<CallFilter, Problem> {
        let given = |wanted: &str| (wanted == name).then(|| value.to_owned());
        let (bot_id, tool, status) = (given("bot_id"), given("tool"), given("status"));
        AuditFilter { bot_id, tool, operation: None, status, since: given("since"), until: given("until") }.check()
    }

    #[test]
    fn filters_are_checked() {
        for status in ["success", "error", "scope_violation", "permission_denied", "running", "interrupted"] {
            assert_eq!(filter("status", status).unwrap().status.as_deref(), Some(status));
        }
        let since = filter("since", "2026-11-21T23:21:49.123+01:00").unwrap().since.unwrap();
        assert_eq!(since.to_string(), "2026-11-21T22:21:49.123Z");
        for (name, bad) in [("status", "done"), ("bot_id", "x"), ("since", "yesterday"), ("until", "2026-11-21")] {
            let problem = format!("{:?}", filter(name, bad).unwrap_err());
            assert!(problem.contains(&format!("path: \"{name}\"")), "{problem}");
        }
    }

    #[test]
    fn stored_json_is_shown_as_json() {
        assert_eq!(json_or_text(Some(r#"{"a":1}"#.to_owned())), serde_json::json!({"a": 1}));
        assert_eq!(json_or_text(Some("{cut".to_owned())), Value::String("{cut".to_owned()));
        assert_eq!(json_or_text(None), Value::Null);
    }
}
