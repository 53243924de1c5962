//! At the start: what the provider has is compared with the rows, and set right. At the end: what runs is stopped.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use monstrum_sandbox::{Inspection, SandboxName, SandboxProvider, State};
use monstrum_store::{SandboxRow, SandboxSettled, SandboxStatus, StoreError};
use tokio_util::sync::CancellationToken;

use super::{Fault, LEASE_MS, Sandboxes, name, operation, within};

/// The longest that a provider may take to list what it has.
const LIST_MAX: Duration = Duration::from_secs(30);
/// How soon a comparison is tried again that could not be made.
const AGAIN: Duration = Duration::from_secs(10);
/// How many rows are read at once.
const ROWS: u32 = 500;
/// How many unknown sandboxes are deleted at once, and how long one may take.
const AT_ONCE: usize = 8;
const DELETE_MAX: Duration = Duration::from_secs(60);

impl Sandboxes {
    /// Compares until it has succeeded once, or is told to stop.
    pub async fn follow_start(self: Arc<Self>, stop: CancellationToken) {
        let mut is_told = false;
        while let Err(error) = self.reconcile().await {
            if !is_told {
                tracing::warn!(%error, "the sandboxes of this host are not compared with their rows yet");
                is_told = true;
            }
            if stop.run_until_cancelled(tokio::time::sleep(AGAIN)).await.is_none() {
                return;
            }
        }
    }

    /// Compares what the provider has with the rows: what has no row is deleted, and what a row says is set right.
    /// Rows of other hosts are left alone, for the provider knows nothing of theirs.
    pub async fn reconcile(self: &Arc<Self>) -> Result<(), Fault> {
        let _comparing = self.comparing.write().await;
        let Ok(provider) = self.provider.as_ref() else { return self.nothing_runs().await };
        if !self.is_shared {
            // The data folder has one host, and this is it: whoever has claimed a row of its before is dead.
            self.store.release_sandboxes_of_node(&self.node).await?;
        }
        // Rows first: one that changes after it was read is not written over.
        let rows = self.rows(provider.name()).await?;
        let listed = within(LIST_MAX, "listed", provider.list()).await?;
        let mut found: HashMap<SandboxName, Inspection> =
            listed.into_iter().map(|inspection| (inspection.name.clone(), inspection)).collect();
        for row in rows {
            let state = found.remove(&name(&row)).map(|inspection| inspection.state);
            self.set_right(&row, state).await?;
        }
        let unknown = found.into_keys();
        let delete = |name: SandboxName| async move {
            if let Err(error) = self.delete_unknown(provider.as_ref(), &name).await {
                tracing::warn!(sandbox.name = %name, %error, "a sandbox without a row is not deleted");
            }
        };
        futures::stream::iter(unknown).for_each_concurrent(AT_ONCE, delete).await;
        self.deletion.notify_one();
        Ok(())
    }

    /// What is bound to this host is part of its server, and has ended with it. A server without a provider begins none.
    async fn nothing_runs(&self) -> Result<(), Fault> {
        self.store.release_sandboxes_of_node(&self.node).await?;
        for row in self.rows_of_all().await? {
            self.set_right(&row, None).await?;
        }
        Ok(())
    }

    /// The rows of this host's sandboxes.
    async fn rows(&self, provider: &str) -> Result<Vec<SandboxRow>, StoreError> {
        let mut rows = self.rows_of_all().await?;
        rows.retain(|row| row.provider == provider);
        Ok(rows)
    }

    /// The same, whichever provider they had.
    async fn rows_of_all(&self) -> Result<Vec<SandboxRow>, StoreError> {
        let mut rows: Vec<SandboxRow> = Vec::new();
        loop {
            let from = rows.last().map(|row| row.id);
            let more = self.store.sandboxes_of_node(&self.node, from, ROWS).await?;
            if more.is_empty() {
                return Ok(rows);
            }
            rows.extend(more);
        }
    }

    async fn set_right(&self, row: &SandboxRow, state: Option<State>) -> Result<(), StoreError> {
        let status = match (state, row.status) {
            // The job goes on.
            (_, SandboxStatus::Deleting) => return Ok(()),
            (Some(State::Running), SandboxStatus::Running) => return Ok(()),
            (Some(State::Running), _) => SandboxStatus::Running,
            (Some(State::Stopped) | None, SandboxStatus::Stopped) => return Ok(()),
            (Some(State::Stopped) | None, _) => SandboxStatus::Stopped,
            // Whoever needs it waits for it.
            (Some(State::Changing), _) => return Ok(()),
        };
        if row.is_claimed(self.clock.now()) {
            return Ok(());
        }
        let operation = operation();
        let until = self.clock.now().plus_ms(LEASE_MS);
        if self.store.claim_sandbox(row, row.status, &operation, until).await? {
            let settled = SandboxSettled { status, last_active_at: None, error: None, limit: None, network: None };
            self.store.settle_sandbox(row.id, &operation, row.status, &settled).await?;
            tracing::info!(sandbox.id = %row.id, was = row.status.as_str(), is = status.as_str(), "a sandbox was found");
        }
        Ok(())
    }

    /// Deletes what has no row, in whatever state it is.
    async fn delete_unknown(&self, provider: &dyn SandboxProvider, name: &SandboxName) -> Result<(), Fault> {
        if self.is_known(name, provider.name()).await? {
            return Ok(());
        }
        within(DELETE_MAX, "deleted", provider.delete(name)).await?;
        tracing::warn!(sandbox.name = %name, "a sandbox without a row is deleted");
        Ok(())
    }

    /// Whether any host has a row of it.
    async fn is_known(&self, name: &SandboxName, provider: &str) -> Result<bool, StoreError> {
        let rest = name.as_str().strip_prefix("ms-").unwrap_or_default();
        let Some((workspace, sandbox_id)) = rest.rsplit_once('-') else { return Ok(false) };
        let Ok(workspace) = workspace.parse() else { return Ok(false) };
        Ok(self.store.sandbox_of_provider(workspace, provider, sandbox_id).await?.is_some())
    }

    /// Ends what this host has running, within `grace`: commands are cut off, sandboxes stopped and their rows set.
    /// What every host reaches runs on.
    pub async fn shut_down(self: &Arc<Self>, grace: Duration) {
        self.closing.cancel();
        self.activities.cut_all();
        let stopped = async {
            self.stop_running().await;
            // Starts that were under way are over then, and there are no further ones.
            let _comparing = self.comparing.write().await;
            self.stop_running().await;
            self.running.close();
            self.running.wait().await;
        };
        if tokio::time::timeout(grace, stopped).await.is_err() {
            tracing::warn!("not all sandboxes were stopped in time; the next start looks after them");
        }
    }

    async fn stop_running(self: &Arc<Self>) {
        if self.is_shared || self.provider.is_err() {
            return;
        }
        match self.running_rows().await {
            Ok(rows) => self.stop_all(rows).await,
            Err(error) => tracing::warn!(%error, "the sandboxes cannot be stopped"),
        }
    }

    async fn running_rows(&self) -> Result<Vec<SandboxRow>, StoreError> {
        let provider = self.provider.as_ref().map(|provider| provider.name()).unwrap_or_default();
        let mut rows = self.rows(provider).await?;
        rows.retain(|row| matches!(row.status, SandboxStatus::Running | SandboxStatus::Error));
        Ok(rows)
    }
}
