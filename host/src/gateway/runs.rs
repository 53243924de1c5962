//! `/api/runs` and `/api/workflows/{id}/runs`: the runs of workflows.

mod stream;

use std::ops::Deref;

use axum::Json;
use axum::extract::FromRequestParts;
use axum::response::IntoResponse;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use monstrum_api::runs::{NewRun, Run, RunCancellation, RunList, RunStepList, StepResolution};
use monstrum_core::operations::{Caller, InputErrors, Operator};
use monstrum_store::RunStatus;
use monstrum_types::{RunId, UtcMillis, WorkflowId};
use monstrum_work::runs::RunsInput;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::answer::{Answer, Created};
use crate::gateway::http::extract::{Id, Ids, Input, OptionalInput, PageQuery, Params};
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::{HttpState, RunsOfHost};

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct RunQuery {
    /// The workflow of the runs.
    #[param(value_type = Option<WorkflowId>)]
    workflow_id: Option<String>,
    /// The status of the runs. By default, runs in every status are listed.
    status: Option<String>,
    /// The id of the key, trigger, schedule or run that has started the runs.
    started_by: Option<String>,
    /// The earliest time at which the runs were created, which is included.
    #[param(value_type = Option<UtcMillis>)]
    since: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct RunOfWorkflowQuery {
    /// The status of the runs. By default, runs in every status are listed.
    status: Option<String>,
    /// The id of the key, trigger, schedule or run that has started the runs.
    started_by: Option<String>,
    /// The earliest time at which the runs were created, which is included.
    #[param(value_type = Option<UtcMillis>)]
    since: Option<String>,
}

/// Starts a run of a workflow
///
/// The steps act as the bot of the workflow. The run keeps the version of the workflow to its end. The status is 409 if the
/// workflow is disabled, or starts no run beyond its limit of concurrency, and 429 if the workspace has too many runs. A run that a
/// bot key starts has the label `untrusted`, and is cancelled when the key is deleted or rotated.
#[utoipa::path(post, path = "/api/workflows/{id}/runs", tag = "runs", params(("id" = WorkflowId, Path)),
    request_body = NewRun, responses((status = 202, body = Run)))]
pub(super) async fn start(
    runs: RunsOfHost,
    starter: RunStarter,
    OptionalInput(new): OptionalInput<NewRun>,
) -> Created<Run> {
    Ok((StatusCode::ACCEPTED, Json(runs.start(&starter.caller, starter.workflow, new).await?)))
}

/// Lists the runs of a workflow, newest first
///
/// A run in the list has no input and no output of more than 4 KiB.
#[utoipa::path(get, path = "/api/workflows/{id}/runs", tag = "runs",
    params(("id" = WorkflowId, Path), RunOfWorkflowQuery, PageQuery), responses((status = 200, body = RunList)))]
pub(super) async fn of_workflow(
    runs: RunsOfHost,
    caller: Caller,
    Id(id): Id<WorkflowId>,
    Params(query): Params<RunOfWorkflowQuery>,
    Params(page): Params<PageQuery>,
) -> Answer<RunList> {
    let RunOfWorkflowQuery { status, started_by, since } = query;
    let input = RunQuery { workflow_id: None, status, started_by, since }.input()?;
    Ok(Json(runs.of_workflow(&caller, id, input, &page.page()?).await?))
}

/// Lists runs, newest first
///
/// A run in the list has no input and no output of more than 4 KiB.
#[utoipa::path(get, path = "/api/runs", tag = "runs", params(RunQuery, PageQuery),
    responses((status = 200, body = RunList)))]
pub(super) async fn list(
    runs: RunsOfHost,
    caller: Caller,
    Params(query): Params<RunQuery>,
    Params(page): Params<PageQuery>,
) -> Answer<RunList> {
    Ok(Json(runs.list(&caller, &query.input()?, &page.page()?).await?))
}

/// Shows a run
#[utoipa::path(get, path = "/api/runs/{id}", tag = "runs", params(("id" = RunId, Path)),
    responses((status = 200, body = Run)))]
pub(super) async fn show(runs: RunsOfHost, caller: Caller, Id(id): Id<RunId>) -> Answer<Run> {
    Ok(Json(runs.show(&caller, id).await?))
}

/// Lists the attempts of a run's steps, in the order in which they began
///
/// A page ends before its limit if its attempts are large.
#[utoipa::path(get, path = "/api/runs/{id}/steps", tag = "runs", params(("id" = RunId, Path), PageQuery),
    responses((status = 200, body = RunStepList)))]
pub(super) async fn steps(
    runs: RunsOfHost,
    caller: Caller,
    Id(id): Id<RunId>,
    Params(page): Params<PageQuery>,
) -> Answer<RunStepList> {
    Ok(Json(runs.steps(&caller, id, &page.page()?).await?))
}

/// Follows a run
///
/// The answer is a stream of server-sent events: `run` with the run when its status changes, `step` with each attempt of a step
/// that begins, waits or ends, `approval` with what a person has to decide, and at last `end` with the run. A request with the id
/// of an event in the header `Last-Event-ID` continues after it.
#[utoipa::path(get, path = "/api/runs/{id}/events", tag = "runs", params(("id" = RunId, Path)),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(super) async fn events(
    RunsOfHost(runs): RunsOfHost,
    caller: Caller,
    headers: HeaderMap,
    Id(id): Id<RunId>,
) -> Result<impl IntoResponse, Problem> {
    stream::events(runs, caller, id, &headers).await
}

/// Cancels a run
///
/// The steps that run are stopped; with `undo`, those that have succeeded are then undone. At last, the steps of `finally` run.
#[utoipa::path(post, path = "/api/runs/{id}/cancel", tag = "runs", params(("id" = RunId, Path)),
    request_body = RunCancellation, responses((status = 202, body = Run)))]
pub(super) async fn cancel(
    runs: RunsOfHost,
    VisibleRun { caller, id }: VisibleRun,
    OptionalInput(cancellation): OptionalInput<RunCancellation>,
) -> Created<Run> {
    Ok((StatusCode::ACCEPTED, Json(runs.cancel(&caller, id, cancellation.undo).await?)))
}

/// Pauses a run
///
/// What runs ends, and nothing new starts. Time-outs go on.
#[utoipa::path(post, path = "/api/runs/{id}/pause", tag = "runs", params(("id" = RunId, Path)),
    responses((status = 202, body = Run)))]
pub(super) async fn pause(runs: RunsOfHost, caller: Operator, Id(id): Id<RunId>) -> Created<Run> {
    Ok((StatusCode::ACCEPTED, Json(runs.pause(&caller, id).await?)))
}

/// Lets a paused run go on
#[utoipa::path(post, path = "/api/runs/{id}/resume", tag = "runs", params(("id" = RunId, Path)),
    responses((status = 202, body = Run)))]
pub(super) async fn resume(runs: RunsOfHost, caller: Operator, Id(id): Id<RunId>) -> Created<Run> {
    Ok((StatusCode::ACCEPTED, Json(runs.resume(&caller, id).await?)))
}

/// Begins the next attempt of a run that has failed or was cancelled
///
/// Steps that have succeeded and were not undone keep their results, all others run again. The status is 409 while a step is
/// uncertain.
#[utoipa::path(post, path = "/api/runs/{id}/retry", tag = "runs", params(("id" = RunId, Path)),
    responses((status = 202, body = Run)))]
pub(super) async fn retry(runs: RunsOfHost, caller: Operator, Id(id): Id<RunId>) -> Created<Run> {
    Ok((StatusCode::ACCEPTED, Json(runs.retry(&caller, id).await?)))
}

/// Says what became of an uncertain step
///
/// The call of an uncertain step may have had its effect. `succeeded` takes `data` as its result, `failed` says that the call did
/// not happen, and `retry` repeats it. The status is 409 if the step is not uncertain.
#[utoipa::path(post, path = "/api/runs/{id}/steps/{step}/resolve", tag = "runs",
    params(("id" = RunId, Path), ("step" = String, Path, description = "The id of the step in the definition")),
    request_body = StepResolution, responses((status = 202, body = Run)))]
pub(super) async fn resolve(
    runs: RunsOfHost,
    caller: Operator,
    Ids(id, step): Ids<RunId, String>,
    Input(resolution): Input<StepResolution>,
) -> Created<Run> {
    Ok((StatusCode::ACCEPTED, Json(runs.resolve(&caller, (id, &step), resolution).await?)))
}

/// The workflow in the path, if the caller may start runs of it. This is checked before the body is read.
pub(super) struct RunStarter {
    caller: Caller,
    workflow: WorkflowId,
}

impl Deref for RunStarter {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl FromRequestParts<HttpState> for RunStarter {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, state).await?;
        let Id(workflow) = Id::from_request_parts(parts, state).await?;
        state.runs.may_start(&caller, workflow).await?;
        Ok(RunStarter { caller, workflow })
    }
}

/// The run in the path, if the caller may see it. This is checked before the body is read.
pub(super) struct VisibleRun {
    caller: Caller,
    id: RunId,
}

impl FromRequestParts<HttpState> for VisibleRun {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, state).await?;
        let Id(id) = Id::from_request_parts(parts, state).await?;
        state.runs.row(&caller, id).await?;
        Ok(VisibleRun { caller, id })
    }
}

impl RunQuery {
    fn input(self) -> Result<RunsInput, Problem> {
        let RunQuery { workflow_id, status, started_by, since } = self;
        let mut errors = InputErrors::default();
        let mut expected = |name: &str, what: &str| errors.add(name, format!("expected {what}"));
        let statuses = RunStatus::ALL.iter().map(|status| status.as_str()).collect::<Vec<_>>().join(", ");
        let workflow = workflow_id.map(|id| id.parse().ok());
        let status = status.map(|word| RunStatus::from_word(&word));
        let since = since.map(|time| time.parse().ok());
        if workflow == Some(None) {
            expected("workflow_id", "the id of a workflow");
        }
        if status == Some(None) {
            expected("status", &format!("one of {statuses}"));
        }
        if since == Some(None) {
            expected("since", "a time such as 2026-11-21T22:21:49Z");
        }
        errors.check()?;
        Ok(RunsInput { workflow: workflow.flatten(), status: status.flatten(), started_by, since: since.flatten() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query() -> RunQuery {
        RunQuery { workflow_id: None, status: None, started_by: None, since: None }
    }

    #[test]
    fn filters_are_parsed_or_refused() {
        let since = Some("2026-11-21T23:21:49.123+01:00".to_owned());
        let input = RunQuery { status: Some("waiting".to_owned()), since, ..query() }.input().unwrap();
        assert_eq!(input.status, Some(RunStatus::Waiting));
        assert_eq!(input.since.unwrap().to_string(), "2026-11-21T22:21:49.123Z");
        let bad = || Some("x".to_owned());
        for query in [
            RunQuery { workflow_id: bad(), ..query() },
            RunQuery { status: bad(), ..query() },
            RunQuery { since: bad(), ..query() },
        ] {
            assert_eq!(query.input().unwrap_err().status, StatusCode::UNPROCESSABLE_ENTITY);
        }
    }
}
