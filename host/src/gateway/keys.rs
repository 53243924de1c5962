//! `/api/keys`: API keys. A key is shown only once, when it is created or rotated. Only its hash is stored.

use axum::Json;
use http::StatusCode;
use monstrum_api::keys::{KeyList, NewKeyInput, ShownKey};
use monstrum_core::operations::{Admin, keys};
use monstrum_types::KeyId;

use crate::gateway::http::answer::{Answer, Created, Done};
use crate::gateway::http::extract::{Id, Input, PageQuery, Params};
use crate::gateway::http::state::Host;

/// Creates a key; only this response contains the text of the key
#[utoipa::path(post, path = "/api/keys", tag = "keys", request_body = NewKeyInput,
    responses((status = 201, body = ShownKey)))]
pub(super) async fn create(app: Host, caller: Admin, Input(new): Input<NewKeyInput>) -> Created<ShownKey> {
    Ok((StatusCode::CREATED, Json(keys::create(&app, &caller, new).await?)))
}

/// Lists the keys of the workspace and, for a root key, the root keys
#[utoipa::path(get, path = "/api/keys", tag = "keys", params(PageQuery), responses((status = 200, body = KeyList)))]
pub(super) async fn list(app: Host, caller: Admin, Params(query): Params<PageQuery>) -> Answer<KeyList> {
    Ok(Json(keys::list(&app, &caller, &query.page()?).await?))
}

/// Rotates a key; only this response contains the new key, and the old key stops working
#[utoipa::path(post, path = "/api/keys/{id}/rotate", tag = "keys", params(("id" = KeyId, Path)),
    responses((status = 200, body = ShownKey)))]
pub(super) async fn rotate(app: Host, caller: Admin, Id(id): Id<KeyId>) -> Answer<ShownKey> {
    Ok(Json(keys::rotate(&app, &caller, id).await?))
}

/// Deletes a key; fails for the last root key
#[utoipa::path(delete, path = "/api/keys/{id}", tag = "keys", params(("id" = KeyId, Path)), responses((status = 204)))]
pub(super) async fn delete(app: Host, caller: Admin, Id(id): Id<KeyId>) -> Done {
    keys::delete(&app, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
