//! `/api/workflows`: documents with steps that a bot runs, their versions, and their triggers.

use axum::Json;
use axum::extract::{FromRequest, Request};
use http::{StatusCode, header};
use monstrum_api::workflows::{
    NewWorkflow, NewWorkflowTrigger, ValidWorkflow, Workflow, WorkflowChange, WorkflowList, WorkflowTrigger,
    WorkflowTriggerChange, WorkflowTriggerList, WorkflowVersion, WorkflowVersionList,
};
use monstrum_core::operations::Operator;
use monstrum_types::{BotId, WorkflowId, WorkflowTriggerId};
use serde::Deserialize;
use serde_json::Value;
use utoipa::IntoParams;

use crate::gateway::http::answer::{Answer, Created, Done};
use crate::gateway::http::extract::{Id, Ids, Input, PageQuery, Params, read_body, whole_body};
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::{HttpState, WorkflowsOfHost};
use crate::gateway::http::versions::{IfMatch, Versioned, versioned};
use crate::gateway::tasks::parsed;

/// The types of bodies that are a definition in YAML.
const YAML: [&str; 4] = ["application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"];

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct WorkflowQuery {
    /// The bot of the workflows. By default, the workflows of all bots are listed.
    #[param(value_type = Option<BotId>)]
    bot_id: Option<String>,
}

/// A definition in a body: JSON with the definition in a field, or the definition itself in YAML.
pub(super) struct Definition(NewWorkflow);

impl FromRequest<HttpState> for Definition {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &HttpState) -> Result<Self, Problem> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        let is_yaml = YAML.iter().any(|yaml| kind.eq_ignore_ascii_case(yaml));
        let body = whole_body(request.into_body()).await?;
        if !is_yaml {
            return read_body(body).await.map(Definition);
        }
        let text = String::from_utf8(body.to_vec()).map_err(|_| Problem::invalid_at("", "the body is not UTF-8"))?;
        Ok(Definition(NewWorkflow { definition: Value::String(text) }))
    }
}

/// Creates a workflow
///
/// The body can also be the definition itself, with the content type `application/yaml`. The errors of a definition have
/// the line and the column of each.
#[utoipa::path(post, path = "/api/workflows", tag = "workflows",
    request_body(content((NewWorkflow = "application/json"), (String = "application/yaml"))),
    responses((status = 201, body = Workflow)))]
pub(super) async fn create(
    workflows: WorkflowsOfHost,
    caller: Operator,
    Definition(new): Definition,
) -> Created<Workflow> {
    Ok((StatusCode::CREATED, Json(workflows.create(&caller, new).await?)))
}

/// Checks the definition of a workflow without saving it
///
/// The body can also be the definition itself, with the content type `application/yaml`. The answer to a definition with
/// errors is 422, and names all of them.
#[utoipa::path(post, path = "/api/workflows/validate", tag = "workflows",
    request_body(content((NewWorkflow = "application/json"), (String = "application/yaml"))),
    responses((status = 200, body = ValidWorkflow)))]
pub(super) async fn validate(
    workflows: WorkflowsOfHost,
    caller: Operator,
    Definition(new): Definition,
) -> Answer<ValidWorkflow> {
    Ok(Json(workflows.validate(&caller, new).await?))
}

/// Lists workflows, newest first, without their definitions
#[utoipa::path(get, path = "/api/workflows", tag = "workflows", params(WorkflowQuery, PageQuery),
    responses((status = 200, body = WorkflowList)))]
pub(super) async fn list(
    workflows: WorkflowsOfHost,
    caller: Operator,
    Params(query): Params<WorkflowQuery>,
    Params(page): Params<PageQuery>,
) -> Answer<WorkflowList> {
    let bot = parsed("bot_id", query.bot_id)?;
    Ok(Json(workflows.list(&caller, bot, &page.page()?).await?))
}

/// Shows a workflow with its newest definition
#[utoipa::path(get, path = "/api/workflows/{id}", tag = "workflows", params(("id" = WorkflowId, Path)),
    responses((status = 200, body = Workflow)))]
pub(super) async fn show(workflows: WorkflowsOfHost, caller: Operator, Id(id): Id<WorkflowId>) -> Versioned<Workflow> {
    Ok(versioned(workflows.show(&caller, id).await?))
}

/// Saves a new version of a workflow, or disables it; its name and its bot cannot be changed
///
/// Runs that have started keep their version. A definition that equals the newest version makes no version.
#[utoipa::path(patch, path = "/api/workflows/{id}", tag = "workflows", params(("id" = WorkflowId, Path)),
    request_body = WorkflowChange, responses((status = 200, body = Workflow)))]
pub(super) async fn update(
    workflows: WorkflowsOfHost,
    caller: Operator,
    Id(id): Id<WorkflowId>,
    IfMatch(expected): IfMatch,
    Input(change): Input<WorkflowChange>,
) -> Versioned<Workflow> {
    Ok(versioned(workflows.update(&caller, id, expected, change).await?))
}

/// Deletes a workflow with its versions and triggers
#[utoipa::path(delete, path = "/api/workflows/{id}", tag = "workflows", params(("id" = WorkflowId, Path)),
    responses((status = 204)))]
pub(super) async fn delete(
    workflows: WorkflowsOfHost,
    caller: Operator,
    Id(id): Id<WorkflowId>,
    IfMatch(expected): IfMatch,
) -> Done {
    workflows.delete(&caller, id, expected).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the versions of a workflow, newest first, without their definitions
#[utoipa::path(get, path = "/api/workflows/{id}/versions", tag = "workflows",
    params(("id" = WorkflowId, Path), PageQuery), responses((status = 200, body = WorkflowVersionList)))]
pub(super) async fn versions(
    workflows: WorkflowsOfHost,
    caller: Operator,
    Id(id): Id<WorkflowId>,
    Params(page): Params<PageQuery>,
) -> Answer<WorkflowVersionList> {
    Ok(Json(workflows.versions(&caller, id, &page.page()?).await?))
}

/// Shows a version of a workflow
#[utoipa::path(get, path = "/api/workflows/{id}/versions/{version}", tag = "workflows",
    params(("id" = WorkflowId, Path), ("version" = i64, Path, description = "The number of the version, from 1")),
    responses((status = 200, body = WorkflowVersion)))]
pub(super) async fn version(
    workflows: WorkflowsOfHost,
    caller: Operator,
    Ids(id, version): Ids<WorkflowId, i64>,
) -> Answer<WorkflowVersion> {
    Ok(Json(workflows.version(&caller, id, version).await?))
}

/// Creates a trigger of a workflow
///
/// Each event that matches starts a run, whose input is the data of the event. A trigger that takes the events of other
/// bots requires an admin key.
#[utoipa::path(post, path = "/api/workflows/{id}/triggers", tag = "workflows", params(("id" = WorkflowId, Path)),
    request_body = NewWorkflowTrigger, responses((status = 201, body = WorkflowTrigger)))]
pub(super) async fn create_trigger(
    workflows: WorkflowsOfHost,
    caller: Operator,
    Id(id): Id<WorkflowId>,
    Input(new): Input<NewWorkflowTrigger>,
) -> Created<WorkflowTrigger> {
    Ok((StatusCode::CREATED, Json(workflows.create_trigger(&caller, id, new).await?)))
}

/// Lists the triggers of a workflow, newest first
#[utoipa::path(get, path = "/api/workflows/{id}/triggers", tag = "workflows",
    params(("id" = WorkflowId, Path), PageQuery), responses((status = 200, body = WorkflowTriggerList)))]
pub(super) async fn triggers(
    workflows: WorkflowsOfHost,
    caller: Operator,
    Id(id): Id<WorkflowId>,
    Params(page): Params<PageQuery>,
) -> Answer<WorkflowTriggerList> {
    Ok(Json(workflows.triggers(&caller, id, &page.page()?).await?))
}

/// Enables or disables a trigger of a workflow
///
/// Enabling a trigger that takes the events of other bots requires an admin key.
#[utoipa::path(patch, path = "/api/workflows/{id}/triggers/{trigger_id}", tag = "workflows",
    params(("id" = WorkflowId, Path), ("trigger_id" = WorkflowTriggerId, Path)),
    request_body = WorkflowTriggerChange, responses((status = 200, body = WorkflowTrigger)))]
pub(super) async fn update_trigger(
    workflows: WorkflowsOfHost,
    caller: Operator,
    Ids(id, trigger): Ids<WorkflowId, WorkflowTriggerId>,
    Input(change): Input<WorkflowTriggerChange>,
) -> Answer<WorkflowTrigger> {
    Ok(Json(workflows.update_trigger(&caller, (id, trigger), change).await?))
}

/// Deletes a trigger of a workflow; the runs that it has started go on
#[utoipa::path(delete, path = "/api/workflows/{id}/triggers/{trigger_id}", tag = "workflows",
    params(("id" = WorkflowId, Path), ("trigger_id" = WorkflowTriggerId, Path)),
    responses((status = 204)))]
pub(super) async fn delete_trigger(
    workflows: WorkflowsOfHost,
    caller: Operator,
    Ids(id, trigger): Ids<WorkflowId, WorkflowTriggerId>,
) -> Done {
    workflows.delete_trigger(&caller, id, trigger).await?;
    Ok(StatusCode::NO_CONTENT)
}
