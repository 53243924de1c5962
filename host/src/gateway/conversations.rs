//! `/api/chats` and `/api/apps`: conversations are their owners' to keep; what we have of them is their sandboxes, and
//! deleting one deletes those in the background.

use std::sync::Arc;

use axum::extract::{Path, State};
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use utoipa::IntoParams;

use crate::gateway::changes::Change;
use crate::gateway::extract::{Caller, Faults, Params};
use crate::gateway::problem::{Problem, ProblemBody};
use crate::gateway::sandbox_files::check_part;
use crate::gateway::sandboxes::problem;
use monstrum_core::app::App;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ChatQuery {
    /// The app that the conversation belongs to.
    #[param(required)]
    app_id: Option<String>,
}

/// Deletes what there is of a conversation: its sandbox, in the background
///
/// The answer is the same where there is nothing.
#[utoipa::path(delete, path = "/api/chats/{chat_id}", tag = "sandboxes", params(("chat_id" = String, Path), ChatQuery),
    responses((status = 202, description = "its sandbox is being deleted"), (status = "4XX", body = ProblemBody)))]
pub async fn delete_chat(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(chat_id): Path<String>,
    Params(query): Params<ChatQuery>,
) -> Result<StatusCode, Problem> {
    let Some(app_id) = query.app_id else {
        return Err(Problem::invalid_at("app_id", "required query parameter is missing"));
    };
    let mut faults = Faults::default();
    check_part(&mut faults, "chat_id", &chat_id);
    check_part(&mut faults, "app_id", &app_id);
    faults.check()?;
    let deleted = app.sandboxes.delete_conversation(caller.workspace, caller.bot, &app_id, &chat_id);
    let made = async { deleted.await.map_err(problem) };
    let change = Change::new("chat.delete", &chat_id).from(&json!({ "app_id": app_id, "chat_id": chat_id }));
    change.made(&app, &caller, made).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Deletes what there is of an app: the sandboxes of all its conversations, in the background
///
/// The answer is the same where there is nothing.
#[utoipa::path(delete, path = "/api/apps/{app_id}", tag = "sandboxes", params(("app_id" = String, Path)),
    responses((status = 202, description = "its sandboxes are being deleted"), (status = "4XX", body = ProblemBody)))]
pub async fn delete_app(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(app_id): Path<String>,
) -> Result<StatusCode, Problem> {
    let mut faults = Faults::default();
    check_part(&mut faults, "app_id", &app_id);
    faults.check()?;
    let made = async { app.sandboxes.delete_app(caller.workspace, caller.bot, &app_id).await.map_err(problem) };
    let change = Change::new("app.delete", &app_id).from(&json!({ "app_id": app_id }));
    change.made(&app, &caller, made).await?;
    Ok(StatusCode::ACCEPTED)
}
