//! `/api/chats` and `/api/apps`: deletion of conversations. Clients keep the conversations themselves; the server only
//! has their sandboxes. Deleting a conversation or an app deletes these sandboxes in the background.

use std::sync::Arc;

use axum::extract::{Path, State};
use http::StatusCode;
use monstrum_core::app::App;
use monstrum_core::operations::{Caller, conversations};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::extract::Params;
use crate::gateway::http::problem::{Problem, ProblemBody};

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ChatQuery {
    /// The app that the conversation belongs to.
    #[param(required)]
    app_id: Option<String>,
}

/// Deletes what there is of a conversation: its sandbox, in the background
///
/// The answer is the same where there is nothing.
#[utoipa::path(delete, path = "/api/chats/{chat_id}", tag = "sandboxes", params(("chat_id" = String, Path), ChatQuery),
    responses((status = 202, description = "its sandbox is being deleted"), (status = "4XX", body = ProblemBody)))]
pub(super) async fn delete_chat(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(chat_id): Path<String>,
    Params(query): Params<ChatQuery>,
) -> Result<StatusCode, Problem> {
    let Some(app_id) = query.app_id else {
        return Err(Problem::invalid_at("app_id", "required query parameter is missing"));
    };
    conversations::delete_chat(&app, &caller, &chat_id, &app_id).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Deletes what there is of an app: the sandboxes of all its conversations, in the background
///
/// The answer is the same where there is nothing.
#[utoipa::path(delete, path = "/api/apps/{app_id}", tag = "sandboxes", params(("app_id" = String, Path)),
    responses((status = 202, description = "its sandboxes are being deleted"), (status = "4XX", body = ProblemBody)))]
pub(super) async fn delete_app(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(app_id): Path<String>,
) -> Result<StatusCode, Problem> {
    conversations::delete_app(&app, &caller, &app_id).await?;
    Ok(StatusCode::ACCEPTED)
}
