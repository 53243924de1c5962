//! `/api/chats` and `/api/apps`: deletes conversations. Clients store the conversations; the server stores the sessions of
//! conversations with their tasks, and the sandboxes. Deleting a conversation or an app deletes the sessions at once and
//! the sandboxes in the background.

use axum::extract::Path;
use http::StatusCode;
use monstrum_core::operations::{Caller, conversations};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::answer::Done;
use crate::gateway::http::extract::Params;
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::Host;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ChatQuery {
    /// The app of the conversation.
    #[param(required)]
    app_id: Option<String>,
}

/// Deletes the sessions of a conversation with their tasks, and its sandbox in the background
///
/// The answer is the same if neither exists. The status is 409 while a task of the conversation has not ended.
#[utoipa::path(delete, path = "/api/chats/{chat_id}", tag = "sandboxes", params(("chat_id" = String, Path), ChatQuery),
    responses((status = 202, description = "The sandbox is being deleted")))]
pub(super) async fn delete_chat(
    app: Host,
    caller: Caller,
    Path(chat_id): Path<String>,
    Params(query): Params<ChatQuery>,
) -> Done {
    let Some(app_id) = query.app_id else {
        return Err(Problem::invalid_at("app_id", "required query parameter is missing"));
    };
    conversations::delete_chat(&app, &caller, &chat_id, &app_id).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Deletes the sessions of all conversations of an app with their tasks, and the sandboxes in the background
///
/// The answer is the same if none exists. The status is 409 while a task of the app has not ended.
#[utoipa::path(delete, path = "/api/apps/{app_id}", tag = "sandboxes", params(("app_id" = String, Path)),
    responses((status = 202, description = "The sandboxes are being deleted")))]
pub(super) async fn delete_app(app: Host, caller: Caller, Path(app_id): Path<String>) -> Done {
    conversations::delete_app(&app, &caller, &app_id).await?;
    Ok(StatusCode::ACCEPTED)
}
