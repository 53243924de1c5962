//! Deletes rows whose time of keeping has ended.

use std::sync::Arc;
use std::time::Duration;

use monstrum_core::app::App;
use tokio_util::sync::CancellationToken;

use crate::config::Settings;
use crate::gateway;

const PURGE_INTERVAL: Duration = Duration::from_secs(3600);
const DAY_MS: i64 = 24 * 3_600 * 1_000;
/// The time for which firings of schedules are kept.
const KEPT_MS: i64 = 30 * DAY_MS;

/// How long rows are kept, in days.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    tasks_days: u32,
    events_days: u32,
    runs_days: u32,
}

impl Kept {
    pub(super) fn of(settings: &Settings) -> Kept {
        let Settings { keep_tasks_days, keep_events_days, keep_runs_days, .. } = settings;
        Kept { tasks_days: *keep_tasks_days, events_days: *keep_events_days, runs_days: *keep_runs_days }
    }
}

/// Deletes rows every hour, until the server stops.
pub(super) async fn purge(app: Arc<App>, kept: Kept, stop: CancellationToken) {
    let tasks_kept_ms = i64::from(kept.tasks_days) * DAY_MS;
    let events_kept_ms = i64::from(kept.events_days) * DAY_MS;
    let runs_kept_ms = i64::from(kept.runs_days) * DAY_MS;
    let mut tick = tokio::time::interval(PURGE_INTERVAL);
    while stop.run_until_cancelled(tick.tick()).await.is_some() {
        if let Err(error) = gateway::forget_expired(&app).await {
            tracing::warn!(error = %error, "cannot delete expired idempotency keys");
        }
        if let Err(error) = app.oauth.purge().await {
            tracing::warn!(%error, "cannot delete finished authorizations");
        }
        if let Err(error) = app.approvals.purge().await {
            tracing::warn!(%error, "cannot delete the data of approvals that ended long ago");
        }
        if let Err(error) = app.ledger.settle_expired().await {
            tracing::warn!(%error, "cannot settle the reservations of dead hosts");
        }
        if let Err(error) = app.policy.forget_changes().await {
            tracing::warn!(%error, "cannot delete change notifications that are older than an hour");
        }
        if let Err(error) = app.console_sessions.purge().await {
            tracing::warn!(%error, "cannot delete ended sessions of the console");
        }
        if let Err(error) = app.store.forget_tasks(app.clock.now().plus_ms(-tasks_kept_ms)).await {
            tracing::warn!(%error, "cannot delete tasks that ended long ago");
        }
        if let Err(error) = app.store.forget_schedule_runs(app.clock.now().plus_ms(-KEPT_MS)).await {
            tracing::warn!(%error, "cannot delete firings of schedules that happened long ago");
        }
        if let Err(error) = app.store.forget_sessions(app.clock.now().plus_ms(-tasks_kept_ms)).await {
            tracing::warn!(%error, "cannot delete sessions that were used long ago");
        }
        if let Err(error) = app.store.forget_events(app.clock.now().plus_ms(-events_kept_ms)).await {
            tracing::warn!(%error, "cannot delete events that happened long ago");
        }
        if let Err(error) = app.store.forget_runs(app.clock.now().plus_ms(-runs_kept_ms)).await {
            tracing::warn!(%error, "cannot delete runs of workflows that ended long ago");
        }
        if let Err(error) = app.store.forget_webhook_receipts(app.clock.now().plus_ms(-DAY_MS)).await {
            tracing::warn!(%error, "cannot delete the receipts of requests to webhooks that are older than a day");
        }
        if let Err(error) = app.store.forget_agent_hosts().await {
            tracing::warn!(%error, "cannot delete what hosts that ended long ago had recorded about their agents");
        }
    }
}
