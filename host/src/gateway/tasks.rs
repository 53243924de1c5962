//! `/api/tasks` and `/api/bots/{id}/tasks`: the tasks of bots.

mod stream;

pub(super) use stream::streamed;

use std::ops::Deref;

use axum::Json;
use axum::extract::FromRequestParts;
use axum::response::IntoResponse;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use monstrum_api::tasks::{NewTask, Task, TaskList, TaskSteps};
use monstrum_core::operations::Caller;
use monstrum_store::{TaskFilter, TaskStatus};
use monstrum_types::{BotId, TaskId};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::answer::{Answer, Created};
use crate::gateway::http::extract::{Id, Input, PageQuery, Params, page_limit};
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::{HttpState, TasksOfHost};

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct TaskQuery {
    /// The bot of the tasks.
    bot_id: Option<String>,
    /// The status of the tasks. By default, tasks in every status are listed.
    status: Option<String>,
    /// The session of the tasks.
    session_id: Option<String>,
    /// The schedule that has started the tasks. Firings older than 30 days are forgotten.
    schedule_id: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct TaskOfBotQuery {
    /// The status of the tasks. By default, tasks in every status are listed.
    status: Option<String>,
    /// The session of the tasks.
    session_id: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct StepsQuery {
    /// The step after which the page begins. The default is 0, for the first page.
    #[param(value_type = Option<i64>, minimum = 0, default = 0)]
    after: Option<String>,
    /// The maximum number of steps on a page, 1 to 1000. A larger value means 1000.
    #[param(value_type = Option<u32>, minimum = 1, default = 50)]
    limit: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct EventsQuery {
    /// The step after which the stream begins. The default is 0, for all steps.
    #[param(value_type = Option<i64>, minimum = 0, default = 0)]
    after: Option<String>,
}

/// Starts a task
///
/// The bot works on the instruction with its model and its tools until the model answers. The answer to the request is the
/// task, which then runs. With `Accept: text/event-stream`, the answer is the stream of `GET /api/tasks/{id}/events`. The
/// status is 409 if the bot has no model, or if the session has a task that has not ended.
#[utoipa::path(post, path = "/api/bots/{id}/tasks", tag = "tasks", params(("id" = BotId, Path)),
    request_body = NewTask, responses((status = 200, content_type = "text/event-stream", body = String),
        (status = 202, body = Task)))]
pub(super) async fn start(tasks: TasksOfHost, starter: TaskStarter, Input(input): Input<NewTask>) -> Created<Task> {
    let task = tasks.start(&starter.caller, starter.bot, input).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Lists tasks, newest first
///
/// A task in the list has the first 4 KiB of its instruction and its result.
#[utoipa::path(get, path = "/api/tasks", tag = "tasks", params(TaskQuery, PageQuery),
    responses((status = 200, body = TaskList)))]
pub(super) async fn list(
    tasks: TasksOfHost,
    caller: Caller,
    Params(query): Params<TaskQuery>,
    Params(page): Params<PageQuery>,
) -> Answer<TaskList> {
    let TaskQuery { bot_id, status, session_id, schedule_id } = query;
    let (bot, schedule) = (parsed("bot_id", bot_id)?, parsed("schedule_id", schedule_id)?);
    let filter = TaskFilter { bot, schedule, ..filter(status, session_id)? };
    Ok(Json(tasks.list(&caller, filter, &page.page()?).await?))
}

/// Lists the tasks of a bot, newest first
///
/// A task in the list has the first 4 KiB of its instruction and its result.
#[utoipa::path(get, path = "/api/bots/{id}/tasks", tag = "tasks",
    params(("id" = BotId, Path), TaskOfBotQuery, PageQuery), responses((status = 200, body = TaskList)))]
pub(super) async fn of_bot(
    tasks: TasksOfHost,
    TaskStarter { caller, bot }: TaskStarter,
    Params(query): Params<TaskOfBotQuery>,
    Params(page): Params<PageQuery>,
) -> Answer<TaskList> {
    let filter = TaskFilter { bot: Some(bot), ..filter(query.status, query.session_id)? };
    Ok(Json(tasks.list(&caller, filter, &page.page()?).await?))
}

/// Shows a task
#[utoipa::path(get, path = "/api/tasks/{id}", tag = "tasks", params(("id" = TaskId, Path)),
    responses((status = 200, body = Task)))]
pub(super) async fn show(tasks: TasksOfHost, caller: Caller, Id(id): Id<TaskId>) -> Answer<Task> {
    Ok(Json(tasks.show(&caller, id).await?))
}

/// Cancels a task
///
/// The task ends within a second, and stays in the lists. The status is 200 if the task had ended before.
#[utoipa::path(delete, path = "/api/tasks/{id}", tag = "tasks", params(("id" = TaskId, Path)),
    responses((status = 200, body = Task), (status = 202, body = Task)))]
pub(super) async fn cancel(tasks: TasksOfHost, caller: Caller, Id(id): Id<TaskId>) -> Created<Task> {
    let (task, has_ended) = tasks.cancel(&caller, id).await?;
    let status = if has_ended { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(task)))
}

/// Lists the steps of a task
///
/// A page ends before its limit if its steps are large. `next_after` is then the parameter `after` of the next page.
#[utoipa::path(get, path = "/api/tasks/{id}/steps", tag = "tasks", params(("id" = TaskId, Path), StepsQuery),
    responses((status = 200, body = TaskSteps)))]
pub(super) async fn steps(
    tasks: TasksOfHost,
    caller: Caller,
    Id(id): Id<TaskId>,
    Params(query): Params<StepsQuery>,
) -> Answer<TaskSteps> {
    let after = stream::after(query.after.as_deref())?;
    let limit = page_limit(query.limit.as_deref())?;
    Ok(Json(tasks.steps(&caller, id, after, limit).await?))
}

/// Follows a task
///
/// The answer is a stream of server-sent events: `task` with the task, `call` with a call that waits or runs, `approval`
/// with what the task waits for, `step` with each step that has ended, `delta` with each piece of the text of a round that
/// runs, and at last `end` with the task. The id of an event `step` is its position: a request with this id in the header
/// `Last-Event-ID` continues after the step.
#[utoipa::path(get, path = "/api/tasks/{id}/events", tag = "tasks", params(("id" = TaskId, Path), EventsQuery),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(super) async fn events(
    TasksOfHost(tasks): TasksOfHost,
    caller: Caller,
    headers: HeaderMap,
    Id(id): Id<TaskId>,
    Params(query): Params<EventsQuery>,
) -> Result<impl IntoResponse, Problem> {
    stream::events(tasks, caller, id, &headers, query.after.as_deref()).await
}

/// The bot in the path, if the caller may start tasks of it. This is checked before the body is read.
pub(super) struct TaskStarter {
    caller: Caller,
    bot: BotId,
}

impl Deref for TaskStarter {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl FromRequestParts<HttpState> for TaskStarter {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, state).await?;
        let Id(bot) = Id::from_request_parts(parts, state).await?;
        state.tasks.may_start(&caller, bot)?;
        Ok(TaskStarter { caller, bot })
    }
}

fn filter(status: Option<String>, session_id: Option<String>) -> Result<TaskFilter, Problem> {
    let status = match status {
        None => None,
        Some(word) => Some(TaskStatus::from_word(&word).ok_or_else(|| {
            Problem::invalid_at("status", "expected queued, running, waiting, completed, failed or cancelled")
        })?),
    };
    Ok(TaskFilter { status, session: parsed("session_id", session_id)?, ..TaskFilter::default() })
}

/// Parses a filter of a list that is an id.
pub(super) fn parsed<T: std::str::FromStr>(name: &str, text: Option<String>) -> Result<Option<T>, Problem> {
    let Some(text) = text else { return Ok(None) };
    text.parse().map(Some).map_err(|_| Problem::invalid_at(name, "expected an id"))
}
