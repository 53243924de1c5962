//! The operations on schedules.

use monstrum_api::list::List;
use monstrum_api::schedules::{
    FiredByHand, LastFiring, NewSchedule, Schedule, ScheduleChange, ScheduleList, SchedulePreview, ScheduleTimes,
};
use monstrum_core::operations::change::{Change, changed_at};
use monstrum_core::operations::{Caller, Expected, OperationError, Operator};
use monstrum_store::{FiredSchedule, InsertedSchedule, Page, ScheduleRow, ScheduleUpdate, ScheduledWork, SchedulesMax};
use monstrum_types::{BotId, ScheduleId, with_causes};

use super::record::{Record, RecordError, Work};
use super::timing::When;
use super::{Schedules, due_at, input, refusal, wake};
use crate::journal;
use crate::shown as task_shown;
use crate::tasks::{self, TASKS_MAX};

/// The maximum numbers of schedules of a bot and of a workspace: enough for every job of a team, and few enough that all
/// can be due in the same minute.
const MAX: SchedulesMax = SchedulesMax { of_bot: 100, of_workspace: 1000 };
/// The number of times in a preview.
const PREVIEWED: usize = 5;

impl Schedules {
    /// Creates a schedule.
    ///
    /// # Errors
    ///
    /// The input is invalid, the bot or the workflow does not exist, the name is taken, or there are too many schedules.
    pub async fn create(&self, caller: &Operator, mut new: NewSchedule) -> Result<Schedule, OperationError> {
        let (app, now) = (&self.app, self.app.clock.now());
        let (workspace_id, name) = (caller.workspace, new.name.clone());
        let (work, bot) = input::work(&mut new)?;
        let record = input::record(caller, work, new, now)?;
        let bot_id = match &record.work {
            Work::Run { workflow_id, input } => self.runs.check(workspace_id, *workflow_id, input).await?,
            Work::Task { .. } => {
                let bot = bot.filter(|bot| app.policy.load().bot(workspace_id, *bot).is_some());
                bot.ok_or_else(|| OperationError::invalid_at("/bot_id", "no such bot"))?
            }
        };
        let next_at = if record.enabled { Some(input::first(&record, now)?) } else { None };
        let mut row = ScheduleRow {
            id: ScheduleId::new(),
            workspace_id,
            bot_id,
            name,
            next_at,
            last_planned_at: None,
            last_fired_at: None,
            last_task_id: None,
            last_run_id: None,
            last_status: None,
            failures: 0,
            created_at: now,
            updated_at: now,
            sealed: String::new(),
        };
        row.sealed = record.seal(&app.vault, &row).map_err(internal)?;
        let wake = due_at(&row, &record).map(|due_at| wake(workspace_id, row.id, due_at));
        let insert = async {
            match app.store.insert_schedule(&row, wake.as_ref(), MAX).await? {
                InsertedSchedule::Inserted => Ok(()),
                InsertedSchedule::BotFull => Err(full("bot", MAX.of_bot)),
                InsertedSchedule::WorkspaceFull => Err(full("workspace", MAX.of_workspace)),
            }
        };
        let created = shown(&row, record);
        Change::new("schedule.create", &row.id).of_bot(bot_id).to(&created).record(app, caller, insert).await?;
        self.engine.signal(wake.as_slice());
        Ok(created)
    }

    /// Lists schedules of the workspace or of a bot, newest first.
    ///
    /// # Errors
    ///
    /// The database failed.
    pub async fn list(
        &self,
        caller: &Operator,
        bot: Option<BotId>,
        page: &Page<ScheduleId>,
    ) -> Result<ScheduleList, OperationError> {
        let listed = self.app.store.schedules(caller.workspace, bot, page).await?;
        // A schedule that cannot be opened must not hide the others.
        let items = listed.items.iter().filter_map(|row| self.view(row).ok()).collect();
        Ok(List { items, next_cursor: listed.next_cursor.map(|cursor| cursor.to_string()) })
    }

    /// Shows a schedule.
    ///
    /// # Errors
    ///
    /// The schedule does not exist, or its row was edited by another program.
    pub async fn show(&self, caller: &Operator, id: ScheduleId) -> Result<Schedule, OperationError> {
        self.view(&self.row(caller, id).await?)
    }

    /// Changes a schedule.
    ///
    /// # Errors
    ///
    /// The input is invalid, the schedule does not exist or does not have the expected version.
    pub async fn update(
        &self,
        caller: &Operator,
        id: ScheduleId,
        expected: Expected,
        change: ScheduleChange,
    ) -> Result<Schedule, OperationError> {
        let (app, now) = (&self.app, self.app.clock.now());
        let before = self.row(caller, id).await?;
        expected.check(before.updated_at)?;
        let mut record = self.opened(&before)?;
        let mut row = before.clone();
        let shown_before = shown(&before, record.clone());
        // Enabling or disabling a schedule also ends a pause after failures.
        let is_resumed = change.enabled.is_some();
        let has_input = change.input.is_some();
        let is_new = input::change((&mut row.name, &mut record), before.is_paused(), change, now)?;
        if let Work::Run { workflow_id, input } = &record.work
            && has_input
        {
            self.runs.check(row.workspace_id, *workflow_id, input).await?;
        }
        record.started_by(caller.key);
        // The turns of the schedule write these columns too, so the others stay as they are stored.
        let next_at = match (record.enabled, is_new) {
            (false, _) => Some(None),
            (true, true) => Some(Some(input::first(&record, now)?)),
            (true, false) => None,
        };
        row.next_at = next_at.unwrap_or(row.next_at);
        row.failures = if is_resumed { 0 } else { row.failures };
        row.updated_at = changed_at(app, before.updated_at);
        row.sealed = record.seal(&app.vault, &row).map_err(internal)?;
        let wake = wake(row.workspace_id, id, due_at(&row, &record).unwrap_or(now));
        let written = ScheduleUpdate { row: &row, before: before.updated_at, next_at, is_resumed };
        let update = async {
            let row = app.store.update_schedule(&written, &wake).await?;
            row.ok_or_else(|| expected.changed_meanwhile())
        };
        let changed = shown(&row, record.clone());
        let recorded = Change::new("schedule.update", &id).of_bot(row.bot_id).from(&shown_before).to(&changed);
        let row = recorded.record(app, caller, update).await?;
        self.engine.signal(&[wake]);
        Ok(shown(&row, record))
    }

    /// Deletes a schedule. Tasks and runs that it has started go on. A schedule whose row was edited by another program can be
    /// deleted too.
    ///
    /// # Errors
    ///
    /// The schedule does not exist, or does not have the expected version.
    pub async fn delete(&self, caller: &Operator, id: ScheduleId, expected: Expected) -> Result<(), OperationError> {
        let app = &self.app;
        let before = app.store.stored_schedule(caller.workspace, id).await?;
        let before = before.ok_or_else(|| OperationError::not_found("schedule"))?;
        expected.check(before.updated_at)?;
        let mut recorded = Change::new("schedule.delete", &id).of_bot(before.bot_id);
        if let Ok(record) = self.open(&before) {
            recorded = recorded.from(&shown(&before, record));
        }
        let delete = async {
            match app.store.delete_schedule(caller.workspace, id, before.updated_at).await? {
                true => Ok(()),
                false => Err(expected.changed_meanwhile()),
            }
        };
        recorded.record(app, caller, delete).await
    }

    /// Starts the task or the run of a schedule now, also beside an earlier one and if the schedule is disabled. The next
    /// time stays as it is.
    ///
    /// # Errors
    ///
    /// The schedule does not exist, its bot has no model, its workflow takes no run, or the workspace has too many tasks or
    /// runs.
    pub async fn fire(&self, caller: &Operator, id: ScheduleId) -> Result<FiredByHand, OperationError> {
        let (app, now) = (&self.app, self.app.clock.now());
        let row = self.row(caller, id).await?;
        if !self.is_in_force(&row).await? {
            return Err(edited());
        }
        let mut record = self.opened(&row)?;
        record.started_by(caller.key);
        let work = self.work(&row, &record, (now, now)).await?;
        let firing = work.firing(now, now, true);
        let fire = async {
            match app.store.fire_schedule_now(&row, &firing, &work, TASKS_MAX).await? {
                FiredSchedule::Fired { has_work: true, .. } => Ok(()),
                refused => Err(refusal(&work, refused)),
            }
        };
        let started = match firing.run_id {
            Some(run_id) => serde_json::json!({ "run_id": run_id }),
            None => serde_json::json!({ "task_id": firing.task_id }),
        };
        Change::new("schedule.fire", &id).of_bot(row.bot_id).to(&started).record(app, caller, fire).await?;
        self.signal(&work);
        match &work {
            ScheduledWork::Task(task) => {
                let content = journal::open_task(&app.vault, &task.row).map_err(tasks::internal)?;
                Ok(FiredByHand::Task(Box::new(task_shown::shown(&task.row, content))))
            }
            ScheduledWork::Run(run) => Ok(FiredByHand::Run(Box::new(self.runs.shown(&run.row).await?))),
        }
    }

    /// Returns the next times of a schedule that is not saved.
    ///
    /// # Errors
    ///
    /// The input is invalid.
    pub fn preview(&self, _: &Operator, input: SchedulePreview) -> Result<ScheduleTimes, OperationError> {
        let timing = input::preview(input)?;
        let first = timing.first(self.app.clock.now());
        let next: Vec<_> = std::iter::successors(first, |last| timing.after(*last)).take(PREVIEWED).collect();
        if next.is_empty() {
            return Err(OperationError::invalid_at("/cron", "no time matches the pattern"));
        }
        Ok(ScheduleTimes { next })
    }

    async fn row(&self, caller: &Caller, id: ScheduleId) -> Result<ScheduleRow, OperationError> {
        let store = &self.app.store;
        if let Some(row) = store.schedule(caller.workspace, id).await? {
            return Ok(row);
        }
        // A row without a valid MAC is that of another program.
        let is_stored = store.stored_schedule(caller.workspace, id).await?.is_some();
        Err(if is_stored { edited() } else { OperationError::not_found("schedule") })
    }

    fn opened(&self, row: &ScheduleRow) -> Result<Record, OperationError> {
        self.open(row).map_err(|error| {
            tracing::error!(error = %with_causes(&error), schedule.id = %row.id, "a schedule cannot be opened");
            edited()
        })
    }

    fn view(&self, row: &ScheduleRow) -> Result<Schedule, OperationError> {
        Ok(shown(row, self.opened(row)?))
    }
}

fn internal(error: RecordError) -> OperationError {
    OperationError::Internal(error.into())
}

fn edited() -> OperationError {
    OperationError::conflict("the row of the schedule was edited by another program; delete the schedule")
}

fn full(of: &str, max: i64) -> OperationError {
    OperationError::conflict(format!("the {of} has {max} schedules, which is the maximum; delete one first"))
}

/// Returns a schedule as the API shows it.
fn shown(row: &ScheduleRow, record: Record) -> Schedule {
    let Record { work, when, timezone, overlap, missed, jitter_s, narrow, enabled, made_by, .. } = record;
    let (cron, every_s, at) = match when {
        When::Cron(pattern) => (Some(pattern), None, None),
        When::EveryS(seconds) => (None, Some(seconds), None),
        When::At(time) => (None, None, Some(time)),
    };
    let enabled = enabled && !row.is_paused();
    let last = row.last_planned_at.zip(row.last_fired_at).zip(row.last_status);
    let last = last.map(|((planned_at, fired_at), status)| {
        let status = status.as_str().to_owned();
        LastFiring { planned_at, fired_at, task_id: row.last_task_id, run_id: row.last_run_id, status }
    });
    let (instruction, workflow_id, input) = match work {
        Work::Task { instruction } => (Some(instruction), None, None),
        Work::Run { workflow_id, input } => (None, Some(workflow_id), Some(input)),
    };
    Schedule {
        id: row.id,
        name: row.name.clone(),
        bot_id: row.bot_id,
        instruction,
        workflow_id,
        input,
        cron,
        every_s,
        at,
        timezone,
        overlap,
        missed,
        jitter_s,
        narrow,
        enabled,
        next_at: row.next_at.filter(|_| enabled),
        last,
        failures: row.failures,
        made_by,
        created_at: row.created_at,
        updated_at: row.updated_at,
    }
}
