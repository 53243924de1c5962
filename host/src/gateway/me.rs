//! `/api/me`: the key of the request.

use axum::Json;
use axum::extract::State;
use monstrum_api::me::Me;
use monstrum_core::operations::{KeyHolder, me as own_key};

use crate::gateway::http::access;
use crate::gateway::http::answer::Answer;
use crate::gateway::http::state::{Host, Options};

/// Shows the key of the request, and the operations that it may use
#[utoipa::path(get, path = "/api/me", tag = "keys", responses((status = 200, body = Me)))]
pub(super) async fn me(app: Host, State(options): State<Options>, caller: KeyHolder) -> Answer<Me> {
    let may = access::may(caller.kind, options.public_docs);
    Ok(Json(own_key::show(&app, &caller, may).await?))
}
