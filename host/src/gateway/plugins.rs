//! `/api/plugins`: the plugins of the server, with the errors of plugins that could not be loaded. Plugins belong to
//! the instance, so changes require a root key.

use axum::Json;
use monstrum_api::plugins::{Approval, Plugin, PluginDiff, PluginList};
use monstrum_core::operations::{Operator, Root, plugins};

use crate::gateway::http::answer::Answer;
use crate::gateway::http::extract::{Id, OptionalInput, PageQuery, Params};
use crate::gateway::http::state::Host;

/// Lists plugins
#[utoipa::path(get, path = "/api/plugins", tag = "plugins", params(PageQuery),
    responses((status = 200, body = PluginList)))]
pub(super) async fn list(app: Host, caller: Operator, Params(query): Params<PageQuery>) -> Answer<PluginList> {
    Ok(Json(plugins::list(&app, &caller, &query.page()?).await?))
}

/// Shows a plugin
#[utoipa::path(get, path = "/api/plugins/{name}", tag = "plugins", params(("name" = String, Path)),
    responses((status = 200, body = Plugin)))]
pub(super) async fn show(app: Host, caller: Operator, Id(name): Id<String>) -> Answer<Plugin> {
    Ok(Json(plugins::show(&app, &caller, name).await?))
}

/// Reloads a plugin from its folder; if the new version cannot be loaded, the previous version stays in force
#[utoipa::path(post, path = "/api/plugins/{name}/reload", tag = "plugins", params(("name" = String, Path)),
    responses((status = 200, body = Plugin)))]
pub(super) async fn reload(app: Host, caller: Root, Id(name): Id<String>) -> Answer<Plugin> {
    Ok(Json(plugins::reload(&app, &caller, name).await?))
}

/// Compares the plugin version that waits for approval with the version before it
///
/// Fails with status 404 if no version waits. Texts and values come from the manifests of the plugin.
#[utoipa::path(get, path = "/api/plugins/{name}/diff", tag = "plugins", params(("name" = String, Path)),
    responses((status = 200, body = PluginDiff)))]
pub(super) async fn diff(app: Host, caller: Root, Id(name): Id<String>) -> Answer<PluginDiff> {
    Ok(Json(plugins::diff(&app, &caller, &name).await?))
}

/// Approves the plugin version that waits for approval
#[utoipa::path(post, path = "/api/plugins/{name}/approve", tag = "plugins", params(("name" = String, Path)),
    request_body(content = Approval, description = "Optional"), responses((status = 200, body = Plugin)))]
pub(super) async fn approve(
    app: Host,
    caller: Root,
    Id(name): Id<String>,
    OptionalInput(approval): OptionalInput<Approval>,
) -> Answer<Plugin> {
    Ok(Json(plugins::approve(&app, &caller, name, approval).await?))
}
