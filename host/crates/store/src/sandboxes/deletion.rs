//! Deletion of sandboxes: a row with the status `deleting` is a job that is retried until the provider has deleted the
//! sandbox.

use monstrum_types::{BotId, SandboxInstanceId, UtcMillis, WorkspaceId};

use super::{SandboxRow, columns};
use crate::db::{Session, args, values};
use crate::{Store, StoreError};

/// Marks sandboxes for deletion. A current operation keeps its lease; its result is discarded.
macro_rules! mark {
    ($of:literal) => {
        concat!(
            "update sandbox_instances set status = 'deleting', attempts = 0, next_attempt_at = 0, error = null \
             where status <> 'deleting' and workspace_id = $1 and ",
            $of
        )
    };
}

const MARK_ONE: &str = mark!("id = $2");
const MARK_OF_CONVERSATION: &str = mark!("($2 is null or bot_id = $2) and app_id = $3 and chat_id = $4");
const MARK_OF_APP: &str = mark!("($2 is null or bot_id = $2) and app_id = $3");
const MARK_OF_BOT: &str = mark!("bot_id = $2");

const DUE: &str = concat!(
    "select ",
    columns!(),
    " from sandbox_instances where status = 'deleting' and (node is null or node = $1) and next_attempt_at <= $2 \
     and (operation is null or operation_until <= $2) order by next_attempt_at limit $3"
);

impl Store {
    /// Marks a sandbox for deletion. Returns false if it was marked already or does not exist.
    pub async fn delete_sandbox(&self, workspace: WorkspaceId, id: SandboxInstanceId) -> Result<bool, StoreError> {
        Ok(self.db.run(MARK_ONE, args![workspace, id]).await? > 0)
    }

    /// Marks the sandbox of a conversation, of one bot or of any, and returns how many were marked.
    pub async fn delete_sandbox_of_conversation(
        &self,
        workspace: WorkspaceId,
        bot: Option<BotId>,
        app_id: &str,
        chat_id: &str,
    ) -> Result<u64, StoreError> {
        self.db.run(MARK_OF_CONVERSATION, args![workspace, bot, app_id, chat_id]).await
    }

    /// Marks all sandboxes of an app, and returns how many were marked.
    pub async fn delete_sandboxes_of_app(
        &self,
        workspace: WorkspaceId,
        bot: Option<BotId>,
        app_id: &str,
    ) -> Result<u64, StoreError> {
        self.db.run(MARK_OF_APP, args![workspace, bot, app_id]).await
    }

    /// Sandboxes of this node, or of all, whose deletion is due at `now`, the longest overdue first.
    pub async fn due_sandbox_deletions(
        &self,
        node: &str,
        now: UtcMillis,
        limit: u32,
    ) -> Result<Vec<SandboxRow>, StoreError> {
        self.authentic_up_to(DUE, values![node, now], limit).await
    }

    /// Ends a failed attempt, and schedules the next one.
    pub async fn postpone_sandbox_deletion(
        &self,
        id: SandboxInstanceId,
        operation: &str,
        next: UtcMillis,
        error: &str,
    ) -> Result<(), StoreError> {
        let sql = "update sandbox_instances set attempts = attempts + 1, next_attempt_at = $3, error = $4, \
                   operation = null, operation_until = null where id = $1 and operation = $2 and status = 'deleting'";
        self.db.run(sql, args![id, operation, next, error]).await?;
        Ok(())
    }

    /// Deletes the row of a sandbox that the provider has deleted. Returns false if `operation` has lost its lease.
    pub async fn remove_sandbox(&self, id: SandboxInstanceId, operation: &str) -> Result<bool, StoreError> {
        let sql = "delete from sandbox_instances where id = $1 and operation = $2 and status = 'deleting'";
        Ok(self.db.run(sql, args![id, operation]).await? > 0)
    }
}

impl Session {
    /// Marks the sandboxes of a bot for deletion, in the transaction that deletes the bot.
    pub(crate) async fn mark_sandboxes_of_bot(&mut self, workspace: WorkspaceId, bot: BotId) -> Result<(), StoreError> {
        self.run(MARK_OF_BOT, args![workspace, bot]).await?;
        Ok(())
    }
}
