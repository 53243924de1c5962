//! `/api/trust`: the trusted signing keys, and the plugins that each key may sign. The routes require a root key.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use monstrum_api::trust::{NewTrust, Trust, TrustList};
use monstrum_core::app::App;
use monstrum_core::operations::{Root, trust};
use monstrum_types::TrustId;

use crate::gateway::http::extract::{Id, Input, PageQuery, Params};
use crate::gateway::http::problem::{Problem, ProblemBody};

/// Lists the trusted signing keys
#[utoipa::path(get, path = "/api/trust", tag = "trust", params(PageQuery),
    responses((status = 200, body = TrustList), (status = "4XX", body = ProblemBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Root,
    Params(query): Params<PageQuery>,
) -> Result<Json<TrustList>, Problem> {
    Ok(Json(trust::list(&app, &caller, &query.page()?).await?))
}

/// Adds a trusted key, with the plugins whose packages the key may sign
#[utoipa::path(post, path = "/api/trust", tag = "trust", request_body = NewTrust,
    responses((status = 201, body = Trust), (status = "4XX", body = ProblemBody)))]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Root,
    Input(new): Input<NewTrust>,
) -> Result<(StatusCode, Json<Trust>), Problem> {
    Ok((StatusCode::CREATED, Json(trust::create(&app, &caller, new).await?)))
}

/// Removes a trusted key; installed packages with its signature stay installed
#[utoipa::path(delete, path = "/api/trust/{id}", tag = "trust", params(("id" = TrustId, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody)))]
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    caller: Root,
    Id(id): Id<TrustId>,
) -> Result<StatusCode, Problem> {
    trust::delete(&app, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
