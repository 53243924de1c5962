//! The turns of deliveries: a delivery starts one task of the bot of its subscription, or one run of the workflow of its
//! trigger.
//!
//! The row of a delivery grants nothing. Its turn opens the event, reads the target from the verified policy, and judges
//! again whether they match, so that a row that another program has written starts nothing that would not have started
//! anyway. The task or the run and the end of the delivery are one transaction. deliveries/triggers.rs prepares the runs.

mod triggers;

use std::sync::Arc;

use async_trait::async_trait;
use monstrum_agent::delivered::{NotPrepared, TASKS_MAX, TaskOfEvent};
use monstrum_core::app::App;
use monstrum_core::call::ledger::month;
use monstrum_core::events::{self, EventValues, Nonce, Template};
use monstrum_core::meters;
use monstrum_core::operations::events::metadata;
use monstrum_core::policy::{Snapshot, Subscription};
use monstrum_engine::{Engine, Handler, Turn, TurnError, TurnOutcome};
use monstrum_store::{
    BudgetLimits, DeliveredTask, DeliveryEnd, DeliveryReason, DeliveryRow, DeliveryStatus, EndedDelivery, NewRun,
    NewWake, Payer, SequencedEvent, Spent, StartedDelivery, StoreError, TargetKind,
};
use monstrum_types::{DeliveryId, SubscriptionId, UtcMillis, WakeKind, with_causes};
use serde_json::Value;

use crate::current::{ATTEMPTS_MAX, too_many_changes, verified};
use crate::runs::Definitions;

/// The maximum number of tasks of a bot that deliveries have started and that have not ended. The others wait, so that
/// events do not take all places of a bot.
const RUNNING_MAX: i64 = 4;
/// The time for which a delivery can be pending.
const PENDING_MS: i64 = 24 * 3_600 * 1_000;
/// The delay after which a delivery tries again in a workspace that has too many tasks.
const FULL_DELAY_MS: i64 = 30_000;

/// Runs the turns of deliveries.
pub struct DeliveryTurns {
    app: Arc<App>,
    engine: Arc<dyn Engine>,
    definitions: Arc<Definitions>,
}

/// What a turn of a delivery does.
enum Plan {
    Task(Box<DeliveredTask>),
    Run(Box<NewRun>),
    End(DeliveryEnd),
}

/// An event that a delivery opens.
struct Opened {
    event: SequencedEvent,
    data: Value,
}

fn dead(reason: DeliveryReason) -> Plan {
    Plan::End(DeliveryEnd::Dead(reason))
}

fn failed(error: &dyn std::error::Error) -> TurnError {
    TurnError::Failed(with_causes(error))
}

impl DeliveryTurns {
    /// Creates the handler of the deliveries of a host.
    #[must_use]
    pub fn new(app: Arc<App>, engine: Arc<dyn Engine>, definitions: Arc<Definitions>) -> DeliveryTurns {
        DeliveryTurns { app, engine, definitions }
    }

    /// Decides what a turn does at `now`.
    async fn plan(&self, snapshot: &Snapshot, delivery: &DeliveryRow, now: UtcMillis) -> Result<Plan, TurnError> {
        let app = &self.app;
        if now.since_ms(delivery.pending_since) >= PENDING_MS {
            return Ok(dead(DeliveryReason::Expired));
        }
        let Some(event) = app.store.sequenced_event(delivery.workspace_id, delivery.event_id).await? else {
            return Ok(dead(DeliveryReason::Unreadable));
        };
        let opened = match events::open(&app.vault, &event.row) {
            Ok(data) => Opened { event, data },
            Err(error) => {
                let error = with_causes(&error);
                tracing::error!(event.id = %event.row.id, %error, "an event cannot be opened, so it starts nothing");
                return Ok(dead(DeliveryReason::Unreadable));
            }
        };
        if opened.event.row.root_event_id != delivery.root_event_id {
            return Ok(dead(DeliveryReason::Unreadable));
        }
        match delivery.target_kind {
            TargetKind::Subscription => self.to_subscription(snapshot, delivery, &opened, now).await,
            TargetKind::Trigger => self.to_trigger(snapshot, delivery, opened, now).await,
        }
    }

    /// Decides what becomes of a delivery to a subscription.
    async fn to_subscription(
        &self,
        snapshot: &Snapshot,
        delivery: &DeliveryRow,
        opened: &Opened,
        now: UtcMillis,
    ) -> Result<Plan, TurnError> {
        let Ok(id) = delivery.target_id.parse::<SubscriptionId>() else {
            return Ok(dead(DeliveryReason::Unreadable));
        };
        let Some(subscription) = snapshot.subscriptions().get(delivery.workspace_id, id) else {
            return Ok(dead(DeliveryReason::Deleted));
        };
        if subscription.row.bot_id != delivery.bot_id {
            return Ok(dead(DeliveryReason::Unreadable));
        }
        if !subscription.matches(&opened.event.row, now) {
            return Ok(dead(DeliveryReason::Disabled));
        }
        if self.is_spent(snapshot, delivery).await? {
            return Ok(dead(DeliveryReason::Budget));
        }
        self.task(delivery, opened, subscription, now)
    }

    /// Prepares the task of a delivery.
    fn task(
        &self,
        delivery: &DeliveryRow,
        opened: &Opened,
        subscription: &Subscription,
        now: UtcMillis,
    ) -> Result<Plan, TurnError> {
        let event = &opened.event.row;
        let nonce = Nonce::random();
        let task = TaskOfEvent {
            delivery,
            event,
            subscription: subscription.row.id,
            instruction: rendered(&subscription.template, opened, &nonce)?,
            nonce: nonce.as_str().to_owned(),
            narrow: subscription.narrow.clone(),
            starters: subscription.starters.clone(),
        };
        match task.prepare(&self.app, now) {
            Ok(task) => Ok(Plan::Task(Box::new(task))),
            Err(NotPrepared::NoModel) => Ok(dead(DeliveryReason::Model)),
            Err(error @ NotPrepared::Failed(_)) => Err(failed(&error)),
        }
    }

    /// Returns whether a budget of the bot or of the workspace is spent.
    async fn is_spent(&self, snapshot: &Snapshot, delivery: &DeliveryRow) -> Result<bool, StoreError> {
        let (workspace, bot) = (delivery.workspace_id, delivery.bot_id);
        let limits = snapshot.payer_limits(workspace, bot, None);
        let month = month(self.app.clock.now());
        for (payer, limits) in [(Payer::Workspace, limits.workspace), (Payer::Bot(bot), limits.bot)] {
            if limits != BudgetLimits::default()
                && is_over(limits, self.app.store.spent(workspace, &payer, &month).await?)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends a turn that starts nothing. Returns `None` if the workspace has changed since its rows were verified.
    async fn end(
        &self,
        turn: &Turn,
        delivery: &DeliveryRow,
        end: &DeliveryEnd,
        generation: i64,
    ) -> Result<Option<TurnOutcome>, TurnError> {
        let now = self.app.clock.now();
        match self.app.store.end_delivery(turn.claim(), delivery, end, generation, now).await? {
            EndedDelivery::Ended { after, next } => {
                self.engine.signal(next.as_slice());
                if let Some(reason) = end.reason() {
                    meters::delivery(reason.as_str());
                }
                Ok(Some(TurnOutcome::Ended(after)))
            }
            EndedDelivery::Behind => Ok(None),
        }
    }

    /// Starts the task or the run. Returns `None` if the workspace has changed since its rows were verified.
    async fn start(
        &self,
        turn: &Turn,
        delivery: &DeliveryRow,
        started: &Started<'_>,
        generation: i64,
    ) -> Result<Option<TurnOutcome>, TurnError> {
        let (app, now) = (&self.app, started.created_at());
        // A delivery without room has no timer of its own, but its time ends.
        let ends_at = delivery.pending_since.plus_ms(PENDING_MS);
        let tried = match started {
            Started::Task(task) => {
                let max = (RUNNING_MAX, TASKS_MAX);
                app.store.start_delivery(turn.claim(), delivery, task, generation, max).await?
            }
            Started::Run(run) => app.store.start_run_delivery(turn.claim(), delivery, run, generation).await?,
        };
        let rest = match tried {
            StartedDelivery::Started { after, next } => {
                let wakes: Vec<NewWake> = [started.wake().clone()].into_iter().chain(next).collect();
                self.engine.signal(&wakes);
                if let Started::Task(task) = started {
                    app.emitter.signal(&task.session.created);
                }
                meters::delivery(DeliveryStatus::Done.as_str());
                meters::event_to_start(now.since_ms(delivery.created_at));
                return Ok(Some(TurnOutcome::Ended(after)));
            }
            StartedDelivery::Skipped => DeliveryEnd::Dead(DeliveryReason::Skipped),
            StartedDelivery::Disabled => DeliveryEnd::Dead(DeliveryReason::Disabled),
            StartedDelivery::Behind => return Ok(None),
            StartedDelivery::Gone => return Ok(Some(TurnOutcome::Done)),
            StartedDelivery::NoRoom => DeliveryEnd::Pending { next_at: None, wake_at: ends_at },
            StartedDelivery::Full => {
                let wake_at = ends_at.min(now.plus_ms(FULL_DELAY_MS));
                DeliveryEnd::Pending { next_at: Some(wake_at), wake_at }
            }
        };
        self.end(turn, delivery, &rest, generation).await
    }
}

/// What a delivery starts.
enum Started<'a> {
    Task(&'a DeliveredTask),
    Run(&'a NewRun),
}

impl Started<'_> {
    fn created_at(&self) -> UtcMillis {
        match self {
            Started::Task(task) => task.row.created_at,
            Started::Run(run) => run.row.created_at,
        }
    }

    fn wake(&self) -> &NewWake {
        match self {
            Started::Task(task) => &task.wake,
            Started::Run(run) => &run.wake,
        }
    }
}

/// Returns an instruction for an event.
fn rendered(template: &Template, opened: &Opened, nonce: &Nonce) -> Result<String, TurnError> {
    let event = &opened.event.row;
    let metadata = metadata(event).map_err(|error| failed(&error))?;
    let metadata = serde_json::to_string(&metadata).map_err(|error| failed(&error))?;
    let data = opened.data.to_string();
    let values = EventValues {
        event_type: &event.event_type,
        source_type: &event.source_type,
        source_id: &event.source_id,
        data: &data,
        metadata: &metadata,
    };
    Ok(template.render(&values, nonce))
}

/// Returns whether nothing is left of a budget.
fn is_over(limits: BudgetLimits, spent: Spent) -> bool {
    limits.tokens.is_some_and(|limit| spent.tokens >= limit)
        || limits.credits_millionths.is_some_and(|limit| spent.credits_millionths >= limit)
}

#[async_trait]
impl Handler for DeliveryTurns {
    fn kind(&self) -> WakeKind {
        WakeKind::Delivery
    }

    async fn turn(&self, turn: &Turn) -> Result<TurnOutcome, TurnError> {
        let Ok(id) = turn.key().id().parse::<DeliveryId>() else { return Ok(TurnOutcome::Done) };
        let (app, workspace) = (&self.app, turn.workspace());
        let pending = app.store.delivery(workspace, id).await?.filter(|row| row.status == DeliveryStatus::Pending);
        let Some(delivery) = pending else { return Ok(TurnOutcome::Done) };
        for _ in 0..ATTEMPTS_MAX {
            let (snapshot, generation) = verified(app, workspace)?;
            let now = app.store.wake_time(app.clock.now()).await?;
            let ended = match self.plan(&snapshot, &delivery, now).await? {
                Plan::Task(task) => self.start(turn, &delivery, &Started::Task(&task), generation).await?,
                Plan::Run(run) => self.start(turn, &delivery, &Started::Run(&run), generation).await?,
                Plan::End(end) => self.end(turn, &delivery, &end, generation).await?,
            };
            match ended {
                Some(outcome) => return Ok(outcome),
                None => app.policy.renew().await?,
            }
        }
        Err(too_many_changes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_over_when_nothing_is_left_of_it() {
        let limits = BudgetLimits { tokens: Some(5), credits_millionths: Some(7) };
        let spent = |tokens, credits_millionths| Spent { tokens, credits_millionths, ..Spent::default() };
        assert!(!is_over(limits, spent(4, 6)));
        assert!(is_over(limits, spent(5, 0)) && is_over(limits, spent(0, 7)));
        assert!(!is_over(BudgetLimits::default(), spent(i64::MAX, i64::MAX)));
    }
}
