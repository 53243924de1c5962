//! `/api/audit`: one item for each call, newest first. Reads through the sandbox file routes count as calls. Operators
//! may read the audit. Verifying the chains requires a root key, because the chains cover all workspaces.

pub(super) mod stream;

use axum::Json;
use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, header};
use monstrum_api::audit::{AuditList, AuditedCall, AuditedCallWithEvents, AuditedChangeList, CallStats, Report};
use monstrum_core::operations::audit::ExportFormat;
use monstrum_core::operations::stats::StatsInput;
use monstrum_core::operations::{Admin, InputErrors, OperationError, Operator, Root, audit, stats};
use monstrum_store::CallFilter;
use monstrum_types::{BotId, RequestId, ResourceId, Status, UtcMillis};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::answer::Answer;
use crate::gateway::http::extract::{Id, PageQuery, Params};
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::Host;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditFilter {
    #[param(value_type = Option<BotId>)]
    bot_id: Option<String>,
    tool: Option<String>,
    /// The operation of the calls, such as `sandbox.read`.
    operation: Option<String>,
    /// The status of the calls: `success`, `error`, `scope_violation`, `permission_denied`, `approval_required`, `running` or
    /// `interrupted`.
    status: Option<String>,
    #[param(value_type = Option<ResourceId>)]
    resource_id: Option<String>,
    /// The rule that rejected the calls, such as `scope.repos`.
    rule: Option<String>,
    /// Only calls that started at this time or later.
    #[param(value_type = Option<UtcMillis>)]
    since: Option<String>,
    /// Only calls that started before this time.
    #[param(value_type = Option<UtcMillis>)]
    until: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct TreeQuery {
    /// A call. The answer contains this call and the calls below it, oldest first, in place of a page of all calls. It
    /// contains `limit` calls, 200 at most. Other filters and `cursor` cannot be combined with `tree`.
    #[param(value_type = Option<RequestId>)]
    tree: Option<String>,
}

/// Lists calls, newest first
#[utoipa::path(get, path = "/api/audit", tag = "audit", params(PageQuery, AuditFilter, TreeQuery),
    responses((status = 200, body = AuditList)))]
pub(super) async fn list(
    app: Host,
    caller: Operator,
    Params(page): Params<PageQuery>,
    Params(filter): Params<AuditFilter>,
    Params(TreeQuery { tree }): Params<TreeQuery>,
) -> Answer<AuditList> {
    let (filter, page) = (filter.check()?, page.page()?);
    let mut errors = InputErrors::default();
    let root = parsed(&mut errors, "tree", tree, "the request id of a call");
    if root.is_some() && (filter != CallFilter::default() || page.cursor.is_some()) {
        errors.add("tree", "cannot be combined with other filters or a cursor");
    }
    errors.check()?;
    Ok(Json(match root {
        Some(root) => audit::tree(&app, &caller, root, page.limit).await?,
        None => audit::list(&app, &caller, &filter, &page).await?,
    }))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct StatsQuery {
    /// One or two properties, separated by a comma: `bot_id`, `tool`, `resource_id`, `status`, `rule` or `message`.
    by: Option<String>,
    /// The width of a bucket in seconds, for numbers in time. Buckets begin at multiples of their width since 1970.
    #[param(value_type = Option<i64>, minimum = 1)]
    bucket: Option<String>,
}

/// Counts calls by one or two properties, the largest number first
///
/// By default, the calls of the last 24 hours are counted. The time has at most 31 days and 750 buckets. The newest 200000
/// rows of the audit are read.
#[utoipa::path(get, path = "/api/stats", tag = "audit", params(StatsQuery, AuditFilter),
    responses((status = 200, body = CallStats)))]
pub(super) async fn stats(
    app: Host,
    caller: Operator,
    Params(query): Params<StatsQuery>,
    Params(filter): Params<AuditFilter>,
) -> Answer<CallStats> {
    let filter = filter.check()?;
    let mut errors = InputErrors::default();
    let bucket_s = parsed(&mut errors, "bucket", query.bucket, "a whole number of seconds of at least 1");
    errors.check()?;
    let input = StatsInput { by: query.by.unwrap_or_default(), filter, bucket_s };
    Ok(Json(stats::stats(&app, &caller, &input).await?))
}

/// Shows a call with its events and their hashes
#[utoipa::path(get, path = "/api/audit/{request_id}", tag = "audit", params(("request_id" = RequestId, Path)),
    responses((status = 200, body = AuditedCallWithEvents)))]
pub(super) async fn show(app: Host, caller: Operator, Id(request): Id<RequestId>) -> Answer<AuditedCallWithEvents> {
    Ok(Json(audit::show(&app, &caller, request).await?))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct VerifyQuery {
    /// Checks only the rows after a signed head: `latest`, or the newest head of the row with this sequence number or a row
    /// before it.
    since_head: Option<String>,
}

/// Verifies every audit chain against the signed heads
#[utoipa::path(get, path = "/api/audit/verify", tag = "audit", params(VerifyQuery),
    responses((status = 200, body = Report)))]
pub(super) async fn verify(app: Host, caller: Root, Params(query): Params<VerifyQuery>) -> Answer<Report> {
    let mut errors = InputErrors::default();
    let since = parsed(&mut errors, "since_head", query.since_head, "`latest` or the sequence number of a row");
    errors.check()?;
    Ok(Json(audit::verify(&app, &caller, since).await?))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ExportQuery {
    /// The format of the lines: `calls`, the default, or `ocsf`.
    format: Option<String>,
}

/// Streams calls, newest first, with one JSON object per line
///
/// With `format=ocsf`, each line is an event of OCSF 1.9.0: a call is an API Activity (6003). For admin and root keys, the
/// lines include changes, as Entity Management (3004), to which the filters apply too. If the database fails, or
/// the key is deleted or rotated, the connection is closed before the end of the body.
#[utoipa::path(get, path = "/api/audit/export", tag = "audit", params(ExportQuery, AuditFilter),
    responses((status = 200, content_type = "application/jsonl", body = AuditedCall, description = "JSONL")))]
pub(super) async fn export(
    app: Host,
    caller: Operator,
    Params(ExportQuery { format }): Params<ExportQuery>,
    Params(filter): Params<AuditFilter>,
) -> Result<Response, Problem> {
    let (format, disposition) = match format.as_deref() {
        None | Some("calls") => (ExportFormat::Calls, "attachment; filename=\"audit.jsonl\""),
        Some("ocsf") => (ExportFormat::Ocsf, "attachment; filename=\"audit-ocsf.jsonl\""),
        Some(_) => return Err(Problem::invalid_at("format", "expected `calls` or `ocsf`")),
    };
    let lines = audit::export(app.0, caller, filter.check()?, format);
    let mut response = Response::new(Body::from_stream(lines));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/jsonl"));
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static(disposition));
    Ok(response)
}

/// Lists changes to permissions, newest first
#[utoipa::path(get, path = "/api/audit/changes", tag = "audit", params(PageQuery),
    responses((status = 200, body = AuditedChangeList)))]
pub(super) async fn changes(app: Host, caller: Admin, Params(page): Params<PageQuery>) -> Answer<AuditedChangeList> {
    Ok(Json(audit::changes(&app, &caller, &page.page()?).await?))
}

impl AuditFilter {
    fn check(self) -> Result<CallFilter, OperationError> {
        let mut errors = InputErrors::default();
        if let Some(status) = &self.status
            && Status::from_word(status).is_none()
            && !matches!(status.as_str(), "running" | "interrupted")
        {
            let known: Vec<&str> = Status::ALL.iter().map(|status| status.as_str()).collect();
            errors.add("status", format!("expected {}, running or interrupted", known.join(", ")));
        }
        let bot_id = parsed(&mut errors, "bot_id", self.bot_id, "the id of a bot");
        let resource_id = parsed(&mut errors, "resource_id", self.resource_id, "the id of a resource");
        let time = "an RFC 3339 time such as 2026-11-21T22:21:49.123Z (in a URL, `+` is written %2B)";
        let since = parsed(&mut errors, "since", self.since, time);
        let until = parsed(&mut errors, "until", self.until, time);
        errors.check()?;
        let AuditFilter { tool, operation, status, rule, .. } = self;
        Ok(CallFilter { bot_id, tool, operation, status, resource_id, rule, since, until })
    }
}

fn parsed<T: std::str::FromStr>(
    errors: &mut InputErrors,
    name: &str,
    text: Option<String>,
    expected: &str,
) -> Option<T> {
    let parsed = text?.parse();
    if parsed.is_err() {
        errors.add(name, format!("expected {expected}"));
    }
    parsed.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(name: &str, value: &str) -> Result<CallFilter, OperationError> {
        let given = |wanted: &str| (wanted == name).then(|| value.to_owned());
        AuditFilter {
            bot_id: given("bot_id"),
            tool: given("tool"),
            operation: None,
            status: given("status"),
            resource_id: given("resource_id"),
            rule: given("rule"),
            since: given("since"),
            until: given("until"),
        }
        .check()
    }

    #[test]
    fn filters_are_checked() {
        let words = ["success", "error", "scope_violation", "permission_denied", "approval_required"];
        for status in words.into_iter().chain(["running", "interrupted"]) {
            assert_eq!(filter("status", status).unwrap().status.as_deref(), Some(status));
        }
        let since = filter("since", "2026-11-21T23:21:49.123+01:00").unwrap().since.unwrap();
        assert_eq!(since.to_string(), "2026-11-21T22:21:49.123Z");
        let bad = [
            ("status", "done"),
            ("bot_id", "x"),
            ("resource_id", "x"),
            ("since", "yesterday"),
            ("until", "2026-11-21"),
        ];
        for (name, bad) in bad {
            let problem = format!("{:?}", filter(name, bad).unwrap_err());
            assert!(problem.contains(&format!("path: \"{name}\"")), "{problem}");
        }
    }
}
