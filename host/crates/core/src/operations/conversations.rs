//! Deletes sessions, conversations and apps: the sessions with their tasks at once, and the sandboxes in the background.
//! Clients store the conversations.

use monstrum_store::{ConversationFilter, DeletedSessions, SessionRow};
use serde_json::json;

use super::change::Change;
use super::sandbox_files::check_part;
use super::{Caller, InputErrors, OperationError};
use crate::app::App;

/// Deletes the sessions of a conversation with their tasks, and its sandbox in the background.
///
/// The result is the same if neither exists. A task that has not ended is a conflict.
pub async fn delete_chat(app: &App, caller: &Caller, chat_id: &str, app_id: &str) -> Result<(), OperationError> {
    let mut errors = InputErrors::default();
    check_part(&mut errors, "chat_id", chat_id);
    check_part(&mut errors, "app_id", app_id);
    errors.check()?;
    let change = Change::new("chat.delete", chat_id).from(&json!({ "app_id": app_id, "chat_id": chat_id }));
    change.record(app, caller, delete(app, caller, app_id, Some(chat_id))).await
}

/// Deletes the sessions of all conversations of an app with their tasks, and their sandboxes in the background.
///
/// The result is the same if none exists. A task that has not ended is a conflict.
pub async fn delete_app(app: &App, caller: &Caller, app_id: &str) -> Result<(), OperationError> {
    let mut errors = InputErrors::default();
    check_part(&mut errors, "app_id", app_id);
    errors.check()?;
    let change = Change::new("app.delete", app_id).from(&json!({ "app_id": app_id }));
    change.record(app, caller, delete(app, caller, app_id, None)).await
}

/// Deletes a session that the caller may see, with its tasks. Also deletes the sandbox of its conversation in the
/// background, unless another session that has not expired uses it.
///
/// # Errors
///
/// A task of the session has not ended, or the session was deleted meanwhile.
pub async fn delete_session(app: &App, caller: &Caller, session: &SessionRow) -> Result<(), OperationError> {
    let SessionRow { id, bot_id, app_id, user_id, chat_id, .. } = session;
    let chat = json!({ "app_id": app_id, "user_id": user_id, "chat_id": chat_id });
    let before = json!({ "bot_id": bot_id, "chat": chat });
    let delete = async {
        match app.store.delete_session(session).await? {
            DeletedSessions::Deleted => {}
            DeletedSessions::Busy => {
                return Err(OperationError::conflict("a task of the session has not ended; cancel the task first"));
            }
            DeletedSessions::Absent => return Err(OperationError::not_found("session")),
        }
        app.sandboxes.deletions_are_due();
        Ok(())
    };
    Change::new("session.delete", id).of_bot(*bot_id).from(&before).record(app, caller, delete).await
}

async fn delete(app: &App, caller: &Caller, app_id: &str, chat_id: Option<&str>) -> Result<(), OperationError> {
    let of = ConversationFilter { bot: caller.bot, app: app_id, chat: chat_id };
    if app.sandboxes.delete_conversations(caller.workspace, of).await?.is_none() {
        let message = "a task of the conversation has not ended; cancel the task first";
        return Err(OperationError::conflict(message));
    }
    Ok(())
}
