//! Runs and deliveries: a delivery to a trigger starts a run, the end of a run makes room for the next delivery, and an event
//! wakes the runs that wait for it.

use monstrum_types::{UtcMillis, WorkflowId, WorkflowTriggerId, WorkspaceId};

use super::turn::LOCK;
use super::{DeliveryRow, StartedDelivery};
use crate::db::{Session, args, retry};
use crate::runs::{LOCK_WORKSPACE, write_run};
use crate::wakes::{NewWake, WakeClaim, end_turn};
use crate::{EventRow, InsertedRun, NewRun, Store, StoreError};

const DONE: &str = "\
    update deliveries set status = 'done', run_id = $3, attempts = attempts + 1, next_at = null, ended_at = $4 \
    where workspace_id = $1 and id = $2 and status = 'pending'";
const WAKE_TRIGGER: &str = "\
    insert into wakes (key, workspace_id, due_at, version) \
    select 'delivery/' || pending.id, pending.workspace_id, cast($2 as bigint), 1 from deliveries as pending \
    where pending.id = (select id from deliveries where workspace_id = $1 and target_kind = 'trigger' \
    and status = 'pending' order by id limit 1) \
    on conflict (key) do update set \
    due_at = case when excluded.due_at < wakes.due_at then excluded.due_at else wakes.due_at end, \
    version = wakes.version + 1 returning key as value";
const WAKE_OF_TRIGGERS: &str = "\
    insert into wakes (key, workspace_id, due_at, version) \
    select 'delivery/' || id, workspace_id, 0, 1 from deliveries \
    where workspace_id = $1 and target_kind = 'trigger' and status = 'pending' and target_id in (select id \
    from workflow_triggers where workspace_id = $1 and workflow_id = $2 and (cast($3 as text) is null or id = $3)) \
    order by 1 on conflict (key) do update set due_at = 0, version = wakes.version + 1";
// The order is that of the keys, in which all transactions lock wakes.
const WAKE_WAITING: &str = "\
    insert into wakes (key, workspace_id, due_at, version) \
    select distinct 'run/' || runs.id, runs.workspace_id, cast($4 as bigint), 1 \
    from run_steps join runs on runs.id = run_steps.run_id \
    where run_steps.workspace_id = $1 and run_steps.wait_event = $2 and run_steps.ended_at is null \
    and runs.workspace_id = $1 and runs.ended_at is null and (cast($3 as text) is null or runs.bot_id = $3) order by 1 \
    on conflict (key) do update set \
    due_at = case when excluded.due_at < wakes.due_at then excluded.due_at else wakes.due_at end, \
    version = wakes.version + 1 where wakes.workspace_id = excluded.workspace_id returning key as value";

/// Requests a turn of the oldest pending delivery of the workspace to a trigger, in the transaction that ends a run. Returns
/// its wake.
pub(crate) async fn wake_trigger(
    session: &mut Session,
    workspace_id: WorkspaceId,
    due_at: UtcMillis,
) -> Result<Option<NewWake>, StoreError> {
    let key: Option<String> = session.one(WAKE_TRIGGER, args![workspace_id, due_at]).await?;
    // A key that cannot be read belongs to no object.
    let key = key.and_then(|key| key.parse().ok());
    Ok(key.map(|key| NewWake { key, workspace_id, due_at, claim: None }))
}

/// Requests turns of the pending deliveries to the triggers of a workflow, or to one of them, in the transaction that disables or
/// deletes it, before it is deleted. The turns find out that nothing is to start.
pub(crate) async fn wake_of_triggers(
    session: &mut Session,
    workspace: WorkspaceId,
    workflow: WorkflowId,
    trigger: Option<WorkflowTriggerId>,
) -> Result<(), StoreError> {
    session.run(WAKE_OF_TRIGGERS, args![workspace, workflow, trigger]).await?;
    Ok(())
}

/// Requests turns of the runs that wait for an event of this type, if it is one of their bot or of the platform. Returns
/// their wakes.
///
/// The transaction has locked the counter of the workspace. So has the transaction that begins a wait: either this event sees
/// the wait, or the next turn of its run sees the event.
pub(crate) async fn wake_waiting(session: &mut Session, event: &EventRow) -> Result<Vec<NewWake>, StoreError> {
    let (workspace_id, due_at) = (event.workspace_id, event.created_at);
    let values = args![workspace_id, &event.event_type, event.bot_id, due_at];
    let keys: Vec<String> = session.all(WAKE_WAITING, values).await?;
    let keys = keys.into_iter().filter_map(|key| key.parse().ok());
    Ok(keys.map(|key| NewWake { key, workspace_id, due_at, claim: None }).collect())
}

impl Store {
    /// Starts the run of a pending delivery, and ends its turn. Fails with [`StoreError::LostClaim`] and writes nothing if
    /// the claim was replaced.
    pub async fn start_run_delivery(
        &self,
        claim: &WakeClaim,
        delivery: &DeliveryRow,
        run: &NewRun,
        generation: i64,
    ) -> Result<StartedDelivery, StoreError> {
        let (workspace, now) = (delivery.workspace_id, run.row.created_at);
        let started = retry!(async {
            let mut session = self.db.write().await?;
            session.run(LOCK, args![workspace]).await?;
            // The end of a run has this lock when it requests a turn of a delivery, so it comes before the wake.
            session.run(LOCK_WORKSPACE, args![workspace]).await?;
            let after = end_turn(&mut session, claim, None).await?;
            if session.is_behind(workspace, generation).await? {
                return Ok(StartedDelivery::Behind);
            }
            if session.run(DONE, args![workspace, delivery.id, run.row.id, now]).await? == 0 {
                return Ok(StartedDelivery::Gone);
            }
            match write_run(&mut session, &run.row, &run.wake, run.max).await? {
                InsertedRun::Inserted => {}
                InsertedRun::Full => return Ok(StartedDelivery::NoRoom),
                InsertedRun::Skipped => return Ok(StartedDelivery::Skipped),
                InsertedRun::Disabled => return Ok(StartedDelivery::Disabled),
            }
            let next = session.wake_next(delivery, now).await?;
            session.commit().await?;
            Ok(StartedDelivery::Started { after, next })
        });
        match started {
            // The delivery has started a run before, and another program has set its row back.
            Err(StoreError::Conflict { .. }) => Ok(StartedDelivery::Gone),
            started => started,
        }
    }
}
