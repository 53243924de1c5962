//! The operations on sessions: the tasks of one conversation.

use monstrum_api::bots::TaskLimits;
use monstrum_api::list::List;
use monstrum_api::sessions::{NewMessage, Session, SessionList, SessionMessage, SessionMessageList};
use monstrum_api::tasks::{NewTask, Task};
use monstrum_api::tools::Chat;
use monstrum_core::operations::{Caller, OperationError, conversations};
use monstrum_store::{Page, SessionFilter, SessionRow, TaskFilter, TaskRow};
use monstrum_types::{SessionId, TaskId};

use crate::tasks::{Tasks, sees, visible_bot};

impl Tasks {
    /// Lists the sessions that the caller may see and that match the filter, newest first.
    ///
    /// # Errors
    ///
    /// The database failed.
    pub async fn sessions(
        &self,
        caller: &Caller,
        filter: SessionFilter,
        page: &Page<SessionId>,
    ) -> Result<SessionList, OperationError> {
        let Some(bot) = visible_bot(caller, filter.bot) else {
            return Ok(List { items: Vec::new(), next_cursor: None });
        };
        let listed = self.app.store.sessions(caller.workspace, &SessionFilter { bot, ..filter }, page).await?;
        let items = listed.items.into_iter().map(shown).collect();
        Ok(List { items, next_cursor: listed.next_cursor.map(|cursor| cursor.to_string()) })
    }

    /// Shows a session.
    ///
    /// # Errors
    ///
    /// The session does not exist, or the caller may not see it.
    pub async fn session(&self, caller: &Caller, id: SessionId) -> Result<Session, OperationError> {
        Ok(shown(self.session_row(caller, id).await?))
    }

    async fn session_row(&self, caller: &Caller, id: SessionId) -> Result<SessionRow, OperationError> {
        let row = self.app.store.session(caller.workspace, id).await?;
        row.filter(|row| sees(caller, row.bot_id)).ok_or_else(|| OperationError::not_found("session"))
    }

    /// Lists the messages of a session with their answers, newest first.
    ///
    /// # Errors
    ///
    /// The session does not exist, or the caller may not see it.
    pub async fn messages(
        &self,
        caller: &Caller,
        id: SessionId,
        page: &Page<TaskId>,
    ) -> Result<SessionMessageList, OperationError> {
        self.session_row(caller, id).await?;
        let filter = TaskFilter { session: Some(id), ..TaskFilter::default() };
        let message = |row: &TaskRow| {
            let Task { id, status, instruction, result, created_at, ended_at, .. } = self.view(row);
            SessionMessage { task_id: id, status, text: instruction, answer: result, created_at, ended_at }
        };
        self.listed(caller, filter, page, message).await
    }

    /// Sends a message to a session, which starts a task.
    ///
    /// # Errors
    ///
    /// The session does not exist, has expired, or has a task that has not ended.
    pub async fn send(&self, caller: &Caller, id: SessionId, input: NewMessage) -> Result<Task, OperationError> {
        let row = self.session_row(caller, id).await?;
        let (session_id, limits) = (Some(id), TaskLimits::default());
        let task = NewTask { instruction: input.text, params: None, session_id, chat: None, narrow: None, limits };
        let started = self.start(caller, row.bot_id, task).await;
        started.map_err(|error| match error {
            OperationError::Invalid(errors) => {
                let named = errors.into_iter().map(|mut error| {
                    if error.path == "/instruction" {
                        "/text".clone_into(&mut error.path);
                    }
                    error
                });
                OperationError::Invalid(named.collect())
            }
            error => error,
        })
    }

    /// Deletes a session with its tasks, and the sandbox of its conversation unless another open session uses it.
    ///
    /// # Errors
    ///
    /// The session does not exist, the caller may not see it, or a task of it has not ended.
    pub async fn delete_session(&self, caller: &Caller, id: SessionId) -> Result<(), OperationError> {
        let row = self.session_row(caller, id).await?;
        conversations::delete_session(&self.app, caller, &row).await
    }
}

fn shown(row: SessionRow) -> Session {
    let SessionRow { id, bot_id, app_id, user_id, chat_id, created_at, used_at, expired_at, .. } = row;
    Session { id, bot_id, chat: Chat { app_id, user_id, chat_id }, created_at, used_at, expired_at }
}
