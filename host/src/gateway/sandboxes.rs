//! `/api/sandboxes`: the sandboxes of conversations, and commands in them.
//!
//! A command passes through the whole pipeline as a call of the sandbox's bot, in the sandbox's conversation. So a key
//! with access to a sandbox gains no permissions that the bot does not have.

mod stream;

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use monstrum_api::sandboxes::{ExecInput, Sandbox, SandboxList};
use monstrum_api::tools::CallResult;
use monstrum_core::app::App;
use monstrum_core::operations::{Caller, calls, sandboxes};
use monstrum_store::{SandboxFilter, SandboxRow, SandboxStatus};
use monstrum_types::SandboxInstanceId;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::events::wants_events;
use crate::gateway::http::extract::{Id, Input, PageQuery, Params};
use crate::gateway::http::language::InLanguage;
use crate::gateway::http::problem::{Problem, ProblemBody};
use crate::gateway::http::state::HttpState;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct SandboxQuery {
    /// The status of the sandboxes. By default, sandboxes in every status are listed.
    status: Option<String>,
    app_id: Option<String>,
    chat_id: Option<String>,
    /// The number of items on a page, 1 to 1000. A larger value means 1000.
    #[param(value_type = Option<u32>, minimum = 1, default = 50)]
    limit: Option<String>,
    /// The `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists sandboxes
#[utoipa::path(get, path = "/api/sandboxes", tag = "sandboxes", params(SandboxQuery),
    responses((status = 200, body = SandboxList), (status = "4XX", body = ProblemBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(query): Params<SandboxQuery>,
) -> Result<Json<SandboxList>, Problem> {
    let SandboxQuery { status, app_id, chat_id, limit, cursor } = query;
    let status = match status.as_deref() {
        None => None,
        Some(word) => Some(SandboxStatus::of_word(word).ok_or_else(|| {
            Problem::invalid_at("status", "expected creating, running, stopping, stopped, deleting, error or lost")
        })?),
    };
    let page = PageQuery::of(limit, cursor).page()?;
    let filter = SandboxFilter { bot: None, status, app_id, chat_id };
    Ok(Json(sandboxes::list(&app, &caller, filter, &page).await?))
}

/// Shows a sandbox
#[utoipa::path(get, path = "/api/sandboxes/{id}", tag = "sandboxes", params(("id" = SandboxInstanceId, Path)),
    responses((status = 200, body = Sandbox), (status = "4XX", body = ProblemBody)))]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxInstanceId>,
) -> Result<Json<Sandbox>, Problem> {
    Ok(Json(sandboxes::show(&app, &caller, id).await?))
}

/// Deletes a sandbox and all its files in the background
#[utoipa::path(delete, path = "/api/sandboxes/{id}", tag = "sandboxes", params(("id" = SandboxInstanceId, Path)),
    responses((status = 202, description = "The sandbox is being deleted"), (status = "4XX", body = ProblemBody)))]
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxInstanceId>,
) -> Result<StatusCode, Problem> {
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
        (status = "4XX", body = ProblemBody),
        (status = 503, body = ProblemBody, description = "The audit cannot be written, so calls are rejected")))]
pub(super) async fn exec(
    State(app): State<Arc<App>>,
    Seen { caller, row }: Seen,
    InLanguage(language): InLanguage,
    headers: HeaderMap,
    Input(input): Input<ExecInput>,
) -> Result<Response, Problem> {
    let call = sandboxes::exec(&caller, row, language, &input)?;
    if wants_events(&headers) {
        return Ok(stream::events(app, call).into_response());
    }
    Ok(Json(calls::run(&app, call).await?).into_response())
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
