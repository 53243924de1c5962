//! The console: pages for browsers, made on the server. The pages are a client of the HTTP API in this process, so the
//! console can do nothing that the API does not allow, and no check exists twice.

mod assets;
mod chart;
mod client;
mod fields;
mod flow;
mod form;
mod gates;
mod hosts;
mod lines;
mod narrow;
mod navigation;
mod page;
mod pages;
mod picker;
mod reach;
mod rules;
mod schema;
mod terminal;
mod text;
mod visit;
mod why;
mod words;

use std::ops::Deref;
use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use http::{HeaderMap, Uri};
use monstrum_core::app::App;
use tower_http::compression::CompressionLayer;

use crate::gateway::http::state::ConsoleOptions;
use hosts::Hosts;
use pages::{
    activity, approvals, bind, bot, bots, budgets, changes, conversations, credentials, deliveries, demo, device,
    error, events, files, health, home, keys, live, login, oauth_apps, overview, pins, plugins, resources, roles, run,
    runs, schedule, schedules, search, sessions, subscription, subscriptions, task, tasks, triggers, trust, try_tool,
    usage, verify, versions, wakes, webhook, webhooks, workflow, workflows, workspaces,
};

/// What the pages share.
#[derive(Clone)]
pub(super) struct Console(Arc<Inner>);

pub(super) struct Inner {
    /// The router of the API.
    api: Router,
    app: Arc<App>,
    hosts: Hosts,
    /// The URL to which OAuth providers redirect browsers, if the server knows it.
    callback_url: Option<String>,
    /// Whether the server has a public URL, by which systems outside reach it.
    is_public: bool,
}

impl Deref for Console {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

/// Returns whether a browser calls this server by one of its names. Pages outside the console that set a cookie require
/// this too.
pub(super) fn is_known_host(options: &ConsoleOptions, uri: &Uri, headers: &HeaderMap) -> bool {
    Hosts::of(options).called_as(uri, headers).is_some()
}

/// Returns the routes of the OAuth apps and of the pages about the whole server.
fn instance() -> Router<Console> {
    Router::new()
        .route("/console/w/{ws}/oauth-apps", get(oauth_apps::list))
        .route("/console/w/{ws}/oauth-apps/new", get(oauth_apps::new).post(oauth_apps::create))
        .route("/console/w/{ws}/oauth-apps/{id}", get(oauth_apps::show).post(oauth_apps::save))
        .route("/console/w/{ws}/oauth-apps/{id}/delete", get(oauth_apps::confirm_deletion).post(oauth_apps::delete))
        .route("/console/w/{ws}/workspaces", get(workspaces::list))
        .route("/console/w/{ws}/workspaces/new", get(workspaces::new).post(workspaces::create))
        .route("/console/w/{ws}/workspaces/{id}", get(workspaces::show).post(workspaces::save))
        .route("/console/w/{ws}/workspaces/{id}/delete", get(workspaces::confirm_deletion).post(workspaces::delete))
        .route("/console/w/{ws}/trust", get(trust::list))
        .route("/console/w/{ws}/trust/new", get(trust::new).post(trust::create))
        .route("/console/w/{ws}/trust/{id}/delete", get(trust::confirm_deletion).post(trust::delete))
        .route("/console/w/{ws}/health", get(health::show))
}

/// Returns the routes of tasks, sessions, schedules and budgets.
fn agents() -> Router<Console> {
    Router::new()
        .route("/console/w/{ws}/bots/{id}/tasks", get(tasks::of_bot))
        .route("/console/w/{ws}/tasks", get(tasks::list))
        .route("/console/w/{ws}/tasks/new", get(tasks::new).post(tasks::start))
        .route("/console/w/{ws}/tasks/{id}", get(task::show))
        .route("/console/w/{ws}/tasks/{id}/state", get(task::state))
        .route("/console/w/{ws}/tasks/{id}/export", get(task::export))
        .route("/console/w/{ws}/tasks/{id}/cancel", get(tasks::confirm_cancellation).post(tasks::cancel))
        .route("/console/w/{ws}/sessions", get(sessions::list))
        .route("/console/w/{ws}/sessions/{id}", get(sessions::show).post(sessions::send))
        .route("/console/w/{ws}/sessions/{id}/delete", get(sessions::confirm_deletion).post(sessions::delete))
        .route("/console/w/{ws}/schedules", get(schedules::list))
        .route("/console/w/{ws}/schedules/new", get(schedule::new).post(schedule::create))
        .route("/console/w/{ws}/schedules/{id}", get(schedules::show))
        .route("/console/w/{ws}/schedules/{id}/edit", get(schedule::edit).post(schedule::save))
        .route("/console/w/{ws}/schedules/{id}/fire", post(schedules::fire))
        .route("/console/w/{ws}/schedules/{id}/switch", post(schedules::switch))
        .route("/console/w/{ws}/schedules/{id}/delete", get(schedules::confirm_deletion).post(schedules::delete))
        .route("/console/w/{ws}/budgets", get(budgets::list))
        .route("/console/w/{ws}/budgets/change", get(budgets::edit).post(budgets::save))
        .route("/console/w/{ws}/usage", get(usage::show))
}

/// Returns the routes of events, webhooks and workflows.
fn automation() -> Router<Console> {
    Router::new()
        .route("/console/w/{ws}/events", get(events::list))
        .route("/console/w/{ws}/events/{id}", get(events::show))
        .route("/console/w/{ws}/deliveries", get(deliveries::list))
        .route("/console/w/{ws}/deliveries/{id}/retry", post(deliveries::retry))
        .route("/console/w/{ws}/subscriptions", get(subscriptions::list))
        .route("/console/w/{ws}/subscriptions/new", get(subscription::new).post(subscription::create))
        .route("/console/w/{ws}/subscriptions/{id}", get(subscriptions::show))
        .route("/console/w/{ws}/subscriptions/{id}/edit", get(subscription::edit).post(subscription::save))
        .route("/console/w/{ws}/subscriptions/{id}/switch", post(subscriptions::switch))
        .route("/console/w/{ws}/subscriptions/{id}/confirm", post(subscriptions::confirm))
        .route(
            "/console/w/{ws}/subscriptions/{id}/delete",
            get(subscriptions::confirm_deletion).post(subscriptions::delete),
        )
        .route("/console/w/{ws}/webhooks", get(webhooks::list))
        .route("/console/w/{ws}/webhooks/new", get(webhook::new).post(webhook::create))
        .route("/console/w/{ws}/webhooks/{id}", get(webhooks::show))
        .route("/console/w/{ws}/webhooks/{id}/edit", get(webhook::edit).post(webhook::save))
        .route("/console/w/{ws}/webhooks/{id}/rotate", post(webhooks::rotate))
        .route("/console/w/{ws}/webhooks/{id}/delete", get(webhooks::confirm_deletion).post(webhooks::delete))
        .route("/console/w/{ws}/wakes", get(wakes::list))
        .route("/console/w/{ws}/workflows", get(workflows::list))
        .route("/console/w/{ws}/workflows/new", get(workflow::new).post(workflow::create))
        .route("/console/w/{ws}/workflows/{id}", get(workflows::show))
        .route("/console/w/{ws}/workflows/{id}/edit", get(workflow::edit).post(workflow::save))
        .route("/console/w/{ws}/workflows/{id}/switch", post(workflows::switch))
        .route("/console/w/{ws}/workflows/{id}/delete", get(workflows::confirm_deletion).post(workflows::delete))
        .route("/console/w/{ws}/workflows/{id}/versions/{version}", get(versions::show))
        .route("/console/w/{ws}/workflows/{id}/triggers/new", get(triggers::new).post(triggers::create))
        .route("/console/w/{ws}/workflows/{id}/triggers/{trigger}/switch", post(triggers::switch))
        .route(
            "/console/w/{ws}/workflows/{id}/triggers/{trigger}/delete",
            get(triggers::confirm_deletion).post(triggers::delete),
        )
        .route("/console/w/{ws}/workflows/{id}/run", get(runs::new).post(runs::start))
        .route("/console/w/{ws}/runs", get(runs::list))
        .route("/console/w/{ws}/runs/{id}", get(run::show))
        .route("/console/w/{ws}/runs/{id}/state", get(run::state))
        .route("/console/w/{ws}/runs/{id}/changes", get(run::changes))
        .route("/console/w/{ws}/runs/{id}/export", get(run::export))
        .route("/console/w/{ws}/runs/{id}/cancel", get(runs::confirm_cancellation).post(runs::cancel))
        .route("/console/w/{ws}/runs/{id}/pause", post(runs::pause))
        .route("/console/w/{ws}/runs/{id}/resume", post(runs::resume))
        .route("/console/w/{ws}/runs/{id}/retry", post(runs::retry))
        .route("/console/w/{ws}/runs/{id}/steps/{step}/resolve", get(runs::resolution).post(runs::resolve))
}

/// Returns the routes of the console. `api` is the router of the API, with all of its checks.
pub(super) fn routes(app: Arc<App>, api: Router, options: &ConsoleOptions) -> Router {
    let (hosts, callback_url) = (Hosts::of(options), options.callback_url());
    let console = Console(Arc::new(Inner { api, app, hosts, callback_url, is_public: options.public_url.is_some() }));
    let public = Router::new()
        .route("/console/login", get(login::show).post(login::log_in))
        .route("/console/enter/{ticket}", get(login::ticket).post(login::enter))
        .route("/console/look", post(login::look))
        .route("/console/logout", post(login::log_out));
    let pages = Router::new()
        .route("/console", get(home::show))
        .route("/console/w/{ws}", get(home::show))
        .route("/console/w/{ws}/", get(home::show))
        .route("/console/w/{ws}/bots", get(bots::list))
        .route("/console/w/{ws}/bots/new", get(bots::new).post(bots::create))
        .route("/console/w/{ws}/bots/{id}", get(bot::can))
        .route("/console/w/{ws}/bots/{id}/did", get(bot::did))
        .route("/console/w/{ws}/bots/{id}/denied", get(bot::denied))
        .route("/console/w/{ws}/bots/{id}/budget", get(bot::budget))
        .route("/console/w/{ws}/bots/{id}/settings", get(bot::settings).post(bot::save))
        .route("/console/w/{ws}/bots/{id}/delete", get(bot::confirm_deletion).post(bot::delete))
        .route("/console/w/{ws}/bots/{id}/change", get(bot::change).post(bot::make_change))
        .route("/console/w/{ws}/bots/{id}/tools/{tool}", get(try_tool::show).post(try_tool::submit))
        .route("/console/w/{ws}/bots/{id}/bind", get(bind::new).post(bind::create))
        .route("/console/w/{ws}/bots/{id}/bindings/{binding}", get(bind::edit).post(bind::save))
        .route("/console/w/{ws}/bots/{id}/bindings/{binding}/delete", get(bind::confirm_deletion).post(bind::delete))
        .route("/console/w/{ws}/bots/{id}/conversations", get(conversations::of_bot))
        .route("/console/w/{ws}/conversations", get(conversations::list))
        .route("/console/w/{ws}/conversations/{id}", get(conversations::show))
        .route("/console/w/{ws}/conversations/{id}/look", post(conversations::look))
        .route("/console/w/{ws}/conversations/{id}/file", get(files::show))
        .route("/console/w/{ws}/conversations/{id}/download", get(files::download))
        .route("/console/w/{ws}/resources", get(resources::list))
        .route("/console/w/{ws}/resources/new", get(resources::new).post(resources::create))
        .route("/console/w/{ws}/resources/{id}", get(resources::show))
        .route("/console/w/{ws}/resources/{id}/edit", get(resources::edit).post(resources::save))
        .route("/console/w/{ws}/resources/{id}/delete", get(resources::confirm_deletion).post(resources::delete))
        .route("/console/w/{ws}/resources/{id}/credential", get(credentials::show).post(credentials::save))
        .route("/console/w/{ws}/resources/{id}/test", post(credentials::test))
        .route("/console/w/{ws}/resources/{id}/authorize", post(credentials::authorize))
        .route("/console/w/{ws}/resources/{id}/device", post(device::start))
        .route("/console/w/{ws}/resources/{id}/device/{flow}", get(device::show))
        .route("/console/w/{ws}/resources/{id}/device/{flow}/state", get(device::state))
        .route("/console/w/{ws}/resources/{id}/discover", post(pins::discover))
        .route("/console/w/{ws}/resources/{id}/pin", post(pins::decide))
        .route("/console/w/{ws}/activity", get(activity::list))
        .route("/console/w/{ws}/activity/export", get(activity::export))
        .route("/console/w/{ws}/activity/live", get(live::show))
        .route("/console/w/{ws}/activity/live/events", get(live::events))
        .route("/console/w/{ws}/activity/{id}", get(activity::show))
        .route("/console/w/{ws}/activity/changes", get(changes::list))
        .route("/console/w/{ws}/activity/verify", get(verify::show).post(verify::check))
        .route("/console/w/{ws}/overview", get(overview::show))
        .route("/console/w/{ws}/demo", get(demo::show).post(demo::make))
        .route("/console/w/{ws}/demo/call", post(demo::call))
        .route("/console/w/{ws}/demo/remove", post(demo::remove))
        .route("/console/w/{ws}/demo/skip", post(demo::skip))
        .route("/console/w/{ws}/search", get(search::show))
        .route("/console/w/{ws}/roles", get(roles::list))
        .route("/console/w/{ws}/roles/new", get(roles::new).post(roles::create))
        .route("/console/w/{ws}/roles/{id}", get(roles::show).post(roles::save))
        .route("/console/w/{ws}/roles/{id}/delete", get(roles::confirm_deletion).post(roles::delete))
        .route("/console/w/{ws}/keys", get(keys::list))
        .route("/console/w/{ws}/keys/new", get(keys::new).post(keys::create))
        .route("/console/w/{ws}/keys/{id}", get(keys::show))
        .route("/console/w/{ws}/keys/{id}/rotate", post(keys::rotate))
        .route("/console/w/{ws}/keys/{id}/delete", post(keys::delete))
        .route("/console/w/{ws}/plugins", get(plugins::list))
        .route("/console/w/{ws}/registry/install", post(plugins::install))
        .route("/console/w/{ws}/plugins/{name}", get(plugins::show))
        .route("/console/w/{ws}/plugins/{name}/approve", post(plugins::approve))
        .route("/console/w/{ws}/plugins/{name}/reload", post(plugins::reload))
        .route("/console/w/{ws}/approvals", get(approvals::list))
        .route("/console/w/{ws}/approvals/{id}", get(approvals::show).post(approvals::decide))
        .route("/console/{*rest}", get(error::no_page).post(error::no_page));
    let pages = public
        .merge(pages)
        .merge(instance())
        .merge(agents())
        .merge(automation())
        .layer(from_fn_with_state(console.clone(), visit::visit));
    let assets = Router::new().route("/console/assets/{digest}/{name}", get(assets::serve));
    pages.merge(assets).layer(CompressionLayer::new()).with_state(console)
}
