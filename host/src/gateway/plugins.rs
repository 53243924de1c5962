//! `/api/plugins`: the plugins of the server, with the errors of plugins that could not be loaded. Plugins belong to
//! the instance, so changes require a root key.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use monstrum_api::plugins::{Approval, Plugin, PluginList};
use monstrum_core::app::App;
use monstrum_core::operations::{Operator, Root, plugins};

use crate::gateway::http::extract::{Id, OptionalInput, PageQuery, Params};
use crate::gateway::http::problem::{Problem, ProblemBody};

/// Lists plugins
#[utoipa::path(get, path = "/api/plugins", tag = "plugins", params(PageQuery),
    responses((status = 200, body = PluginList), (status = "4XX", body = ProblemBody)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Operator,
    Params(query): Params<PageQuery>,
) -> Result<Json<PluginList>, Problem> {
    Ok(Json(plugins::list(&app, &caller, &query.page()?).await?))
}

/// Shows a plugin
#[utoipa::path(get, path = "/api/plugins/{name}", tag = "plugins", params(("name" = String, Path)),
    responses((status = 200, body = Plugin), (status = "4XX", body = ProblemBody)))]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    caller: Operator,
    Id(name): Id<String>,
) -> Result<Json<Plugin>, Problem> {
    Ok(Json(plugins::show(&app, &caller, name).await?))
}

/// Reloads a plugin from its folder; if the new version cannot be loaded, the previous version stays in force
#[utoipa::path(post, path = "/api/plugins/{name}/reload", tag = "plugins", params(("name" = String, Path)),
    responses((status = 200, body = Plugin), (status = "4XX", body = ProblemBody)))]
pub(super) async fn reload(
    State(app): State<Arc<App>>,
    caller: Root,
    Id(name): Id<String>,
) -> Result<Json<Plugin>, Problem> {
    Ok(Json(plugins::reload(&app, &caller, name).await?))
}

/// Approves the plugin version that waits for approval
#[utoipa::path(post, path = "/api/plugins/{name}/approve", tag = "plugins", params(("name" = String, Path)),
    request_body(content = Approval, description = "Optional"),
    responses((status = 200, body = Plugin), (status = "4XX", body = ProblemBody)))]
pub(super) async fn approve(
    State(app): State<Arc<App>>,
    caller: Root,
    Id(name): Id<String>,
    OptionalInput(approval): OptionalInput<Approval>,
) -> Result<Json<Plugin>, Problem> {
    Ok(Json(plugins::approve(&app, &caller, name, approval).await?))
}
