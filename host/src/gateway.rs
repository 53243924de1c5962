//! The HTTP API, with one file for each resource. Handlers translate between HTTP and operations. Handlers make no
//! decisions about calls.
//!
//! The description that `/api/openapi.json` serves is generated from the handlers. One macro registers a route and its
//! description, so no route lacks a description.

mod access;
mod agent_socket;
mod approvals;
mod attention;
mod audit;
mod bindings;
mod bots;
mod budgets;
mod console;
mod conversations;
mod credentials;
mod deliveries;
mod demo;
mod events;
mod export;
mod health;
mod http;
mod import;
mod keys;
mod mcp;
mod me;
mod oauth;
mod openai;
mod packages;
mod pins;
mod platform;
mod plugins;
mod registry;
mod resource_types;
mod resources;
mod roles;
mod runs;
mod sandbox_files;
mod sandboxes;
mod schedules;
mod search;
mod sessions;
mod subscriptions;
mod tasks;
#[cfg(test)]
mod tests;
mod tickets;
mod tools;
mod trust;
mod wakes;
mod webhooks;
mod welcome;
mod workflows;
mod workspaces;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::extract::{MatchedPath, Request};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use monstrum_types::RequestId;
use tower_http::catch_panic::CatchPanicLayer;
use tracing::Instrument;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::gateway::http::extract::ConsoleKey;
use crate::gateway::http::state::{Host, HttpState};
use crate::gateway::http::{docs, idempotency, pace, queries};
use crate::gateway::runs::RunStarter;
use crate::gateway::sessions::MessageSender;
use crate::gateway::tasks::TaskStarter;
use crate::telemetry::recorder;
use monstrum_agent::Tasks;
use monstrum_core::app::App;
use monstrum_core::operations::{Admin, Operator, Root};
use monstrum_work::runs::Runs;

pub use http::docs::description;
pub use http::idempotency::{forget_expired, place_of_answer};
pub use http::pace::{Meter, Pace};
pub use http::problem::Problem;
pub use http::state::{ConsoleOptions, Options};
pub use mcp::McpOptions;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The headers of a response that its rendering as a problem keeps.
const KEPT_BY_PROBLEMS: [HeaderName; 4] = [
    ::http::header::ALLOW,
    ::http::header::ACCESS_CONTROL_ALLOW_ORIGIN,
    ::http::header::ACCESS_CONTROL_EXPOSE_HEADERS,
    ::http::header::VARY,
];

/// The routes that create objects or start tasks and accept an `Idempotency-Key`, by the right that they require. The route that
/// creates API keys is excluded: a key is shown only once, so the answer must not be stored.
struct Creating {
    by_root: OpenApiRouter<HttpState>,
    by_admin: OpenApiRouter<HttpState>,
    by_operator: OpenApiRouter<HttpState>,
    by_run_starter: OpenApiRouter<HttpState>,
    /// The routes that start tasks.
    by_task_starter: OpenApiRouter<HttpState>,
    by_message_sender: OpenApiRouter<HttpState>,
}

impl Creating {
    fn new() -> Creating {
        let new = OpenApiRouter::default;
        let by_root = new().routes(routes!(workspaces::create)).routes(routes!(trust::create));
        let by_admin = new().routes(routes!(roles::create)).routes(routes!(bindings::create));
        let by_operator = new()
            .routes(routes!(resources::create))
            .routes(routes!(bots::create))
            .routes(routes!(schedules::create))
            .routes(routes!(schedules::fire))
            .routes(routes!(subscriptions::create))
            .routes(routes!(events::emit))
            .routes(routes!(workflows::create))
            .routes(routes!(workflows::create_trigger));
        Creating {
            by_root: idempotency::describe(by_root),
            by_admin: idempotency::describe(by_admin),
            by_operator: idempotency::describe(by_operator),
            by_run_starter: idempotency::describe(new().routes(routes!(runs::start))),
            by_task_starter: idempotency::describe(new().routes(routes!(tasks::start))),
            by_message_sender: idempotency::describe(new().routes(routes!(sessions::send))),
        }
    }

    fn layered(self, state: &HttpState) -> OpenApiRouter<HttpState> {
        idempotency::layer::<Root>(self.by_root, state)
            .merge(idempotency::layer::<Admin>(self.by_admin, state))
            .merge(idempotency::layer::<Operator>(self.by_operator, state))
            .merge(idempotency::layer::<RunStarter>(self.by_run_starter, state))
            .merge(tasks::streamed(idempotency::layer::<TaskStarter>(self.by_task_starter, state), state))
            .merge(idempotency::layer::<MessageSender>(self.by_message_sender, state))
    }

    fn bare(self) -> OpenApiRouter<HttpState> {
        let by_right = self.by_root.merge(self.by_admin).merge(self.by_operator);
        by_right.merge(self.by_run_starter).merge(self.by_task_starter).merge(self.by_message_sender)
    }
}

/// Returns the routes that do not accept an `Idempotency-Key`.
fn others() -> OpenApiRouter<HttpState> {
    OpenApiRouter::with_openapi(docs::Api::openapi())
        .routes(routes!(welcome::welcome))
        .routes(routes!(health::live))
        .routes(routes!(health::ready))
        .routes(routes!(health::metrics))
        .routes(routes!(docs::openapi))
        .routes(routes!(docs::manifest_schema))
        .routes(routes!(docs::page))
        .routes(routes!(me::me))
        .routes(routes!(attention::attention))
        .routes(routes!(search::search))
        .routes(routes!(workspaces::list))
        .routes(routes!(workspaces::show, workspaces::update, workspaces::delete))
        .routes(routes!(keys::list, keys::create))
        .routes(routes!(keys::rotate))
        .routes(routes!(keys::delete))
        .routes(routes!(tickets::create))
        .routes(routes!(demo::show, demo::step, demo::remove))
        .routes(routes!(plugins::list, packages::install))
        .routes(routes!(plugins::show, packages::uninstall))
        .routes(routes!(packages::icon))
        .routes(routes!(plugins::reload))
        .routes(routes!(plugins::diff))
        .routes(routes!(plugins::approve))
        .routes(routes!(registry::list))
        .routes(routes!(trust::list))
        .routes(routes!(trust::delete))
        .routes(routes!(resource_types::list))
        .routes(routes!(resource_types::show))
        .routes(routes!(resources::list))
        .routes(routes!(resources::show, resources::update, resources::delete))
        .routes(routes!(resources::health))
        .routes(routes!(pins::list))
        .routes(routes!(pins::discover))
        .routes(routes!(pins::approve))
        .routes(routes!(pins::reject))
        .routes(routes!(credentials::save, credentials::delete))
        .routes(routes!(credentials::of_users))
        .routes(routes!(credentials::confirm))
        .routes(routes!(oauth::providers::list, oauth::providers::create))
        .routes(routes!(oauth::providers::update, oauth::providers::delete))
        .routes(routes!(oauth::start))
        .routes(routes!(oauth::begin, oauth::users::press))
        .routes(routes!(oauth::users::connect))
        .routes(routes!(oauth::users::signed_in))
        .routes(routes!(oauth::callback))
        .routes(routes!(oauth::device))
        .routes(routes!(oauth::show_device))
        .routes(routes!(oauth::refresh))
        .routes(routes!(oauth::discovery::discover))
        .routes(routes!(oauth::discovery::confirm))
        .routes(routes!(oauth::discovery::client))
        .routes(routes!(credentials::test))
        .routes(routes!(platform::call))
        .routes(routes!(roles::list))
        .routes(routes!(roles::show, roles::update, roles::delete))
        .routes(routes!(bots::list))
        .routes(routes!(bots::show, bots::update, bots::delete))
        .routes(routes!(bots::usage))
        .routes(routes!(budgets::list, budgets::set))
        .routes(routes!(budgets::usage))
        .routes(routes!(access::access))
        .routes(routes!(access::preview))
        .routes(routes!(bots::prompt))
        .routes(routes!(bindings::list))
        .routes(routes!(bindings::show, bindings::update, bindings::delete))
        .routes(routes!(tools::list))
        .routes(routes!(tools::call))
        .routes(routes!(tools::check))
        .routes(routes!(sandboxes::list))
        .routes(routes!(sandboxes::show, sandboxes::delete))
        .routes(routes!(sandboxes::exec))
        .routes(routes!(sandboxes::commands))
        .routes(routes!(sandbox_files::file))
        .routes(routes!(sandbox_files::download))
        .routes(routes!(conversations::delete_chat))
        .routes(routes!(conversations::delete_app))
        .routes(routes!(audit::list))
        .routes(routes!(audit::stats))
        .routes(routes!(audit::show))
        .routes(routes!(audit::changes))
        .routes(routes!(audit::verify))
        .routes(routes!(audit::export))
        .routes(routes!(audit::stream::follow))
        .routes(routes!(export::export))
        .routes(routes!(import::import))
        .merge(work())
}

/// Returns the routes of the work of bots: tasks, what starts them, workflows and their runs, sessions, approvals and webhooks, and the doors of
/// clients and agents.
fn work() -> OpenApiRouter<HttpState> {
    OpenApiRouter::default()
        .routes(routes!(tasks::list))
        .routes(routes!(tasks::of_bot))
        .routes(routes!(tasks::show, tasks::cancel))
        .routes(routes!(tasks::steps))
        .routes(routes!(tasks::events))
        .routes(routes!(schedules::list))
        .routes(routes!(schedules::show, schedules::update, schedules::delete))
        .routes(routes!(schedules::preview))
        .routes(routes!(workflows::list))
        .routes(routes!(workflows::validate))
        .routes(routes!(workflows::show, workflows::update, workflows::delete))
        .routes(routes!(workflows::versions))
        .routes(routes!(workflows::version))
        .routes(routes!(workflows::triggers))
        .routes(routes!(workflows::update_trigger, workflows::delete_trigger))
        .routes(routes!(runs::of_workflow))
        .routes(routes!(runs::list))
        .routes(routes!(runs::show))
        .routes(routes!(runs::steps))
        .routes(routes!(runs::events))
        .routes(routes!(runs::cancel))
        .routes(routes!(runs::pause))
        .routes(routes!(runs::resume))
        .routes(routes!(runs::retry))
        .routes(routes!(runs::resolve))
        .routes(routes!(events::list))
        .routes(routes!(events::show))
        .routes(routes!(deliveries::list))
        .routes(routes!(deliveries::retry))
        .routes(routes!(subscriptions::list))
        .routes(routes!(subscriptions::show, subscriptions::update, subscriptions::delete))
        .routes(routes!(subscriptions::confirm))
        .routes(routes!(sessions::list))
        .routes(routes!(sessions::show, sessions::delete))
        .routes(routes!(sessions::messages))
        .routes(routes!(approvals::list))
        .routes(routes!(approvals::show, approvals::decide))
        .routes(routes!(webhooks::list, webhooks::create))
        .routes(routes!(webhooks::show, webhooks::update, webhooks::delete))
        .routes(routes!(webhooks::rotate))
        .routes(routes!(webhooks::receive))
        .routes(routes!(mcp::post, mcp::listen))
        .routes(routes!(agent_socket::open))
        .routes(routes!(mcp::metadata))
        .routes(routes!(wakes::list))
        .routes(routes!(openai::list))
        .routes(routes!(openai::show))
        .routes(routes!(openai::complete))
        .routes(routes!(openai::respond))
        .routes(routes!(openai::retrieve))
}

/// Returns every route of the API, with its description.
fn api() -> OpenApiRouter<HttpState> {
    others().merge(Creating::new().bare())
}

/// Returns the router of the server, with all routes and middleware.
pub fn router(
    app: Arc<App>,
    (tasks, runs): (Arc<Tasks>, Arc<Runs>),
    options: Options,
    mcp: McpOptions,
    console: ConsoleOptions,
) -> axum::Router {
    let demo = Arc::new(demo::DemoServer::new(mcp.stop.clone()));
    let mcp = Arc::new(mcp::Mcp::new(&app, mcp));
    let console = Arc::new(console);
    let state = HttpState { app: Arc::clone(&app), tasks, runs, options, mcp, console: Arc::clone(&console), demo };
    let (api, description) = others().merge(Creating::new().layered(&state)).split_for_parts();
    let queries = queries::Queries::of(&description);
    let api = api
        .merge(docs::files())
        .fallback(|| async { Problem::not_found("route") })
        .layer(from_fn_with_state(queries, queries::refuse_unknown))
        .layer(from_fn_with_state(state.clone(), mcp::guard))
        .layer(CatchPanicLayer::custom(|_: Box<dyn std::any::Any + Send>| {
            Problem::internal(&"a handler panicked").into_response()
        }))
        .layer(from_fn(|request, next| pace::keep(Pace::DEFAULT, request, next)))
        .layer(from_fn_with_state(state.clone(), readiness))
        .layer(from_fn(envelope))
        .with_state(state);
    if !console.enabled {
        return api;
    }
    let pages = console::routes(app, api.clone(), &console);
    let pages = pages.layer(from_fn(|request, next| pace::keep(Pace::DEFAULT, request, next)));
    api.merge(pages.layer(from_fn(envelope)))
}

/// Delays requests until the start-up scan is complete, because their plugins may still be loading. After 30 s,
/// the response is 503. Health checks are not delayed.
async fn readiness(app: Host, request: Request, next: Next) -> Response {
    const WAIT_MAX: Duration = Duration::from_secs(30);
    if matches!(request.uri().path(), "/healthz" | "/readyz") {
        return next.run(request).await;
    }
    let mut scanned = app.scanned.subscribe();
    match tokio::time::timeout(WAIT_MAX, scanned.wait_for(|scanned| *scanned)).await {
        Ok(Ok(_)) => {}
        Ok(Err(_)) | Err(_) => return Problem::unavailable("the server is starting").into_response(),
    }
    next.run(request).await
}

/// Gives every request an id and a log line, and turns every error into problem+json, or below `/v1` into the form of
/// OpenAI.
async fn envelope(mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let request_id = RequestId::new();
    request.extensions_mut().insert(request_id);
    let request_id = request_id.to_string();
    let route = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str).to_owned();
    let method = request.method().clone();
    let is_openai = openai::covers(request.uri().path());
    let is_console = request.extensions().get::<ConsoleKey>().is_some();
    let via = if is_console { "console" } else { "http" };
    let span =
        tracing::info_span!("request", request.id = %request_id, http.method = %method, http.route = %route, via = via);
    let mut response = next.run(request).instrument(span.clone()).await;
    let status = response.status();
    let problem = match response.extensions_mut().remove::<Problem>() {
        None if status == StatusCode::METHOD_NOT_ALLOWED => Some(Problem::method_not_allowed()),
        problem => problem,
    };
    if let Some(problem) = problem {
        let mut before = std::mem::take(response.headers_mut());
        response = if is_openai { openai::render(problem) } else { problem.render(&request_id) };
        let kept = KEPT_BY_PROBLEMS.into_iter().filter_map(|name| before.remove(&name).map(|value| (name, value)));
        response.headers_mut().extend(kept);
    }
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, HeaderValue::from_str(&request_id).expect("a UUID is a header value"));
    headers.insert(::http::header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(::http::header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    let took = began.elapsed();
    tracing::debug!(parent: &span, http.status = status.as_u16(), duration_ms = took.as_secs_f64() * 1000.0, "answered");
    recorder::request(route, label(&method), status.as_u16(), took);
    response
}

/// Returns a method as the label of a metric. Unknown methods share one label, because clients can invent methods, and
/// each method would create another time series.
fn label(method: &Method) -> String {
    const KNOWN: [Method; 7] =
        [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS];
    if KNOWN.contains(method) { method.to_string() } else { "other".to_owned() }
}
