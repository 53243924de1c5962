//! `/api/keys`: API keys. A key is shown only once, when it is created or rotated. Only its hash is stored.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use monstrum_api::keys::{KeyList, NewKeyInput, ShownKey};
use monstrum_core::app::App;
use monstrum_core::operations::{Admin, keys};
use monstrum_types::KeyId;

use crate::gateway::http::extract::{Id, Input, PageQuery, Params};
use crate::gateway::http::problem::{Problem, ProblemBody};

/// Creates a key; only this response contains the text of the key
#[utoipa::path(post, path = "/api/keys", tag = "keys", request_body = NewKeyInput,
    responses((status = 201, body = ShownKey), (status = "4XX", body = ProblemBody)))]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Admin,
    Input(new): Input<NewKeyInput>,
) -> Result<(StatusCode, Json<ShownKey>), Problem> {
    Ok((StatusCode::CREATED, Json(keys::create(&app, &caller, new).await?)))
}

/// Lists the keys of the workspace and, for a root key, the root keys
#[utoipa::path(get, path = "/api/keys", tag = "keys", params(PageQuery),
    responses((status = 200, body = KeyList), (status = "4XX", body = ProblemBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Admin,
    Params(query): Params<PageQuery>,
) -> Result<Json<KeyList>, Problem> {
    Ok(Json(keys::list(&app, &caller, &query.page()?).await?))
}

/// Rotates a key; only this response contains the new key, and the old key stops working
#[utoipa::path(post, path = "/api/keys/{id}/rotate", tag = "keys", params(("id" = KeyId, Path)),
    responses((status = 200, body = ShownKey), (status = "4XX", body = ProblemBody)))]
pub(super) async fn rotate(
    State(app): State<Arc<App>>,
    caller: Admin,
    Id(id): Id<KeyId>,
) -> Result<Json<ShownKey>, Problem> {
    Ok(Json(keys::rotate(&app, &caller, id).await?))
}

/// Deletes a key; fails for the last root key
#[utoipa::path(delete, path = "/api/keys/{id}", tag = "keys", params(("id" = KeyId, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody)))]
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    caller: Admin,
    Id(id): Id<KeyId>,
) -> Result<StatusCode, Problem> {
    keys::delete(&app, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
