//! `/api/bots`: agents that can act only through tools.

use axum::Json;
use http::StatusCode;
use monstrum_api::bots::{Bot, BotChange, BotList, NewBot, Prompt, Usage};
use monstrum_core::operations::{Caller, Operator, bots};
use monstrum_types::BotId;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::answer::{Answer, Created, Done};
use crate::gateway::http::extract::{Id, Input, PageQuery, Params};
use crate::gateway::http::language::InLanguage;
use crate::gateway::http::state::Host;
use crate::gateway::http::versions::{IfMatch, Versioned, versioned};

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct UsageQuery {
    /// Count only calls with this `task_id`. By default, all calls count.
    task_id: Option<String>,
}

/// Creates a bot
#[utoipa::path(post, path = "/api/bots", tag = "bots", request_body = NewBot, responses((status = 201, body = Bot)))]
pub(super) async fn create(app: Host, caller: Operator, Input(new): Input<NewBot>) -> Created<Bot> {
    Ok((StatusCode::CREATED, Json(bots::create(&app, &caller, new).await?)))
}

/// Lists bots
#[utoipa::path(get, path = "/api/bots", tag = "bots", params(PageQuery), responses((status = 200, body = BotList)))]
pub(super) async fn list(app: Host, caller: Operator, Params(query): Params<PageQuery>) -> Answer<BotList> {
    Ok(Json(bots::list(&app, &caller, &query.page()?).await?))
}

/// Shows a bot
#[utoipa::path(get, path = "/api/bots/{id}", tag = "bots", params(("id" = BotId, Path)),
    responses((status = 200, body = Bot)))]
pub(super) async fn show(app: Host, caller: Operator, Id(id): Id<BotId>) -> Versioned<Bot> {
    Ok(versioned(bots::show(&app, &caller, id).await?))
}

/// Shows the cost of a bot's calls by month
#[utoipa::path(get, path = "/api/bots/{id}/usage", tag = "bots", params(("id" = BotId, Path), UsageQuery),
    responses((status = 200, body = Usage)))]
pub(super) async fn usage(
    app: Host,
    caller: Operator,
    Id(id): Id<BotId>,
    Params(query): Params<UsageQuery>,
) -> Answer<Usage> {
    Ok(Json(bots::usage(&app, &caller, id, query.task_id.as_deref()).await?))
}

/// Shows the system prompt of a bot, including the paragraphs that the platform appends
#[utoipa::path(get, path = "/api/bots/{id}/prompt", tag = "bots", params(("id" = BotId, Path)),
    responses((status = 200, body = Prompt)))]
pub(super) async fn prompt(
    app: Host,
    caller: Caller,
    InLanguage(language): InLanguage,
    Id(id): Id<BotId>,
) -> Answer<Prompt> {
    Ok(Json(bots::prompt(&app, &caller, &language, id).await?))
}

/// Changes a bot
#[utoipa::path(patch, path = "/api/bots/{id}", tag = "bots", params(("id" = BotId, Path)), request_body = BotChange,
    responses((status = 200, body = Bot)))]
pub(super) async fn update(
    app: Host,
    caller: Operator,
    Id(id): Id<BotId>,
    IfMatch(expected): IfMatch,
    Input(change): Input<BotChange>,
) -> Versioned<Bot> {
    Ok(versioned(bots::update(&app, &caller, id, expected, change).await?))
}

/// Deletes a bot and its bindings, keys and sandboxes
#[utoipa::path(delete, path = "/api/bots/{id}", tag = "bots", params(("id" = BotId, Path)), responses((status = 204)))]
pub(super) async fn delete(app: Host, caller: Operator, Id(id): Id<BotId>, IfMatch(expected): IfMatch) -> Done {
    bots::delete(&app, &caller, id, expected).await?;
    Ok(StatusCode::NO_CONTENT)
}
