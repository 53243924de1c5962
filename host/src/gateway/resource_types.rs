//! `/api/resource-types`: the resource types of the loaded plugins, in the caller's language. Clients build forms and
//! pickers from these types.

use axum::Json;
use monstrum_api::resource_types::{ResourceType, ResourceTypeList};
use monstrum_core::operations::{Operator, resource_types};
use monstrum_types::ResourceTypeId;

use crate::gateway::http::answer::Answer;
use crate::gateway::http::extract::{Id, PageQuery, Params};
use crate::gateway::http::language::InLanguage;
use crate::gateway::http::state::Host;

/// Lists resource types
#[utoipa::path(get, path = "/api/resource-types", tag = "resource types", params(PageQuery),
    responses((status = 200, body = ResourceTypeList)))]
pub(super) async fn list(
    app: Host,
    caller: Operator,
    InLanguage(language): InLanguage,
    Params(query): Params<PageQuery>,
) -> Answer<ResourceTypeList> {
    Ok(Json(resource_types::list(&app, &caller, &language, &query.page()?).await?))
}

/// Shows a resource type
#[utoipa::path(get, path = "/api/resource-types/{id}", tag = "resource types", params(("id" = String, Path)),
    responses((status = 200, body = ResourceType)))]
pub(super) async fn show(
    app: Host,
    caller: Operator,
    InLanguage(language): InLanguage,
    Id(id): Id<ResourceTypeId>,
) -> Answer<ResourceType> {
    Ok(Json(resource_types::show(&app, &caller, &language, id).await?))
}
