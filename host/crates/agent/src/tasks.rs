//! The operations on tasks: starting, showing, following and cancelling them.

use std::sync::Arc;

use monstrum_api::list::List;
use monstrum_api::tasks::{NewTask, Task, TaskLimits, TaskList, TaskStep, TaskSteps, TokenUsage};
use monstrum_api::tools::Chat;
use monstrum_core::app::App;
use monstrum_core::events::{self, EventLinks, EventType, NewEvent};
use monstrum_core::models;
use monstrum_core::operations::tools::{check_chat, may_use};
use monstrum_core::operations::{Caller, OperationError};
use monstrum_engine::Engine;
use monstrum_store::{
    InsertedTask, KeyKind, NewSession, NewWake, Page, SessionRow, TaskFilter, TaskRow, TaskStatus, TaskStepRow,
    TasksMax,
};
use monstrum_types::{BotId, InputError, JsonText, SessionId, TaskId, UtcMillis, WakeKey, WakeKind};

use tokio_util::sync::CancellationToken;

use crate::journal::{self, JournalError, Limits, StepContent, TaskContent};
use crate::live::LiveTasks;

/// The maximum size of an instruction, in bytes.
const INSTRUCTION_BYTES_MAX: usize = 64 << 10;
/// The maximum size of the parameters of a task, in bytes of JSON.
const PARAMS_BYTES_MAX: usize = 256 << 10;
const STEPS: u32 = 50;
const STEPS_MAX: u32 = 500;
const WALL_S: u32 = 3600;
const WALL_S_MAX: u32 = 24 * 3600;
/// The maximum number of tasks of a workspace that have not ended.
const UNENDED_MAX: TasksMax = TasksMax { of_workspace: 1000 };
/// The time after which a session without a new task has expired.
const SESSION_IDLE_MS: i64 = 24 * 3600 * 1000;
/// The app of the conversations that tasks have for themselves.
const OWN_APP: &str = "task";
/// The maximum number of steps that are read at once.
pub(crate) const STEPS_READ: u32 = 500;

/// The tasks and sessions of a host.
pub struct Tasks {
    pub(crate) app: Arc<App>,
    engine: Arc<dyn Engine>,
    pub(crate) live: Arc<LiveTasks>,
    pub(crate) closed: CancellationToken,
}

/// The session of a new task.
enum SessionOf {
    Known(SessionRow),
    New(Box<NewSession>),
}

impl Tasks {
    /// Creates the operations of the host `app`. `live` are the tasks of its runner.
    #[must_use]
    pub fn new(app: Arc<App>, engine: Arc<dyn Engine>, live: Arc<LiveTasks>) -> Tasks {
        Tasks { app, engine, live, closed: CancellationToken::new() }
    }

    /// Ends the streams of all listeners, because the host stops.
    pub fn close(&self) {
        self.closed.cancel();
    }

    /// Checks whether the caller may start tasks of a bot. Interfaces call this before they read an input.
    ///
    /// # Errors
    ///
    /// The bot does not exist, or the caller may not use it.
    pub fn may_start(&self, caller: &Caller, bot: BotId) -> Result<(), OperationError> {
        may_use(&self.app, caller, bot)?;
        if caller.token_user.is_some() {
            return Err(OperationError::forbidden("tasks are started with an API key"));
        }
        Ok(())
    }

    /// Starts a task.
    ///
    /// # Errors
    ///
    /// The input is invalid, the bot has no model, or the session has a task that has not ended.
    pub async fn start(&self, caller: &Caller, bot: BotId, input: NewTask) -> Result<Task, OperationError> {
        self.may_start(caller, bot)?;
        let limits = checked(&input)?;
        let app = &self.app;
        let now = app.clock.now();
        models::candidates(&app.policy.load(), caller.workspace, bot, now)
            .map_err(|error| OperationError::conflict(error.to_string()))?;
        let NewTask { instruction, params, session_id, chat, .. } = input;
        let session = self.session_of(caller, bot, session_id, chat, now).await?;
        let (of, new) = match session {
            SessionOf::Known(row) => (row, None),
            SessionOf::New(new) => (new.row.clone(), Some(new)),
        };
        let SessionRow { id: session_id, app_id, user_id, chat_id, .. } = of;
        let chat = Chat { app_id, user_id, chat_id };
        let content = TaskContent::new(instruction, params, limits, chat, caller.caller_key());
        let mut row = TaskRow {
            id: TaskId::new(),
            workspace_id: caller.workspace,
            bot_id: bot,
            session_id,
            status: TaskStatus::Queued,
            code: None,
            key_id: caller.key,
            steps: 0,
            input_tokens: 0,
            output_tokens: 0,
            created_at: now,
            started_at: None,
            cancelled_at: None,
            ended_at: None,
            sealed: String::new(),
        };
        row.sealed = journal::seal_task(&app.vault, &row, &content).map_err(internal)?;
        let key = WakeKey::new(WakeKind::Task, row.id).map_err(|error| OperationError::Internal(error.into()))?;
        // This host runs the task, because only this host can stream it to the caller.
        let wake = self.engine.reserve(key, caller.workspace);
        match app.store.insert_task(&row, new.as_deref(), &wake, UNENDED_MAX).await? {
            InsertedTask::Inserted => {}
            InsertedTask::Busy => {
                return Err(OperationError::conflict("the session has a task that has not ended; wait for its end"));
            }
            InsertedTask::NoSession => return Err(OperationError::conflict("the session has expired or was deleted")),
            InsertedTask::Full => {
                let message = "the workspace has too many tasks that have not ended; try again later";
                return Err(OperationError::Busy(message.to_owned()));
            }
        }
        self.engine.start(&wake);
        Ok(shown(&row, content))
    }

    async fn session_of(
        &self,
        caller: &Caller,
        bot: BotId,
        id: Option<SessionId>,
        chat: Option<Chat>,
        now: UtcMillis,
    ) -> Result<SessionOf, OperationError> {
        let store = &self.app.store;
        if let Some(id) = id {
            let row = store.session(caller.workspace, id).await?.filter(|row| row.bot_id == bot);
            let row = row.ok_or_else(|| OperationError::invalid_at("/session_id", "no such session of this bot"))?;
            if row.expired_at.is_some() || is_idle(&row, now) {
                return Err(OperationError::conflict("the session has expired; start the task in a new session"));
            }
            return Ok(SessionOf::Known(row));
        }
        let id = SessionId::new();
        let own = || Chat { app_id: OWN_APP.to_owned(), user_id: caller.key.to_string(), chat_id: id.to_string() };
        let (chat, open) = match chat {
            None => (own(), None),
            Some(chat) => {
                let open = store.session_of_chat(caller.workspace, &chat.app_id, &chat.chat_id).await?;
                (chat, open)
            }
        };
        let mut after = None;
        if let Some(open) = open {
            if open.bot_id != bot || open.user_id != chat.user_id {
                return Err(OperationError::conflict("the conversation belongs to another user or another bot"));
            }
            if !is_idle(&open, now) {
                return Ok(SessionOf::Known(open));
            }
            after = Some(open.id);
        }
        let Chat { app_id, user_id, chat_id } = chat;
        let (workspace_id, bot_id, expired_at) = (caller.workspace, bot, None);
        let row = SessionRow {
            id,
            workspace_id,
            bot_id,
            app_id,
            user_id,
            chat_id,
            created_at: now,
            used_at: now,
            expired_at,
        };
        let event = NewEvent {
            workspace_id,
            event_type: EventType::SessionCreated,
            source_type: "session",
            source_id: id.to_string(),
            bot_id: Some(bot),
            links: EventLinks::default(),
            cause: None,
            data: serde_json::json!({ "bot_id": bot, "chat": { "app_id": row.app_id, "chat_id": row.chat_id } }),
        };
        let created =
            events::seal(&self.app.vault, event, now).map_err(|error| OperationError::Internal(error.into()))?;
        Ok(SessionOf::New(Box::new(NewSession { row, created, after })))
    }

    /// Lists the tasks that the caller may see and that match the filter, newest first.
    ///
    /// # Errors
    ///
    /// The database failed.
    pub async fn list(
        &self,
        caller: &Caller,
        filter: TaskFilter,
        page: &Page<TaskId>,
    ) -> Result<TaskList, OperationError> {
        let Some(bot) = visible_bot(caller, filter.bot) else {
            return Ok(List { items: Vec::new(), next_cursor: None });
        };
        let listed = self.app.store.tasks(caller.workspace, TaskFilter { bot, ..filter }, page).await?;
        let items = listed.items.iter().map(|row| self.view(row)).collect::<Result<_, _>>()?;
        Ok(List { items, next_cursor: listed.next_cursor.map(|cursor| cursor.to_string()) })
    }

    /// Shows a task.
    ///
    /// # Errors
    ///
    /// The task does not exist, or the caller may not see it.
    pub async fn show(&self, caller: &Caller, id: TaskId) -> Result<Task, OperationError> {
        self.view(&self.row(caller, id).await?)
    }

    /// Returns the row of a task that the caller may see.
    pub(crate) async fn row(&self, caller: &Caller, id: TaskId) -> Result<TaskRow, OperationError> {
        let row = self.app.store.task(caller.workspace, id).await?;
        row.filter(|row| sees(caller, row.bot_id)).ok_or_else(|| OperationError::not_found("task"))
    }

    /// Cancels a task. Returns the task, and whether it had ended before.
    ///
    /// # Errors
    ///
    /// The task does not exist, or the caller may not see it.
    pub async fn cancel(&self, caller: &Caller, id: TaskId) -> Result<(Task, bool), OperationError> {
        let row = self.row(caller, id).await?;
        if row.ended_at.is_some() {
            return Ok((self.view(&row)?, true));
        }
        let now = self.app.clock.now();
        self.app.store.cancel_task(caller.workspace, id, now).await?;
        self.live.cancel(id);
        // A task that waits for another try after a failure ends at once.
        let key = WakeKey::new(WakeKind::Task, id).map_err(|error| OperationError::Internal(error.into()))?;
        let wake = NewWake { key, workspace_id: caller.workspace, due_at: now, claim: None };
        self.app.store.request_turns(std::slice::from_ref(&wake)).await?;
        self.engine.signal(&[wake]);
        let row = self.row(caller, id).await?;
        Ok((self.view(&row)?, row.ended_at.is_some()))
    }

    /// Returns the steps of a task.
    ///
    /// # Errors
    ///
    /// The task does not exist, or the caller may not see it.
    pub async fn steps(&self, caller: &Caller, id: TaskId) -> Result<TaskSteps, OperationError> {
        self.row(caller, id).await?;
        let mut items = Vec::new();
        loop {
            let after = items.last().map_or(0, |step: &TaskStep| step.sequence);
            let steps = self.steps_after(caller, id, after).await?;
            if steps.is_empty() {
                return Ok(TaskSteps { items });
            }
            items.extend(steps);
        }
    }

    /// Returns some of the steps after the step `after`.
    pub(crate) async fn steps_after(
        &self,
        caller: &Caller,
        id: TaskId,
        after: i64,
    ) -> Result<Vec<TaskStep>, OperationError> {
        let rows = self.app.store.task_steps(caller.workspace, id, after, STEPS_READ).await?;
        rows.iter().map(|row| self.step(row)).collect()
    }

    /// Returns a task as the API shows it.
    pub(crate) fn view(&self, row: &TaskRow) -> Result<Task, OperationError> {
        let content = journal::open_task(&self.app.vault, row).map_err(internal)?;
        Ok(shown(row, content))
    }

    fn step(&self, row: &TaskStepRow) -> Result<TaskStep, OperationError> {
        let content = journal::open_step(&self.app.vault, row).map_err(internal)?;
        let mut step = TaskStep {
            sequence: row.sequence,
            kind: row.kind.as_str().to_owned(),
            request_id: row.request_id,
            tool: row.tool.clone(),
            params: None,
            status: row.status.clone(),
            code: None,
            message: None,
            result: None,
            text: None,
            model: None,
            usage: None,
            started_at: row.started_at,
            ended_at: row.ended_at,
        };
        match content {
            StepContent::Round(round) => {
                step.text = Some(round.message.text);
                (step.model, step.usage) = (Some(round.model), Some(round.usage));
            }
            StepContent::Call(call) => {
                step.params = Some((&call.params).into());
                if let Some(outcome) = call.outcome {
                    step.code = outcome.code.map(|code| code.as_str().to_owned());
                    step.message = outcome.message;
                    let result = outcome.data.as_deref().map(JsonText::parse).transpose();
                    step.result = result.map_err(|error| OperationError::Internal(error.into()))?;
                }
            }
        }
        Ok(step)
    }
}

/// Returns whether the caller sees the tasks and sessions of a bot.
pub(crate) fn sees(caller: &Caller, bot: BotId) -> bool {
    caller.kind != KeyKind::Bot || caller.bot == Some(bot)
}

/// Returns the bot to which a list is restricted, or `None` if the caller sees nothing of it.
pub(crate) fn visible_bot(caller: &Caller, asked: Option<BotId>) -> Option<Option<BotId>> {
    if caller.kind != KeyKind::Bot {
        return Some(asked);
    }
    let own = caller.bot?;
    asked.is_none_or(|asked| asked == own).then_some(Some(own))
}

pub(crate) fn is_idle(row: &SessionRow, now: UtcMillis) -> bool {
    now.since_ms(row.used_at) > SESSION_IDLE_MS
}

pub(crate) fn internal(error: JournalError) -> OperationError {
    OperationError::Internal(error.into())
}

fn shown(row: &TaskRow, content: TaskContent) -> Task {
    let tokens = |tokens: i64| u64::try_from(tokens).unwrap_or(0);
    Task {
        id: row.id,
        bot_id: row.bot_id,
        session_id: row.session_id,
        status: row.status.as_str().to_owned(),
        code: row.code.clone(),
        message: content.message,
        instruction: content.instruction,
        result: content.result,
        steps: row.steps,
        usage: TokenUsage { input_tokens: tokens(row.input_tokens), output_tokens: tokens(row.output_tokens) },
        started_by: row.key_id,
        created_at: row.created_at,
        started_at: row.started_at,
        ended_at: row.ended_at,
    }
}

/// Validates an input. Returns the limits of the task.
fn checked(input: &NewTask) -> Result<Limits, OperationError> {
    let mut errors = Vec::new();
    let mut add = |path: &str, message: String| errors.push(InputError { path: path.to_owned(), message });
    let bytes = input.instruction.len();
    if input.instruction.trim().is_empty() {
        add("/instruction", "must not be empty".to_owned());
    } else if bytes > INSTRUCTION_BYTES_MAX {
        add("/instruction", format!("must have at most {INSTRUCTION_BYTES_MAX} bytes, but has {bytes}"));
    }
    if input.params.as_ref().is_some_and(|params| !params.is_object()) {
        add("/params", "expected an object".to_owned());
    } else if input.params.as_ref().is_some_and(|params| params.to_string().len() > PARAMS_BYTES_MAX) {
        add("/params", format!("must have at most {PARAMS_BYTES_MAX} bytes of JSON"));
    }
    if input.session_id.is_some() && input.chat.is_some() {
        add("/chat", "name a session or a conversation, not both".to_owned());
    }
    let TaskLimits { steps, tokens, wall_s } = input.limits;
    let (steps, wall_s) = (steps.unwrap_or(STEPS), wall_s.unwrap_or(WALL_S));
    if !(1..=STEPS_MAX).contains(&steps) {
        add("/limits/steps", format!("must be from 1 to {STEPS_MAX}"));
    }
    if !(1..=WALL_S_MAX).contains(&wall_s) {
        add("/limits/wall_s", format!("must be from 1 to {WALL_S_MAX}"));
    }
    if tokens == Some(0) {
        add("/limits/tokens", "must be at least 1".to_owned());
    }
    if !errors.is_empty() {
        return Err(OperationError::Invalid(errors));
    }
    input.chat.as_ref().map_or(Ok(()), check_chat)?;
    Ok(Limits { steps, tokens, wall_s })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(value: serde_json::Value) -> Result<Limits, OperationError> {
        checked(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn limits_have_defaults_and_bounds() {
        let limits = input(serde_json::json!({ "instruction": "x" })).unwrap();
        assert_eq!(limits, Limits { steps: STEPS, tokens: None, wall_s: WALL_S });
        for bad in [
            serde_json::json!({ "instruction": " " }),
            serde_json::json!({ "instruction": "x".repeat(INSTRUCTION_BYTES_MAX + 1) }),
            serde_json::json!({ "instruction": "x", "params": [] }),
            serde_json::json!({ "instruction": "x", "limits": { "steps": 0 } }),
            serde_json::json!({ "instruction": "x", "limits": { "steps": STEPS_MAX + 1 } }),
            serde_json::json!({ "instruction": "x", "limits": { "wall_s": 0 } }),
            serde_json::json!({ "instruction": "x", "limits": { "tokens": 0 } }),
            serde_json::json!({ "instruction": "x", "chat": { "app_id": "", "user_id": "u", "chat_id": "c" } }),
        ] {
            assert!(matches!(input(bad.clone()), Err(OperationError::Invalid(_))), "{bad}");
        }
    }
}
