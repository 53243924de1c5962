//! `/api/sessions`: the tasks of conversations.

use std::ops::Deref;

use axum::Json;
use axum::extract::FromRequestParts;
use http::StatusCode;
use http::request::Parts;
use monstrum_api::sessions::{NewMessage, Session, SessionList, SessionMessageList};
use monstrum_api::tasks::Task;
use monstrum_core::operations::Caller;
use monstrum_store::SessionFilter;
use monstrum_types::SessionId;
use serde::Deserialize;
use utoipa::IntoParams;

use super::tasks::parsed;
use crate::gateway::http::answer::{Answer, Created, Done};
use crate::gateway::http::extract::{Id, Input, PageQuery, Params};
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::{HttpState, TasksOfHost};

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct SessionQuery {
    /// The bot of the sessions.
    bot_id: Option<String>,
    /// The app of the conversations.
    app_id: Option<String>,
    /// The user of the conversations.
    user_id: Option<String>,
}

/// Lists sessions, newest first
#[utoipa::path(get, path = "/api/sessions", tag = "sessions", params(SessionQuery, PageQuery),
    responses((status = 200, body = SessionList)))]
pub(super) async fn list(
    tasks: TasksOfHost,
    caller: Caller,
    Params(query): Params<SessionQuery>,
    Params(page): Params<PageQuery>,
) -> Answer<SessionList> {
    let SessionQuery { bot_id, app_id, user_id } = query;
    let filter = SessionFilter { bot: parsed("bot_id", bot_id)?, app: app_id, user: user_id };
    Ok(Json(tasks.sessions(&caller, filter, &page.page()?).await?))
}

/// Shows a session
#[utoipa::path(get, path = "/api/sessions/{id}", tag = "sessions", params(("id" = SessionId, Path)),
    responses((status = 200, body = Session)))]
pub(super) async fn show(tasks: TasksOfHost, caller: Caller, Id(id): Id<SessionId>) -> Answer<Session> {
    Ok(Json(tasks.session(&caller, id).await?))
}

/// Deletes a session with its tasks and the sandbox of its conversation
///
/// The sandbox stays if the conversation has another session that has not expired. The status is 409 while a task of the
/// session has not ended.
#[utoipa::path(delete, path = "/api/sessions/{id}", tag = "sessions", params(("id" = SessionId, Path)),
    responses((status = 204)))]
pub(super) async fn delete(tasks: TasksOfHost, caller: Caller, Id(id): Id<SessionId>) -> Done {
    tasks.delete_session(&caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the messages of a session with their answers, newest first
#[utoipa::path(get, path = "/api/sessions/{id}/messages", tag = "sessions",
    params(("id" = SessionId, Path), PageQuery), responses((status = 200, body = SessionMessageList)))]
pub(super) async fn messages(
    tasks: TasksOfHost,
    caller: Caller,
    Id(id): Id<SessionId>,
    Params(page): Params<PageQuery>,
) -> Answer<SessionMessageList> {
    Ok(Json(tasks.messages(&caller, id, &page.page()?).await?))
}

/// Sends a message to a session, which starts a task
///
/// The model reads the messages of the session before. The status is 409 while a task of the session has not ended.
#[utoipa::path(post, path = "/api/sessions/{id}/messages", tag = "sessions", params(("id" = SessionId, Path)),
    request_body = NewMessage, responses((status = 202, body = Task)))]
pub(super) async fn send(tasks: TasksOfHost, sender: MessageSender, Input(input): Input<NewMessage>) -> Created<Task> {
    let task = tasks.send(&sender.caller, sender.session, input).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// The session in the path, if the caller may see it. This is checked before the body is read.
pub(super) struct MessageSender {
    caller: Caller,
    session: SessionId,
}

impl Deref for MessageSender {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl FromRequestParts<HttpState> for MessageSender {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, state).await?;
        let Id(session) = Id::from_request_parts(parts, state).await?;
        state.tasks.session(&caller, session).await?;
        Ok(MessageSender { caller, session })
    }
}
