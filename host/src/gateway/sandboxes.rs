//! `/api/sandboxes`: the machines of conversations, and commands on them.
//!
//! A command goes through the whole pipeline, as the bot whose sandbox it is and in its conversation: a key that may see a
//! sandbox gains nothing on it that the bot does not have.

mod stream;

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use monstrum_sandbox::{EXEC_TIMEOUT_MAX, SandboxError};
use monstrum_store::{SandboxFilter, SandboxRow, SandboxStatus};
use monstrum_types::{BotId, InputError, SandboxInstanceId, UtcMillis};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use crate::gateway::changes::Change;
use crate::gateway::extract::{Caller, Faults, Id, Input, PageQuery, Params, ThisRequest};
use crate::gateway::language::InLanguage;
use crate::gateway::problem::{Problem, ProblemBody};
use crate::gateway::tools::{self, CallResult, Chat};
use monstrum_core::app::App;
use monstrum_core::call::built_in::sandbox::{lost_text, unavailable_text};
use monstrum_core::call_types::incoming::IncomingCall;
use monstrum_core::language::Language;
use monstrum_core::plugins::built_in::{COMMAND_BYTES_MAX, LOST_TEXT, SHELL, UNAVAILABLE_TEXT};
use monstrum_core::plugins::with_causes;
use monstrum_core::sandboxes::Fault;

/// The machine of a conversation.
#[derive(Serialize, ToSchema)]
pub struct Sandbox {
    pub id: SandboxInstanceId,
    /// The first 16 hex digits of the SHA-256 of `{app_id}-{user_id}-{chat_id}`.
    pub sandbox_id: String,
    pub provider: String,
    /// Whose it is.
    pub bot_id: BotId,
    pub app_id: Option<String>,
    pub user_id: Option<String>,
    pub chat_id: Option<String>,
    /// `creating`, `running`, `stopping`, `stopped`, `deleting`, `error` or `lost`: its files are missing on the server, and
    /// it is not made anew until it is deleted.
    pub status: String,
    pub last_active_at: UtcMillis,
    pub created_at: UtcMillis,
    /// The limits that it was last started with: `cpuCount`, `memoryMiB`, `diskGiB`, `tmpMiB`, `processes` and
    /// `processesPerExec`.
    #[schema(value_type = Option<Object>)]
    pub limit: Option<Value>,
    /// Why it is in error, or why it could not be stopped or deleted yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A page of sandboxes.
#[derive(Serialize, ToSchema)]
pub struct SandboxList {
    pub items: Vec<Sandbox>,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SandboxQuery {
    /// Only sandboxes in this status.
    status: Option<String>,
    app_id: Option<String>,
    chat_id: Option<String>,
    /// 1 to 1000; more is taken as 1000.
    #[param(value_type = Option<u32>, minimum = 1, default = 50)]
    limit: Option<String>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// A command for a sandbox.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecInput {
    /// What bash is given, 1 to 32 768 bytes.
    command: String,
    /// Seconds after which it is ended, 1 to 300.
    #[schema(default = 60, minimum = 1, maximum = 300)]
    timeout: Option<u32>,
}

impl ExecInput {
    fn check(&self) -> Result<(), Problem> {
        let mut faults = Faults::default();
        if self.command.is_empty() || self.command.len() > COMMAND_BYTES_MAX || self.command.contains('\0') {
            faults.add("/command", format!("must have 1 to {COMMAND_BYTES_MAX} bytes and no NUL"));
        }
        let most = EXEC_TIMEOUT_MAX.as_secs();
        if self.timeout.is_some_and(|seconds| seconds == 0 || u64::from(seconds) > most) {
            faults.add("/timeout", format!("must be from 1 to {most}"));
        }
        faults.check()
    }
}

impl From<SandboxRow> for Sandbox {
    fn from(row: SandboxRow) -> Self {
        Sandbox {
            id: row.id,
            sandbox_id: row.sandbox_id,
            provider: row.provider,
            bot_id: row.bot_id,
            app_id: row.app_id,
            user_id: row.user_id,
            chat_id: row.chat_id,
            status: row.status.as_str().to_owned(),
            last_active_at: row.last_active_at,
            created_at: row.created_at,
            limit: row.limit,
            error: row.error,
        }
    }
}

/// Lists sandboxes
#[utoipa::path(get, path = "/api/sandboxes", tag = "sandboxes", params(SandboxQuery),
    responses((status = 200, body = SandboxList), (status = "4XX", body = ProblemBody)))]
pub async fn list(
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
    let filter = SandboxFilter { bot: caller.bot, status, app_id, chat_id };
    let listed = app.sandboxes.list(caller.workspace, &filter, &page).await.map_err(problem)?;
    let items = listed.items.into_iter().map(Sandbox::from).collect();
    Ok(Json(SandboxList { items, next_cursor: listed.next_cursor.map(String::from) }))
}

/// Shows a sandbox
#[utoipa::path(get, path = "/api/sandboxes/{id}", tag = "sandboxes", params(("id" = SandboxInstanceId, Path)),
    responses((status = 200, body = Sandbox), (status = "4XX", body = ProblemBody)))]
pub async fn show(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxInstanceId>,
) -> Result<Json<Sandbox>, Problem> {
    Ok(Json(row(&app, &caller, id).await?.into()))
}

/// Deletes a sandbox with all its files, in the background
#[utoipa::path(delete, path = "/api/sandboxes/{id}", tag = "sandboxes", params(("id" = SandboxInstanceId, Path)),
    responses((status = 202, description = "it is being deleted"), (status = "4XX", body = ProblemBody)))]
pub async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxInstanceId>,
) -> Result<StatusCode, Problem> {
    let before = row(&app, &caller, id).await?;
    let made = async { app.sandboxes.delete(caller.workspace, caller.bot, id).await.map_err(problem) };
    let change = Change::new("sandbox.delete", &id).of_bot(before.bot_id).from(&Sandbox::from(before));
    change.made(&app, &caller, made).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Runs a command in a sandbox, as its bot; with `Accept: text/event-stream`, as events
///
/// The events are `stdout` and `stderr` with `{text}` as it comes, and one `end` with exactly the JSON answer.
#[utoipa::path(post, path = "/api/sandboxes/{id}/exec", tag = "sandboxes",
    params(("id" = SandboxInstanceId, Path)), request_body = ExecInput,
    responses((status = 200, content((CallResult = "application/json"), (String = "text/event-stream"))),
        (status = "4XX", body = ProblemBody),
        (status = 503, body = ProblemBody, description = "the audit cannot be written, so no call runs")))]
pub async fn exec(
    State(app): State<Arc<App>>,
    Seen { caller, row }: Seen,
    InLanguage(language): InLanguage,
    ThisRequest(request_id): ThisRequest,
    headers: HeaderMap,
    Input(input): Input<ExecInput>,
) -> Result<Response, Problem> {
    input.check()?;
    let (Some(app_id), Some(user_id), Some(chat_id)) = (row.app_id, row.user_id, row.chat_id) else {
        return Err(Problem::conflict("this sandbox belongs to no conversation"));
    };
    let mut params = json!({ "command": input.command });
    if let Some(timeout) = input.timeout {
        params["timeout"] = json!(timeout);
    }
    let call = IncomingCall::bot_tool(request_id, caller.workspace, row.bot_id, SHELL.to_owned(), params)
        .with_language(language)
        .with_context(json!({ "chat": Chat { app_id, user_id, chat_id } }))
        .with_key(caller.caller_key());
    if wants_events(&headers) {
        return Ok(stream::events(app, call).into_response());
    }
    tools::run(&app, call).await
}

/// The sandbox that a path names, which the caller may see. The body is not read before this is known.
pub struct Seen {
    caller: Caller,
    row: SandboxRow,
}

impl FromRequestParts<Arc<App>> for Seen {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let Id(id) = Id::from_request_parts(parts, app).await?;
        let row = row(app, &caller, id).await?;
        Ok(Seen { caller, row })
    }
}

/// A sandbox that the caller may see.
async fn row(app: &App, caller: &Caller, id: SandboxInstanceId) -> Result<SandboxRow, Problem> {
    app.sandboxes.get(caller.workspace, caller.bot, id).await.map_err(problem)
}

/// Whether one of the media types that the client accepts is that of events.
fn wants_events(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok());
    lines
        .flat_map(|line| line.split(','))
        .any(|range| range.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/event-stream")))
}

/// Why there is no sandbox to be used, or none at all.
pub fn problem(fault: Fault) -> Problem {
    match fault {
        Fault::Unavailable(reason) => {
            tracing::warn!(reason = with_causes(&reason), "the sandbox is not available");
            Problem::unavailable(UNAVAILABLE_TEXT)
        }
        Fault::NotFound => Problem::not_found("sandbox"),
        Fault::OtherUser => Problem::conflict("the sandbox of this conversation belongs to another user"),
        Fault::Conflict(words) => Problem::conflict(words),
        Fault::Lost => Problem::conflict(LOST_TEXT),
        Fault::Limit(words) => Problem::over_limit(words),
        Fault::Store(error) => error.into(),
        Fault::Provider(SandboxError::Exhausted(words)) => Problem::full(words),
        Fault::Provider(error) => of_path(error),
    }
}

/// The same in the caller's language, for what an end user reads.
pub fn problem_in(app: &App, language: &Language, fault: Fault) -> Problem {
    let snapshot = app.policy.load();
    let plugin = SHELL.parse().ok().and_then(|name| snapshot.tool(&name)).map(|(plugin, _)| plugin);
    let is_lost = matches!(fault, Fault::Lost);
    let words = match (plugin, &fault) {
        (Some(plugin), Fault::Unavailable(_)) => Some(unavailable_text(language, plugin)),
        (Some(plugin), Fault::Lost) => Some(lost_text(language, plugin)),
        _ => None,
    };
    match (problem(fault), words) {
        (_, Some(words)) if is_lost => Problem::conflict(words),
        (_, Some(words)) => Problem::unavailable(words),
        (problem, None) => problem,
    }
}

/// What a path was refused for.
fn of_path(error: SandboxError) -> Problem {
    match error {
        SandboxError::Unavailable(_) => Problem::unavailable(UNAVAILABLE_TEXT),
        SandboxError::NotFound(words) => Problem::absent(words),
        SandboxError::Conflict(words) => Problem::conflict(words),
        SandboxError::Invalid(message) | SandboxError::Unsupported(message) => {
            Problem::invalid(vec![InputError { path: "/path".to_owned(), message }])
        }
        SandboxError::Exhausted(words) => Problem::over_limit(words),
    }
}

/// What the provider made of a path.
pub fn problem_of_path(app: &App, language: &Language, fault: Fault) -> Problem {
    match fault {
        Fault::Provider(error) => of_path(error),
        other => problem_in(app, language, other),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn events_are_for_who_asks_for_them() {
        let wants = |accept: &'static str| {
            wants_events(&HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]))
        };
        assert!(wants("text/event-stream") && wants("application/json;q=0.5, Text/Event-Stream;q=1"));
        assert!(!wants("*/*") && !wants("application/json") && !wants("text/event-streams"));
        assert!(!wants_events(&HeaderMap::new()));
    }
}
