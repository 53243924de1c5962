//! Deletion of sandboxes. A row with the status `deleting` is a job that the host retries until the provider has
//! deleted the sandbox.

use monstrum_types::{BotId, SandboxInstanceId, UtcMillis, WorkspaceId};

use super::{SandboxRow, select};
use crate::db::{Session, args, values};
use crate::{ConversationFilter, SessionRow, Store, StoreError};

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
const MARK_OF_CONVERSATIONS: &str =
    mark!("($2 is null or bot_id = $2) and app_id = $3 and ($4 is null or chat_id = $4)");
const MARK_WITHOUT_SESSION: &str = mark!(
    "bot_id = $2 and app_id = $3 and user_id = $4 and chat_id = $5 and not exists (select 1 from sessions \
     where sessions.workspace_id = $1 and sessions.bot_id = $2 and sessions.app_id = $3 and sessions.user_id = $4 \
     and sessions.chat_id = $5 and sessions.expired_at is null)"
);
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
    /// Marks the sandboxes of conversations for deletion, in the transaction that deletes their sessions. Returns the
    /// number of sandboxes.
    pub(crate) async fn mark_sandboxes_of_conversations(
        &mut self,
        workspace: WorkspaceId,
        of: ConversationFilter<'_>,
    ) -> Result<u64, StoreError> {
        let ConversationFilter { bot, app, chat } = of;
        self.run(MARK_OF_CONVERSATIONS, args![workspace, bot, app, chat]).await
    }

    /// Marks the sandbox of a deleted session for deletion, unless a session that has not expired uses it.
    pub(crate) async fn mark_sandbox_without_session(&mut self, deleted: &SessionRow) -> Result<(), StoreError> {
        let SessionRow { workspace_id, bot_id, app_id, user_id, chat_id, .. } = deleted;
        self.run(MARK_WITHOUT_SESSION, args![*workspace_id, *bot_id, app_id, user_id, chat_id]).await?;
        Ok(())
    }

    /// Marks the sandboxes of a bot for deletion, in the transaction that deletes the bot.
    pub(crate) async fn mark_sandboxes_of_bot(&mut self, workspace: WorkspaceId, bot: BotId) -> Result<(), StoreError> {
        self.run(MARK_OF_BOT, args![workspace, bot]).await?;
        Ok(())
    }
}
