//! `/api/schedules`: the times at which tasks of bots and runs of workflows start.

use axum::Json;
use http::StatusCode;
use monstrum_api::schedules::{
    FiredByHand, NewSchedule, Schedule, ScheduleChange, ScheduleList, SchedulePreview, ScheduleTimes,
};
use monstrum_core::operations::Operator;
use monstrum_types::{BotId, ScheduleId};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::answer::{Answer, Created, Done};
use crate::gateway::http::extract::{Id, Input, PageQuery, Params};
use crate::gateway::http::state::TasksOfHost;
use crate::gateway::http::versions::{IfMatch, Versioned, versioned};
use crate::gateway::tasks::parsed;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ScheduleQuery {
    /// The bot of the schedules. By default, the schedules of all bots are listed.
    #[param(value_type = Option<BotId>)]
    bot_id: Option<String>,
}

/// Creates a schedule
///
/// At each of its times, the bot gets a task with the instruction, or a run of the workflow starts. The schedule goes on when
/// the key that made it is deleted.
#[utoipa::path(post, path = "/api/schedules", tag = "schedules", request_body = NewSchedule,
    responses((status = 201, body = Schedule)))]
pub(super) async fn create(tasks: TasksOfHost, caller: Operator, Input(new): Input<NewSchedule>) -> Created<Schedule> {
    Ok((StatusCode::CREATED, Json(tasks.schedules().create(&caller, new).await?)))
}

/// Lists schedules, newest first
#[utoipa::path(get, path = "/api/schedules", tag = "schedules", params(ScheduleQuery, PageQuery),
    responses((status = 200, body = ScheduleList)))]
pub(super) async fn list(
    tasks: TasksOfHost,
    caller: Operator,
    Params(query): Params<ScheduleQuery>,
    Params(page): Params<PageQuery>,
) -> Answer<ScheduleList> {
    let bot = parsed("bot_id", query.bot_id)?;
    Ok(Json(tasks.schedules().list(&caller, bot, &page.page()?).await?))
}

/// Shows a schedule
#[utoipa::path(get, path = "/api/schedules/{id}", tag = "schedules", params(("id" = ScheduleId, Path)),
    responses((status = 200, body = Schedule)))]
pub(super) async fn show(tasks: TasksOfHost, caller: Operator, Id(id): Id<ScheduleId>) -> Versioned<Schedule> {
    Ok(versioned(tasks.schedules().show(&caller, id).await?))
}

/// Changes a schedule; its bot and its workflow cannot be changed
#[utoipa::path(patch, path = "/api/schedules/{id}", tag = "schedules", params(("id" = ScheduleId, Path)),
    request_body = ScheduleChange, responses((status = 200, body = Schedule)))]
pub(super) async fn update(
    tasks: TasksOfHost,
    caller: Operator,
    Id(id): Id<ScheduleId>,
    IfMatch(expected): IfMatch,
    Input(change): Input<ScheduleChange>,
) -> Versioned<Schedule> {
    Ok(versioned(tasks.schedules().update(&caller, id, expected, change).await?))
}

/// Deletes a schedule; the tasks and runs that it has started go on
#[utoipa::path(delete, path = "/api/schedules/{id}", tag = "schedules", params(("id" = ScheduleId, Path)),
    responses((status = 204)))]
pub(super) async fn delete(
    tasks: TasksOfHost,
    caller: Operator,
    Id(id): Id<ScheduleId>,
    IfMatch(expected): IfMatch,
) -> Done {
    tasks.schedules().delete(&caller, id, expected).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Starts the task or the run of a schedule now
///
/// The answer is the task or the run. It runs also beside an earlier one of the schedule, and if the schedule is disabled. The
/// next time of the schedule stays as it is. The status is 409 if the bot has no model or the workflow is disabled.
#[utoipa::path(post, path = "/api/schedules/{id}/fire", tag = "schedules", params(("id" = ScheduleId, Path)),
    responses((status = 202, body = FiredByHand)))]
pub(super) async fn fire(tasks: TasksOfHost, caller: Operator, Id(id): Id<ScheduleId>) -> Created<FiredByHand> {
    Ok((StatusCode::ACCEPTED, Json(tasks.schedules().fire(&caller, id).await?)))
}

/// Computes the next five times of a schedule that is not saved
#[utoipa::path(post, path = "/api/schedules/preview", tag = "schedules", request_body = SchedulePreview,
    responses((status = 200, body = ScheduleTimes)))]
pub(super) async fn preview(
    tasks: TasksOfHost,
    caller: Operator,
    Input(input): Input<SchedulePreview>,
) -> Answer<ScheduleTimes> {
    Ok(Json(tasks.schedules().preview(&caller, input)?))
}
