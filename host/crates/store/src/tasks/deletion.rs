//! Deletion of sessions and conversations, with the tasks and the sandboxes. Each deletion is one transaction, so that it
//! can be repeated if it fails.

use monstrum_types::{BotId, UtcMillis, WorkspaceId};

use super::SessionRow;
use super::sessions::{LOCK, UNENDED};
use crate::db::{args, retry};
use crate::{Store, StoreError};

/// The result of deleting sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletedSessions {
    Deleted,
    /// A task has not ended, so nothing was deleted.
    Busy,
    /// The session does not exist.
    Absent,
}

/// The conversations whose sessions and sandboxes are deleted.
#[derive(Clone, Copy, Debug)]
pub struct ConversationFilter<'a> {
    /// The bot; `None` for any bot.
    pub bot: Option<BotId>,
    pub app: &'a str,
    /// The conversation; `None` for all conversations of the app.
    pub chat: Option<&'a str>,
}

/// Selects the sessions of a filter.
macro_rules! of_conversations {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            " from sessions where workspace_id = $1 and ($2 is null or bot_id = $2) and app_id = $3 \
             and ($4 is null or chat_id = $4)",
            $after
        )
    };
}

const DELETE: &str = "delete from sessions where workspace_id = $1 and id = $2";
// The update locks the rows, so that no task of the sessions begins before the transaction ends.
const LOCK_OF_CONVERSATIONS: &str = "\
    update sessions set used_at = used_at where workspace_id = $1 and ($2 is null or bot_id = $2) and app_id = $3 \
    and ($4 is null or chat_id = $4)";
// A task of a client that keeps the conversation and a task of another bot belong to a conversation, but to no session.
const UNENDED_OF_CONVERSATIONS: &str = of_conversations!(
    "select count(*) as value from tasks where workspace_id = $1 and ended_at is null and ((app_id = $3 \
     and ($2 is null or bot_id = $2) and ($4 is null or chat_id = $4)) or session_id in (select id",
    "))"
);
const DELETE_OF_CONVERSATIONS: &str = of_conversations!("delete", "");
const DELETE_TASKS_OF_CONVERSATIONS: &str = "\
    delete from tasks where workspace_id = $1 and ($2 is null or bot_id = $2) and app_id = $3 \
    and ($4 is null or chat_id = $4) and session_id is null and ended_at is not null";
// The sandbox of a conversation may have what its tasks have read, so the open session keeps the labels as long.
const FORGET: &str = "\
    delete from sessions where used_at < $1 and not exists (select 1 from tasks where session_id = sessions.id) \
    and (expired_at is not null or labels = '' or not exists (select 1 from sandbox_instances where \
    sandbox_instances.workspace_id = sessions.workspace_id and sandbox_instances.app_id = sessions.app_id \
    and sandbox_instances.chat_id = sessions.chat_id))";

impl Store {
    /// Deletes a session with its tasks, unless a task of it has not ended. Marks the sandbox of its conversation for
    /// deletion, unless the conversation has a session that has not expired and uses the sandbox.
    pub async fn delete_session(&self, row: &SessionRow) -> Result<DeletedSessions, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            if session.run(LOCK, args![row.workspace_id, row.id]).await? == 0 {
                return Ok(DeletedSessions::Absent);
            }
            let unended: Option<i64> = session.one(UNENDED, args![row.workspace_id, row.id]).await?;
            if unended.is_none_or(|unended| unended > 0) {
                return Ok(DeletedSessions::Busy);
            }
            session.run(DELETE, args![row.workspace_id, row.id]).await?;
            session.mark_sandbox_without_session(row).await?;
            session.commit().await?;
            Ok(DeletedSessions::Deleted)
        })
    }

    /// Deletes the sessions and tasks of conversations, and marks the sandboxes of the conversations for deletion.
    /// Returns the number of sandboxes, or `None` if a task has not ended: then nothing was deleted.
    pub async fn delete_conversations(
        &self,
        workspace: WorkspaceId,
        of: ConversationFilter<'_>,
    ) -> Result<Option<u64>, StoreError> {
        let ConversationFilter { bot, app, chat } = of;
        retry!(async {
            let mut session = self.db.write().await?;
            session.run(LOCK_OF_CONVERSATIONS, args![workspace, bot, app, chat]).await?;
            let unended: Option<i64> = session.one(UNENDED_OF_CONVERSATIONS, args![workspace, bot, app, chat]).await?;
            if unended.is_none_or(|unended| unended > 0) {
                return Ok(None);
            }
            session.run(DELETE_OF_CONVERSATIONS, args![workspace, bot, app, chat]).await?;
            session.run(DELETE_TASKS_OF_CONVERSATIONS, args![workspace, bot, app, chat]).await?;
            let sandboxes = session.mark_sandboxes_of_conversations(workspace, of).await?;
            session.commit().await?;
            Ok(Some(sandboxes))
        })
    }

    /// Deletes the sessions that were last used before a time and have no task. An open session with labels stays while its
    /// conversation has a sandbox. Returns the number of sessions.
    pub async fn forget_sessions(&self, before: UtcMillis) -> Result<u64, StoreError> {
        self.db.run(FORGET, args![before]).await
    }
}
