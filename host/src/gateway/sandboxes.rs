//! `/api/sandboxes`: the sandboxes of conversations, and commands in them.
//!
//! A command passes through the whole pipeline as a call of the sandbox's bot, in the sandbox's conversation. So a key
//! with access to a sandbox gains no permissions that the bot does not have.

mod stream;

use axum::Json;
use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use monstrum_api::sandboxes::{ExecInput, Sandbox, SandboxCommandList, SandboxList};
use monstrum_api::tools::CallResult;
use monstrum_core::operations::{Caller, Operator, calls, sandboxes};
use monstrum_store::{SandboxFilter, SandboxRow, SandboxStatus};
use monstrum_types::{BotId, SandboxInstanceId};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::answer::{Answer, Done};
use crate::gateway::http::events::wants_events;
use crate::gateway::http::extract::{Id, Input, PageQuery, Params};
use crate::gateway::http::language::InLanguage;
use crate::gateway::http::problem::{Problem, ProblemBody};
use crate::gateway::http::state::{Host, HttpState};

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct SandboxQuery {
    /// The status of the sandboxes. By default, sandboxes in every status are listed.
    status: Option<String>,
    bot_id: Option<BotId>,
    app_id: Option<String>,
    chat_id: Option<String>,
}

/// Lists sandboxes
#[utoipa::path(get, path = "/api/sandboxes", tag = "sandboxes", params(SandboxQuery, PageQuery),
    responses((status = 200, body = SandboxList)))]
pub(super) async fn list(
    app: Host,
    caller: Caller,
    Params(query): Params<SandboxQuery>,
    Params(page): Params<PageQuery>,
) -> Answer<SandboxList> {
    let SandboxQuery { status, bot_id, app_id, chat_id } = query;
    let status = match status.as_deref() {
        None => None,
        Some(word) => Some(SandboxStatus::from_word(word).ok_or_else(|| {
            Problem::invalid_at("status", "expected creating, running, stopping, stopped, deleting, error or lost")
        })?),
    };
    let filter = SandboxFilter { bot: bot_id, status, app_id, chat_id };
    Ok(Json(sandboxes::list(&app, &caller, filter, &page.page()?).await?))
}

/// Shows a sandbox
#[utoipa::path(get, path = "/api/sandboxes/{id}", tag = "sandboxes", params(("id" = SandboxInstanceId, Path)),
    responses((status = 200, body = Sandbox)))]
pub(super) async fn show(app: Host, caller: Caller, Id(id): Id<SandboxInstanceId>) -> Answer<Sandbox> {
    Ok(Json(sandboxes::show(&app, &caller, id).await?))
}

/// Deletes a sandbox and all its files in the background
#[utoipa::path(delete, path = "/api/sandboxes/{id}", tag = "sandboxes", params(("id" = SandboxInstanceId, Path)),
    responses((status = 202, description = "The sandbox is being deleted")))]
pub(super) async fn delete(app: Host, caller: Caller, Id(id): Id<SandboxInstanceId>) -> Done {
    sandboxes::delete(&app, &caller, id).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Runs a command in a sandbox as its bot
///
/// With `Accept: text/event-stream`, the answer is a stream of events: `stdout` and `stderr` with `{text}` while the
/// command runs, and one `end` with the JSON answer.
#[utoipa::path(post, path = "/api/sandboxes/{id}/exec", tag = "sandboxes",
    params(("id" = SandboxInstanceId, Path)), request_body = ExecInput,
    responses((status = 200, content((CallResult = "application/json"), (String = "text/event-stream"))),
        (status = 503, body = ProblemBody, description = "The audit cannot be written, so calls are rejected")))]
pub(super) async fn exec(
    app: Host,
    Seen { caller, row }: Seen,
    InLanguage(language): InLanguage,
    headers: HeaderMap,
    Input(input): Input<ExecInput>,
) -> Result<Response, Problem> {
    let call = sandboxes::exec(&caller, row, language, &input)?;
    if wants_events(&headers) {
        return Ok(stream::events(app.0, call).into_response());
    }
    Ok(Json(calls::run(&app, call).await?).into_response())
}

/// Lists the commands of a sandbox with their outputs, newest first
///
/// The newest 200 commands are kept, unless the server runs with `--sandbox-keep-outputs off`. A page has at most 50
/// commands.
#[utoipa::path(get, path = "/api/sandboxes/{id}/commands", tag = "sandboxes",
    params(("id" = SandboxInstanceId, Path), PageQuery), responses((status = 200, body = SandboxCommandList)))]
pub(super) async fn commands(
    app: Host,
    caller: Operator,
    Id(id): Id<SandboxInstanceId>,
    Params(page): Params<PageQuery>,
) -> Answer<SandboxCommandList> {
    Ok(Json(sandboxes::commands(&app, &caller, id, &page.page()?).await?))
}

/// The sandbox in the path, if the caller may see it. This is checked before the body is read.
pub(super) struct Seen {
    caller: Caller,
    row: SandboxRow,
}

impl FromRequestParts<HttpState> for Seen {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, state).await?;
        let Id(id) = Id::from_request_parts(parts, state).await?;
        let row = sandboxes::get(&state.app, &caller, id).await?;
        Ok(Seen { caller, row })
    }
}
