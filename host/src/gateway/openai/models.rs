//! `/v1/models`: the bots that have a model.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use monstrum_core::models::candidates;
use monstrum_core::operations::Caller;
use monstrum_core::operations::tools::bot_called;
use monstrum_core::policy::Bot;
use serde_json::{Value, json};

use crate::gateway::http::extract::Id;
use crate::gateway::http::state::HttpState;
use crate::gateway::openai::errors::OpenAiError;

/// Lists the models
///
/// A model is a bot that has a model. A bot key has its bot only. The form is that of OpenAI, and so is that of errors.
#[utoipa::path(get, path = "/v1/models", tag = "openai", responses((status = 200, body = Object),
    (status = "4XX", body = Object, description = "`{error: {message, type, param, code}}`")))]
pub(in crate::gateway) async fn list(State(state): State<HttpState>, caller: Caller) -> Json<Value> {
    let (snapshot, now) = (state.app.policy.load(), state.app.clock.now());
    let mut bots: Vec<_> = snapshot
        .bots(caller.workspace)
        .filter(|bot| caller.may_use(bot.row.id).is_ok())
        .filter(|bot| candidates(&snapshot, caller.workspace, bot.row.id, now).is_ok())
        .collect();
    bots.sort_by(|a, b| a.row.name.cmp(&b.row.name));
    let data: Vec<Value> = bots.into_iter().map(|bot| shown(bot)).collect();
    Json(json!({ "object": "list", "data": data }))
}

/// Shows a model
#[utoipa::path(get, path = "/v1/models/{id}", tag = "openai", params(("id" = String, Path)),
    responses((status = 200, body = Object),
        (status = "4XX", body = Object, description = "`{error: {message, type, param, code}}`")))]
pub(in crate::gateway) async fn show(
    State(state): State<HttpState>,
    caller: Caller,
    Id(id): Id<String>,
) -> Result<Response, OpenAiError> {
    let absent = |_| OpenAiError::model_not_found(&id);
    let bot = bot_called(&state.app, &caller, &id).map_err(absent)?;
    let (snapshot, now) = (state.app.policy.load(), state.app.clock.now());
    candidates(&snapshot, caller.workspace, bot.row.id, now).map_err(|_| OpenAiError::model_not_found(&id))?;
    Ok(Json(shown(&bot)).into_response())
}

fn shown(bot: &Bot) -> Value {
    let created = bot.row.created_at.0 / 1000;
    json!({ "id": bot.row.name, "object": "model", "created": created, "owned_by": "monstrum" })
}
