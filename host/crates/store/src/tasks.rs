//! Tasks of bots, their steps and their sessions.
//!
//! What a task and its steps contain is sealed. The other columns select rows. A task starts nothing by its row alone: its
//! sealed record says which bot works on which instruction with which key, and is bound to the row.
//!
//! Each transaction of a turn names the claim of the task's wake, so that a host whose claim was replaced writes nothing.
//!
//! Transactions lock existing rows in one order, so that they do not block each other: the seal of the workspace, wakes in
//! the order of their keys, sessions, tasks, steps, schedules and their firings. Rows that a transaction has inserted are
//! not locked by others.

mod counts;
mod deletion;
mod sessions;
mod turn;

use monstrum_types::{BotId, KeyId, Labels, RequestId, ScheduleId, SessionId, TaskId, UtcMillis, WorkspaceId, words};

use crate::db::{Session, args, from_row, retry};
use crate::wakes::NewWake;
use crate::{EventRow, Listed, Page, Store, StoreError};

pub use deletion::{ConversationFilter, DeletedSessions};
pub use sessions::{SessionFilter, SessionRow};
pub use turn::{EndedStep, EndedTask, TaskEnd, TaskProgress};

words! {
    /// The status of a task.
    pub enum TaskStatus {
        /// No host has begun with the task.
        Queued = "queued",
        Running = "running",
    /// The task waits for a person or for another task, and holds no place.
    Waiting = "waiting",
        Completed = "completed",
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

words! {
    /// The kind of a step.
    pub enum TaskStepKind {
        /// An exchange with a model.
        Round = "round",
        /// A call of a tool.
        Call = "call",
    }
}

/// A row of `tasks`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRow {
    pub id: TaskId,
    pub workspace_id: WorkspaceId,
    pub bot_id: BotId,
    /// The session; `None` for a task whose caller keeps the conversation.
    pub session_id: Option<SessionId>,
    /// The task of another bot that started this one.
    pub parent_id: Option<TaskId>,
    pub status: TaskStatus,
    /// Why the task failed.
    pub code: Option<String>,
    /// The key that started the task; `None` for a task that no key started.
    pub key_id: Option<KeyId>,
    /// The number of steps that have ended.
    pub steps: i64,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub created_at: UtcMillis,
    pub started_at: Option<UtcMillis>,
    /// The time at which a caller asked to cancel the task.
    pub cancelled_at: Option<UtcMillis>,
    pub ended_at: Option<UtcMillis>,
    /// What the task waits for, as kind and id with a slash between them.
    pub waiting_for: Option<String>,
    pub waiting_since: Option<UtcMillis>,
    /// The time for which the task has waited before.
    pub waited_ms: i64,
    /// The labels of what the task has read.
    pub labels: Labels,
    /// The instruction, the limits and the result: a sealed record in its text form.
    pub sealed: String,
    /// The conversation for which the task works. The sealed record has it too.
    pub app_id: Option<String>,
    pub chat_id: Option<String>,
}

from_row! {
    TaskRow {
        id, workspace_id, bot_id, session_id, parent_id, status, code, key_id, steps, input_tokens, output_tokens,
        created_at, started_at, cancelled_at, ended_at, waiting_for, waiting_since, waited_ms, labels, sealed,
        app_id, chat_id,
    }
}

/// What the row of a task says about its progress, without its record. Each write of a turn that a listener of the task can
/// see changes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskState {
    pub bot_id: BotId,
    pub status: TaskStatus,
    /// The number of steps that have ended.
    pub steps: i64,
    /// What the task waits for, as kind and id with a slash between them.
    pub waiting_for: Option<String>,
    pub cancelled_at: Option<UtcMillis>,
    pub ended_at: Option<UtcMillis>,
}

from_row! { TaskState { bot_id, status, steps, waiting_for, cancelled_at, ended_at } }

/// A row of `task_steps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskStepRow {
    pub task_id: TaskId,
    /// The position of the step in its task, from 1.
    pub sequence: i64,
    pub workspace_id: WorkspaceId,
    pub kind: TaskStepKind,
    /// The call of the step in the audit; `None` for a call that never reached the pipeline.
    pub request_id: Option<RequestId>,
    /// The name of the tool, as the model wrote it; `None` for a round.
    pub tool: Option<String>,
    /// The effect of the tool when the call was planned.
    pub effect: Option<String>,
    /// The status of the call or round; `None` for a call that has not ended.
    pub status: Option<String>,
    pub started_at: UtcMillis,
    pub ended_at: Option<UtcMillis>,
    /// What was asked and answered: a sealed record in its text form.
    pub sealed: String,
}

from_row! {
    TaskStepRow {
        task_id, sequence, workspace_id, kind, request_id, tool, effect, status, started_at, ended_at, sealed,
    }
}

/// A filter for a list of tasks.
#[derive(Clone, Copy, Debug, Default)]
pub struct TaskFilter {
    pub bot: Option<BotId>,
    pub status: Option<TaskStatus>,
    pub session: Option<SessionId>,
    /// The schedule that has started the tasks.
    pub schedule: Option<ScheduleId>,
}

/// The maximum numbers of tasks: of those that have not ended, and of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TasksMax {
    pub of_workspace: i64,
    /// For a task that another task starts: the first task of their tree, and the maximum number of tasks in the tree,
    /// ended ones included.
    pub of_tree: Option<(TaskId, i64)>,
}

/// The result of inserting a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertedTask {
    Inserted,
    /// The session has a task that has not ended, or another request has just begun a session of the conversation.
    Busy,
    /// The session has expired or was deleted.
    NoSession,
    /// The workspace has too many tasks that have not ended.
    Full,
    /// The tree of the task has too many tasks.
    TreeFull,
}

/// A session that is inserted with its first task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSession {
    pub row: SessionRow,
    /// The event `session.created`.
    pub created: EventRow,
    /// The session of the conversation that has expired, if there is one, and the event `session.expired`.
    pub after: Option<(SessionId, EventRow)>,
}

/// The columns of a task, in the order in which they are selected.
macro_rules! task_columns {
    () => {
        "id, workspace_id, bot_id, session_id, parent_id, status, code, key_id, steps, input_tokens, output_tokens, \
         created_at, started_at, cancelled_at, ended_at, waiting_for, waiting_since, waited_ms, labels, sealed, \
         app_id, chat_id"
    };
}

/// Selects tasks.
macro_rules! select_tasks {
    ($rest:expr) => {
        concat!("select ", task_columns!(), " from tasks ", $rest)
    };
}
pub(crate) use {select_tasks, task_columns};

const BY_ID: &str = select_tasks!("where workspace_id = $1 and id = $2");
const STATE: &str = "select bot_id, status, steps, waiting_for, cancelled_at, ended_at from tasks \
                     where workspace_id = $1 and id = $2";
const PAGE: &str = select_tasks!(
    "where workspace_id = $1 and ($2 is null or bot_id = $2) and ($3 is null or status = $3) \
     and ($4 is null or session_id = $4) \
     and ($5 is null or id in (select task_id from schedule_runs where schedule_id = $5)) \
     and ($6 = '' or id < $6) order by id desc limit $7"
);
const EARLIER: &str = select_tasks!(
    "where workspace_id = $1 and session_id = $2 and id < $3 and ended_at is not null order by id desc limit $4"
);
const INSERT: &str = concat!(
    "insert into tasks (",
    task_columns!(),
    ") select $1, workspace_id, id, cast($4 as text), cast($5 as text), $6, cast($7 as text), cast($8 as text), \
     cast($9 as bigint), cast($10 as bigint), cast($11 as bigint), cast($12 as bigint), cast($13 as bigint), \
     cast($14 as bigint), cast($15 as bigint), cast($16 as text), cast($17 as bigint), cast($18 as bigint), $19, $20, \
     cast($21 as text), cast($22 as text) from bots where workspace_id = $2 and id = $3"
);
const UNENDED_OF_WORKSPACE: &str = "select count(*) as value from tasks where workspace_id = $1 and ended_at is null";
// The update locks the first task of the tree, so that two insertions do not exceed the limit together.
const LOCK_TREE: &str = "update tasks set parent_id = parent_id where id = $1 and workspace_id = $2";
const OF_TREE: &str = "with recursive tree (id) as (select id from tasks where parent_id = $1 and workspace_id = $2 \
                       union select tasks.id from tasks join tree on tasks.parent_id = tree.id \
                       where tasks.workspace_id = $2) select count(*) + 1 as value from tree";
const EXISTS: &str = "select count(*) as value from tasks where id = $1";
const IS_WANTED: &str = "select count(*) as value from tasks \
                         where workspace_id = $1 and id = $2 and ended_at is null and cancelled_at is null";
const CANCEL: &str = "update tasks set cancelled_at = $3 \
                      where workspace_id = $1 and id = $2 and ended_at is null and cancelled_at is null";
const STEPS: &str = "select task_id, sequence, workspace_id, kind, request_id, tool, effect, status, started_at, \
                     ended_at, sealed from task_steps where workspace_id = $1 and task_id = $2 and sequence > $3 \
                     order by sequence limit $4";
const FORGET: &str = "delete from tasks where ended_at < $1";

impl TaskRow {
    async fn insert(&self, session: &mut Session) -> Result<bool, StoreError> {
        let values = args![
            self.id,
            self.workspace_id,
            self.bot_id,
            self.session_id,
            self.parent_id,
            self.status.as_str(),
            &self.code,
            self.key_id,
            self.steps,
            self.input_tokens,
            self.output_tokens,
            self.created_at,
            self.started_at,
            self.cancelled_at,
            self.ended_at,
            &self.waiting_for,
            self.waiting_since,
            self.waited_ms,
            &self.labels,
            &self.sealed,
            &self.app_id,
            &self.chat_id,
        ];
        Ok(session.run(INSERT, values).await? > 0)
    }
}

impl Store {
    /// Inserts a task with its wake and, if its session is new, with the session.
    pub async fn insert_task(
        &self,
        row: &TaskRow,
        new: Option<&NewSession>,
        wake: &NewWake,
        max: TasksMax,
    ) -> Result<InsertedTask, StoreError> {
        let inserted = retry!(async {
            let mut session = self.db.write().await?;
            let inserted = self.write_task(&mut session, row, new, wake, max).await?;
            if inserted == InsertedTask::Inserted {
                session.commit().await?;
            }
            Ok(inserted)
        });
        match inserted {
            // The unique indexes of open sessions and of tasks that have not ended.
            Err(StoreError::Conflict { .. }) => Ok(InsertedTask::Busy),
            inserted => inserted,
        }
    }

    /// Writes a task in a transaction, which must not be committed unless the task is inserted.
    pub(crate) async fn write_task(
        &self,
        session: &mut Session,
        row: &TaskRow,
        new: Option<&NewSession>,
        wake: &NewWake,
        max: TasksMax,
    ) -> Result<InsertedTask, StoreError> {
        let unended: Option<i64> = session.one(UNENDED_OF_WORKSPACE, args![row.workspace_id]).await?;
        if unended.unwrap_or(i64::MAX) >= max.of_workspace {
            return Ok(InsertedTask::Full);
        }
        match new {
            Some(new) => sessions::begin(session, new).await?,
            None if row.session_id.is_some() && !sessions::touch(session, row).await? => {
                return Ok(InsertedTask::NoSession);
            }
            None => {}
        }
        if let Some((root, tasks_max)) = max.of_tree {
            session.run(LOCK_TREE, args![root, row.workspace_id]).await?;
            let of_tree: Option<i64> = session.one(OF_TREE, args![root, row.workspace_id]).await?;
            if of_tree.unwrap_or(i64::MAX) >= tasks_max {
                return Ok(InsertedTask::TreeFull);
            }
        }
        let wake = self.timed(session, wake).await?;
        if !row.insert(session).await? || !wake.write(session).await? {
            return Err(StoreError::UnknownReference);
        }
        Ok(InsertedTask::Inserted)
    }

    /// Returns the task with this id in the workspace.
    pub async fn task(&self, workspace: WorkspaceId, id: TaskId) -> Result<Option<TaskRow>, StoreError> {
        self.db.one(BY_ID, args![workspace, id]).await
    }

    /// Returns the progress of the task with this id in the workspace. The record of a task can have several MiB, so the
    /// followers of a task read this first.
    pub async fn task_state(&self, workspace: WorkspaceId, id: TaskId) -> Result<Option<TaskState>, StoreError> {
        self.db.one(STATE, args![workspace, id]).await
    }

    /// Returns whether a task of any workspace has this id.
    pub async fn is_task(&self, id: TaskId) -> Result<bool, StoreError> {
        let found: Option<i64> = self.db.one(EXISTS, args![id]).await?;
        Ok(found.is_some_and(|found| found > 0))
    }

    /// Returns a page of the tasks in a workspace that match the filter, newest first.
    pub async fn tasks(
        &self,
        workspace: WorkspaceId,
        filter: TaskFilter,
        page: &Page<TaskId>,
    ) -> Result<Listed<TaskRow, TaskId>, StoreError> {
        let TaskFilter { bot, status, session, schedule } = filter;
        let status = status.map(TaskStatus::as_str);
        let after = page.after();
        let values = args![workspace, bot, status, session, schedule, &after, page.rows()];
        Ok(page.of(self.db.all(PAGE, values).await?, |row: &TaskRow| row.id))
    }

    /// Returns the ended tasks before a task of the same session, newest first.
    pub async fn earlier_tasks(&self, before: &TaskRow, limit: u32) -> Result<Vec<TaskRow>, StoreError> {
        self.db.all(EARLIER, args![before.workspace_id, before.session_id, before.id, i64::from(limit)]).await
    }

    /// Returns whether a task has neither ended nor been cancelled.
    pub async fn is_task_wanted(&self, workspace: WorkspaceId, id: TaskId) -> Result<bool, StoreError> {
        let found: Option<i64> = self.db.one(IS_WANTED, args![workspace, id]).await?;
        Ok(found.is_some_and(|found| found > 0))
    }

    /// Returns the steps of a task after the step `after`, in their order.
    pub async fn task_steps(
        &self,
        workspace: WorkspaceId,
        task: TaskId,
        after: i64,
        limit: u32,
    ) -> Result<Vec<TaskStepRow>, StoreError> {
        self.db.all(STEPS, args![workspace, task, after, i64::from(limit)]).await
    }

    /// Records that a task is to be cancelled. Returns `false` if it has ended, is being cancelled or does not exist.
    pub async fn cancel_task(&self, workspace: WorkspaceId, id: TaskId, now: UtcMillis) -> Result<bool, StoreError> {
        Ok(self.db.run(CANCEL, args![workspace, id, now]).await? > 0)
    }

    /// Deletes the tasks that ended before a time, with their steps. Returns the number of tasks.
    pub async fn forget_tasks(&self, before: UtcMillis) -> Result<u64, StoreError> {
        self.db.run(FORGET, args![before]).await
    }
}
