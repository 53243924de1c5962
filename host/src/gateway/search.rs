//! `/api/search`: finds objects by name.

use axum::Json;
use monstrum_api::search::SearchResult;
use monstrum_core::operations::{Operator, search as objects};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::answer::Answer;
use crate::gateway::http::extract::Params;
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::Host;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct SearchQuery {
    /// A part of a name, or the id of a request; at most 128 characters. Upper and lower case are equal.
    #[param(required)]
    q: Option<String>,
}

/// Finds bots, resources, roles, plugins and tools by a part of their names, and a call or a change by its request id
#[utoipa::path(get, path = "/api/search", tag = "overview", params(SearchQuery),
    responses((status = 200, body = SearchResult)))]
pub(super) async fn search(app: Host, caller: Operator, Params(query): Params<SearchQuery>) -> Answer<SearchResult> {
    let Some(text) = query.q else {
        return Err(Problem::invalid_at("q", "required query parameter is missing"));
    };
    Ok(Json(objects::find(&app, &caller, &text).await?))
}
