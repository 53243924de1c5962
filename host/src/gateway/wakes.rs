//! `/api/wakes`: the turns that the objects of a workspace wait for.

use axum::Json;
use monstrum_api::wakes::WakeList;
use monstrum_core::operations::{Operator, wakes};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::answer::Answer;
use crate::gateway::http::extract::{PageQuery, Params};
use crate::gateway::http::state::Host;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct WakeQuery {
    /// Whether to list only wakes whose last turn failed.
    #[param(default = false)]
    failing: Option<bool>,
}

/// Lists wakes: which objects have a turn, when, and what failed
///
/// A turn that fails is repeated after 1, 5, 30 and 120 seconds, and then every 5 minutes.
#[utoipa::path(get, path = "/api/wakes", tag = "wakes", params(WakeQuery, PageQuery),
    responses((status = 200, body = WakeList)))]
pub(super) async fn list(
    app: Host,
    caller: Operator,
    Params(query): Params<WakeQuery>,
    Params(page): Params<PageQuery>,
) -> Answer<WakeList> {
    Ok(Json(wakes::list(&app, &caller, query.failing.unwrap_or(false), &page.page()?).await?))
}
