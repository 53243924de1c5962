//! `/api/registry`: the plugins that can be installed by name. The route requires a root key, because plugins belong to
//! the instance.

use axum::Json;
use monstrum_api::registry::AvailableList;
use monstrum_core::operations::{Root, registry};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::answer::Answer;
use crate::gateway::http::extract::{PageQuery, Params};
use crate::gateway::http::state::Host;

/// The query string `?q=`.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Search {
    /// Text that the name, the description or a tag contains. By default, all plugins are listed.
    q: Option<String>,
}

/// Searches the registry
#[utoipa::path(get, path = "/api/registry", tag = "registry", params(Search, PageQuery),
    responses((status = 200, body = AvailableList)))]
pub(super) async fn list(
    app: Host,
    caller: Root,
    Params(search): Params<Search>,
    Params(query): Params<PageQuery>,
) -> Answer<AvailableList> {
    Ok(Json(registry::list(&app, &caller, search.q.as_deref().unwrap_or_default(), &query.page()?).await?))
}
