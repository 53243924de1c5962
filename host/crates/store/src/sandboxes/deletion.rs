//! Deletion of sandboxes. A row with the status `deleting` is a job that the host retries until the provider has
//! deleted the sandbox.

use monstrum_types::{BotId, SandboxInstanceId, UtcMillis, WorkspaceId};

use super::{SandboxRow, select};
use crate::db::{Session, args, values};
use crate::{Store, StoreError};

/// Builds the SQL to mark sandboxes for deletion. An operation in progress keeps its lease, but its result is
/// discarded.
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

const DUE: &str = select!(
    "where status = 'deleting' and (node is null or node = $1) and next_attempt_at <= $2 \
     and (operation is null or operation_until <= $2) order by next_attempt_at limit $3"
);

impl Store {
    /// Marks a sandbox for deletion. Returns `false` if the sandbox does not exist or is already marked.
    pub async fn delete_sandbox(&self, workspace: WorkspaceId, id: SandboxInstanceId) -> Result<bool, StoreError> {
        Ok(self.db.run(MARK_ONE, args![workspace, id]).await? > 0)
    }

    /// Marks the sandboxes of a conversation for deletion and returns their number. If `bot` is `None`, sandboxes of
    /// any bot match.
    pub async fn delete_sandbox_of_conversation(
        &self,
        workspace: WorkspaceId,
        bot: Option<BotId>,
        app_id: &str,
        chat_id: &str,
    ) -> Result<u64, StoreError> {
        self.db.run(MARK_OF_CONVERSATION, args![workspace, bot, app_id, chat_id]).await
    }

    /// Marks all sandboxes of an app for deletion and returns their number. If `bot` is `None`, sandboxes of any bot
    /// match.
    pub async fn delete_sandboxes_of_app(
        &self,
        workspace: WorkspaceId,
        bot: Option<BotId>,
        app_id: &str,
    ) -> Result<u64, StoreError> {
        self.db.run(MARK_OF_APP, args![workspace, bot, app_id]).await
    }

    /// Returns the sandboxes whose deletion is due at `now` and that are on this node or reachable from all hosts. The
    /// sandboxes are ordered by the time at which their deletion became due.
    pub async fn due_sandbox_deletions(
        &self,
        node: &str,
        now: UtcMillis,
        limit: u32,
    ) -> Result<Vec<SandboxRow>, StoreError> {
        self.authentic_up_to(DUE, values![node, now], limit).await
    }

    /// Records a failed deletion attempt, releases its lease, and schedules the next attempt.
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

    /// Deletes the row of a sandbox that the provider has deleted. Returns `false` if `operation` no longer holds the
    /// lease, or if the sandbox is not marked for deletion.
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
