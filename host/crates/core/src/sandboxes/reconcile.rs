//! Compares the provider's sandboxes with the rows at the start of the server, and corrects the rows. Stops running
//! sandboxes at shutdown.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use monstrum_sandbox::{Inspection, SandboxName, SandboxProvider, State};
use monstrum_store::{SandboxRow, SandboxSettled, SandboxStatus, StoreError};
use monstrum_types::with_causes;
use tokio_util::sync::CancellationToken;

use super::{AccessError, LEASE_MS, Sandboxes, has_run, name, operation, within};

/// The time-out of listing the provider's sandboxes.
const LIST_MAX: Duration = Duration::from_secs(30);
/// The delay before a failed comparison is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// The number of rows in one read.
const ROWS: u32 = 500;
/// The maximum number of sandboxes without a row that are set aside at the same time.
const AT_ONCE: usize = 8;
/// The time-out for setting one sandbox aside.
const SET_ASIDE_MAX: Duration = Duration::from_secs(60);
/// The time in milliseconds for which the files of a sandbox without a row are kept. The database may be an older copy
/// than the files. A week is enough time to notice this and to restore the correct database.
pub const ASIDE_KEPT_MS: i64 = 7 * 24 * 3600 * 1000;

impl Sandboxes {
    /// Marks all sandboxes of this host as stopped, because the sandboxes of an earlier process ended with that
    /// process. The first request must not find a row in state `running`. [`Sandboxes::reconcile`] later requests the
    /// actual states from the provider.
    pub async fn nothing_runs_yet(&self) -> Result<(), StoreError> {
        if self.is_shared { Ok(()) } else { self.store.stop_sandboxes_of_node(&self.node).await }
    }

    /// Repeats the comparison until it has succeeded once or `stop` is cancelled.
    pub async fn follow_start(self: Arc<Self>, stop: CancellationToken) {
        let mut is_logged = false;
        while let Err(error) = self.reconcile().await {
            if !is_logged {
                tracing::warn!(error = %with_causes(&error), "failed to compare sandboxes with the database; retrying");
                is_logged = true;
            }
            if stop.run_until_cancelled(tokio::time::sleep(RETRY_INTERVAL)).await.is_none() {
                return;
            }
        }
    }

    /// Compares the provider's sandboxes with the rows. Sets aside the sandboxes that have no row, and corrects the
    /// states in the rows. Does not change the rows of other hosts, because this provider does not know their
    /// sandboxes.
    pub async fn reconcile(self: &Arc<Self>) -> Result<(), AccessError> {
        let _comparing = self.comparing.write().await;
        let Ok(provider) = self.provider.as_ref() else { return self.nothing_runs().await };
        if !self.is_shared {
            // Only this process uses the data folder, so earlier claims of its rows have ended.
            self.store.release_sandboxes_of_node(&self.node).await?;
        }
        // The rows are read before the provider lists its sandboxes. A row that changes after this read is not
        // overwritten.
        let rows = self.rows(provider.name()).await?;
        let listed = within(LIST_MAX, "list its sandboxes", provider.list()).await?;
        let mut found: HashMap<SandboxName, Inspection> =
            listed.into_iter().map(|inspection| (inspection.name.clone(), inspection)).collect();
        for row in rows {
            let state = match found.remove(&name(&row)) {
                Some(inspection) => Some(inspection.state),
                None => match self.restore(provider.as_ref(), &row).await {
                    Ok(state) => state,
                    // The files may exist, so the row is not marked as lost. The comparison continues with the next
                    // row.
                    Err(error) => {
                        let error = with_causes(&error);
                        tracing::warn!(sandbox.id = %row.sandbox_id, %error, "failed to check the files of a sandbox");
                        continue;
                    }
                },
            };
            self.correct(&row, state).await?;
        }
        let unknown = found.into_keys();
        let set_aside = |name: SandboxName| async move {
            if let Err(error) = self.set_aside_unknown(provider.as_ref(), &name).await {
                let error = with_causes(&error);
                tracing::warn!(sandbox.name = %name, %error, "failed to set aside a sandbox that the database lacks");
            }
        };
        futures::stream::iter(unknown).for_each_concurrent(AT_ONCE, set_aside).await;
        self.delete_aside(provider.as_ref()).await;
        self.deletion.notify_one();
        Ok(())
    }

    /// Marks this host's sandboxes as stopped, because a server without a provider runs no sandboxes.
    async fn nothing_runs(&self) -> Result<(), AccessError> {
        self.store.release_sandboxes_of_node(&self.node).await?;
        for row in self.rows_of_all().await? {
            // A lost sandbox stays lost, because its files cannot be checked without a provider.
            if row.status != SandboxStatus::Lost {
                self.correct(&row, Some(State::Stopped)).await?;
            }
        }
        Ok(())
    }

    /// Reads the rows of this host's sandboxes that belong to `provider`.
    async fn rows(&self, provider: &str) -> Result<Vec<SandboxRow>, StoreError> {
        let mut rows = self.rows_of_all().await?;
        rows.retain(|row| row.provider == provider);
        Ok(rows)
    }

    /// Reads the rows of this host's sandboxes for every provider.
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

    async fn correct(&self, row: &SandboxRow, state: Option<State>) -> Result<(), StoreError> {
        let status = match (state, row.status) {
            // The deletion continues and removes the row.
            (_, SandboxStatus::Deleting) => return Ok(()),
            (Some(State::Running), SandboxStatus::Running) => return Ok(()),
            (Some(State::Running), _) => SandboxStatus::Running,
            (None, SandboxStatus::Lost) => return Ok(()),
            (None, _) if has_run(row) => SandboxStatus::Lost,
            (Some(State::Stopped) | None, SandboxStatus::Stopped) => return Ok(()),
            (Some(State::Stopped) | None, _) => SandboxStatus::Stopped,
            // Another operation on the sandbox is in progress, and callers wait for its end.
            (Some(State::Changing), _) => return Ok(()),
        };
        if row.is_claimed(self.clock.now()) {
            return Ok(());
        }
        let operation = operation();
        let until = self.clock.now().plus_ms(LEASE_MS);
        if self.store.claim_sandbox(row, row.status, &operation, until).await? {
            let error = (status == SandboxStatus::Lost).then(|| AccessError::Lost.to_string());
            if error.is_some() {
                tracing::error!(sandbox.id = %row.id, "a sandbox is lost, because its files are missing");
            }
            let settled = SandboxSettled { status, last_active_at: None, error, limit: None, network: None };
            self.store.settle_sandbox(row.id, &operation, row.status, &settled).await?;
            let (was, is) = (row.status.as_str(), status.as_str());
            tracing::info!(sandbox.id = %row.id, was, is, "corrected the recorded state of a sandbox");
        }
        Ok(())
    }

    /// Restores files that were set aside while another copy of the database was in use. Returns the state of the
    /// restored sandbox, or `None` if no files were restored.
    async fn restore(&self, provider: &dyn SandboxProvider, row: &SandboxRow) -> Result<Option<State>, AccessError> {
        if !has_run(row) || row.status == SandboxStatus::Deleting {
            return Ok(None);
        }
        let restored =
            within(SET_ASIDE_MAX, "restore the sandbox", provider.restore(&name(row), row.created_at)).await?;
        if restored {
            tracing::warn!(sandbox.id = %row.id, "restored the files of a sandbox that had been set aside");
        }
        Ok(restored.then_some(State::Stopped))
    }

    /// Sets aside a sandbox without a row. The sandbox is not deleted, because the database may be an older copy that
    /// was restored.
    async fn set_aside_unknown(&self, provider: &dyn SandboxProvider, name: &SandboxName) -> Result<(), AccessError> {
        if self.is_known(name, provider.name()).await? {
            return Ok(());
        }
        within(SET_ASIDE_MAX, "set the sandbox aside", provider.set_aside(name, self.clock.now())).await?;
        tracing::warn!(
            sandbox.name = %name,
            "set aside a sandbox that the database lacks; its files will be deleted in 7 days"
        );
        Ok(())
    }

    /// Deletes sandboxes that were set aside at least [`ASIDE_KEPT_MS`] ago. The next call repeats a failed deletion.
    pub(super) async fn delete_aside(&self, provider: &dyn SandboxProvider) {
        let before = self.clock.now().plus_ms(-ASIDE_KEPT_MS);
        match within(SET_ASIDE_MAX, "delete the files that were set aside", provider.delete_aside(before)).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "deleted the sandboxes that were set aside 7 days ago"),
            Err(error) => {
                tracing::warn!(error = %with_causes(&error), "failed to delete sandboxes that were set aside");
            }
        }
    }

    /// Returns whether any host has a row for the sandbox.
    async fn is_known(&self, name: &SandboxName, provider: &str) -> Result<bool, StoreError> {
        let rest = name.as_str().strip_prefix("ms-").unwrap_or_default();
        let Some((workspace, sandbox_id)) = rest.rsplit_once('-') else { return Ok(false) };
        let Ok(workspace) = workspace.parse() else { return Ok(false) };
        Ok(self.store.sandbox_of_provider(workspace, provider, sandbox_id).await?.is_some())
    }

    /// Cuts off commands and stops this host's sandboxes within `grace`. Shared sandboxes keep running.
    pub async fn shut_down(self: &Arc<Self>, grace: Duration) {
        self.closing.cancel();
        self.activities.cut_all();
        let stopped = async {
            self.stop_running().await;
            // When this lock is acquired, all starts in progress have ended, and no new start can begin.
            let _comparing = self.comparing.write().await;
            self.stop_running().await;
            self.running.close();
            self.running.wait().await;
        };
        if tokio::time::timeout(grace, stopped).await.is_err() {
            tracing::warn!(
                "timed out stopping some sandboxes; the server will correct their recorded status when it next starts"
            );
        }
    }

    async fn stop_running(self: &Arc<Self>) {
        if self.is_shared || self.provider.is_err() {
            return;
        }
        match self.running_rows().await {
            Ok(rows) => self.stop_all(rows).await,
            Err(error) => tracing::warn!(error = %with_causes(&error), "failed to stop the sandboxes"),
        }
    }

    async fn running_rows(&self) -> Result<Vec<SandboxRow>, StoreError> {
        let provider = self.provider.as_ref().map(|provider| provider.name()).unwrap_or_default();
        let mut rows = self.rows(provider).await?;
        rows.retain(|row| matches!(row.status, SandboxStatus::Running | SandboxStatus::Error));
        Ok(rows)
    }
}
