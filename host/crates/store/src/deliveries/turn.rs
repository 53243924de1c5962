//! The transactions of the turns of events and deliveries.

use monstrum_types::{BotId, EventId, TaskId, UtcMillis, WorkspaceId};
use serde_json::Value;

use super::{DeliveryReason, DeliveryRow, DeliveryStatus, TargetKind, columns, select, wake_of, wake_waiting};
use crate::db::{Session, args, retry};
use crate::rows::Scope;
use crate::tasks::{InsertedTask, NewSession, TaskRow, TasksMax};
use crate::wakes::{AfterTurn, NewWake, WakeClaim, end_turn};
use crate::{EventRow, Store, StoreError};

/// The maximum numbers of deliveries and events, beyond which a delivery is dead from the beginning.
#[derive(Clone, Copy, Debug)]
pub struct DeliveriesMax {
    /// The number of pending deliveries to one target.
    pub pending_of_target: i64,
    /// The number of deliveries to one target in a chain of causes.
    pub of_target_and_root: i64,
    /// The number of events in a chain of causes.
    pub events_of_root: i64,
}

/// The dispatch of an event.
#[derive(Clone, Copy, Debug)]
pub struct Dispatch<'a> {
    pub event: &'a EventRow,
    /// The generation at which the rows of the workspace were verified that the targets come from.
    pub generation: i64,
    /// A delivery for each target.
    pub deliveries: &'a [DeliveryRow],
    pub max: DeliveriesMax,
}

/// The result of a dispatch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dispatched {
    /// The turn has ended. The wakes are those of the pending deliveries, and of the runs that wait for such an event.
    Done { after: AfterTurn, wakes: Vec<NewWake>, waiting: Vec<NewWake> },
    /// The workspace has changed since the caller verified its rows, so nothing was written.
    Behind,
}

/// The task that a delivery starts, with a session of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveredTask {
    pub row: TaskRow,
    pub session: NewSession,
    pub wake: NewWake,
}

/// The result of the turn of a delivery that starts a task or a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartedDelivery {
    /// The task or the run was started. `next` is the wake of the oldest pending delivery of this kind: of a task to the
    /// bot, of a run in the workspace.
    Started { after: AfterTurn, next: Option<NewWake> },
    /// The bot has too many tasks that deliveries started, or the workspace has too many runs, so nothing was written. The
    /// end of a task or a run makes room.
    NoRoom,
    /// The workspace has too many tasks that have not ended, so nothing was written.
    Full,
    /// The workflow has as many runs as its limit of concurrency allows, and starts none beyond it, so nothing was written.
    Skipped,
    /// The workflow is disabled or was deleted, so nothing was written.
    Disabled,
    /// The workspace has changed since the caller verified its rows, so nothing was written.
    Behind,
    /// The delivery is no longer pending, so nothing was written.
    Gone,
}

/// The end of a turn of a delivery that starts nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryEnd {
    /// The delivery is dead.
    Dead(DeliveryReason),
    /// The delivery is dead, because these parts of the event's data do not fit the input of the workflow.
    Misfit { invalid_paths: Vec<String> },
    /// The delivery stays pending, and has its next turn at `wake_at` or earlier. `next_at` is the time that is shown.
    Pending { next_at: Option<UtcMillis>, wake_at: UtcMillis },
}

/// The result of ending a turn that starts nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndedDelivery {
    /// The turn has ended. `next` is the wake of the oldest other pending delivery of this kind.
    Ended { after: AfterTurn, next: Option<NewWake> },
    /// The workspace has changed since the caller verified its rows, so nothing was written.
    Behind,
}

const NEXT: &str = "\
    insert into event_counters (workspace_id, sequence) select id, 1 from workspaces where id = $1 \
    on conflict (workspace_id) do update set sequence = event_counters.sequence + 1 returning sequence as value";
pub(super) const LOCK: &str = "update event_counters set sequence = sequence where workspace_id = $1";
const GENERATION: &str = "select generation as value from policy_seals where scope = $1";
const IS_NEW: &str = "\
    select count(*) as value from events where workspace_id = $1 and id = $2 and sequence is null";
const SET_SEQUENCE: &str = "update events set sequence = $3 where workspace_id = $1 and id = $2";
const EVENTS_OF_ROOT: &str = "\
    select count(*) as value from (select 1 as one from events where workspace_id = $1 and root_event_id = $2 \
    limit $3) as found";
const PENDING_OF_TARGET: &str = "\
    select count(*) as value from deliveries where target_kind = $1 and target_id = $2 and status = 'pending'";
const OF_TARGET_AND_ROOT: &str = "\
    select count(*) as value from deliveries \
    where workspace_id = $1 and root_event_id = $2 and target_kind = $3 and target_id = $4";
const INSERT: &str = concat!(
    "insert into deliveries (",
    columns!(),
    ") values ($1, $2, $3, $4, $5, $6, $7, $8, 0, null, $9, null, null, null, $10, $10, $11) \
     on conflict (event_id, target_kind, target_id) do nothing"
);
const RUNNING_OF_BOT: &str = "\
    select count(*) as value from tasks join deliveries on deliveries.task_id = tasks.id \
    where tasks.workspace_id = $1 and tasks.bot_id = $2 and tasks.ended_at is null";
const DONE: &str = "\
    update deliveries set status = 'done', task_id = $3, attempts = attempts + 1, next_at = null, ended_at = $4 \
    where workspace_id = $1 and id = $2 and status = 'pending'";
const DEAD: &str = "\
    update deliveries set status = 'dead', reason = $3, next_at = null, ended_at = $4, invalid_paths = $5 \
    where workspace_id = $1 and id = $2 and status = 'pending'";
const POSTPONE: &str = "\
    update deliveries set attempts = attempts + 1, next_at = $3 \
    where workspace_id = $1 and id = $2 and status = 'pending'";
const OLDEST_TO_BOT: &str = select!(
    "where bot_id = $1 and target_kind = 'subscription' and status = 'pending' and id <> $2 order by id limit 1"
);
const OLDEST_TO_TRIGGER: &str = select!(
    "where workspace_id = $1 and target_kind = 'trigger' and status = 'pending' and id <> $2 order by id limit 1"
);
const WAKE_OLDEST: &str = "\
    insert into wakes (key, workspace_id, due_at, version) \
    select 'delivery/' || pending.id, pending.workspace_id, cast($2 as bigint), 1 from deliveries as pending \
    where pending.id = (select waiting.id from deliveries as ended \
    join deliveries as waiting on waiting.bot_id = ended.bot_id and waiting.target_kind = 'subscription' \
    and waiting.status = 'pending' \
    where ended.task_id = $1 order by waiting.id limit 1) \
    on conflict (key) do update set \
    due_at = case when excluded.due_at < wakes.due_at then excluded.due_at else wakes.due_at end, \
    version = wakes.version + 1 returning key as value";

/// Requests a turn of the oldest pending delivery to the bot of a task that ends, if a delivery has started the task.
/// Returns the key of the pending delivery.
pub(crate) async fn wake_oldest(
    session: &mut Session,
    task: TaskId,
    now: UtcMillis,
) -> Result<Option<String>, StoreError> {
    session.one(WAKE_OLDEST, args![task, now]).await
}

impl DeliveryEnd {
    /// Returns why the delivery is dead, if it is.
    #[must_use]
    pub fn reason(&self) -> Option<DeliveryReason> {
        match self {
            DeliveryEnd::Dead(reason) => Some(*reason),
            DeliveryEnd::Misfit { .. } => Some(DeliveryReason::Input),
            DeliveryEnd::Pending { .. } => None,
        }
    }

    fn invalid_paths(&self) -> Option<Value> {
        match self {
            DeliveryEnd::Misfit { invalid_paths } => Some(Value::from(invalid_paths.clone())),
            DeliveryEnd::Dead(_) | DeliveryEnd::Pending { .. } => None,
        }
    }
}

impl Session {
    async fn number(&mut self, sql: &'static str, args: &[crate::db::Arg<'_>]) -> Result<i64, StoreError> {
        // A count that is missing must not let anything start.
        Ok(self.one(sql, args).await?.unwrap_or(i64::MAX))
    }

    /// Returns whether the seal of a workspace has another generation than `generation`.
    pub(super) async fn is_behind(&mut self, workspace: WorkspaceId, generation: i64) -> Result<bool, StoreError> {
        let scope = Scope::from(workspace).to_string();
        let current: Option<i64> = self.one(GENERATION, args![&scope]).await?;
        Ok(current != Some(generation))
    }

    /// Returns why a new delivery is dead from the beginning, if it is.
    async fn refusal(
        &mut self,
        delivery: &DeliveryRow,
        max: DeliveriesMax,
    ) -> Result<Option<DeliveryReason>, StoreError> {
        let (kind, id) = (delivery.target_kind.as_str(), &delivery.target_id);
        let values = args![delivery.workspace_id, delivery.root_event_id, kind, id];
        if self.number(OF_TARGET_AND_ROOT, values).await? >= max.of_target_and_root {
            return Ok(Some(DeliveryReason::Loop));
        }
        let pending = self.number(PENDING_OF_TARGET, args![kind, id]).await?;
        Ok((pending >= max.pending_of_target).then_some(DeliveryReason::Overflow))
    }

    async fn insert_delivery(&mut self, row: &DeliveryRow) -> Result<bool, StoreError> {
        let values = args![
            row.id,
            row.workspace_id,
            row.event_id,
            row.target_kind.as_str(),
            &row.target_id,
            row.bot_id,
            row.root_event_id,
            row.status.as_str(),
            row.reason.map(DeliveryReason::as_str),
            row.created_at,
            row.ended_at,
        ];
        Ok(self.run(INSERT, values).await? > 0)
    }

    /// Requests a turn of the oldest pending delivery that waits for the same room as `delivery`, except for `delivery`
    /// itself.
    pub(super) async fn wake_next(
        &mut self,
        delivery: &DeliveryRow,
        now: UtcMillis,
    ) -> Result<Option<NewWake>, StoreError> {
        let next: Option<DeliveryRow> = match delivery.target_kind {
            TargetKind::Subscription => self.one(OLDEST_TO_BOT, args![delivery.bot_id, delivery.id]).await?,
            TargetKind::Trigger => self.one(OLDEST_TO_TRIGGER, args![delivery.workspace_id, delivery.id]).await?,
        };
        let Some(next) = next else { return Ok(None) };
        let wake = wake_of(next.workspace_id, next.id, now);
        wake.write(self).await?;
        Ok(Some(wake))
    }
}

impl Store {
    /// Gives an event its position among the events of its workspace, inserts its deliveries with their wakes, and requests
    /// turns of the runs that wait for an event of its type. An event that was dispatched before gets none of this. Fails with [`StoreError::LostClaim`] and writes nothing if the claim was
    /// replaced.
    pub async fn dispatch_event(&self, claim: &WakeClaim, dispatch: &Dispatch<'_>) -> Result<Dispatched, StoreError> {
        let Dispatch { event, generation, deliveries, max } = *dispatch;
        let workspace = event.workspace_id;
        retry!(async {
            let mut session = self.db.write().await?;
            // The counter counts only new events, so that the positions have no gap.
            let is_new = session.number(IS_NEW, args![workspace, event.id]).await? == 1;
            let sequence: Option<i64> = if is_new { session.one(NEXT, args![workspace]).await? } else { None };
            let after = end_turn(&mut session, claim, None).await?;
            let Some(sequence) = sequence else {
                session.commit().await?;
                return Ok(Dispatched::Done { after, wakes: Vec::new(), waiting: Vec::new() });
            };
            if session.is_behind(workspace, generation).await? {
                return Ok(Dispatched::Behind);
            }
            session.run(SET_SEQUENCE, args![workspace, event.id, sequence]).await?;
            let is_too_long = event.depth > 0 && is_full(&mut session, workspace, event.root_event_id, max).await?;
            let mut wakes = Vec::new();
            for delivery in deliveries {
                let mut row = delivery.clone();
                if row.status == DeliveryStatus::Pending {
                    let refusal = match is_too_long {
                        true => Some(DeliveryReason::Loop),
                        false => session.refusal(&row, max).await?,
                    };
                    if let Some(reason) = refusal {
                        (row.status, row.reason, row.ended_at) =
                            (DeliveryStatus::Dead, Some(reason), Some(row.created_at));
                    }
                }
                if session.insert_delivery(&row).await? && row.status == DeliveryStatus::Pending {
                    let wake = wake_of(workspace, row.id, row.created_at);
                    wake.write(&mut session).await?;
                    wakes.push(wake);
                }
            }
            let waiting = wake_waiting(&mut session, event).await?;
            session.commit().await?;
            Ok(Dispatched::Done { after, wakes, waiting })
        })
    }

    /// Starts the task of a pending delivery, and ends its turn. `running_max` is the maximum number of tasks of the bot
    /// that deliveries have started and that have not ended. Fails with [`StoreError::LostClaim`] and writes nothing if the
    /// claim was replaced.
    pub async fn start_delivery(
        &self,
        claim: &WakeClaim,
        delivery: &DeliveryRow,
        task: &DeliveredTask,
        generation: i64,
        (running_max, tasks_max): (i64, TasksMax),
    ) -> Result<StartedDelivery, StoreError> {
        let (workspace, now) = (delivery.workspace_id, task.row.created_at);
        retry!(async {
            let mut session = self.db.write().await?;
            session.run(LOCK, args![workspace]).await?;
            let after = end_turn(&mut session, claim, None).await?;
            if session.is_behind(workspace, generation).await? {
                return Ok(StartedDelivery::Behind);
            }
            if session.run(DONE, args![workspace, delivery.id, task.row.id, now]).await? == 0 {
                return Ok(StartedDelivery::Gone);
            }
            if is_busy(&mut session, workspace, delivery.bot_id, running_max).await? {
                return Ok(StartedDelivery::NoRoom);
            }
            match self.write_task(&mut session, &task.row, Some(&task.session), &task.wake, tasks_max).await? {
                InsertedTask::Inserted => {}
                InsertedTask::Full | InsertedTask::TreeFull => return Ok(StartedDelivery::Full),
                InsertedTask::Busy | InsertedTask::NoSession => return Err(StoreError::UnknownReference),
            }
            let next = session.wake_next(delivery, now).await?;
            session.commit().await?;
            Ok(StartedDelivery::Started { after, next })
        })
    }

    /// Ends a turn of a delivery that starts nothing. Fails with [`StoreError::LostClaim`] and writes nothing if the claim
    /// was replaced.
    pub async fn end_delivery(
        &self,
        claim: &WakeClaim,
        delivery: &DeliveryRow,
        end: &DeliveryEnd,
        generation: i64,
        now: UtcMillis,
    ) -> Result<EndedDelivery, StoreError> {
        let (workspace, id) = (delivery.workspace_id, delivery.id);
        retry!(async {
            let mut session = self.db.write().await?;
            session.run(LOCK, args![workspace]).await?;
            let wake_at = match end {
                DeliveryEnd::Dead(_) | DeliveryEnd::Misfit { .. } => None,
                DeliveryEnd::Pending { wake_at, .. } => Some(*wake_at),
            };
            let after = end_turn(&mut session, claim, wake_at).await?;
            if session.is_behind(workspace, generation).await? {
                return Ok(EndedDelivery::Behind);
            }
            let next = match end {
                DeliveryEnd::Dead(_) | DeliveryEnd::Misfit { .. } => {
                    let (reason, paths) = (end.reason().map(DeliveryReason::as_str), end.invalid_paths());
                    session.run(DEAD, args![workspace, id, reason, now, &paths]).await?;
                    session.wake_next(delivery, now).await?
                }
                DeliveryEnd::Pending { next_at, .. } => {
                    session.run(POSTPONE, args![workspace, id, *next_at]).await?;
                    None
                }
            };
            session.commit().await?;
            Ok(EndedDelivery::Ended { after, next })
        })
    }
}

async fn is_busy(session: &mut Session, workspace: WorkspaceId, bot: BotId, max: i64) -> Result<bool, StoreError> {
    Ok(session.number(RUNNING_OF_BOT, args![workspace, bot]).await? >= max)
}

/// Returns whether a chain of causes has more events than allowed.
async fn is_full(
    session: &mut Session,
    workspace: WorkspaceId,
    root: EventId,
    max: DeliveriesMax,
) -> Result<bool, StoreError> {
    let limit = max.events_of_root.saturating_add(1);
    Ok(session.number(EVENTS_OF_ROOT, args![workspace, root, limit]).await? > max.events_of_root)
}
