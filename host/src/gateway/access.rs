//! `/api/bots/{id}/access` and `/api/bots/{id}/resources/preview`: what a bot can do, and what a binding would do that is
//! not saved.

use axum::Json;
use monstrum_api::access::{AccessList, Preview, PreviewInput};
use monstrum_core::operations::{Operator, access as operations};
use monstrum_types::BotId;

use crate::gateway::http::answer::Answer;
use crate::gateway::http::extract::{Id, Input};
use crate::gateway::http::state::Host;

/// Lists every tool of the bot's bindings, also those that a rule hides, with the rule
#[utoipa::path(get, path = "/api/bots/{id}/access", tag = "bots",
    params(("id" = BotId, Path)), responses((status = 200, body = AccessList)))]
pub(super) async fn access(app: Host, caller: Operator, Id(bot): Id<BotId>) -> Answer<AccessList> {
    Ok(Json(operations::list(&app, &caller, bot).await?))
}

/// Shows what a binding would do if it were saved, and checks sample calls under it
#[utoipa::path(post, path = "/api/bots/{id}/resources/preview", tag = "bindings",
    params(("id" = BotId, Path)), request_body = PreviewInput, responses((status = 200, body = Preview)))]
pub(super) async fn preview(
    app: Host,
    caller: Operator,
    Id(bot): Id<BotId>,
    Input(input): Input<PreviewInput>,
) -> Answer<Preview> {
    Ok(Json(operations::preview(&app, &caller, bot, input).await?))
}
