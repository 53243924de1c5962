//! Deletes the sandboxes of a conversation or of an app in the background. Clients store the conversations.

use serde_json::json;

use super::change::Change;
use super::sandbox_files::check_part;
use super::{Caller, InputErrors, OperationError};
use crate::app::App;

/// Deletes the sandbox of a conversation in the background.
///
/// The result is the same if no sandbox exists.
pub async fn delete_chat(app: &App, caller: &Caller, chat_id: &str, app_id: &str) -> Result<(), OperationError> {
    let mut errors = InputErrors::default();
    check_part(&mut errors, "chat_id", chat_id);
    check_part(&mut errors, "app_id", app_id);
    errors.check()?;
    let deleted = app.sandboxes.delete_conversation(caller.workspace, caller.bot, app_id, chat_id);
    let delete = async { deleted.await.map_err(OperationError::from) };
    let change = Change::new("chat.delete", chat_id).from(&json!({ "app_id": app_id, "chat_id": chat_id }));
    change.record(app, caller, delete).await?;
    Ok(())
}

/// Deletes the sandboxes of all conversations of an app in the background.
///
/// The result is the same if no sandbox exists.
pub async fn delete_app(app: &App, caller: &Caller, app_id: &str) -> Result<(), OperationError> {
    let mut errors = InputErrors::default();
    check_part(&mut errors, "app_id", app_id);
    errors.check()?;
    let delete = async { Ok(app.sandboxes.delete_app(caller.workspace, caller.bot, app_id).await?) };
    let change = Change::new("app.delete", app_id).from(&json!({ "app_id": app_id }));
    change.record(app, caller, delete).await?;
    Ok(())
}
