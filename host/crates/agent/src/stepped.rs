//! Tasks that steps of workflows start.
//!
//! Such a task has no key and acts as the bot of the workflow, with what the run and the step narrow as links. It begins with
//! the labels of the run, because the run has put into its instruction and parameters what it has read, and the run gets the
//! labels of the task with its result.

use monstrum_api::bots::TaskLimits;
use monstrum_api::tasks::{Narrow, NewTask};
use monstrum_api::tools::Chat;
use monstrum_core::app::App;
use monstrum_core::events::{self, EventCause, EventLinks, EventType, NewEvent};
use monstrum_core::models;
use monstrum_core::operations::{OperationError, narrow};
use monstrum_store::{DeliveredTask, NewSession, NewWake, SessionRow, StoreError, TaskRow, TasksMax};
use monstrum_types::{
    BotId, KeyId, Labels, RunId, SessionId, TaskId, UtcMillis, WakeKey, WakeKind, WorkspaceId, with_causes,
};
use serde_json::{Value, json};

use crate::journal::{self, Source, TaskContent};
use crate::links::TaskLink;
use crate::output;
use crate::runner::TaskCode;
use crate::tasks::{self, OWN_APP, Tasks, checked, limits_of};

/// The maximum numbers for tasks that steps start.
pub const TASKS_MAX: TasksMax = tasks::TASKS_MAX;

/// A task for a step of a run.
#[derive(Debug)]
pub struct TaskOfStep {
    pub workspace: WorkspaceId,
    pub bot: BotId,
    pub step: StartingStep,
    /// The instruction, with its values in frames, and the random part of the names of the frames.
    pub instruction: String,
    pub nonce: String,
    pub params: Option<Value>,
    /// The JSON Schema of the answer.
    pub output_schema: Option<Value>,
    pub limits: TaskLimits,
    /// What the task may do less than its bot: what the run and what the step narrows.
    pub narrow: Vec<Narrow>,
    /// The keys that started the run, or made what started it.
    pub starters: Vec<KeyId>,
    /// The labels of what the run has read.
    pub labels: Labels,
    /// The event that caused the run.
    pub cause: Option<EventCause>,
}

/// The step that starts a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartingStep {
    pub run: RunId,
    pub step: String,
    pub item: String,
}

/// A task that cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum NotPrepared {
    #[error("the bot has no model")]
    NoModel,
    #[error("the task cannot be prepared")]
    Refused(#[from] OperationError),
}

/// How the task of a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepTaskEnd {
    /// The answer. With a schema, it is JSON.
    Completed {
        answer: String,
        is_json: bool,
    },
    /// A code, and what happened.
    Failed(String, String),
    Cancelled,
}

impl TaskOfStep {
    /// Prepares the task, with a session of its own.
    ///
    /// # Errors
    ///
    /// The instruction, the parameters, the schema, the limits or what is narrowed is not valid, or the bot has no model.
    pub async fn prepare(self, app: &App, now: UtcMillis) -> Result<DeliveredTask, NotPrepared> {
        let TaskOfStep { workspace, bot, step, instruction, nonce, params, limits, labels, starters, cause, .. } = self;
        let snapshot = app.policy.load();
        let found = snapshot.bot(workspace, bot).ok_or_else(|| OperationError::not_found("bot"))?;
        let input = NewTask { params, limits, ..NewTask::of(instruction) };
        let limits = checked(&input, &limits_of(&found.row))?;
        self.narrow.iter().try_for_each(|given| narrow::check("/narrow", given))?;
        models::candidates(&snapshot, workspace, bot, app.clock.now()).map_err(|_| NotPrepared::NoModel)?;
        let output_schema = output::checked(app, workspace, bot, self.output_schema).await?;
        let StartingStep { run, step, item } = step;
        let session = session_of(app, (workspace, bot), run, (cause, &labels), now)?;
        let SessionRow { id, app_id, user_id, chat_id, .. } = session.row.clone();
        let source = Source::Run { run, step, item, nonce, starters };
        let mut content = TaskContent::new(input.instruction, limits, source);
        content.params = input.params;
        content.output_schema = output_schema;
        content.links = self.narrow.into_iter().map(TaskLink::Narrow).collect();
        content.chat = Some(Chat { app_id, user_id, chat_id });
        content.labels = labels.clone();
        content.cause = cause;
        let mut row = tasks::new_row((workspace, bot), Some(id), now);
        row.labels = labels;
        row.sealed = journal::seal_task(&app.vault, &row, &content).map_err(tasks::internal)?;
        let key = WakeKey::new(WakeKind::Task, row.id).map_err(OperationError::internal)?;
        let wake = NewWake { key, workspace_id: workspace, due_at: now, claim: None };
        Ok(DeliveredTask { row, session, wake })
    }
}

/// Returns the session that the task has for itself. Its user is the run.
fn session_of(
    app: &App,
    (workspace_id, bot_id): (WorkspaceId, BotId),
    run: RunId,
    (cause, labels): (Option<EventCause>, &Labels),
    now: UtcMillis,
) -> Result<NewSession, OperationError> {
    let id = SessionId::new();
    let row = SessionRow {
        id,
        workspace_id,
        bot_id,
        app_id: OWN_APP.to_owned(),
        user_id: run.to_string(),
        chat_id: id.to_string(),
        created_at: now,
        used_at: now,
        expired_at: None,
        labels: labels.clone(),
    };
    let created = NewEvent {
        workspace_id,
        event_type: EventType::SessionCreated.into(),
        source_type: "session",
        source_id: id.to_string(),
        bot_id: Some(bot_id),
        links: EventLinks { run_id: Some(run), ..EventLinks::default() },
        // A trigger on new sessions must not start runs without an end.
        cause,
        data: json!({ "bot_id": bot_id, "chat": { "app_id": row.app_id, "chat_id": row.chat_id } }),
    };
    let created = events::seal(&app.vault, created, now).map_err(OperationError::internal)?;
    Ok(NewSession { row, created, after: None })
}

/// Returns how the task of a step ended, and the labels of what it has read; `None` while the task goes on.
///
/// Only the sealed record counts. A task that was deleted, that another program has written or that another step has started
/// has failed, and counts as one that has read everything.
///
/// # Errors
///
/// The database failed.
pub async fn end_of(
    app: &App,
    workspace: WorkspaceId,
    id: TaskId,
    step: &StartingStep,
) -> Result<Option<(StepTaskEnd, Labels)>, StoreError> {
    // The record can have several MiB, so it is read once the task has ended.
    let has_ended = app.store.task_state(workspace, id).await?.is_none_or(|state| state.ended_at.is_some());
    if !has_ended {
        return Ok(None);
    }
    let Some(row) = app.store.task(workspace, id).await? else {
        return Ok(Some(unknown("the task of the step was deleted")));
    };
    let content = match journal::open_task(&app.vault, &row) {
        Ok(content) => content,
        Err(error) => {
            tracing::error!(error = %with_causes(&error), task.id = %id, "the task of a step cannot be opened");
            return Ok(Some(unknown("the record of the task cannot be opened")));
        }
    };
    if !is_of(&content.source, step) {
        return Ok(Some(unknown("the task belongs to another step")));
    }
    Ok(ended(&row, content))
}

fn is_of(source: &Source, of: &StartingStep) -> bool {
    matches!(source, Source::Run { run, step, item, .. } if *run == of.run && *step == of.step && *item == of.item)
}

fn ended(row: &TaskRow, content: TaskContent) -> Option<(StepTaskEnd, Labels)> {
    row.ended_at?;
    let TaskContent { result, message, is_cancelled, labels, output_schema, .. } = content;
    let end = match (result, message) {
        _ if is_cancelled => StepTaskEnd::Cancelled,
        (Some(answer), _) => StepTaskEnd::Completed { answer, is_json: output_schema.is_some() },
        (None, Some(message)) => {
            let code = row.code.as_deref().and_then(TaskCode::from_word).unwrap_or(TaskCode::Internal);
            StepTaskEnd::Failed(code.as_str().to_owned(), message)
        }
        // The record of the running task was put back.
        (None, None) => return Some(unknown("the record of the task has no end")),
    };
    Some((end, labels.with(&row.labels)))
}

fn unknown(message: &str) -> (StepTaskEnd, Labels) {
    (StepTaskEnd::Failed(TaskCode::Internal.as_str().to_owned(), message.to_owned()), Labels::ALL)
}

impl Tasks {
    /// Cancels the task of a step, unless it has ended.
    ///
    /// # Errors
    ///
    /// The database failed.
    pub async fn cancel_of_step(&self, workspace: WorkspaceId, id: TaskId) -> Result<(), OperationError> {
        self.stop(workspace, id).await
    }
}

#[cfg(test)]
mod tests {
    use monstrum_store::TaskStatus;

    use super::*;
    use crate::journal::Limits;

    fn content() -> TaskContent {
        let limits = Limits { steps: 1, tokens: None, credits: None, wall_s: 1 };
        let (run, step, item) = (RunId::new(), "triage".to_owned(), "3".to_owned());
        let source = Source::Run { run, step, item, nonce: "n".to_owned(), starters: Vec::new() };
        TaskContent { labels: Labels::from_text("untrusted"), ..TaskContent::new("Do it.".to_owned(), limits, source) }
    }

    fn row(status: TaskStatus, code: Option<&str>) -> TaskRow {
        let row = tasks::new_row((WorkspaceId::new(), BotId::new()), None, UtcMillis(1));
        let labels = Labels::from_text("secret");
        TaskRow { status, code: code.map(str::to_owned), ended_at: Some(UtcMillis(2)), labels, ..row }
    }

    #[test]
    fn the_record_of_a_task_says_how_it_ended() {
        let both = Labels::from_text("secret untrusted");
        let answered = TaskContent { result: Some("{}".to_owned()), ..content() };
        let completed = |is_json| StepTaskEnd::Completed { answer: "{}".to_owned(), is_json };
        let done = row(TaskStatus::Completed, None);
        assert_eq!(ended(&done, answered.clone()), Some((completed(false), both.clone())));
        let typed = TaskContent { output_schema: Some(serde_json::Map::new()), ..answered.clone() };
        assert_eq!(ended(&done, typed), Some((completed(true), both.clone())));
        let failed = TaskContent { message: Some("no".to_owned()), ..content() };
        let expected = |code: &str| StepTaskEnd::Failed(code.to_owned(), "no".to_owned());
        assert_eq!(ended(&row(TaskStatus::Failed, Some("budget")), failed.clone()).unwrap().0, expected("budget"));
        assert_eq!(ended(&row(TaskStatus::Failed, Some("?")), failed).unwrap().0, expected("internal"));
        let cancelled = TaskContent { is_cancelled: true, ..content() };
        assert_eq!(ended(&row(TaskStatus::Cancelled, None), cancelled), Some((StepTaskEnd::Cancelled, both)));
        assert_eq!(ended(&TaskRow { ended_at: None, ..done }, answered), None, "the task goes on");
    }

    /// Another program marks a running task as completed.
    #[test]
    fn a_task_whose_record_has_no_end_has_failed() {
        let (end, labels) = ended(&row(TaskStatus::Completed, None), content()).unwrap();
        assert!(matches!(end, StepTaskEnd::Failed(..)), "{end:?}");
        assert!(labels.is_all());
    }

    #[test]
    fn a_task_belongs_to_its_step() {
        let content = content();
        let Source::Run { run, step, item, .. } = content.source.clone() else { panic!("it is one") };
        let own = StartingStep { run, step, item };
        assert!(is_of(&content.source, &own));
        for other in [
            StartingStep { run: RunId::new(), ..own.clone() },
            StartingStep { step: "other".to_owned(), ..own.clone() },
            StartingStep { item: "4".to_owned(), ..own.clone() },
        ] {
            assert!(!is_of(&content.source, &other), "{other:?}");
        }
        assert!(!is_of(&Source::Key { hash: String::new() }, &own));
    }
}
