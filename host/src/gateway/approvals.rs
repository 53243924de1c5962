//! `/api/approvals`: people decide about calls for which gates ask, and about steps of workflows.

mod stream;

use axum::Json;
use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use http::request::Parts;
use monstrum_api::approvals::{Approval, ApprovalList, DecisionInput};
use monstrum_core::operations::{Reviewer, approvals};
use monstrum_store::{ApprovalFilter, ApprovalKind, ApprovalRow, ApprovalStatus};
use monstrum_types::ApprovalId;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::answer::Answer;
use crate::gateway::http::events::wants_events;
use crate::gateway::http::extract::{Id, Input, PageQuery, Params};
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::{Host, HttpState};

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ApprovalQuery {
    /// The status of the approvals. By default, approvals in every status are listed.
    status: Option<String>,
    /// The kind of the approvals, `call` or `step`. By default, approvals of every kind are listed.
    kind: Option<String>,
    /// The bot that makes the calls, or as which the workflow runs.
    bot_id: Option<String>,
}

/// Lists approvals
///
/// Parameters of more than 4 KiB are left out, and the texts of steps with them; `params_omitted` is then true.
///
/// With `Accept: text/event-stream`, the answer is a stream with an event `approval` for each change. The id of an event
/// identifies the change: a request with this id in the header `Last-Event-ID` continues after the change. If an approval
/// changes several times before the client reads the event, the stream contains its newest state only.
#[utoipa::path(get, path = "/api/approvals", tag = "approvals", params(ApprovalQuery, PageQuery),
    responses((status = 200, content((ApprovalList = "application/json"), (String = "text/event-stream")))))]
pub(super) async fn list(
    app: Host,
    caller: Reviewer,
    headers: HeaderMap,
    Params(query): Params<ApprovalQuery>,
    Params(page): Params<PageQuery>,
) -> Result<Response, Problem> {
    let ApprovalQuery { status, kind, bot_id } = query;
    let filter = ApprovalFilter {
        status: parsed("status", status, ApprovalStatus::from_word)?,
        kind: parsed("kind", kind, ApprovalKind::from_word)?,
        bot: parsed("bot_id", bot_id, |id| id.parse().ok())?,
    };
    if wants_events(&headers) {
        return Ok(stream::events(app.0, caller, filter, &headers).await?.into_response());
    }
    Ok(Json(approvals::list(&app, &caller, filter, &page.page()?).await?).into_response())
}

/// Shows an approval
#[utoipa::path(get, path = "/api/approvals/{id}", tag = "approvals", params(("id" = ApprovalId, Path)),
    responses((status = 200, body = Approval)))]
pub(super) async fn show(app: Host, caller: Reviewer, Id(id): Id<ApprovalId>) -> Answer<Approval> {
    Ok(Json(approvals::show(&app, &caller, id).await?))
}

/// Approves or denies a call or a step
///
/// The status is 403 if the gates or the workflow do not accept the key, and 409 if the digest differs, the approval is not
/// pending, a tool, its plugin or its resource has changed since the approval was asked for, or the run has ended.
#[utoipa::path(post, path = "/api/approvals/{id}", tag = "approvals", params(("id" = ApprovalId, Path)),
    request_body = DecisionInput,
    responses((status = 200, body = Approval)))]
pub(super) async fn decide(
    app: Host,
    Undecided { caller, row }: Undecided,
    Input(input): Input<DecisionInput>,
) -> Answer<Approval> {
    Ok(Json(approvals::decide(&app, &caller, row, input).await?))
}

/// The approval in the path, if the caller may decide about it. This is checked before the body is read.
pub(super) struct Undecided {
    caller: Reviewer,
    row: ApprovalRow,
}

impl FromRequestParts<HttpState> for Undecided {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Self, Problem> {
        let caller = Reviewer::from_request_parts(parts, state).await?;
        let Id(id) = Id::from_request_parts(parts, state).await?;
        let row = approvals::undecided(&state.app, &caller, id).await?;
        Ok(Undecided { caller, row })
    }
}

/// Parses a filter of the list.
fn parsed<T>(name: &str, text: Option<String>, parse: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let expected = match name {
        "status" => "expected pending, approved, denied, used, expired or void",
        "kind" => "expected call or step",
        _ => "expected the id of a bot",
    };
    parse(&text).map(Some).ok_or_else(|| Problem::invalid_at(name, expected))
}
