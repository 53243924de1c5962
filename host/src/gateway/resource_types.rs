//! `/api/resource-types`: the resource types of the loaded plugins, in the caller's language. Clients build forms and
//! pickers from these types.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use monstrum_api::resource_types::{ResourceType, ResourceTypeList};
use monstrum_core::app::App;
use monstrum_core::operations::{Operator, resource_types};
use monstrum_types::ResourceTypeId;

use crate::gateway::http::extract::{Id, PageQuery, Params};
use crate::gateway::http::language::InLanguage;
use crate::gateway::http::problem::{Problem, ProblemBody};

/// Lists resource types
#[utoipa::path(get, path = "/api/resource-types", tag = "resource types", params(PageQuery),
    responses((status = 200, body = ResourceTypeList), (status = "4XX", body = ProblemBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Operator,
    InLanguage(language): InLanguage,
    Params(query): Params<PageQuery>,
) -> Result<Json<ResourceTypeList>, Problem> {
    Ok(Json(resource_types::list(&app, &caller, &language, &query.page()?).await?))
}

/// Shows a resource type
#[utoipa::path(get, path = "/api/resource-types/{id}", tag = "resource types", params(("id" = String, Path)),
    responses((status = 200, body = ResourceType), (status = "4XX", body = ProblemBody)))]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    caller: Operator,
    InLanguage(language): InLanguage,
    Id(id): Id<ResourceTypeId>,
) -> Result<Json<ResourceType>, Problem> {
    Ok(Json(resource_types::show(&app, &caller, &language, id).await?))
}
