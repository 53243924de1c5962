//! The OpenAPI description of the API, and the documentation page. Both require an API key, unless `--public-docs`
//! makes them public. Browsers do not send API keys, so opening the page in a browser requires that setting.

use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use axum::extract::Path;
use axum::response::{IntoResponse, Redirect, Response};
use http::{HeaderValue, header};
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    ContentBuilder, HeaderBuilder, ObjectBuilder, Ref, RefOr, Required, ResponseBuilder, Schema, Type,
};
use utoipa::{Modify, OpenApi};
use utoipa_swagger_ui::Config;

use crate::gateway::http::access;
use crate::gateway::http::extract::Reader;
use crate::gateway::http::problem::{Problem, ProblemBody};
use crate::gateway::http::state::HttpState;

const DESCRIPTION_PATH: &str = "/api/openapi.json";

/// The Content-Security-Policy of the documentation page. The page may only run its own scripts, connect to this server
/// and set styles on its elements.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
    img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The parts of the API description that are not generated from handlers.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Monstrum",
        version = env!("CARGO_PKG_VERSION"),
        description = "Governed tool calls through plugins. Errors are RFC 9457 `application/problem+json`. Lists \
            accept `limit` and `cursor` and return `{items, next_cursor}`. PATCH replaces each field in the request as \
            a whole; null clears a field. A root key acts in the workspace `default`, or in the workspace that the \
            header `Monstrum-Workspace` names.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    components(schemas(ProblemBody)),
    modifiers(&Bearer),
    security(("key" = [])),
    tags(
        (name = "workspaces", description = "The tenants of the server"),
        (name = "keys", description = "API keys"),
        (name = "console", description = "Log-in to the console"),
        (name = "demo", description = "The demo of the console"),
        (name = "plugins", description = "Plugins in the plugins folder, with their errors"),
        (name = "registry", description = "Plugins that can be installed by name"),
        (name = "trust", description = "Keys that may sign packages"),
        (name = "resource types", description = "Resource types of the loaded plugins"),
        (name = "resources", description = "Accounts and systems that bots can use"),
        (name = "credentials", description = "Secrets of resources, which can be written but not read"),
        (name = "oauth", description = "Obtaining and refreshing credentials through OAuth"),
        (name = "roles", description = "Named sets of permissions"),
        (name = "bots", description = "Identities of agents, which act only through tools"),
        (name = "budgets", description = "Monthly limits of workspaces, bots and users, and what they have spent"),
        (name = "bindings", description = "The resources that a bot may use, with permissions and limits"),
        (name = "tools", description = "Listing, checking and calling the tools of a bot"),
        (name = "tasks", description = "What bots do by themselves with a model"),
        (name = "schedules", description = "The times at which bots start tasks"),
        (name = "webhooks", description = "Routes by which systems outside make events"),
        (name = "workflows", description = "Documents with steps that bots run, and the events that start them"),
        (name = "runs", description = "Runs of workflows, and the attempts of their steps"),
        (name = "events", description = "What happened, and what it has started"),
        (name = "subscriptions", description = "Which events start tasks of bots"),
        (name = "sessions", description = "The tasks of conversations"),
        (name = "approvals", description = "Decisions of people about calls that gates hold back"),
        (name = "mcp", description = "The tools of a bot for clients of the Model Context Protocol"),
        (name = "openai", description = "Bots for clients of the OpenAI API, whose form their errors have"),
        (name = "sandboxes", description = "Sandboxes of conversations, and their files"),
        (name = "wakes", description = "Turns of objects that work in the background"),
        (name = "platform", description = "Functions of plugins for infrastructure code"),
        (name = "configuration", description = "Export of the configuration of workspaces"),
        (name = "audit", description = "Records of calls and changes"),
        (name = "overview", description = "What needs attention, and a search"),
        (name = "health", description = "Health checks and metrics"),
        (name = "description", description = "Descriptions of the API")
    )
)]
pub(crate) struct Api;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("An API key, `mk_…`")).build();
        openapi.components.get_or_insert_default().add_security_scheme("key", SecurityScheme::Http(scheme));
    }
}

/// Returns the OpenAPI 3.1 description of every route, as JSON.
pub fn description() -> String {
    document().to_pretty_json().expect("a description is plain JSON")
}

/// Returns the OpenAPI 3.1 description of every route.
pub(crate) fn document() -> utoipa::openapi::OpenApi {
    let (_, mut openapi) = crate::gateway::api().split_for_parts();
    name_operations(&mut openapi);
    access::describe(&mut openapi);
    describe_doors(&mut openapi);
    describe_versions(&mut openapi);
    describe_credentials(&mut openapi);
    openapi
}

/// Prefixes the id of each operation with its tag. Ids must be unique, but the id of an operation is the name of its
/// handler, which is not unique across files.
fn name_operations(openapi: &mut utoipa::openapi::OpenApi) {
    for item in openapi.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            let tag = operation.tags.iter().flatten().next().map(|tag| tag.replace(' ', "_"));
            operation.operation_id = tag.zip(operation.operation_id.take()).map(|(tag, name)| format!("{tag}_{name}"));
        }
    }
}

/// The routes that answer in the caller's language. Their handlers extract `InLanguage`.
const TRANSLATED: [&str; 12] = [
    "/api/bots/{id}/prompt",
    "/api/bots/{id}/tools",
    "/api/bots/{id}/tools/{tool}/call",
    "/api/bots/{id}/tools/{tool}/check",
    "/api/core/ai/sandbox/download",
    "/api/core/ai/sandbox/file",
    "/api/platform/{type}/{function}",
    "/api/resource-types",
    "/api/resource-types/{id}",
    "/api/resources/{id}/credential/test",
    "/api/sandboxes/{id}/exec",
    "/mcp/{bot}",
];

/// The routes of objects with a version. Their GET and PATCH answer with `ETag`, and their PATCH and DELETE read
/// `If-Match`.
const VERSIONED: [&str; 8] = [
    "/api/bots/{id}",
    "/api/bots/{id}/resources/{binding_id}",
    "/api/oauth/providers/{id}",
    "/api/resources/{id}",
    "/api/roles/{id}",
    "/api/schedules/{id}",
    "/api/webhooks/{id}",
    "/api/workflows/{id}",
];

/// Describes the headers `ETag` and `If-Match` of the routes of [`VERSIONED`].
fn describe_versions(openapi: &mut utoipa::openapi::OpenApi) {
    let precondition = "The `ETag` of the version to change. If the object has another version, the answer is 412.";
    let text = RefOr::T(Schema::Object(ObjectBuilder::new().schema_type(Type::String).build()));
    let version = HeaderBuilder::new().schema(Some(text)).description(Some("The version of the object.")).build();
    for (_, item) in openapi.paths.paths.iter_mut().filter(|(path, _)| VERSIONED.contains(&path.as_str())) {
        for operation in [&mut item.patch, &mut item.delete].into_iter().flatten() {
            operation.parameters.get_or_insert_default().push(optional_header("If-Match", precondition).into());
        }
        for operation in [&mut item.get, &mut item.patch].into_iter().flatten() {
            if let Some(RefOr::T(response)) = operation.responses.responses.get_mut("200") {
                response.headers.insert("ETag".to_owned(), RefOr::T(version.clone()));
            }
        }
    }
}

/// Describes the headers with which a credential is saved only if the stored one is that which the caller knows.
fn describe_credentials(openapi: &mut utoipa::openapi::OpenApi) {
    let version = "The `updated_at` of the credential to replace, in quotation marks. If the resource has another credential or \
                   none, the answer is 412.";
    let absent = "With `*`, the answer is 412 if the resource has a credential.";
    let item = openapi.paths.paths.get_mut("/api/resources/{id}/credential");
    if let Some(save) = item.and_then(|item| item.put.as_mut()) {
        let parameters = save.parameters.get_or_insert_default();
        parameters.push(optional_header("If-Match", version).into());
        parameters.push(optional_header("If-None-Match", absent).into());
    }
}

/// Declares that public routes require no key, and adds the headers that every other route reads and the error that
/// every other route can return. Handlers declare none of these.
fn describe_doors(openapi: &mut utoipa::openapi::OpenApi) {
    let workspace = "The name or id of the workspace in which a root key acts. The default is `default`.";
    let language = "The preferred languages of translated texts. The first available language is used (RFC 9110).";
    let problem = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    let problem = ResponseBuilder::new().content("application/json", problem).build();
    for (path, item) in &mut openapi.paths.paths {
        let operations = [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            if operation.security.is_some() {
                // An empty list means that no key is required. For `security(())`, utoipa writes one empty requirement.
                operation.security = Some(Vec::new());
                continue;
            }
            operation.responses.responses.entry("4XX".to_owned()).or_insert_with(|| problem.clone().into());
            let parameters = operation.parameters.get_or_insert_default();
            parameters.push(optional_header("Monstrum-Workspace", workspace).into());
            if TRANSLATED.contains(&path.as_str()) {
                parameters.push(optional_header("Accept-Language", language).into());
            }
        }
    }
}

fn optional_header(name: &str, description: &str) -> Parameter {
    let text = ObjectBuilder::new().schema_type(Type::String);
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(description))
        .schema(Some(RefOr::T(Schema::Object(text.build()))))
        .build()
}

fn served() -> Bytes {
    static DESCRIPTION: OnceLock<Bytes> = OnceLock::new();
    DESCRIPTION.get_or_init(|| description().into()).clone()
}

/// Shows the OpenAPI description of the API
#[utoipa::path(get, path = "/api/openapi.json", tag = "description",
    responses((status = 200, body = Object)))]
pub(crate) async fn openapi(_: Reader) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], served()).into_response()
}

/// Shows the JSON Schema of plugin manifests, for editors
#[utoipa::path(get, path = "/api/manifest.schema.json", tag = "description",
    responses((status = 200, body = Object)))]
pub(crate) async fn manifest_schema(_: Reader) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], monstrum_manifest::json_schema_text()).into_response()
}

/// Redirects to the API documentation page
#[utoipa::path(get, path = "/docs", tag = "description",
    responses((status = 303, description = "Redirect to /docs/")))]
pub(crate) async fn page(_: Reader) -> Redirect {
    Redirect::to("/docs/")
}

/// Returns the routes of the documentation page and its files, which are embedded in this binary.
pub(crate) fn files() -> axum::Router<HttpState> {
    let index = |_: Reader| async { file("index.html") };
    let named = |_: Reader, Path(name): Path<String>| async move { file(&name) };
    axum::Router::new().route("/docs/", axum::routing::get(index)).route("/docs/{*file}", axum::routing::get(named))
}

fn file(name: &str) -> Result<Response, Problem> {
    let config = Arc::new(Config::from(DESCRIPTION_PATH));
    let file = utoipa_swagger_ui::serve(name, config).map_err(|error| Problem::internal(&error))?;
    let file = file.ok_or_else(|| Problem::not_found("file"))?;
    let mut response = file.bytes.into_owned().into_response();
    let headers = response.headers_mut();
    let kind = HeaderValue::from_str(&file.content_type).map_err(|error| Problem::internal(&error))?;
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn document() -> Value {
        serde_json::from_str(&description()).unwrap()
    }

    #[test]
    fn the_committed_description_is_the_present_one() {
        let committed = include_str!("../../../openapi.json").trim_end();
        assert!(committed == description(), "host/openapi.json is out of date: run `cargo xtask openapi`");
    }

    #[test]
    fn the_description_names_every_route_of_the_contract() {
        let document = document();
        assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
        let mut routes = Vec::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for method in ["get", "post", "put", "patch", "delete"] {
                if let Some(operation) = item.get(method) {
                    assert!(operation["summary"].is_string(), "{method} {path} has no summary");
                    routes.push(format!("{} {path}", method.to_uppercase()));
                }
            }
        }
        routes.sort();
        let mut expected: Vec<&str> = ROUTES.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        expected.sort_unstable();
        assert_eq!(routes, expected);
    }

    /// The routes that this release must serve.
    const ROUTES: &str = "
        GET /
        GET /healthz
        GET /readyz
        GET /metrics
        GET /docs
        GET /api/openapi.json
        GET /api/manifest.schema.json
        GET /api/attention
        GET /api/search
        GET /api/workspaces
        POST /api/workspaces
        GET /api/workspaces/{id}
        PATCH /api/workspaces/{id}
        DELETE /api/workspaces/{id}
        GET /api/me
        GET /api/keys
        POST /api/keys
        POST /api/keys/{id}/rotate
        DELETE /api/keys/{id}
        POST /api/console/tickets
        GET /api/demo
        POST /api/demo
        DELETE /api/demo
        GET /api/plugins
        GET /api/plugins/{name}
        POST /api/plugins
        DELETE /api/plugins/{name}
        GET /api/plugins/{name}/icon
        POST /api/plugins/{name}/reload
        GET /api/plugins/{name}/diff
        POST /api/plugins/{name}/approve
        POST /api/resources/{id}/credential/confirm
        POST /api/resources/{id}/credential/test
        POST /api/platform/{type}/{function}
        GET /api/registry
        GET /api/trust
        POST /api/trust
        DELETE /api/trust/{id}
        GET /api/resource-types
        GET /api/resource-types/{id}
        GET /api/resources
        POST /api/resources
        GET /api/resources/{id}
        PATCH /api/resources/{id}
        DELETE /api/resources/{id}
        GET /api/resources/{id}/health
        PUT /api/resources/{id}/credential
        DELETE /api/resources/{id}/credential
        GET /api/resources/{id}/credentials
        GET /api/oauth/providers
        POST /api/oauth/providers
        PATCH /api/oauth/providers/{id}
        DELETE /api/oauth/providers/{id}
        POST /api/resources/{id}/oauth/start
        GET /oauth/begin/{ticket}
        POST /oauth/begin/{ticket}
        GET /oauth/connect/{ticket}
        GET /oauth/connect/callback
        GET /api/oauth/callback
        POST /api/resources/{id}/oauth/device
        GET /api/resources/{id}/oauth/device/{flow_id}
        POST /api/resources/{id}/oauth/refresh
        POST /api/resources/{id}/oauth/discover
        POST /api/resources/{id}/oauth/confirm
        GET /oauth/client.json
        GET /api/roles
        POST /api/roles
        GET /api/roles/{id}
        PATCH /api/roles/{id}
        DELETE /api/roles/{id}
        GET /api/bots
        POST /api/bots
        GET /api/bots/{id}
        PATCH /api/bots/{id}
        DELETE /api/bots/{id}
        GET /api/bots/{id}/resources
        POST /api/bots/{id}/resources
        GET /api/bots/{id}/resources/{binding_id}
        PATCH /api/bots/{id}/resources/{binding_id}
        DELETE /api/bots/{id}/resources/{binding_id}
        GET /api/bots/{id}/tools
        GET /api/bots/{id}/usage
        GET /api/bots/{id}/access
        GET /api/budgets
        PUT /api/budgets
        GET /api/usage
        POST /api/bots/{id}/resources/preview
        GET /api/bots/{id}/prompt
        GET /api/sandboxes
        GET /api/sandboxes/{id}
        DELETE /api/sandboxes/{id}
        POST /api/sandboxes/{id}/exec
        GET /api/sandboxes/{id}/commands
        POST /api/core/ai/sandbox/file
        POST /api/core/ai/sandbox/download
        DELETE /api/chats/{chat_id}
        DELETE /api/apps/{app_id}
        POST /api/bots/{id}/tools/{tool}/call
        POST /api/bots/{id}/tools/{tool}/check
        GET /api/approvals
        GET /api/approvals/{id}
        POST /api/approvals/{id}
        GET /api/audit
        GET /api/stats
        GET /api/audit/{request_id}
        GET /api/audit/changes
        GET /api/audit/verify
        GET /api/audit/export
        GET /api/audit/stream
        GET /api/export
        POST /api/import
        GET /api/wakes
        GET /mcp/{bot}
        POST /mcp/{bot}
        GET /v1/models
        GET /v1/models/{id}
        POST /v1/chat/completions
        POST /v1/responses
        GET /v1/responses/{id}
        GET /.well-known/oauth-protected-resource/mcp/{id}
        GET /api/resources/{id}/tools
        GET /ws/agent
        POST /api/resources/{id}/tools/approve
        POST /api/resources/{id}/tools/discover
        POST /api/resources/{id}/tools/reject
        GET /api/schedules
        POST /api/schedules
        GET /api/schedules/{id}
        PATCH /api/schedules/{id}
        DELETE /api/schedules/{id}
        POST /api/schedules/{id}/fire
        POST /api/schedules/preview
        GET /api/webhooks
        POST /api/webhooks
        GET /api/webhooks/{id}
        PATCH /api/webhooks/{id}
        DELETE /api/webhooks/{id}
        POST /api/webhooks/{id}/rotate
        POST /hooks/{id}
        GET /api/workflows
        POST /api/workflows
        POST /api/workflows/validate
        GET /api/workflows/{id}
        PATCH /api/workflows/{id}
        DELETE /api/workflows/{id}
        GET /api/workflows/{id}/versions
        GET /api/workflows/{id}/versions/{version}
        GET /api/workflows/{id}/triggers
        POST /api/workflows/{id}/triggers
        PATCH /api/workflows/{id}/triggers/{trigger_id}
        DELETE /api/workflows/{id}/triggers/{trigger_id}
        GET /api/workflows/{id}/runs
        POST /api/workflows/{id}/runs
        GET /api/runs
        GET /api/runs/{id}
        GET /api/runs/{id}/steps
        GET /api/runs/{id}/events
        POST /api/runs/{id}/cancel
        POST /api/runs/{id}/pause
        POST /api/runs/{id}/resume
        POST /api/runs/{id}/retry
        POST /api/runs/{id}/steps/{step}/resolve
        GET /api/events
        POST /api/events
        GET /api/events/{id}
        GET /api/deliveries
        POST /api/deliveries/{id}/retry
        GET /api/subscriptions
        POST /api/subscriptions
        GET /api/subscriptions/{id}
        PATCH /api/subscriptions/{id}
        DELETE /api/subscriptions/{id}
        POST /api/subscriptions/{id}/confirm
        DELETE /api/sessions/{id}
        DELETE /api/tasks/{id}
        GET /api/bots/{id}/tasks
        GET /api/sessions
        GET /api/sessions/{id}
        GET /api/sessions/{id}/messages
        GET /api/tasks
        GET /api/tasks/{id}
        GET /api/tasks/{id}/events
        GET /api/tasks/{id}/steps
        POST /api/bots/{id}/tasks
        POST /api/sessions/{id}/messages
    ";

    #[test]
    fn headers_and_open_routes_are_described() {
        let document = document();
        let mut translated = Vec::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let is_open = operation["security"] == serde_json::json!([]);
                let parameters = operation["parameters"].to_string();
                assert_eq!(parameters.contains("Monstrum-Workspace"), !is_open, "{method} {path}");
                if parameters.contains("Accept-Language") {
                    translated.push(path.clone());
                }
            }
        }
        translated.dedup();
        assert_eq!(translated, TRANSLATED);
    }

    #[test]
    fn routes_that_create_take_an_idempotency_key() {
        let document = document();
        let takes = |path: &str| document["paths"][path]["post"]["parameters"].to_string().contains("Idempotency-Key");
        for path in
            ["/api/workspaces", "/api/resources", "/api/roles", "/api/bots", "/api/bots/{id}/resources", "/api/trust"]
        {
            assert!(takes(path), "{path}");
        }
        assert!(!takes("/api/keys"), "a key is shown once, so its answer is not stored");
    }

    #[test]
    fn the_page_is_served_from_the_binary_and_speaks_to_this_server_only() {
        for name in ["index.html", "swagger-initializer.js", "swagger-ui-bundle.js", "swagger-ui.css"] {
            let response = file(name).unwrap();
            assert_eq!(response.headers()[header::CONTENT_SECURITY_POLICY], PAGE_POLICY, "{name}");
        }
        for absent in ["", "../Cargo.toml", "nothing.js"] {
            assert!(file(absent).is_ok_and(|_| absent.is_empty()) || file(absent).is_err(), "{absent}");
        }
    }
}
