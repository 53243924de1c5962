//! `/api/registry`: what could be installed by name. Root keys only, since plugins belong to the instance.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use monstrum_package::Listing;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::gateway::extract::{PageQuery, Params, Root, page_by_name};
use crate::gateway::packages::problem;
use crate::gateway::problem::{Problem, ProblemBody};
use monstrum_core::app::App;

/// A plugin of the registry.
#[derive(Serialize, ToSchema)]
pub struct Available {
    pub name: String,
    pub description: String,
    pub author: String,
    pub license: String,
    pub tags: Vec<String>,
    /// What an install without a version takes; null where there are only pre-releases.
    pub version: Option<String>,
    /// All versions, newest first.
    pub versions: Vec<String>,
}

/// A page of the registry.
#[derive(Serialize, ToSchema)]
pub struct AvailableList {
    pub items: Vec<Available>,
    pub next_cursor: Option<String>,
}

/// `?q=`
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Search {
    /// A part of the name, the description or a tag; absent, everything is listed.
    q: Option<String>,
}

impl From<Listing> for Available {
    fn from(listing: Listing) -> Self {
        Available {
            name: listing.name.to_string(),
            description: listing.description,
            author: listing.author,
            license: listing.license,
            tags: listing.tags,
            version: listing.newest.map(|version| version.to_string()),
            versions: listing.versions.iter().map(ToString::to_string).collect(),
        }
    }
}

/// Searches the registry
#[utoipa::path(get, path = "/api/registry", tag = "registry", params(Search, PageQuery),
    responses((status = 200, body = AvailableList), (status = "4XX", body = ProblemBody)))]
pub async fn list(
    State(app): State<Arc<App>>,
    _: Root,
    Params(search): Params<Search>,
    Params(query): Params<PageQuery>,
) -> Result<Json<AvailableList>, Problem> {
    let page = query.page()?;
    let absent = || Problem::not_found("registry: start the server with --registry");
    let registry = app.packages.registry().ok_or_else(absent)?;
    let index = registry.index().await.map_err(|error| problem(error.into()))?;
    let found = index.search(search.q.as_deref().unwrap_or_default());
    let (found, next_cursor) = page_by_name(found, &page, |listing| listing.name.as_str());
    Ok(Json(AvailableList { items: found.into_iter().map(Available::from).collect(), next_cursor }))
}
