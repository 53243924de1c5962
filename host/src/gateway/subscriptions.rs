//! `/api/subscriptions`: which events start tasks of which bots.

use axum::Json;
use http::StatusCode;
use monstrum_api::subscriptions::{NewSubscription, Subscription, SubscriptionChange, SubscriptionList};
use monstrum_core::operations::{Admin, Operator, subscriptions};
use monstrum_types::{BotId, SubscriptionId};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::answer::{Answer, Created, Done};
use crate::gateway::http::extract::{Id, Input, PageQuery, Params};
use crate::gateway::http::state::Host;
use crate::gateway::tasks::parsed;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct SubscriptionQuery {
    /// The bot of the subscriptions. By default, the subscriptions of all bots are listed.
    #[param(value_type = Option<BotId>)]
    bot_id: Option<String>,
}

/// Creates a subscription
///
/// Each event that matches starts a task of the bot with the instruction. The subscription goes on when the key that made it
/// is deleted. `any` and the ids of other bots in `from` need an admin key.
#[utoipa::path(post, path = "/api/subscriptions", tag = "subscriptions", request_body = NewSubscription,
    responses((status = 201, body = Subscription)))]
pub(super) async fn create(app: Host, caller: Operator, Input(new): Input<NewSubscription>) -> Created<Subscription> {
    Ok((StatusCode::CREATED, Json(subscriptions::create(&app, &caller, new).await?)))
}

/// Lists subscriptions, oldest first
#[utoipa::path(get, path = "/api/subscriptions", tag = "subscriptions", params(SubscriptionQuery, PageQuery),
    responses((status = 200, body = SubscriptionList)))]
pub(super) async fn list(
    app: Host,
    caller: Operator,
    Params(query): Params<SubscriptionQuery>,
    Params(page): Params<PageQuery>,
) -> Answer<SubscriptionList> {
    let bot = parsed("bot_id", query.bot_id)?;
    Ok(Json(subscriptions::list(&app, &caller, bot, &page.page()?).await?))
}

/// Shows a subscription
#[utoipa::path(get, path = "/api/subscriptions/{id}", tag = "subscriptions", params(("id" = SubscriptionId, Path)),
    responses((status = 200, body = Subscription)))]
pub(super) async fn show(app: Host, caller: Operator, Id(id): Id<SubscriptionId>) -> Answer<Subscription> {
    Ok(Json(subscriptions::show(&app, &caller, id).await?))
}

/// Changes a subscription; its bot cannot be changed
///
/// A subscription to the events of other bots is changed with an admin key, except that an operator can switch it off.
#[utoipa::path(patch, path = "/api/subscriptions/{id}", tag = "subscriptions", params(("id" = SubscriptionId, Path)),
    request_body = SubscriptionChange, responses((status = 200, body = Subscription)))]
pub(super) async fn update(
    app: Host,
    caller: Operator,
    Id(id): Id<SubscriptionId>,
    Input(change): Input<SubscriptionChange>,
) -> Answer<Subscription> {
    Ok(Json(subscriptions::update(&app, &caller, id, change).await?))
}

/// Deletes a subscription; the tasks that it has started go on
#[utoipa::path(delete, path = "/api/subscriptions/{id}", tag = "subscriptions", params(("id" = SubscriptionId, Path)),
    responses((status = 204)))]
pub(super) async fn delete(app: Host, caller: Operator, Id(id): Id<SubscriptionId>) -> Done {
    subscriptions::delete(&app, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lets a subscription that a plugin has made go on without an end
///
/// The status is 409 for a subscription that a key has made.
#[utoipa::path(post, path = "/api/subscriptions/{id}/confirm", tag = "subscriptions",
    params(("id" = SubscriptionId, Path)), responses((status = 200, body = Subscription)))]
pub(super) async fn confirm(app: Host, caller: Admin, Id(id): Id<SubscriptionId>) -> Answer<Subscription> {
    Ok(Json(subscriptions::confirm(&app, &caller, id).await?))
}
