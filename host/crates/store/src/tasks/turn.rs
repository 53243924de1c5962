//! The transactions of a task's turn.

use monstrum_types::{Labels, RequestId, TaskId, UtcMillis, WakeClaimId, WakeKey, WorkspaceId};

use super::sessions::{read_by, used_by};
use super::{TaskRow, TaskStatus, TaskStepRow, select_tasks, task_columns};
use crate::db::{Arg, Session, args, retry, values};
use crate::wakes::{AfterTurn, NewWake, WakeClaim, confirm_claim, end_turn};
use crate::{EventRow, Store, StoreError, deliveries, runs, schedules, wake_of};

/// What a round adds to its task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskProgress {
    pub task_id: TaskId,
    pub input_tokens: i64,
    pub output_tokens: i64,
    /// The labels of what the task has read, with all that it had before. `None` if the row of the task has them already.
    pub labels: Option<Labels>,
    /// The round and its calls.
    pub steps: Vec<TaskStepRow>,
}

/// The end of a step that is a call. It is written in the transaction of the audit row of the call, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedStep {
    pub task_id: TaskId,
    pub sequence: i64,
    /// The claim of the task's wake. The end is not written if the claim was replaced.
    pub wake: WakeKey,
    pub claim: WakeClaimId,
    pub status: String,
    pub ended_at: UtcMillis,
    pub sealed: String,
}

/// The end of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskEnd {
    pub task_id: TaskId,
    pub status: TaskStatus,
    pub code: Option<String>,
    pub ended_at: UtcMillis,
    pub sealed: String,
}

/// What follows the end of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedTask {
    pub after: AfterTurn,
    /// The other turns that the end has requested.
    pub wakes: Vec<NewWake>,
}

const OF_TURN: &str = select_tasks!("where id = $1 and ended_at is null");
const BEGIN: &str = "\
    update tasks set status = 'running', started_at = coalesce(started_at, cast($2 as bigint)), waiting_for = null, \
    waited_ms = waited_ms + coalesce(cast($2 as bigint) - waiting_since, 0), waiting_since = null \
    where id = $1 and ended_at is null";
const WAIT: &str = "\
    update tasks set status = 'waiting', waiting_for = $2, waiting_since = coalesce(waiting_since, cast($3 as bigint)) \
    where id = $1 and ended_at is null";
const CONTINUE: &str = "\
    update tasks set status = 'running', waiting_for = null, \
    waited_ms = waited_ms + coalesce(cast($2 as bigint) - waiting_since, 0), waiting_since = null \
    where id = $1 and ended_at is null";
const PROGRESS: &str = "update tasks set steps = steps + 1, input_tokens = input_tokens + $2, \
                        output_tokens = output_tokens + $3 where id = $1 and ended_at is null";
const SET_LABELS: &str = "update tasks set labels = $2 where id = $1 and ended_at is null";
const INSERT_STEP: &str = "\
    insert into task_steps (task_id, sequence, workspace_id, kind, request_id, tool, effect, status, started_at, \
    ended_at, sealed) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
const END_STEP: &str = "\
    update task_steps set status = $3, ended_at = $4, sealed = $5 where task_id = $1 and sequence = $2 \
    and ended_at is null and exists (select 1 from wakes where key = $6 and claim_id = $7)";
const COUNT_STEP: &str = "update tasks set steps = steps + 1 where id = $1";
const END: &str = "\
    update tasks set status = $2, code = $3, ended_at = $4, sealed = $5, waiting_for = null, waiting_since = null \
    where id = $1 and ended_at is null";
// An archive may have taken the row, so an archive of rows of that time counts as well.
const HAS_STARTED: &str = "select (select count(*) from audit_rows \
                           where workspace_id = $1 and request_id = $2 and kind = 'started') \
                           + (select count(*) from audit_anchors where last_at >= $3) as value";

impl EndedStep {
    /// Returns the statements that write the end. The second runs only if the first has changed a row.
    pub(crate) fn statements(&self) -> [(&'static str, Vec<Arg<'_>>); 2] {
        let EndedStep { task_id, sequence, wake, claim, status, ended_at, sealed } = self;
        [
            (END_STEP, values![task_id, *sequence, status, *ended_at, sealed, wake, claim]),
            (COUNT_STEP, values![task_id]),
        ]
    }
}

impl TaskStepRow {
    async fn insert(&self, session: &mut Session) -> Result<(), StoreError> {
        let values = args![
            self.task_id,
            self.sequence,
            self.workspace_id,
            self.kind.as_str(),
            self.request_id,
            &self.tool,
            &self.effect,
            &self.status,
            self.started_at,
            self.ended_at,
            &self.sealed,
        ];
        session.run(INSERT_STEP, values).await?;
        Ok(())
    }
}

impl Store {
    /// Begins a turn of a task. Returns `None` if the task has ended or does not exist. Fails with
    /// [`StoreError::LostClaim`] if the claim was replaced.
    pub async fn begin_task_turn(
        &self,
        claim: &WakeClaim,
        id: TaskId,
        now: UtcMillis,
    ) -> Result<Option<TaskRow>, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            confirm_claim(&mut session, claim).await?;
            session.run(BEGIN, args![id, now]).await?;
            let row: Option<TaskRow> = session.one(OF_TURN, args![id]).await?;
            session.commit().await?;
            Ok(row)
        })
    }

    /// Records what a task waits for, or that it continues.
    pub async fn set_task_waiting(
        &self,
        claim: &WakeClaim,
        id: TaskId,
        waits_for: Option<&str>,
        now: UtcMillis,
    ) -> Result<(), StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            confirm_claim(&mut session, claim).await?;
            match waits_for {
                Some(waits_for) => session.run(WAIT, args![id, waits_for, now]).await?,
                None => session.run(CONTINUE, args![id, now]).await?,
            };
            session.commit().await
        })
    }

    /// Ends the turn of a task that waits for a decision. The next turn is at `look_at`, or when a turn is requested, as the
    /// decision does.
    pub async fn park_task(
        &self,
        claim: &WakeClaim,
        id: TaskId,
        waits_for: &str,
        look_at: UtcMillis,
        now: UtcMillis,
    ) -> Result<AfterTurn, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            let after = end_turn(&mut session, claim, Some(look_at)).await?;
            session.run(WAIT, args![id, waits_for, now]).await?;
            session.commit().await?;
            Ok(after)
        })
    }

    /// Writes a round that has ended, with the calls that it asks for. Returns `false` if the task has ended or was
    /// deleted.
    pub async fn advance_task(&self, claim: &WakeClaim, progress: &TaskProgress) -> Result<bool, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            confirm_claim(&mut session, claim).await?;
            if let Some(labels) = &progress.labels {
                read_by(&mut session, progress.task_id, labels).await?;
                session.run(SET_LABELS, args![progress.task_id, labels]).await?;
            }
            let values = args![progress.task_id, progress.input_tokens, progress.output_tokens];
            if session.run(PROGRESS, values).await? == 0 {
                return Ok(false);
            }
            for step in &progress.steps {
                step.insert(&mut session).await?;
            }
            session.commit().await?;
            Ok(true)
        })
    }

    /// Writes the ends of calls that the pipeline did not run.
    pub async fn end_task_steps(&self, ends: &[EndedStep]) -> Result<(), StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            for end in ends {
                let [(end_step, values), (count, counted)] = end.statements();
                if session.run(end_step, &values).await? > 0 {
                    session.run(count, &counted).await?;
                }
            }
            session.commit().await
        })
    }

    /// Ends a task, and its turn with it. Requests turns of its event, of the schedule or the run that started it, and of a
    /// delivery that waits for its end.
    pub async fn end_task(&self, claim: &WakeClaim, end: &TaskEnd, event: &EventRow) -> Result<EndedTask, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            let TaskEnd { task_id, status, code, ended_at, sealed } = end;
            let run = runs::wake_of_task(&mut session, *task_id, *ended_at).await?;
            let schedule = schedules::request_turn_of(&mut session, *task_id, *ended_at).await?;
            let after = end_turn(&mut session, claim, None).await?;
            used_by(&mut session, *task_id, *ended_at).await?;
            let values = args![*task_id, status.as_str(), code, *ended_at, sealed];
            let mut delivery = None;
            let mut wakes = Vec::new();
            if session.run(END, values).await? > 0 {
                event.insert(&mut session).await?;
                wakes.push(wake_of(event));
                if schedule.is_some() {
                    schedules::end_run(&mut session, *task_id, *status).await?;
                }
                delivery = deliveries::wake_oldest(&mut session, *task_id, *ended_at).await?;
            }
            session.commit().await?;
            // A key that cannot be read belongs to no object.
            let keys = run.into_iter().chain(schedule).chain(delivery).filter_map(|key| key.parse().ok());
            let workspace_id = claim.workspace_id;
            wakes.extend(keys.map(|key| NewWake { key, workspace_id, due_at: *ended_at, claim: None }));
            Ok(EndedTask { after, wakes })
        })
    }

    /// Returns whether the audit has a row `started` of a call. That row is on disk before the first byte of the call
    /// leaves the host.
    pub async fn has_started(
        &self,
        workspace: WorkspaceId,
        request: RequestId,
        since: UtcMillis,
    ) -> Result<bool, StoreError> {
        let values = args![workspace.as_bytes().as_slice(), request.as_bytes().as_slice(), since];
        let started: Option<i64> = self.db.one(HAS_STARTED, values).await?;
        Ok(started.is_none_or(|started| started > 0))
    }
}
