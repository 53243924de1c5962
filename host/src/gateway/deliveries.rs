//! `/api/deliveries`: what events have started.

use axum::Json;
use monstrum_api::events::{Delivery, DeliveryList};
use monstrum_core::operations::{Operator, deliveries};
use monstrum_store::{DeliveryFilter, DeliveryStatus};
use monstrum_types::DeliveryId;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::answer::Answer;
use crate::gateway::http::extract::{Id, PageQuery, Params};
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::Host;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct DeliveryQuery {
    /// The status of the deliveries: `pending`, `done` or `dead`. By default, deliveries in every status are listed.
    status: Option<String>,
}

/// Lists deliveries of events, newest first
#[utoipa::path(get, path = "/api/deliveries", tag = "events", operation_id = "list_deliveries",
    params(DeliveryQuery, PageQuery), responses((status = 200, body = DeliveryList)))]
pub(super) async fn list(
    app: Host,
    caller: Operator,
    Params(query): Params<DeliveryQuery>,
    Params(page): Params<PageQuery>,
) -> Answer<DeliveryList> {
    let status = match query.status {
        None => None,
        Some(word) => Some(
            DeliveryStatus::from_word(&word)
                .ok_or_else(|| Problem::invalid_at("status", "expected pending, done or dead"))?,
        ),
    };
    let filter = DeliveryFilter { status, ..DeliveryFilter::default() };
    Ok(Json(deliveries::list(&app, &caller, &filter, &page.page()?).await?))
}

/// Tries a dead delivery again
///
/// The delivery is pending again, and starts what it has not started. The status is 409 if the delivery is not dead.
#[utoipa::path(post, path = "/api/deliveries/{id}/retry", tag = "events", params(("id" = DeliveryId, Path)),
    responses((status = 200, body = Delivery)))]
pub(super) async fn retry(app: Host, caller: Operator, Id(id): Id<DeliveryId>) -> Answer<Delivery> {
    Ok(Json(deliveries::retry(&app, &caller, id).await?))
}
