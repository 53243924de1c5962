//! `/api/bots`: agents that can act only through tools.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use monstrum_api::bots::{Bot, BotChange, BotList, NewBot, Prompt, Usage};
use monstrum_core::app::App;
use monstrum_core::operations::{Caller, Operator, bots};
use monstrum_types::BotId;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::extract::{Id, Input, PageQuery, Params};
use crate::gateway::http::language::InLanguage;
use crate::gateway::http::problem::{Problem, ProblemBody};

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct UsageQuery {
    /// Count only calls with this `task_id`. By default, all calls count.
    task_id: Option<String>,
}

/// Creates a bot
#[utoipa::path(post, path = "/api/bots", tag = "bots", request_body = NewBot,
    responses((status = 201, body = Bot), (status = "4XX", body = ProblemBody)))]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Operator,
    Input(new): Input<NewBot>,
) -> Result<(StatusCode, Json<Bot>), Problem> {
    Ok((StatusCode::CREATED, Json(bots::create(&app, &caller, new).await?)))
}

/// Lists bots
#[utoipa::path(get, path = "/api/bots", tag = "bots", params(PageQuery),
    responses((status = 200, body = BotList), (status = "4XX", body = ProblemBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Operator,
    Params(query): Params<PageQuery>,
) -> Result<Json<BotList>, Problem> {
    Ok(Json(bots::list(&app, &caller, &query.page()?).await?))
}

/// Shows a bot
#[utoipa::path(get, path = "/api/bots/{id}", tag = "bots", params(("id" = BotId, Path)),
    responses((status = 200, body = Bot), (status = "4XX", body = ProblemBody)))]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    caller: Operator,
    Id(id): Id<BotId>,
) -> Result<Json<Bot>, Problem> {
    Ok(Json(bots::show(&app, &caller, id).await?))
}

/// Shows the cost of a bot's calls by month
#[utoipa::path(get, path = "/api/bots/{id}/usage", tag = "bots", params(("id" = BotId, Path), UsageQuery),
    responses((status = 200, body = Usage), (status = "4XX", body = ProblemBody)))]
pub(super) async fn usage(
    State(app): State<Arc<App>>,
    caller: Operator,
    Id(id): Id<BotId>,
    Params(query): Params<UsageQuery>,
) -> Result<Json<Usage>, Problem> {
    Ok(Json(bots::usage(&app, &caller, id, query.task_id.as_deref()).await?))
}

/// Shows the system prompt of a bot, including the paragraphs that the platform appends
#[utoipa::path(get, path = "/api/bots/{id}/prompt", tag = "bots", params(("id" = BotId, Path)),
    responses((status = 200, body = Prompt), (status = "4XX", body = ProblemBody)))]
pub(super) async fn prompt(
    State(app): State<Arc<App>>,
    caller: Caller,
    InLanguage(language): InLanguage,
    Id(id): Id<BotId>,
) -> Result<Json<Prompt>, Problem> {
    Ok(Json(bots::prompt(&app, &caller, &language, id).await?))
}

/// Changes a bot
#[utoipa::path(patch, path = "/api/bots/{id}", tag = "bots", params(("id" = BotId, Path)), request_body = BotChange,
    responses((status = 200, body = Bot), (status = "4XX", body = ProblemBody)))]
pub(super) async fn update(
    State(app): State<Arc<App>>,
    caller: Operator,
    Id(id): Id<BotId>,
    Input(change): Input<BotChange>,
) -> Result<Json<Bot>, Problem> {
    Ok(Json(bots::update(&app, &caller, id, change).await?))
}

/// Deletes a bot and its bindings, keys and sandboxes
#[utoipa::path(delete, path = "/api/bots/{id}", tag = "bots", params(("id" = BotId, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody)))]
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    caller: Operator,
    Id(id): Id<BotId>,
) -> Result<StatusCode, Problem> {
    bots::delete(&app, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
