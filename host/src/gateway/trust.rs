//! `/api/trust`: the trusted signing keys, and the plugins that each key may sign. The routes require a root key.

use axum::Json;
use http::StatusCode;
use monstrum_api::trust::{NewTrust, Trust, TrustList};
use monstrum_core::operations::{Root, trust};
use monstrum_types::TrustId;

use crate::gateway::http::answer::{Answer, Created, Done};
use crate::gateway::http::extract::{Id, Input, PageQuery, Params};
use crate::gateway::http::state::Host;

/// Lists the trusted signing keys
#[utoipa::path(get, path = "/api/trust", tag = "trust", params(PageQuery), responses((status = 200, body = TrustList)))]
pub(super) async fn list(app: Host, caller: Root, Params(query): Params<PageQuery>) -> Answer<TrustList> {
    Ok(Json(trust::list(&app, &caller, &query.page()?).await?))
}

/// Adds a trusted key, with the plugins whose packages the key may sign
#[utoipa::path(post, path = "/api/trust", tag = "trust", request_body = NewTrust,
    responses((status = 201, body = Trust)))]
pub(super) async fn create(app: Host, caller: Root, Input(new): Input<NewTrust>) -> Created<Trust> {
    Ok((StatusCode::CREATED, Json(trust::create(&app, &caller, new).await?)))
}

/// Removes a trusted key; installed packages with its signature stay installed
#[utoipa::path(delete, path = "/api/trust/{id}", tag = "trust", params(("id" = TrustId, Path)),
    responses((status = 204)))]
pub(super) async fn delete(app: Host, caller: Root, Id(id): Id<TrustId>) -> Done {
    trust::delete(&app, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
