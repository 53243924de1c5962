//! The turns of events: an event gets its position among the events of its workspace, and a delivery for each subscription
//! and each trigger that it matches. The runs that wait for it get a turn.

use std::sync::Arc;

use async_trait::async_trait;
use monstrum_core::app::App;
use monstrum_core::{events, meters};
use monstrum_engine::{Engine, Handler, Turn, TurnError, TurnOutcome};
use monstrum_store::{
    DeliveriesMax, DeliveryReason, DeliveryRow, DeliveryStatus, Dispatch, Dispatched, EventRow, TargetKind,
};
use monstrum_types::{BotId, DeliveryId, EventId, UtcMillis, WakeKind, with_causes};

use crate::current::{ATTEMPTS_MAX, too_many_changes, verified};

/// The maximum number of causes between an event that starts something and the first event of its chain, plus one: the
/// events of the work that it starts have one more.
const DEPTH_MAX: u64 = 8;
/// The maximum numbers of deliveries and events.
const MAX: DeliveriesMax = DeliveriesMax { pending_of_target: 10_000, of_target_and_root: 16, events_of_root: 1_000 };

/// Runs the turns of events.
pub struct EventTurns {
    app: Arc<App>,
    engine: Arc<dyn Engine>,
}

impl EventTurns {
    /// Creates the handler of the events of a host.
    #[must_use]
    pub fn new(app: Arc<App>, engine: Arc<dyn Engine>) -> EventTurns {
        EventTurns { app, engine }
    }
}

#[async_trait]
impl Handler for EventTurns {
    fn kind(&self) -> WakeKind {
        WakeKind::Event
    }

    async fn turn(&self, turn: &Turn) -> Result<TurnOutcome, TurnError> {
        let Ok(id) = turn.key().id().parse::<EventId>() else { return Ok(TurnOutcome::Done) };
        let (app, workspace) = (&self.app, turn.workspace());
        let Some(event) = app.store.event(workspace, id).await? else { return Ok(TurnOutcome::Done) };
        if let Err(error) = events::open(&app.vault, &event) {
            let error = with_causes(&error);
            tracing::error!(event.id = %id, %error, "an event cannot be opened, so it starts nothing");
            return Ok(TurnOutcome::Done);
        }
        for _ in 0..ATTEMPTS_MAX {
            let (snapshot, generation) = verified(app, workspace)?;
            let now = app.store.wake_time(app.clock.now()).await?;
            let matching = snapshot.subscriptions().of_workspace(workspace).filter(|it| it.matches(&event, now));
            let mut deliveries: Vec<DeliveryRow> = matching
                .map(|it| delivery(&event, (TargetKind::Subscription, it.row.id.to_string()), it.row.bot_id, now))
                .collect();
            let triggers = snapshot.triggers().of_workspace(workspace);
            let matching = triggers.filter(|(trigger, workflow)| trigger.matches(workflow, &event));
            deliveries.extend(matching.map(|(trigger, workflow)| {
                delivery(&event, (TargetKind::Trigger, trigger.row.id.to_string()), workflow.bot_id, now)
            }));
            let dispatch = Dispatch { event: &event, generation, deliveries: &deliveries, max: MAX };
            match app.store.dispatch_event(turn.claim(), &dispatch).await? {
                Dispatched::Done { after, wakes, waiting } => {
                    self.engine.signal(&wakes);
                    self.engine.signal(&waiting);
                    app.emitter.dispatched();
                    meters::event(wakes.len(), deliveries.len() - wakes.len());
                    return Ok(TurnOutcome::Ended(after));
                }
                Dispatched::Behind => app.policy.renew().await?,
            }
        }
        Err(too_many_changes())
    }
}

/// Returns the delivery of an event to a target whose work `bot_id` does. At the end of a long chain of causes, the delivery
/// is dead.
fn delivery(
    event: &EventRow,
    (target_kind, target_id): (TargetKind, String),
    bot_id: BotId,
    now: UtcMillis,
) -> DeliveryRow {
    let is_too_deep = event.depth >= DEPTH_MAX;
    DeliveryRow {
        id: DeliveryId::new(),
        workspace_id: event.workspace_id,
        event_id: event.id,
        target_kind,
        target_id,
        bot_id,
        root_event_id: event.root_event_id,
        status: if is_too_deep { DeliveryStatus::Dead } else { DeliveryStatus::Pending },
        attempts: 0,
        next_at: None,
        reason: is_too_deep.then_some(DeliveryReason::Loop),
        invalid_paths: None,
        task_id: None,
        run_id: None,
        created_at: now,
        pending_since: now,
        ended_at: is_too_deep.then_some(now),
    }
}
