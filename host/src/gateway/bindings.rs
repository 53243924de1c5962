//! `/api/bots/{id}/resources`: bindings. A binding allows a bot to use a resource within limits. Bindings are
//! permissions, so only admins may change them.

use axum::Json;
use http::StatusCode;
use monstrum_api::bindings::{Binding, BindingChange, BindingList, NewBinding};
use monstrum_core::operations::{Admin, Operator, bindings};
use monstrum_types::{BindingId, BotId};

use crate::gateway::http::answer::{Answer, Created, Done};
use crate::gateway::http::extract::{Id, Ids, Input, PageQuery, Params};
use crate::gateway::http::state::Host;
use crate::gateway::http::versions::{IfMatch, Versioned, versioned};

/// Binds a resource to a bot
#[utoipa::path(post, path = "/api/bots/{id}/resources", tag = "bindings", params(("id" = BotId, Path)),
    request_body = NewBinding, responses((status = 201, body = Binding)))]
pub(super) async fn create(
    app: Host,
    caller: Admin,
    Id(bot): Id<BotId>,
    Input(new): Input<NewBinding>,
) -> Created<Binding> {
    Ok((StatusCode::CREATED, Json(bindings::create(&app, &caller, bot, new).await?)))
}

/// Lists the bindings of a bot
#[utoipa::path(get, path = "/api/bots/{id}/resources", tag = "bindings", params(("id" = BotId, Path), PageQuery),
    responses((status = 200, body = BindingList)))]
pub(super) async fn list(
    app: Host,
    caller: Operator,
    Id(bot): Id<BotId>,
    Params(query): Params<PageQuery>,
) -> Answer<BindingList> {
    Ok(Json(bindings::list(&app, &caller, bot, &query.page()?).await?))
}

/// Shows a binding
#[utoipa::path(get, path = "/api/bots/{id}/resources/{binding_id}", tag = "bindings",
    params(("id" = BotId, Path), ("binding_id" = BindingId, Path)), responses((status = 200, body = Binding)))]
pub(super) async fn show(app: Host, caller: Operator, Ids(bot, id): Ids<BotId, BindingId>) -> Versioned<Binding> {
    Ok(versioned(bindings::show(&app, &caller, bot, id).await?))
}

/// Changes a binding; the resource of the binding cannot be changed
#[utoipa::path(patch, path = "/api/bots/{id}/resources/{binding_id}", tag = "bindings",
    params(("id" = BotId, Path), ("binding_id" = BindingId, Path)), request_body = BindingChange,
    responses((status = 200, body = Binding)))]
pub(super) async fn update(
    app: Host,
    caller: Admin,
    Ids(bot, id): Ids<BotId, BindingId>,
    IfMatch(expected): IfMatch,
    Input(change): Input<BindingChange>,
) -> Versioned<Binding> {
    Ok(versioned(bindings::update(&app, &caller, bot, id, expected, change).await?))
}

/// Deletes a binding
#[utoipa::path(delete, path = "/api/bots/{id}/resources/{binding_id}", tag = "bindings",
    params(("id" = BotId, Path), ("binding_id" = BindingId, Path)), responses((status = 204)))]
pub(super) async fn delete(
    app: Host,
    caller: Admin,
    Ids(bot, id): Ids<BotId, BindingId>,
    IfMatch(expected): IfMatch,
) -> Done {
    bindings::delete(&app, &caller, bot, id, expected).await?;
    Ok(StatusCode::NO_CONTENT)
}
