//! Deliveries of events to their targets. The dispatch of an event and each turn of a delivery are one transaction.
//!
//! Every such transaction first locks the row of the workspace in `event_counters`, so that the deliveries of a workspace
//! take place one after another, and then checks that the seal of the workspace still has the generation at which the
//! caller read the targets. So a target that was changed or deleted before gets nothing by an older state.

mod runs;
mod turn;

use monstrum_types::{BotId, DeliveryId, EventId, RunId, TaskId, UtcMillis, WakeKey, WakeKind, WorkspaceId, words};
use serde_json::Value;

use crate::db::{args, from_row, retry};
use crate::wakes::NewWake;
use crate::{Listed, Page, Store, StoreError};

pub(crate) use runs::{wake_of_triggers, wake_trigger, wake_waiting};
pub(crate) use turn::wake_oldest;
pub use turn::{DeliveredTask, DeliveriesMax, DeliveryEnd, Dispatch, Dispatched, EndedDelivery, StartedDelivery};

words! {
    /// The kind of the target of a delivery.
    pub enum TargetKind {
        /// A subscription, which starts a task.
        Subscription = "subscription",
        /// A trigger, which starts a run of its workflow.
        Trigger = "trigger",
    }
}

words! {
    /// The status of a delivery.
    pub enum DeliveryStatus {
        /// The delivery has not started anything yet.
        Pending = "pending",
        /// The delivery has started a task or a run.
        Done = "done",
        /// The delivery starts nothing, unless a person retries it.
        Dead = "dead",
    }
}

words! {
    /// Why a delivery is dead.
    pub enum DeliveryReason {
        /// The target or its bot was deleted.
        Deleted = "deleted",
        /// The target is inactive or has expired, its workflow is disabled, or the event no longer matches it.
        Disabled = "disabled",
        /// A budget of the bot or of the workspace is spent.
        Budget = "budget",
        /// The bot has no model.
        Model = "model",
        /// The chain of causes is too long.
        Loop = "loop",
        /// Too many deliveries to the target were pending.
        Overflow = "overflow",
        /// The delivery was pending for too long.
        Expired = "expired",
        /// The event or the target cannot be read.
        Unreadable = "unreadable",
        /// The data of the event does not fit the input of the workflow.
        Input = "input",
        /// The workflow has as many runs as its limit of concurrency allows, and starts none beyond it.
        Skipped = "skipped",
    }
}

/// A row of `deliveries`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryRow {
    pub id: DeliveryId,
    pub workspace_id: WorkspaceId,
    pub event_id: EventId,
    pub target_kind: TargetKind,
    pub target_id: String,
    /// The bot that works for the target.
    pub bot_id: BotId,
    /// The event that the chain of causes began with.
    pub root_event_id: EventId,
    pub status: DeliveryStatus,
    /// The number of turns that tried to start something.
    pub attempts: i64,
    /// The time of the next turn; `None` if the delivery waits for no time.
    pub next_at: Option<UtcMillis>,
    pub reason: Option<DeliveryReason>,
    /// The parts of the event's data that do not fit the input of the workflow, as a JSON list of pointers.
    pub invalid_paths: Option<Value>,
    pub task_id: Option<TaskId>,
    /// The run that the delivery has started.
    pub run_id: Option<RunId>,
    pub created_at: UtcMillis,
    /// The time since which the delivery is pending: its creation, or the last retry.
    pub pending_since: UtcMillis,
    pub ended_at: Option<UtcMillis>,
}

from_row! {
    DeliveryRow {
        id, workspace_id, event_id, target_kind, target_id, bot_id, root_event_id, status, attempts, next_at, reason,
        invalid_paths, task_id, run_id, created_at, pending_since, ended_at,
    }
}

/// A filter for a list of deliveries.
#[derive(Clone, Debug, Default)]
pub struct DeliveryFilter {
    pub status: Option<DeliveryStatus>,
    pub event: Option<EventId>,
    pub bot: Option<BotId>,
}

/// The result of retrying a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetriedDelivery {
    /// The delivery is pending again, with its wake.
    Pending(NewWake),
    /// The delivery is not dead.
    NotDead,
    Absent,
}

/// The columns of a delivery, in the order in which they are selected and inserted.
macro_rules! columns {
    () => {
        "id, workspace_id, event_id, target_kind, target_id, bot_id, root_event_id, status, attempts, next_at, reason, \
         invalid_paths, task_id, run_id, created_at, pending_since, ended_at"
    };
}

macro_rules! select {
    ($rest:expr) => {
        concat!("select ", columns!(), " from deliveries ", $rest)
    };
}
use {columns, select};

const BY_ID: &str = select!("where workspace_id = $1 and id = $2");
const PAGE: &str = select!(
    "where workspace_id = $1 and ($2 is null or status = $2) and ($3 is null or event_id = $3) \
     and ($4 is null or bot_id = $4) and ($5 = '' or id < $5) order by id desc limit $6"
);
const RETRY: &str = "\
    update deliveries set status = 'pending', reason = null, invalid_paths = null, next_at = null, ended_at = null, pending_since = $3 \
    where workspace_id = $1 and id = $2 and status = 'dead'";

/// Returns the wake of a delivery that is due at `due_at`.
fn wake_of(workspace_id: WorkspaceId, id: DeliveryId, due_at: UtcMillis) -> NewWake {
    let key = WakeKey::new(WakeKind::Delivery, id).expect("an id has only characters of keys");
    NewWake { key, workspace_id, due_at, claim: None }
}

impl Store {
    /// Returns the delivery with this id in the workspace.
    pub async fn delivery(&self, workspace: WorkspaceId, id: DeliveryId) -> Result<Option<DeliveryRow>, StoreError> {
        self.db.one(BY_ID, args![workspace, id]).await
    }

    /// Returns a page of the deliveries in a workspace that match the filter, newest first.
    pub async fn deliveries(
        &self,
        workspace: WorkspaceId,
        filter: &DeliveryFilter,
        page: &Page<DeliveryId>,
    ) -> Result<Listed<DeliveryRow, DeliveryId>, StoreError> {
        let DeliveryFilter { status, event, bot } = filter;
        let status = status.map(DeliveryStatus::as_str);
        let after = page.after();
        let values = args![workspace, status, *event, *bot, &after, page.rows()];
        Ok(page.of(self.db.all(PAGE, values).await?, |row: &DeliveryRow| row.id))
    }

    /// Makes a dead delivery pending again, and requests its turn.
    pub async fn retry_delivery(
        &self,
        workspace: WorkspaceId,
        id: DeliveryId,
        now: UtcMillis,
    ) -> Result<RetriedDelivery, StoreError> {
        let wake = wake_of(workspace, id, now);
        retry!(async {
            let mut session = self.db.write().await?;
            wake.write(&mut session).await?;
            if session.run(RETRY, args![workspace, id, now]).await? == 0 {
                let known: Option<DeliveryRow> = session.one(BY_ID, args![workspace, id]).await?;
                return Ok(known.map_or(RetriedDelivery::Absent, |_| RetriedDelivery::NotDead));
            }
            session.commit().await?;
            Ok(RetriedDelivery::Pending(wake.clone()))
        })
    }
}
