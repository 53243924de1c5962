//! Sessions: the tasks of one conversation.

use monstrum_types::{BotId, Labels, SessionId, TaskId, UtcMillis, WorkspaceId};

use super::{NewSession, TaskRow};
use crate::db::{Session, args, from_row, retry};
use crate::{Listed, Page, Store, StoreError};

/// A row of `sessions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    pub id: SessionId,
    pub workspace_id: WorkspaceId,
    pub bot_id: BotId,
    /// The conversation.
    pub app_id: String,
    pub user_id: String,
    pub chat_id: String,
    pub created_at: UtcMillis,
    /// The start or the end of the last task, whichever is later.
    pub used_at: UtcMillis,
    /// The time at which the session expired.
    pub expired_at: Option<UtcMillis>,
    /// The labels of what the tasks of the session have read.
    pub labels: Labels,
}

from_row! {
    SessionRow { id, workspace_id, bot_id, app_id, user_id, chat_id, created_at, used_at, expired_at, labels }
}

/// A filter for a list of sessions.
#[derive(Clone, Debug, Default)]
pub struct SessionFilter {
    pub bot: Option<BotId>,
    pub app: Option<String>,
    pub user: Option<String>,
}

macro_rules! select {
    ($rest:expr) => {
        concat!(
            "select id, workspace_id, bot_id, app_id, user_id, chat_id, created_at, used_at, expired_at, labels \
             from sessions ",
            $rest
        )
    };
}

const BY_ID: &str = select!("where workspace_id = $1 and id = $2");
const PAGE: &str = select!(
    "where workspace_id = $1 and ($2 is null or bot_id = $2) and ($3 is null or app_id = $3) \
     and ($4 is null or user_id = $4) and ($5 = '' or id < $5) order by id desc limit $6"
);
const OPEN_OF_CHAT: &str = select!("where workspace_id = $1 and app_id = $2 and chat_id = $3 and expired_at is null");
const INSERT: &str = "\
    insert into sessions (id, workspace_id, bot_id, app_id, user_id, chat_id, created_at, used_at, expired_at, labels) \
    select $1, workspace_id, id, $4, $5, $6, cast($7 as bigint), cast($7 as bigint), null, $8 from bots \
    where workspace_id = $2 and id = $3";
const USE: &str = "update sessions set used_at = $4 \
                   where id = $1 and workspace_id = $2 and bot_id = $3 and expired_at is null";
// The update locks the row, so that no task of the session begins before the transaction ends.
pub(super) const LOCK: &str = "update sessions set used_at = used_at where workspace_id = $1 and id = $2";
const LOCK_OF_TASK: &str =
    "update sessions set used_at = used_at where id = (select session_id from tasks where id = $1)";
const OF_TASK: &str = select!("where id = (select session_id from tasks where id = $1)");
const SET_LABELS: &str = "update sessions set labels = $2 where id = $1";
const EXPIRE: &str = "update sessions set expired_at = $2 where id = $1 and expired_at is null \
                      and not exists (select 1 from tasks where session_id = $1 and ended_at is null)";
// A session is idle from the end of its last task.
const USED_BY: &str = "\
    update sessions set used_at = $2 where used_at < $2 \
    and id = (select session_id from tasks where id = $1 and ended_at is null)";
pub(super) const UNENDED: &str = "select count(*) as value from tasks \
                       where workspace_id = $1 and session_id = $2 and ended_at is null";
/// Inserts a session, after the one that it replaces has expired. A session with a task that has not ended does not
/// expire: the insertion then fails, because a conversation has one open session.
pub(super) async fn begin(session: &mut Session, new: &NewSession) -> Result<(), StoreError> {
    let NewSession { row, created, after } = new;
    if let Some((after, expired)) = after {
        session.run(LOCK, args![row.workspace_id, *after]).await?;
        if session.run(EXPIRE, args![*after, row.created_at]).await? > 0 {
            expired.insert(session).await?;
        }
    }
    let mut labels = row.labels.clone();
    if let Some((after, _)) = after {
        // The labels are read again, because a task of the session may have ended in the meantime.
        let old: Option<SessionRow> = session.one(BY_ID, args![row.workspace_id, *after]).await?;
        labels.add(&old.map(|old| old.labels).unwrap_or_default());
    }
    let SessionRow { id, workspace_id, bot_id, app_id, user_id, chat_id, created_at, .. } = row;
    let values = args![*id, *workspace_id, *bot_id, app_id, user_id, chat_id, *created_at, &labels];
    if session.run(INSERT, values).await? == 0 {
        return Err(StoreError::UnknownReference);
    }
    created.insert(session).await?;
    Ok(())
}

/// Adds to the labels of the session of a task. The lock of the session precedes that of the task, as in [`touch`].
pub(super) async fn read_by(session: &mut Session, task: TaskId, labels: &Labels) -> Result<(), StoreError> {
    session.run(LOCK_OF_TASK, args![task]).await?;
    let Some(row) = session.one::<SessionRow>(OF_TASK, args![task]).await? else { return Ok(()) };
    let all = row.labels.clone().with(labels);
    if all != row.labels {
        session.run(SET_LABELS, args![row.id, &all]).await?;
    }
    Ok(())
}

/// Records that a session has a new task. Returns `false` if the session has expired or does not exist.
pub(super) async fn touch(session: &mut Session, task: &TaskRow) -> Result<bool, StoreError> {
    let values = args![task.session_id, task.workspace_id, task.bot_id, task.created_at];
    Ok(session.run(USE, values).await? > 0)
}

/// Records that a session was used until the end of a task that has not ended yet. The lock of the session precedes that
/// of the task, as in [`touch`].
pub(super) async fn used_by(session: &mut Session, task: TaskId, ended_at: UtcMillis) -> Result<(), StoreError> {
    session.run(USED_BY, args![task, ended_at]).await?;
    Ok(())
}

impl Store {
    /// Returns the session with this id in the workspace.
    pub async fn session(&self, workspace: WorkspaceId, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
        self.db.one(BY_ID, args![workspace, id]).await
    }

    /// Returns a page of the sessions in a workspace that match the filter, newest first.
    pub async fn sessions(
        &self,
        workspace: WorkspaceId,
        filter: &SessionFilter,
        page: &Page<SessionId>,
    ) -> Result<Listed<SessionRow, SessionId>, StoreError> {
        let SessionFilter { bot, app, user } = filter;
        let after = page.after();
        let values = args![workspace, *bot, app, user, &after, page.rows()];
        Ok(page.of(self.db.all(PAGE, values).await?, |row: &SessionRow| row.id))
    }

    /// Returns the session of a conversation that has not expired.
    pub async fn session_of_chat(
        &self,
        workspace: WorkspaceId,
        app: &str,
        chat: &str,
    ) -> Result<Option<SessionRow>, StoreError> {
        self.db.one(OPEN_OF_CHAT, args![workspace, app, chat]).await
    }

    /// Adds to the labels of the open session of a conversation, if there is one.
    pub async fn add_session_labels(
        &self,
        workspace: WorkspaceId,
        app: &str,
        chat: &str,
        labels: &Labels,
    ) -> Result<(), StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            let open: Option<SessionRow> = session.one(OPEN_OF_CHAT, args![workspace, app, chat]).await?;
            let Some(open) = open else { return Ok(()) };
            session.run(LOCK, args![workspace, open.id]).await?;
            let Some(row) = session.one::<SessionRow>(BY_ID, args![workspace, open.id]).await? else { return Ok(()) };
            session.run(SET_LABELS, args![row.id, &row.labels.clone().with(labels)]).await?;
            session.commit().await?;
            Ok(())
        })
    }

    /// Returns whether a task of a session has not ended.
    pub async fn is_session_busy(&self, workspace: WorkspaceId, id: SessionId) -> Result<bool, StoreError> {
        let unended: Option<i64> = self.db.one(UNENDED, args![workspace, id]).await?;
        Ok(unended.is_none_or(|unended| unended > 0))
    }
}
