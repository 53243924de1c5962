//! What a firing starts.

use monstrum_api::tools::Chat;
use monstrum_core::events::{self, EventCause, EventLinks, EventType, NewEvent};
use monstrum_core::models;
use monstrum_core::operations::OperationError;
use monstrum_store::{
    BotRow, EventRow, NewSession, NewWake, ScheduleRow, ScheduledRun, ScheduledTask, ScheduledWork, SessionRow,
};
use monstrum_types::{Labels, SessionId, TaskId, UtcMillis, WakeKey, WakeKind};
use serde_json::{Value, json};

use super::Schedules;
use super::record::{Record, Work};
use super::runs::{PreparedRun, RunOfSchedule};
use crate::journal::{self, Limits, Source, TaskContent};
use crate::links::TaskLink;
use crate::tasks::{self, OWN_APP, STEPS, WALL_S};

impl Schedules {
    /// Prepares the task or the run of a firing, with the event `schedule.fired`.
    ///
    /// Fails if the bot of a task has no model, or the workflow takes no run with this input.
    pub(super) async fn work(
        &self,
        row: &ScheduleRow,
        record: &Record,
        times: (UtcMillis, UtcMillis),
    ) -> Result<ScheduledWork, OperationError> {
        match &record.work {
            Work::Task { instruction } => {
                Ok(ScheduledWork::Task(Box::new(self.task(row, record, instruction, times)?)))
            }
            Work::Run { workflow_id, input } => {
                let (planned_at, now) = times;
                let event = self.fired(row, EventLinks::default(), times)?;
                let new = RunOfSchedule {
                    schedule: row,
                    planned_at,
                    workflow_id: *workflow_id,
                    input: input.clone(),
                    starters: record.starters.clone(),
                    narrow: record.narrow.clone(),
                    cause: EventCause::of(&event),
                    now,
                };
                let PreparedRun { row, wake, max } = self.runs.prepare(new).await?;
                Ok(ScheduledWork::Run(Box::new(ScheduledRun { row, wake, max, event })))
            }
        }
    }

    /// Prepares a task, with a session of its own.
    fn task(
        &self,
        row: &ScheduleRow,
        record: &Record,
        instruction: &str,
        (planned_at, now): (UtcMillis, UtcMillis),
    ) -> Result<ScheduledTask, OperationError> {
        let (app, workspace, bot) = (&self.app, row.workspace_id, row.bot_id);
        let snapshot = app.policy.load();
        let found = snapshot.bot(workspace, bot).ok_or_else(|| OperationError::not_found("bot"))?;
        models::candidates(&snapshot, workspace, bot, app.clock.now())
            .map_err(|error| OperationError::conflict(error.to_string()))?;
        let session = self.session(row, now)?;
        let SessionRow { id, app_id, user_id, chat_id, .. } = session.row.clone();
        let source = Source::Schedule { id: row.id, starters: record.starters.clone() };
        let mut content = TaskContent::new(instruction.to_owned(), limits(&found.row), source);
        content.chat = Some(Chat { app_id, user_id, chat_id });
        content.links = record.narrow.iter().cloned().map(TaskLink::Narrow).collect();
        let mut task = tasks::new_row((workspace, bot), Some(id), now);
        let links = EventLinks { task_id: Some(task.id.to_string()), ..EventLinks::default() };
        let event = self.fired(row, links, (planned_at, now))?;
        content.cause = Some(EventCause::of(&event));
        task.sealed = journal::seal_task(&app.vault, &task, &content).map_err(tasks::internal)?;
        let wake = wake_of(&task.id, row, now)?;
        Ok(ScheduledTask { row: task, session, wake, event })
    }

    /// Returns the event of a firing.
    fn fired(
        &self,
        row: &ScheduleRow,
        links: EventLinks,
        (planned_at, now): (UtcMillis, UtcMillis),
    ) -> Result<EventRow, OperationError> {
        let data = json!({ "name": row.name, "planned_at": planned_at, "fired_at": now });
        self.event(row, (EventType::ScheduleFired, "schedule", row.id.to_string()), (links, data), now)
    }

    /// Returns the session that the task has for itself. Its user is the schedule.
    fn session(&self, row: &ScheduleRow, now: UtcMillis) -> Result<NewSession, OperationError> {
        let id = SessionId::new();
        let session = SessionRow {
            id,
            workspace_id: row.workspace_id,
            bot_id: row.bot_id,
            app_id: OWN_APP.to_owned(),
            user_id: row.id.to_string(),
            chat_id: id.to_string(),
            created_at: now,
            used_at: now,
            expired_at: None,
            labels: Labels::none(),
        };
        let data = json!({
            "bot_id": row.bot_id, "chat": { "app_id": session.app_id, "chat_id": session.chat_id },
        });
        let created = (EventType::SessionCreated, "session", id.to_string());
        let created = self.event(row, created, (EventLinks::default(), data), now)?;
        Ok(NewSession { row: session, created, after: None })
    }

    fn event(
        &self,
        row: &ScheduleRow,
        (event_type, source_type, source_id): (EventType, &'static str, String),
        (links, data): (EventLinks, Value),
        now: UtcMillis,
    ) -> Result<EventRow, OperationError> {
        let (workspace_id, bot_id) = (row.workspace_id, Some(row.bot_id));
        let event_type = event_type.into();
        let event = NewEvent { workspace_id, event_type, source_type, source_id, bot_id, links, cause: None, data };
        events::seal(&self.app.vault, event, now).map_err(|error| OperationError::Internal(error.into()))
    }
}

fn wake_of(task: &TaskId, row: &ScheduleRow, due_at: UtcMillis) -> Result<NewWake, OperationError> {
    let key = WakeKey::new(WakeKind::Task, *task).map_err(|error| OperationError::Internal(error.into()))?;
    Ok(NewWake { key, workspace_id: row.workspace_id, due_at, claim: None })
}

/// Returns the limits of a task that has those of its bot.
pub(crate) fn limits(bot: &BotRow) -> Limits {
    let of_bot = tasks::limits_of(bot);
    Limits {
        steps: of_bot.steps.unwrap_or(STEPS),
        tokens: of_bot.tokens,
        credits: of_bot.credits,
        wall_s: of_bot.wall_s.unwrap_or(WALL_S),
    }
}
