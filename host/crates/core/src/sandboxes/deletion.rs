//! Deletes sandboxes. A request only marks a sandbox for deletion. A background task retries the deletion until it
//! succeeds.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use monstrum_store::{ConversationFilter, SandboxRow, SandboxStatus, StoreError};
use monstrum_types::{BotId, SandboxInstanceId, WorkspaceId, with_causes};
use tokio_util::sync::CancellationToken;

use super::{AccessError, LEASE_MS, Sandboxes, name, operation, within};

/// The interval at which the host checks for deletions that other hosts have requested or that are due for a retry.
const POLL: Duration = Duration::from_secs(5);
/// The time-out of a deletion. A provider needs less time to delete files of several GiB.
const DELETE_MAX: Duration = Duration::from_secs(60);
/// The delay after the first failure, in milliseconds. The delay doubles with each further failure, up to the maximum.
const BACK_OFF_MS: i64 = 5_000;
const BACK_OFF_MS_MAX: i64 = 300_000;
/// The maximum number of deletions that run at the same time. Because several deletions run in parallel, a hanging
/// deletion does not delay other deletions. The limit prevents the deletion of a whole app from overloading the
/// provider.
const AT_ONCE: usize = 8;
/// The maximum number of deletions in one round.
const JOBS_MAX: u32 = 100;

impl Sandboxes {
    /// Marks a sandbox for deletion. If `bot` is set, the sandbox must belong to that bot. A sandbox that is already
    /// marked does not change.
    pub async fn delete(
        &self,
        workspace: WorkspaceId,
        bot: Option<BotId>,
        id: SandboxInstanceId,
    ) -> Result<(), AccessError> {
        self.get(workspace, bot, id).await?;
        self.store.delete_sandbox(workspace, id).await?;
        self.deletion.notify_one();
        Ok(())
    }

    /// Deletes the sessions of conversations with their tasks, and marks the sandboxes of the conversations for deletion.
    /// Returns the number of marked sandboxes, or `None` if a task has not ended: then nothing was deleted.
    pub async fn delete_conversations(
        &self,
        workspace: WorkspaceId,
        of: ConversationFilter<'_>,
    ) -> Result<Option<u64>, StoreError> {
        let deleted = self.store.delete_conversations(workspace, of).await?;
        self.deletion.notify_one();
        Ok(deleted)
    }

    /// Signals that deletions are due, for example after the deletion of a bot or a conversation with sandboxes.
    pub fn deletions_are_due(&self) {
        self.deletion.notify_one();
    }

    /// Carries out deletions until `stop` is cancelled.
    pub async fn follow_deletions(self: Arc<Self>, stop: CancellationToken) {
        loop {
            if let Err(error) = self.delete_due().await {
                tracing::warn!(%error, "failed to read the pending deletions of sandboxes; retrying");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.deletion.notified() => {}
                () = tokio::time::sleep(POLL) => {}
            }
        }
    }

    /// Attempts all deletions that are due.
    pub async fn delete_due(self: &Arc<Self>) -> Result<(), StoreError> {
        let Ok(provider) = self.provider().map(|provider| provider.name()) else { return Ok(()) };
        let due = self.store.due_sandbox_deletions(&self.node, self.clock.now(), JOBS_MAX).await?;
        let own = due.into_iter().filter(|row| row.provider == provider);
        futures::stream::iter(own).for_each_concurrent(AT_ONCE, |row| self.delete_if_due(row)).await;
        Ok(())
    }

    /// Attempts one deletion, unless another host holds the lease or the retry is not due.
    pub(super) async fn delete_if_due(self: &Arc<Self>, row: SandboxRow) {
        let now = self.clock.now();
        if row.is_claimed(now) || row.next_attempt_at.is_some_and(|at| now < at) {
            return;
        }
        let this = Arc::clone(self);
        let id = row.id;
        let task = self.running.spawn(async move { this.delete_row(row).await });
        match task.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(sandbox.id = %id, error = %with_causes(&error), "failed to delete a sandbox; retrying");
            }
            Err(error) => tracing::error!(sandbox.id = %id, %error, "the deletion task of a sandbox failed; retrying"),
        }
        self.moved.notify_waiters();
    }

    async fn delete_row(&self, row: SandboxRow) -> Result<(), AccessError> {
        let operation = operation();
        let until = self.clock.now().plus_ms(LEASE_MS);
        if !self.store.claim_sandbox(&row, SandboxStatus::Deleting, &operation, until).await? {
            return Ok(());
        }
        self.activities.cut(row.id);
        let name = name(&row);
        let deleted = match self.provider() {
            Ok(provider) => {
                within(DELETE_MAX, "delete the sandbox", provider.delete(&name)).await.map_err(AccessError::from)
            }
            Err(error) => Err(error),
        };
        match deleted {
            Ok(()) => {
                self.store.remove_sandbox(row.id, &operation).await?;
                self.quiet.lock().remove(&row.id);
                tracing::info!(sandbox.id = %row.id, "a sandbox was deleted");
                Ok(())
            }
            Err(error) => {
                let doubled = BACK_OFF_MS.saturating_mul(1 << row.attempts.clamp(0, 10));
                let next = self.clock.now().plus_ms(doubled.min(BACK_OFF_MS_MAX));
                self.store.postpone_sandbox_deletion(row.id, &operation, next, &with_causes(&error)).await?;
                Err(error)
            }
        }
    }
}
