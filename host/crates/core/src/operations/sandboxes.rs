//! The sandboxes of conversations, and commands in them.
//!
//! A command passes through the whole pipeline as a call of the sandbox's bot, in the sandbox's conversation.
//! Therefore, access to a sandbox gives a key no permissions that the bot does not have.

use monstrum_api::sandboxes::{ExecInput, Sandbox, SandboxCommand, SandboxCommandList, SandboxList};
use monstrum_api::tools::Chat;
use monstrum_sandbox::{EXEC_TIMEOUT_MAX, SandboxError};
use monstrum_store::{Page, SandboxFilter, SandboxRow};
use monstrum_types::{RequestId, SandboxInstanceId, with_causes};
use serde_json::json;

use super::change::Change;
use super::list;
use super::{Caller, InputErrors, OperationError, Operator};
use crate::app::App;
use crate::call::built_in::sandbox::{lost_text, unavailable_text};
use crate::call_types::incoming::IncomingCall;
use crate::language::Language;
use crate::plugins::built_in::{COMMAND_BYTES_MAX, LOST_TEXT, SHELL, UNAVAILABLE_TEXT};
use crate::sandboxes::AccessError;
use crate::sandboxes::outputs::OutputError;

fn check(input: &ExecInput) -> Result<(), OperationError> {
    let mut errors = InputErrors::default();
    if input.command.is_empty() || input.command.len() > COMMAND_BYTES_MAX || input.command.contains('\0') {
        errors.add("/command", format!("must be 1 to {COMMAND_BYTES_MAX} bytes long and must not contain NUL"));
    }
    let most = EXEC_TIMEOUT_MAX.as_secs();
    if input.timeout.is_some_and(|seconds| seconds == 0 || u64::from(seconds) > most) {
        errors.add("/timeout", format!("must be from 1 to {most}"));
    }
    errors.check()
}

fn view(row: SandboxRow) -> Sandbox {
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

/// Lists the sandboxes that the caller may see and that match `filter`.
pub async fn list(
    app: &App,
    caller: &Caller,
    filter: SandboxFilter,
    page: &Page<SandboxInstanceId>,
) -> Result<SandboxList, OperationError> {
    // The key of a bot sees the sandboxes of this bot only.
    if filter.bot.zip(caller.bot).is_some_and(|(asked, own)| asked != own) {
        return Ok(SandboxList { items: Vec::new(), next_cursor: None });
    }
    let filter = SandboxFilter { bot: caller.bot.or(filter.bot), ..filter };
    Ok(list::page(app.sandboxes.list(caller.workspace, &filter, page).await?, view))
}

/// Shows a sandbox.
pub async fn show(app: &App, caller: &Caller, id: SandboxInstanceId) -> Result<Sandbox, OperationError> {
    Ok(view(get(app, caller, id).await?))
}

/// Deletes a sandbox with all its files in the background.
pub async fn delete(app: &App, caller: &Caller, id: SandboxInstanceId) -> Result<(), OperationError> {
    let before = get(app, caller, id).await?;
    let delete = async { Ok(app.sandboxes.delete(caller.workspace, caller.bot, id).await?) };
    let change = Change::new("sandbox.delete", &id).of_bot(before.bot_id).from(&view(before));
    change.record(app, caller, delete).await
}

/// Builds the call that runs a command in a sandbox as its bot.
pub fn exec(
    caller: &Caller,
    row: SandboxRow,
    language: Language,
    input: &ExecInput,
) -> Result<IncomingCall, OperationError> {
    check(input)?;
    let (Some(app_id), Some(user_id), Some(chat_id)) = (row.app_id, row.user_id, row.chat_id) else {
        return Err(OperationError::conflict("this sandbox does not belong to a conversation"));
    };
    let mut params = json!({ "command": input.command });
    if let Some(timeout) = input.timeout {
        params["timeout"] = json!(timeout);
    }
    let call = IncomingCall::bot_tool(caller.request, caller.workspace, row.bot_id, SHELL.to_owned(), params);
    Ok(call
        .with_language(language)
        .with_context(json!({ "chat": Chat { app_id, user_id, chat_id } }))
        .with_key(caller.caller_key()))
}

/// Lists the commands of a sandbox, newest first.
pub async fn commands(
    app: &App,
    caller: &Operator,
    id: SandboxInstanceId,
    page: &Page<RequestId>,
) -> Result<SandboxCommandList, OperationError> {
    let row = get(app, caller, id).await?;
    let listed = app.sandbox_outputs.list(&row, page).await.map_err(|error| match error {
        OutputError::Store(error) => error.into(),
        error @ (OutputError::Vault(_) | OutputError::Form(_)) => OperationError::internal(error),
    })?;
    Ok(list::page(listed, |(request_id, command)| SandboxCommand {
        request_id,
        command: command.command,
        state: command.state,
        exit_code: command.exit_code,
        stdout: command.stdout,
        stderr: command.stderr,
        truncated: command.truncated,
        started_at: command.started_at,
        duration_ms: command.duration_ms,
    }))
}

/// Reads a sandbox that the caller may see.
pub async fn get(app: &App, caller: &Caller, id: SandboxInstanceId) -> Result<SandboxRow, OperationError> {
    Ok(app.sandboxes.get(caller.workspace, caller.bot, id).await?)
}

/// Converts the error for a sandbox that cannot be used.
impl From<AccessError> for OperationError {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Unavailable(reason) => {
                tracing::warn!(reason = with_causes(&reason), "the sandbox is not available");
                OperationError::unavailable(UNAVAILABLE_TEXT)
            }
            AccessError::NotFound => OperationError::not_found("sandbox"),
            AccessError::OtherUser => {
                OperationError::conflict("the sandbox of this conversation belongs to another user")
            }
            AccessError::Conflict(words) => OperationError::conflict(words),
            AccessError::Lost => OperationError::conflict(LOST_TEXT),
            AccessError::Limit(words) => OperationError::OverLimit(words),
            AccessError::Store(error) => error.into(),
            AccessError::Provider(SandboxError::Exhausted(words)) => OperationError::Busy(words),
            AccessError::Provider(error) => error_of_path(error),
        }
    }
}

/// Converts an error for end users, with the message in the caller's language.
pub(super) fn error_in(app: &App, language: &Language, error: AccessError) -> OperationError {
    let snapshot = app.policy.load();
    let plugin = SHELL.parse().ok().and_then(|name| snapshot.tool(&name)).map(|(plugin, _)| plugin);
    let is_lost = matches!(error, AccessError::Lost);
    let words = match (plugin, &error) {
        (Some(plugin), AccessError::Unavailable(_)) => Some(unavailable_text(language, plugin)),
        (Some(plugin), AccessError::Lost) => Some(lost_text(language, plugin)),
        _ => None,
    };
    match (OperationError::from(error), words) {
        (_, Some(words)) if is_lost => OperationError::Conflict(words),
        (_, Some(words)) => OperationError::Unavailable(words),
        (error, None) => error,
    }
}

/// Converts a provider's error about a path.
pub(super) fn error_of_path(error: SandboxError) -> OperationError {
    match error {
        SandboxError::Unavailable(_) => OperationError::unavailable(UNAVAILABLE_TEXT),
        SandboxError::NotFound(words) => OperationError::NotFound(words),
        SandboxError::Conflict(words) => OperationError::Conflict(words),
        SandboxError::Invalid(message) | SandboxError::Unsupported(message) => {
            OperationError::invalid_at("/path", message)
        }
        SandboxError::Exhausted(words) => OperationError::OverLimit(words),
    }
}
