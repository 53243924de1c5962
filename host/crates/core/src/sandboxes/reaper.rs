//! Stops idle sandboxes. The files of a stopped sandbox stay, and the next call resumes the sandbox.
//!
//! Each host stops its own sandboxes. The host that first claims an idle shared sandbox stops it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use monstrum_sandbox::SandboxError;
use monstrum_store::{SandboxRow, SandboxSettled, SandboxStatus, StoreError};
use monstrum_types::{WorkspaceId, WorkspaceSandbox, with_causes};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::options::IDLE_S;
use super::settings::idle;
use super::starting::TOUCH_MS;
use super::{AccessError, LEASE_MS, Sandboxes, described, name, operation, within};

/// The time-out of a stop.
const STOP_MAX: Duration = Duration::from_secs(60);
/// The time-out of a provider's health check, including its repairs.
const HEALTH_MAX: Duration = Duration::from_secs(30);
/// The maximum number of sandboxes that are stopped at the same time.
const AT_ONCE: usize = 8;
/// The maximum number of passes over the rows, which may change while sandboxes are stopped.
const LOOKS_MAX: usize = 5;
/// The number of rows in one read.
const ROWS: u32 = 200;

impl Sandboxes {
    /// Periodically stores the times at which this process last used each sandbox, until `stop` is cancelled. Other
    /// hosts, and this host after a restart, read these times.
    pub async fn follow_uses(self: Arc<Self>, stop: CancellationToken) {
        let mut tick = tokio::time::interval(Duration::from_millis(TOUCH_MS.unsigned_abs()));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(tick.tick()).await.is_some() {
            if let Err(error) = self.note_uses().await {
                tracing::warn!(%error, "failed to store when sandboxes were last used; retrying");
            }
        }
    }

    /// Stores the times at which this process last used each sandbox.
    pub async fn note_uses(&self) -> Result<(), StoreError> {
        let uses = self.activities.take();
        if uses.is_empty() {
            return Ok(());
        }
        let noted = self.store.touch_sandboxes(&uses).await;
        if noted.is_err() {
            self.activities.put_back(uses);
        }
        noted
    }

    /// Periodically stops idle sandboxes until `stop` is cancelled.
    pub async fn follow_idle(self: Arc<Self>, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.sweep.notified() => {}
                () = tokio::time::sleep(self.options.sweep) => {}
            }
            if let Err(error) = self.sweep().await {
                tracing::warn!(%error, "failed to stop idle sandboxes; retrying");
            }
        }
    }

    /// Signals that the settings of a workspace have changed. The next sweep then starts at once and stops the
    /// sandboxes whose network the workspace no longer allows.
    pub fn settings_have_changed(&self) {
        self.sweep.notify_one();
    }

    /// Signals that this host or another host may have changed the sandbox switch of a bot.
    pub fn switches_may_have_changed(&self) {
        self.switched.notify_one();
    }

    /// Waits for signals that a switch may have changed, until `stop` is cancelled. After each signal, stops the
    /// sandboxes of bots whose switch is off.
    pub async fn follow_switches(self: Arc<Self>, stop: CancellationToken) {
        while stop.run_until_cancelled(self.switched.notified()).await.is_some() {
            if let Err(error) = self.stop_switched_off().await {
                tracing::warn!(%error, "failed to stop the sandboxes of bots that may not use sandboxes; retrying");
            }
        }
    }

    /// Stops every sandbox whose bot's switch is off and in which a command has run. The sandboxes of such bots in
    /// which no command has run keep running, because operators may access their files. Repeats the search until no
    /// such sandbox is found, at most `LOOKS_MAX` times, because rows may change before the stop. The next sweep
    /// repeats a failed stop.
    pub async fn stop_switched_off(self: &Arc<Self>) -> Result<(), StoreError> {
        if self.provider().is_err() {
            return Ok(());
        }
        for _ in 0..LOOKS_MAX {
            let (mut from, mut found) = (None, 0);
            loop {
                let mut rows = self.store.sandboxes_switched_off(&self.node, from, ROWS).await?;
                let Some(last) = rows.last() else { break };
                from = Some(last.id);
                rows.retain(|row| !self.quiet.lock().contains(&row.id));
                found += rows.len();
                rows.iter().for_each(|row| self.activities.cut(row.id));
                self.stop_all(rows).await;
            }
            if found == 0 {
                return Ok(());
            }
        }
        tracing::warn!("failed to stop some sandboxes of bots that may not use sandboxes; the next sweep retries");
        Ok(())
    }

    /// Stops every sandbox that was unused for longer than its workspace allows, and every sandbox with a network that
    /// its workspace no longer allows. The next sweep repeats a failed stop.
    pub async fn sweep(self: &Arc<Self>) -> Result<(), StoreError> {
        let Ok(provider) = self.provider() else { return Ok(()) };
        if let Err(error) = within(HEALTH_MAX, "report its health", provider.health()).await {
            tracing::warn!(error = %with_causes(&error), "the sandbox provider is not healthy");
        }
        self.note_uses().await?;
        let mut idle_of = HashMap::new();
        let mut from = None;
        loop {
            let now = self.clock.now();
            let active = now.plus_ms(-1000 * i64::from(*IDLE_S.start()));
            let rows = self.store.idle_sandboxes(&self.node, active, now, from, ROWS).await?;
            let Some(last) = rows.last() else { break };
            from = Some(last.id);
            let mut idle = Vec::new();
            for row in rows {
                let allowed_ms = self.idle_ms(&mut idle_of, row.workspace_id).await?;
                if now.since_ms(row.last_active_at) >= allowed_ms && !self.activities.is_active(row.id) {
                    idle.push(row);
                }
            }
            self.stop_all(idle).await;
        }
        self.delete_aside(provider.as_ref()).await;
        self.stop_switched_off().await?;
        self.cut_off().await
    }

    async fn idle_ms(&self, known: &mut HashMap<WorkspaceId, i64>, of: WorkspaceId) -> Result<i64, StoreError> {
        if let Some(ms) = known.get(&of) {
            return Ok(*ms);
        }
        let settings = match self.settings_of(of).await {
            // If the settings are unreadable, the options of the server apply.
            Err(StoreError::Corrupt { .. } | StoreError::Unverified { .. }) => WorkspaceSandbox::default(),
            settings => settings?,
        };
        let idle = idle(&settings, &self.options);
        let ms = i64::try_from(idle.as_millis()).unwrap_or(i64::MAX);
        known.insert(of, ms);
        Ok(ms)
    }

    async fn cut_off(self: &Arc<Self>) -> Result<(), StoreError> {
        let mut from = None;
        loop {
            let rows = self.store.sandboxes_with_network(&self.node, "full", from, ROWS).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            from = Some(last.id);
            let mut cut = Vec::new();
            for row in rows {
                if self.has_to_stop(&row).await? {
                    self.activities.cut(row.id);
                    cut.push(row);
                }
            }
            self.stop_all(cut).await;
        }
    }

    pub(super) async fn stop_all(self: &Arc<Self>, rows: Vec<SandboxRow>) {
        let stop = |row: SandboxRow| async move {
            let id = row.id;
            if let Err(error) = self.stop_row(row).await {
                tracing::warn!(sandbox.id = %id, error = %with_causes(&error), "failed to stop a sandbox");
            }
        };
        futures::stream::iter(rows).for_each_concurrent(AT_ONCE, stop).await;
    }

    /// Stops the sandbox of an unchanged row. Returns false if the row has changed.
    pub(super) async fn stop_row(self: &Arc<Self>, row: SandboxRow) -> Result<bool, AccessError> {
        let this = Arc::clone(self);
        let task = self.running.spawn(async move {
            let stopped = this.claim_and_stop(&row).await;
            this.moved.notify_waiters();
            stopped
        });
        task.await.unwrap_or_else(|error| {
            Err(SandboxError::unavailable_because("the task that stops the sandbox failed", error).into())
        })
    }

    /// Stops a sandbox like [`Self::stop_row`], but on the caller's task. That task must not be cancelled.
    pub(super) async fn claim_and_stop(&self, row: &SandboxRow) -> Result<bool, AccessError> {
        let provider = self.provider.as_ref().map_err(|error| AccessError::from(error.clone()))?;
        let operation = operation();
        let until = self.clock.now().plus_ms(LEASE_MS);
        if !self.store.claim_sandbox(row, SandboxStatus::Stopping, &operation, until).await? {
            return Ok(false);
        }
        let name = name(row);
        let stopped = within(STOP_MAX, "stop the sandbox", provider.stop(&name)).await;
        let (status, error) = match &stopped {
            Ok(()) => (SandboxStatus::Stopped, None),
            // If the stop fails, a sandbox that was running stays running. The state of any other sandbox is unknown.
            Err(error) if row.status == SandboxStatus::Running => (SandboxStatus::Running, Some(described(error))),
            Err(error) => (SandboxStatus::Error, Some(described(error))),
        };
        let settled = SandboxSettled { status, last_active_at: None, error, limit: None, network: None };
        if !self.store.settle_sandbox(row.id, &operation, SandboxStatus::Stopping, &settled).await? {
            self.store.release_sandbox(row.id, &operation).await?;
            self.deletion.notify_one();
        }
        stopped?;
        self.quiet.lock().remove(&row.id);
        tracing::info!(sandbox.id = %row.id, "a sandbox was stopped");
        Ok(true)
    }
}
