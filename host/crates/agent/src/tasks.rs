//! The operations on tasks: starting, showing, following and cancelling them.

use std::sync::Arc;

use monstrum_api::bots::TaskLimits;
use monstrum_api::list::List;
use monstrum_api::tasks::{NewTask, Task, TaskList, TaskStep, TaskSteps};
use monstrum_api::tools::Chat;
use monstrum_core::app::App;
use monstrum_core::events::{self, EventLinks, EventType, NewEvent};
use monstrum_core::models;
use monstrum_core::operations::tools::{check_chat, may_use};
use monstrum_core::operations::{Caller, OperationError, check_task_labels, narrow};
use monstrum_engine::Engine;
use monstrum_store::{
    BotRow, EventRow, InsertedTask, KeyKind, NewSession, NewWake, PAGE_ITEMS_MAX, Page, SessionRow, TaskFilter,
    TaskRow, TaskState, TaskStatus, TasksMax,
};
use monstrum_types::{BotId, InputError, KeyId, Labels, SessionId, TaskId, UtcMillis, WakeKey, WakeKind, WorkspaceId};

use serde::Deserialize as _;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::journal::{self, JournalError, Limits, Source, TaskContent};
use crate::links::TaskLink;
use crate::live::LiveTasks;
use crate::output;
use crate::schedules::Schedules;
use crate::shown::as_listed;

/// The maximum size of an instruction, in bytes.
pub(crate) const INSTRUCTION_BYTES_MAX: usize = 64 << 10;
/// The maximum size of the parameters of a task, in bytes of JSON.
const PARAMS_BYTES_MAX: usize = 256 << 10;
/// The limits of a task whose bot and whose caller set none: enough for most work, and too little to run for a day by
/// mistake.
pub(crate) const STEPS: u32 = 50;
pub(crate) const WALL_S: u32 = 3600;
/// The maximum number of tasks of a workspace that have not ended.
const UNENDED_MAX: i64 = 1000;
/// The maximum numbers for a task that belongs to no tree.
pub(crate) const TASKS_MAX: TasksMax = TasksMax { of_workspace: UNENDED_MAX, of_tree: None };
/// The maximum number of tasks that start each other, so that a bot that gives tasks comes to an end.
const TREE_MAX: i64 = 32;
/// The time in seconds after which a session without a new task has expired, if its bot sets no other.
const SESSION_IDLE_S: i64 = 24 * 3600;
/// The app of the conversations that tasks have for themselves.
pub(crate) const OWN_APP: &str = "task";
/// Why a session has no second task.
const BUSY: &str = "the session has a task that has not ended; wait for its end";
/// The maximum number of steps and of tasks that are read at once. One record can have several MiB.
pub(crate) const STEPS_READ: u32 = 20;
const TASKS_READ: u32 = 20;
/// The size of the records from which a page of steps has no further step, in bytes.
const STEPS_BYTES_MAX: usize = 8 << 20;

/// The tasks and sessions of a host.
pub struct Tasks {
    pub(crate) app: Arc<App>,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) live: Arc<LiveTasks>,
    pub(crate) closed: CancellationToken,
}

/// A new task that was checked.
pub(crate) struct Beginning {
    pub(crate) workspace: WorkspaceId,
    pub(crate) bot: BotId,
    pub(crate) key: Option<KeyId>,
    /// The task of another bot that starts this one.
    pub(crate) parent: Option<TaskId>,
    /// The session; `None` for a task whose caller keeps the conversation.
    pub(crate) session: Option<SessionOf>,
    pub(crate) content: TaskContent,
}

/// The session of a new task.
pub(crate) enum SessionOf {
    Known(SessionRow),
    New(Box<NewSession>),
}

impl Tasks {
    /// Creates the operations of the host `app`. `live` are the tasks of its runner.
    #[must_use]
    pub fn new(app: Arc<App>, engine: Arc<dyn Engine>, live: Arc<LiveTasks>) -> Tasks {
        Tasks { app, engine, live, closed: CancellationToken::new() }
    }

    /// Returns the schedules of the host.
    #[must_use]
    pub fn schedules(&self) -> Schedules {
        Schedules::new(Arc::clone(&self.app), Arc::clone(&self.engine))
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
        let app = &self.app;
        let (snapshot, now) = (app.policy.load(), app.clock.now());
        let row_of_bot = &snapshot.bot(caller.workspace, bot).ok_or_else(|| OperationError::not_found("bot"))?.row;
        let limits = checked(&input, &limits_of(row_of_bot))?;
        check_task_labels(&input.labels)?;
        input.narrow.as_ref().map_or(Ok(()), |given| narrow::check("/narrow", given))?;
        models::candidates(&snapshot, caller.workspace, bot, now)
            .map_err(|error| OperationError::conflict(error.to_string()))?;
        let idle_ms = row_of_bot.session_idle_s.unwrap_or(SESSION_IDLE_S).saturating_mul(1000);
        let NewTask { instruction, params, output_schema, session_id, chat, labels, narrow, .. } = input;
        let output_schema = output::checked(app, caller.workspace, bot, output_schema).await?;
        let session = self.session_of(caller, bot, (session_id, chat), (idle_ms, now)).await?;
        let mut content = TaskContent::new(instruction, limits, Source::of_key(caller.caller_key()));
        content.params = params;
        content.labels = labels.into_iter().collect();
        content.output_schema = output_schema;
        content.links = narrow.into_iter().map(TaskLink::Narrow).collect();
        let (key, parent, session) = (Some(caller.key), None, Some(session));
        self.begin(Beginning { workspace: caller.workspace, bot, key, parent, session, content }).await
    }

    /// Begins a task that was checked.
    ///
    /// # Errors
    ///
    /// The session has a task that has not ended, or the workspace has too many such tasks.
    pub(crate) async fn begin(&self, task: Beginning) -> Result<Task, OperationError> {
        self.begin_as(TaskId::new(), task).await
    }

    /// Begins a task that was checked, with an id that no task has.
    pub(crate) async fn begin_as(&self, id: TaskId, task: Beginning) -> Result<Task, OperationError> {
        let Beginning { workspace, bot, key, parent, session, mut content } = task;
        let (app, now) = (&self.app, self.app.clock.now());
        let (of, new) = match session {
            None => (None, None),
            Some(SessionOf::Known(row)) => (Some(row), None),
            Some(SessionOf::New(new)) => (Some(new.row.clone()), Some(new)),
        };
        let session_id = of.as_ref().map(|row| row.id);
        if let Some(row) = &of {
            let earlier = new.as_ref().and_then(|new| new.after.as_ref()).map(|(earlier, _)| *earlier);
            content.labels.add(&self.labels_of_session(row, earlier).await?);
        }
        if let Some(SessionRow { app_id, user_id, chat_id, .. }) = of {
            content.chat = Some(Chat { app_id, user_id, chat_id });
        }
        let mut row = new_row((workspace, bot), session_id, now);
        (row.id, row.parent_id, row.key_id, row.labels) = (id, parent, key, content.labels.clone());
        (row.app_id, row.chat_id) = content.chat.clone().map(|chat| (chat.app_id, chat.chat_id)).unzip();
        row.sealed = journal::seal_task(&app.vault, &row, &content).map_err(internal)?;
        let key = WakeKey::new(WakeKind::Task, row.id).map_err(|error| OperationError::Internal(error.into()))?;
        // This host runs the task, because only this host can stream it to the caller.
        let wake = self.engine.reserve(key, workspace);
        let max = TasksMax { of_tree: content.tree.map(|tree| (tree.root, TREE_MAX)), ..TASKS_MAX };
        match app.store.insert_task(&row, new.as_deref(), &wake, max).await? {
            InsertedTask::Inserted => {}
            InsertedTask::Busy => {
                return Err(OperationError::conflict(BUSY));
            }
            InsertedTask::NoSession => return Err(OperationError::conflict("the session has expired or was deleted")),
            InsertedTask::Full => return Err(full()),
            InsertedTask::TreeFull => {
                let message = format!("the tasks that have started each other are {TREE_MAX}, which is the maximum");
                return Err(OperationError::OverLimit(message));
            }
        }
        self.engine.start(&wake);
        if let Some(new) = &new {
            app.emitter.signal(&new.created);
            new.after.iter().for_each(|(_, expired)| app.emitter.signal(expired));
        }
        Ok(self.shown(&row, content))
    }

    async fn session_of(
        &self,
        caller: &Caller,
        bot: BotId,
        (id, chat): (Option<SessionId>, Option<Chat>),
        (idle_ms, now): (i64, UtcMillis),
    ) -> Result<SessionOf, OperationError> {
        let store = &self.app.store;
        let is_idle = |row: &SessionRow| now.since_ms(row.used_at) > idle_ms;
        if let Some(id) = id {
            let row = store.session(caller.workspace, id).await?.filter(|row| row.bot_id == bot);
            let row = row.ok_or_else(|| OperationError::invalid_at("/session_id", "no such session of this bot"))?;
            if row.expired_at.is_none() && is_idle(&row) && store.is_session_busy(caller.workspace, id).await? {
                return Err(OperationError::conflict(BUSY));
            }
            if row.expired_at.is_some() || is_idle(&row) {
                return Err(OperationError::conflict("the session has expired; start the task in a new session"));
            }
            return Ok(SessionOf::Known(row));
        }
        let id = SessionId::new();
        let own = || Chat { app_id: OWN_APP.to_owned(), user_id: caller.key.to_string(), chat_id: id.to_string() };
        let mut labels = Labels::none();
        let (chat, open) = match chat {
            None => (own(), None),
            Some(chat) => {
                let open = store.session_of_chat(caller.workspace, &chat.app_id, &chat.chat_id).await?;
                let sandbox = store.sandbox_of_conversation(caller.workspace, &chat.app_id, &chat.chat_id).await?;
                if let Some(sandbox) = sandbox.filter(|_| open.is_none()) {
                    // The session begins with what was written to the sandbox without a session.
                    labels = sandbox.known_labels();
                }
                (chat, open)
            }
        };
        let mut after = None;
        if let Some(open) = open {
            if open.bot_id != bot || open.user_id != chat.user_id {
                return Err(OperationError::conflict("the conversation belongs to another user or another bot"));
            }
            if !is_idle(&open) {
                return Ok(SessionOf::Known(open));
            }
            after = Some((open.id, self.event_of_session(EventType::SessionExpired, &open, now)?));
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
            labels,
        };
        let created = self.event_of_session(EventType::SessionCreated, &row, now)?;
        Ok(SessionOf::New(Box::new(NewSession { row, created, after })))
    }

    fn event_of_session(
        &self,
        event_type: EventType,
        row: &SessionRow,
        now: UtcMillis,
    ) -> Result<EventRow, OperationError> {
        let event = NewEvent {
            workspace_id: row.workspace_id,
            event_type: event_type.into(),
            source_type: "session",
            source_id: row.id.to_string(),
            bot_id: Some(row.bot_id),
            links: EventLinks::default(),
            cause: None,
            data: json!({ "bot_id": row.bot_id, "chat": { "app_id": row.app_id, "chat_id": row.chat_id } }),
        };
        events::seal(&self.app.vault, event, now).map_err(|error| OperationError::Internal(error.into()))
    }

    /// Lists the tasks that the caller may see and that match the filter, newest first, with the beginnings of their
    /// instructions and results.
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
        let filter = TaskFilter { bot, ..filter };
        self.listed(caller, filter, page, |row| as_listed(self.view(row))).await
    }

    /// Reads a page of tasks and shows each. The rows are read in parts, because a record can have several MiB.
    pub(crate) async fn listed<T>(
        &self,
        caller: &Caller,
        filter: TaskFilter,
        page: &Page<TaskId>,
        shown: impl Fn(&TaskRow) -> T,
    ) -> Result<List<T>, OperationError> {
        let (mut items, mut left, mut cursor) = (Vec::new(), page.limit.clamp(1, PAGE_ITEMS_MAX), page.cursor);
        while left > 0 {
            let part = Page { limit: left.min(TASKS_READ), cursor };
            let listed = self.app.store.tasks(caller.workspace, filter, &part).await?;
            items.extend(listed.items.iter().map(&shown));
            left -= part.limit;
            cursor = listed.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        Ok(List { items, next_cursor: cursor.map(|cursor| cursor.to_string()) })
    }

    /// Shows a task.
    ///
    /// # Errors
    ///
    /// The task does not exist, or the caller may not see it.
    pub async fn show(&self, caller: &Caller, id: TaskId) -> Result<Task, OperationError> {
        Ok(self.view(&self.row(caller, id).await?))
    }

    /// Returns the row of a task that the caller may see.
    pub(crate) async fn row(&self, caller: &Caller, id: TaskId) -> Result<TaskRow, OperationError> {
        let row = self.app.store.task(caller.workspace, id).await?;
        row.filter(|row| sees(caller, row.bot_id)).ok_or_else(|| OperationError::not_found("task"))
    }

    /// Returns the progress of a task that the caller may see.
    pub(crate) async fn state(&self, caller: &Caller, id: TaskId) -> Result<TaskState, OperationError> {
        let state = self.app.store.task_state(caller.workspace, id).await?;
        state.filter(|state| sees(caller, state.bot_id)).ok_or_else(|| OperationError::not_found("task"))
    }

    /// Cancels a task. Returns the task, and whether it had ended before.
    ///
    /// # Errors
    ///
    /// The task does not exist, or the caller may not see it.
    pub async fn cancel(&self, caller: &Caller, id: TaskId) -> Result<(Task, bool), OperationError> {
        let row = self.row(caller, id).await?;
        if row.ended_at.is_some() {
            return Ok((self.view(&row), true));
        }
        self.stop(caller.workspace, id).await?;
        Ok((self.view(&self.row(caller, id).await?), false))
    }

    /// Cancels a task that has not ended, and requests its turn.
    pub(crate) async fn stop(&self, workspace_id: WorkspaceId, id: TaskId) -> Result<(), OperationError> {
        let now = self.app.clock.now();
        self.app.store.cancel_task(workspace_id, id, now).await?;
        self.live.cancel(id);
        // A task that waits for another try after a failure ends at once.
        let key = WakeKey::new(WakeKind::Task, id).map_err(|error| OperationError::Internal(error.into()))?;
        let wake = NewWake { key, workspace_id, due_at: now, claim: None };
        self.app.store.request_turns(std::slice::from_ref(&wake)).await?;
        self.engine.signal(&[wake]);
        Ok(())
    }

    /// Returns a page of at most `limit` steps of a task, after the step `after`.
    ///
    /// # Errors
    ///
    /// The task does not exist, or the caller may not see it.
    pub async fn steps(
        &self,
        caller: &Caller,
        id: TaskId,
        after: i64,
        limit: u32,
    ) -> Result<TaskSteps, OperationError> {
        self.row(caller, id).await?;
        let (mut items, mut bytes) = (Vec::new(), 0);
        loop {
            let last = items.last().map_or(after, |step: &TaskStep| step.sequence);
            let rows = self.app.store.task_steps(caller.workspace, id, last, STEPS_READ).await?;
            for row in &rows {
                if items.len() >= limit.max(1) as usize || bytes >= STEPS_BYTES_MAX {
                    let next_after = items.last().map(|step| step.sequence);
                    return Ok(TaskSteps { items, next_after });
                }
                bytes += row.sealed.len();
                items.push(self.step(row)?);
            }
            if rows.len() < STEPS_READ as usize {
                return Ok(TaskSteps { items, next_after: None });
            }
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

/// Returns the error of a workspace that has too many tasks.
pub(crate) fn full() -> OperationError {
    OperationError::Busy("the workspace has too many tasks that have not ended; try again later".to_owned())
}

/// Returns the row of a new task, which no key and no task has started, without its record.
pub(crate) fn new_row(
    (workspace_id, bot_id): (WorkspaceId, BotId),
    session_id: Option<SessionId>,
    created_at: UtcMillis,
) -> TaskRow {
    TaskRow {
        id: TaskId::new(),
        workspace_id,
        bot_id,
        session_id,
        parent_id: None,
        status: TaskStatus::Queued,
        code: None,
        key_id: None,
        steps: 0,
        input_tokens: 0,
        output_tokens: 0,
        created_at,
        started_at: None,
        cancelled_at: None,
        ended_at: None,
        waiting_for: None,
        waiting_since: None,
        waited_ms: 0,
        labels: Labels::none(),
        sealed: String::new(),
        app_id: None,
        chat_id: None,
    }
}

pub(crate) fn internal(error: JournalError) -> OperationError {
    OperationError::Internal(error.into())
}

/// Returns the limits of a bot's tasks.
pub(crate) fn limits_of(bot: &BotRow) -> TaskLimits {
    // The limits were checked when they were saved.
    bot.task_limits.as_ref().and_then(|limits| TaskLimits::deserialize(limits).ok()).unwrap_or_default()
}

/// Validates an input. Returns the limits of the task, which are at most those of its bot.
pub(crate) fn checked(input: &NewTask, of_bot: &TaskLimits) -> Result<Limits, OperationError> {
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
    let (steps_max, wall_s_max) = (of_bot.steps.unwrap_or(STEPS), of_bot.wall_s.unwrap_or(WALL_S));
    let TaskLimits { steps, tokens, credits, wall_s } = input.limits;
    let (steps, wall_s) = (steps.unwrap_or(steps_max), wall_s.unwrap_or(wall_s_max));
    if !(1..=steps_max).contains(&steps) {
        add("/limits/steps", format!("must be from 1 to {steps_max}, the limit of the bot"));
    }
    if !(1..=wall_s_max).contains(&wall_s) {
        add("/limits/wall_s", format!("must be from 1 to {wall_s_max}, the limit of the bot"));
    }
    let tokens_max = of_bot.tokens.unwrap_or(u64::MAX);
    if tokens.is_some_and(|tokens| !(1..=tokens_max).contains(&tokens)) {
        add("/limits/tokens", format!("must be from 1 to {tokens_max}, the limit of the bot"));
    }
    let credits_max = of_bot.credits.unwrap_or(f64::MAX);
    if credits.is_some_and(|credits| !(credits > 0.0 && credits <= credits_max)) {
        add("/limits/credits", "must be more than 0, and at most the limit of the bot".to_owned());
    }
    let (tokens, credits) = (tokens.or(of_bot.tokens), credits.or(of_bot.credits));
    if !errors.is_empty() {
        return Err(OperationError::Invalid(errors));
    }
    input.chat.as_ref().map_or(Ok(()), check_chat)?;
    Ok(Limits { steps, tokens, credits, wall_s })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(value: serde_json::Value) -> Result<Limits, OperationError> {
        checked(&serde_json::from_value(value).unwrap(), &TaskLimits::default())
    }

    #[test]
    fn limits_have_defaults_and_bounds() {
        let limits = input(serde_json::json!({ "instruction": "x" })).unwrap();
        assert_eq!(limits, Limits { steps: STEPS, tokens: None, credits: None, wall_s: WALL_S });
        for bad in [
            serde_json::json!({ "instruction": " " }),
            serde_json::json!({ "instruction": "x".repeat(INSTRUCTION_BYTES_MAX + 1) }),
            serde_json::json!({ "instruction": "x", "params": [] }),
            serde_json::json!({ "instruction": "x", "limits": { "steps": 0 } }),
            serde_json::json!({ "instruction": "x", "limits": { "steps": STEPS + 1 } }),
            serde_json::json!({ "instruction": "x", "limits": { "wall_s": 0 } }),
            serde_json::json!({ "instruction": "x", "limits": { "tokens": 0 } }),
            serde_json::json!({ "instruction": "x", "limits": { "credits": 0.0 } }),
            serde_json::json!({ "instruction": "x", "chat": { "app_id": "", "user_id": "u", "chat_id": "c" } }),
        ] {
            assert!(matches!(input(bad.clone()), Err(OperationError::Invalid(_))), "{bad}");
        }
    }

    #[test]
    fn a_task_has_at_most_the_limits_of_its_bot() {
        let of_bot = TaskLimits { steps: Some(100), tokens: Some(1000), credits: Some(2.0), wall_s: Some(7200) };
        let limits = |limits: serde_json::Value| {
            let input = serde_json::json!({ "instruction": "x", "limits": limits });
            checked(&serde_json::from_value(input).unwrap(), &of_bot)
        };
        let own = limits(serde_json::json!({})).unwrap();
        assert_eq!(own, Limits { steps: 100, tokens: Some(1000), credits: Some(2.0), wall_s: 7200 });
        assert!(limits(serde_json::json!({ "steps": 100, "tokens": 1000, "credits": 2.0, "wall_s": 7200 })).is_ok());
        for field in ["steps", "tokens", "credits", "wall_s"] {
            let refused = limits(serde_json::json!({ field: 7201 }));
            assert!(matches!(refused, Err(OperationError::Invalid(_))), "{field}");
        }
    }
}
