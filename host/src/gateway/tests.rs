//! Tests of the routes through the router, with a real database in a temporary folder.

mod audit_export;
mod console_pages;
mod console_sessions;

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::response::Response;
use http::{Method, Request, StatusCode, header};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::boot::{self, Running};
use crate::config::{ServeFlags, Settings};
use crate::gateway;
use monstrum_core::app::App;

/// A server with an empty data folder. Requests go to its router directly, without a socket.
struct Server {
    running: Running,
    root: String,
    options: gateway::Options,
    _folder: tempfile::TempDir,
}

/// An answer.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: http::HeaderMap,
    body: Value,
}

impl Server {
    async fn start(public_docs: bool) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let flags = ServeFlags {
            listen: Some(([127, 0, 0, 1], 0).into()),
            data_dir: Some(folder.path().join("data")),
            public_docs: Some(public_docs),
            ..ServeFlags::default()
        };
        let settings = Settings::resolve(flags, folder.path()).unwrap();
        let running = boot::start(settings).await.unwrap();
        let root = running.admin_key.as_ref().unwrap().expose().to_owned();
        Server { running, root, options: gateway::Options { public_docs }, _folder: folder }
    }

    fn app(&self) -> &Arc<App> {
        &self.running.app
    }

    async fn respond(&self, request: Request<Body>) -> Response {
        let mcp = gateway::McpOptions {
            address: self.running.address,
            public_url: None,
            hosts: Vec::new(),
            origins: Vec::new(),
            stop: self.running.stop_handle(),
        };
        let console = gateway::ConsoleOptions {
            enabled: true,
            hosts: Vec::new(),
            public_url: None,
            address: self.running.address,
        };
        let work = (Arc::clone(&self.running.tasks), Arc::clone(&self.running.runs));
        gateway::router(Arc::clone(self.app()), work, self.options, mcp, console).oneshot(request).await.unwrap()
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let (parts, body) = self.respond(request).await.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Answer { status: parts.status, headers: parts.headers, body }
    }

    async fn ask(&self, key: &str, method: Method, path: &str, body: Option<Value>) -> Answer {
        self.ask_with(key, method, path, body, &[]).await
    }

    async fn ask_with(
        &self,
        key: &str,
        method: Method,
        path: &str,
        body: Option<Value>,
        headers: &[(&str, &str)],
    ) -> Answer {
        let request = self.request(key, method, path, headers);
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        self.send(request.body(body).unwrap()).await
    }

    fn request(&self, key: &str, method: Method, path: &str, headers: &[(&str, &str)]) -> http::request::Builder {
        let host = self.running.address.to_string();
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, host);
        if !key.is_empty() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.ask(&self.root, Method::POST, path, Some(body)).await
    }

    /// Creates a key of this kind in the default workspace.
    async fn key(&self, kind: &str, bot: Option<&str>) -> String {
        let mut body = json!({"name": format!("{kind} {}", monstrum_types::KeyId::new()), "kind": kind});
        if let Some(bot) = bot {
            body["bot_id"] = json!(bot);
        }
        self.post("/api/keys", body).await.body["key"].as_str().unwrap().to_owned()
    }

    async fn bot(&self, name: &str) -> String {
        let made = self.post("/api/bots", json!({"name": name})).await;
        assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
        made.body["id"].as_str().unwrap().to_owned()
    }
}

/// Returns every route of the description. Its path contains ids of objects that do not exist.
fn routes() -> Vec<(Method, String)> {
    let document: Value = serde_json::from_str(&gateway::description()).unwrap();
    let mut routes = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let path = path.replace("{name}", "absent").replace("{tool}", "absent");
        let path = path.replace("{chat_id}", "absent").replace("{app_id}", "absent");
        let path = ["{id}", "{bot}", "{binding_id}", "{request_id}"]
            .iter()
            .fold(path, |path, name| path.replace(name, "019a0000-0000-7000-8000-000000000001"));
        for method in item.as_object().unwrap().keys() {
            routes.push((method.to_uppercase().parse().unwrap(), path.clone()));
        }
    }
    routes
}

/// Returns whether a path needs no key: health checks, pages for a browser, and requests with a signature.
fn is_open(path: &str) -> bool {
    matches!(path, "/" | "/healthz" | "/readyz" | "/api/oauth/callback" | "/oauth/client.json")
        || ["/oauth/begin/", "/oauth/connect/", "/.well-known/", "/hooks/"].iter().any(|begin| path.starts_with(begin))
}

#[tokio::test]
async fn every_route_exists_and_refuses_who_has_no_key() {
    let server = Server::start(false).await;
    for (method, path) in routes() {
        let open = is_open(&path);
        for key in ["", "mk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"] {
            let answer = server.ask(key, method.clone(), &path, Some(json!({}))).await;
            let refused = answer.status == StatusCode::UNAUTHORIZED && answer.headers.contains_key("www-authenticate");
            assert!(refused || open, "{method} {path}: {answer:?}");
        }
        let answer = server.ask(&server.root, method.clone(), &path, Some(json!({}))).await;
        assert_ne!(answer.body["detail"], "no such route", "{method} {path}");
        assert!(!answer.status.is_server_error(), "{method} {path}: {answer:?}");
        assert!(answer.headers.contains_key("x-request-id"), "{method} {path}");
    }
}

#[tokio::test]
async fn a_bot_key_reaches_its_own_tools_and_nothing_else() {
    let server = Server::start(false).await;
    let (own, other) = (server.bot("own").await, server.bot("other").await);
    let key = server.key("bot", Some(&own)).await;
    for (method, path) in routes() {
        let is_document = matches!(path.as_str(), "/api/openapi.json" | "/api/manifest.schema.json" | "/docs");
        // These routes reach only the key itself and what belongs to its bot, which has nothing.
        let is_of_its_own =
            matches!(path.as_str(), "/api/me" | "/api/sandboxes" | "/api/approvals" | "/api/tasks" | "/api/sessions")
                || matches!(path.as_str(), "/api/runs" | "/v1/models")
                || ["/api/chats/", "/api/apps/"].iter().any(|begin| path.starts_with(begin));
        if is_document || is_of_its_own || is_open(&path) {
            continue;
        }
        let path = path.replace("019a0000-0000-7000-8000-000000000001", &other);
        // Below `/v1`, the body names the bot.
        let body =
            if path.starts_with("/v1/") { json!({"model": other, "messages": [], "input": "x"}) } else { json!({}) };
        let answer = server.ask(&key, method.clone(), &path, Some(body)).await;
        let refused =
            matches!(answer.status, StatusCode::FORBIDDEN | StatusCode::NOT_FOUND | StatusCode::UNPROCESSABLE_ENTITY);
        assert!(refused, "{method} {path}: {answer:?}");
    }
    let tools = server.ask(&key, Method::GET, &format!("/api/bots/{own}/tools"), None).await;
    assert_eq!((tools.status, tools.body), (StatusCode::OK, json!({"items": []})));
    let call = format!("/api/bots/{own}/tools/no_such_tool/call");
    let call = server.ask(&key, Method::POST, &call, Some(json!({"params": {"a": 1}}))).await;
    assert_eq!(call.status, StatusCode::OK, "{call:?}");
    assert_eq!(call.body["status"], "permission_denied");
    assert_eq!(call.body["code"], "denied");
    assert_eq!(call.body["request_id"], call.headers["x-request-id"].to_str().unwrap());
    let check = format!("/api/bots/{own}/tools/no_such_tool/check");
    let check = server.ask(&key, Method::POST, &check, Some(json!({}))).await;
    assert_eq!(check.body, json!({"decision": "deny", "message": call.body["message"]}));
}

#[tokio::test]
async fn a_call_is_in_the_audit_and_the_chain_verifies() {
    let server = Server::start(false).await;
    let bot = server.bot("own").await;
    let call = format!("/api/bots/{bot}/tools/..%2f%00x/call");
    let called = server.post(&call, json!({"params": {"a": [1]}, "task_id": "t"})).await;
    let request = called.body["request_id"].as_str().unwrap().to_owned();
    let mut shown = server.ask(&server.root, Method::GET, &format!("/api/audit/{request}"), None).await.body;
    let events = shown.as_object_mut().unwrap().remove("events").unwrap();
    assert_eq!(events.as_array().unwrap().len(), 1);
    assert_eq!(shown["params"], json!({"a": [1]}));
    assert_eq!((&shown["task_id"], &shown["status"]), (&json!("t"), &json!("permission_denied")));
    let list = server.ask(&server.root, Method::GET, "/api/audit?status=permission_denied&limit=1", None).await;
    assert_eq!(list.body["items"], json!([shown]));
    let export = server.ask(&server.root, Method::GET, "/api/audit/export", None).await;
    assert_eq!(export.headers[header::CONTENT_TYPE], "application/jsonl");
    assert_eq!(export.body, shown, "one line is one JSON value");
    // Creating the bot added two of the rows.
    let verified = server.ask(&server.root, Method::GET, "/api/audit/verify", None).await;
    assert_eq!(verified.body, json!({"valid": true, "rows": 3, "problems": []}));
    let admin = server.key("admin", None).await;
    let refused = server.ask(&admin, Method::GET, "/api/audit/verify", None).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_repeated_request_creates_once() {
    let server = Server::start(false).await;
    let key = [("idempotency-key", "one")];
    let create = async |path: &str, name: &str, key: &[(&str, &str)]| {
        server.ask_with(&server.root, Method::POST, path, Some(json!({"name": name})), key).await
    };
    let first = create("/api/bots", "a", &key).await;
    let again = create("/api/bots", "a", &key).await;
    assert_eq!((first.status, again.status), (StatusCode::CREATED, StatusCode::CREATED));
    assert_eq!(first.body, again.body);
    assert_eq!(again.headers["idempotent-replayed"], "true");
    assert_eq!(create("/api/bots", "b", &key).await.status, StatusCode::CONFLICT);
    // A request with the same key on another route or from another caller is a different request.
    assert_eq!(create("/api/roles", "a", &key).await.status, StatusCode::CREATED);
    let admin = server.key("admin", None).await;
    let other = server.ask_with(&admin, Method::POST, "/api/bots", Some(json!({"name": "c"})), &key).await;
    assert_eq!(other.status, StatusCode::CREATED);
    // Error answers are also stored and repeated.
    let taken = create("/api/bots", "a", &[("idempotency-key", "two")]).await;
    let taken_again = create("/api/bots", "a", &[("idempotency-key", "two")]).await;
    assert_eq!(taken.status, StatusCode::CONFLICT, "{taken:?}");
    assert_eq!(taken.body, taken_again.body);
    assert_eq!(taken.headers[header::CONTENT_TYPE], "application/problem+json");
    let bots = server.ask(&server.root, Method::GET, "/api/bots", None).await;
    assert_eq!(bots.body["items"].as_array().unwrap().len(), 2);
    let odd = create("/api/bots", "d", &[("idempotency-key", "a b")]).await;
    assert_eq!(odd.status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn the_last_root_key_stays_and_keys_know_their_place() {
    let server = Server::start(false).await;
    let keys = server.ask(&server.root, Method::GET, "/api/keys", None).await;
    let first = keys.body["items"][0]["id"].as_str().unwrap().to_owned();
    let path = format!("/api/keys/{first}");
    assert_eq!(server.ask(&server.root, Method::DELETE, &path, None).await.status, StatusCode::CONFLICT);
    let second = server.key("root", None).await;
    let admin = server.key("admin", None).await;
    let operator = server.key("operator", None).await;
    for (key, status) in [(&operator, StatusCode::FORBIDDEN), (&admin, StatusCode::NOT_FOUND)] {
        assert_eq!(server.ask(key, Method::DELETE, &path, None).await.status, status);
    }
    let root = Some(json!({"name": "r", "kind": "root"}));
    assert_eq!(server.ask(&admin, Method::POST, "/api/keys", root).await.status, StatusCode::FORBIDDEN);
    let listed = server.ask(&admin, Method::GET, "/api/keys", None).await;
    assert!(!listed.body.to_string().contains("root"), "{listed:?}");
    let rotated = server.ask(&second, Method::POST, &format!("{path}/rotate"), None).await;
    assert_eq!(rotated.body["id"], json!(first));
    assert_eq!(server.ask(&server.root, Method::GET, "/api/keys", None).await.status, StatusCode::UNAUTHORIZED);
    let new = rotated.body["key"].as_str().unwrap();
    assert_eq!(server.ask(new, Method::DELETE, &path, None).await.status, StatusCode::NO_CONTENT);
    assert_eq!(server.ask(new, Method::GET, "/api/keys", None).await.status, StatusCode::UNAUTHORIZED);
    for (body, path) in [
        (json!({"name": "x", "kind": "bot"}), "/bot_id"),
        (json!({"name": "x", "kind": "admin", "bot_id": "019a0000-0000-7000-8000-000000000001"}), "/bot_id"),
        (json!({"name": "x", "kind": "bot", "bot_id": "019a0000-0000-7000-8000-000000000001"}), "/bot_id"),
        (json!({"name": "", "kind": "admin"}), "/name"),
        (json!({"name": "x", "kind": "god"}), "/kind"),
    ] {
        let answer = server.ask(&second, Method::POST, "/api/keys", Some(body)).await;
        assert_eq!(answer.body["errors"][0]["path"], path, "{answer:?}");
    }
}

#[tokio::test]
async fn workspaces_are_walls() {
    let server = Server::start(false).await;
    let made = server.post("/api/workspaces", json!({"name": "acme"})).await;
    let acme = made.body["id"].as_str().unwrap().to_owned();
    let inside = [("monstrum-workspace", "acme")];
    let bot = json!({"name": "same"});
    let theirs = server.ask_with(&server.root, Method::POST, "/api/bots", Some(bot.clone()), &inside).await;
    assert_eq!(server.post("/api/bots", bot).await.status, StatusCode::CREATED, "names are unique in a workspace");
    let path = format!("/api/bots/{}", theirs.body["id"].as_str().unwrap());
    assert_eq!(server.ask(&server.root, Method::GET, &path, None).await.status, StatusCode::NOT_FOUND);
    assert_eq!(server.ask_with(&server.root, Method::GET, &path, None, &inside).await.status, StatusCode::OK);
    let admin = server.key("admin", None).await;
    let crossing = server.ask_with(&admin, Method::GET, &path, None, &inside).await;
    assert_eq!(crossing.status, StatusCode::NOT_FOUND);
    let delete =
        async |id: &str| server.ask(&server.root, Method::DELETE, &format!("/api/workspaces/{id}"), None).await.status;
    assert_eq!(delete(&acme).await, StatusCode::CONFLICT, "the workspace is not empty");
    server.ask_with(&server.root, Method::DELETE, &path, None, &inside).await;
    assert_eq!(delete(&acme).await, StatusCode::NO_CONTENT);
    let all = server.ask(&server.root, Method::GET, "/api/workspaces", None).await;
    let default = all.body["items"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(delete(&default).await, StatusCode::CONFLICT);
    let (path, other) = (format!("/api/workspaces/{default}"), json!({"name": "other"}));
    let renamed = server.ask(&server.root, Method::PATCH, &path, Some(other)).await;
    assert_eq!(renamed.status, StatusCode::CONFLICT);
}

#[tokio::test]
async fn an_operator_cannot_grant() {
    let server = Server::start(false).await;
    let operator = server.key("operator", None).await;
    let bot = server.bot("b").await;
    let bindings = format!("/api/bots/{bot}/resources");
    for (method, path, body) in [
        (Method::POST, "/api/bots", json!({"name": "x", "use_agent_sandbox": true})),
        (Method::PATCH, &format!("/api/bots/{bot}"), json!({"use_agent_sandbox": true})),
        (Method::POST, "/api/roles", json!({"name": "x"})),
        (Method::POST, &bindings, json!({"resource_id": bot, "permissions": {}})),
        (Method::POST, "/api/keys", json!({"name": "x", "kind": "operator"})),
        (Method::POST, "/api/resources", json!({"resource_type": "x", "name": "x", "config": {"a": 1}})),
        (Method::POST, "/api/resources", json!({"resource_type": "x", "name": "x", "network": {"allow_http": true}})),
        (Method::PATCH, &format!("/api/resources/{bot}"), json!({"network": null})),
        (Method::POST, "/api/workspaces", json!({"name": "x"})),
        (Method::POST, "/api/plugins/x/reload", json!({})),
    ] {
        let answer = server.ask(&operator, method.clone(), path, Some(body.clone())).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{method} {path} {body}");
    }
    let allowed = server.ask(&operator, Method::PATCH, &format!("/api/bots/{bot}"), Some(json!({"name": "c"}))).await;
    assert_eq!((allowed.status, &allowed.body["name"]), (StatusCode::OK, &json!("c")));
}

#[tokio::test]
async fn bad_requests_get_the_one_envelope() {
    let server = Server::start(false).await;
    let absent = server.ask(&server.root, Method::GET, "/nowhere", None).await;
    assert_eq!((absent.status, &absent.body["type"]), (StatusCode::NOT_FOUND, &json!("urn:monstrum:error:not_found")));
    let method = server.ask(&server.root, Method::PUT, "/api/bots", None).await;
    assert_eq!(method.body["type"], "urn:monstrum:error:method_not_allowed");
    assert!(method.headers[header::ALLOW].to_str().unwrap().contains("POST"), "{method:?}");
    let large = Some(json!({"name": "x".repeat(3 << 20)}));
    let large = server.ask(&server.root, Method::POST, "/api/bots", large).await;
    assert_eq!(large.status, StatusCode::PAYLOAD_TOO_LARGE);
    let unknown = server.post("/api/bots", json!({"name": "x", "colour": "red"})).await;
    assert_eq!(unknown.body["errors"][0]["path"], "/colour");
    assert_eq!(unknown.headers[header::CONTENT_TYPE], "application/problem+json");
    let untyped = server.post("/api/resources", json!({"resource_type": "x", "name": "x"})).await;
    assert_eq!(untyped.body["errors"][0]["path"], "/resource_type");
    let limit = server.ask(&server.root, Method::GET, "/api/bots?limit=0", None).await;
    assert_eq!(limit.status, StatusCode::UNPROCESSABLE_ENTITY);
    let outside = server.ask(&server.root, Method::POST, "/api/plugins/..%2fdata/reload", None).await;
    assert_eq!(outside.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn the_setting_opens_documents_and_nothing_else() {
    let server = Server::start(true).await;
    for path in ["/api/openapi.json", "/api/manifest.schema.json", "/metrics", "/docs/", "/docs/swagger-ui.css"] {
        assert_eq!(server.ask("", Method::GET, path, None).await.status, StatusCode::OK, "{path}");
    }
    assert_eq!(server.ask("", Method::GET, "/api/bots", None).await.status, StatusCode::UNAUTHORIZED);
    let closed = Server::start(false).await;
    for path in ["/api/openapi.json", "/metrics", "/docs", "/docs/", "/docs/swagger-ui.css"] {
        assert_eq!(closed.ask("", Method::GET, path, None).await.status, StatusCode::UNAUTHORIZED, "{path}");
        assert!(closed.ask(&closed.root, Method::GET, path, None).await.status.as_u16() < 400, "{path}");
    }
    assert_eq!(closed.ask("", Method::GET, "/healthz", None).await.body, json!("ok"));
}

#[tokio::test]
async fn a_body_that_never_comes_is_given_up() {
    let server = Server::start(false).await;
    // After this request, the start-up scan is complete.
    server.ask(&server.root, Method::GET, "/api/workspaces", None).await;
    let never = Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let request = Request::post("/api/workspaces").header(header::AUTHORIZATION, format!("Bearer {}", server.root));
    tokio::time::pause();
    let answer = server.send(request.body(never).unwrap()).await;
    assert_eq!(answer.status, StatusCode::REQUEST_TIMEOUT, "{answer:?}");
    assert_eq!(answer.body["detail"], "the body arrived too slowly; send at least 30720 bytes every 30 s");
    // A stranger's request to a webhook does not wait longer.
    let never = Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let answer = server.send(Request::post("/hooks/unknown").body(never).unwrap()).await;
    assert_eq!(answer.status, StatusCode::REQUEST_TIMEOUT, "{answer:?}");
}

#[tokio::test]
async fn an_operator_lowers_a_budget_and_does_not_lift_it() {
    let server = Server::start(false).await;
    let operator = server.key("operator", None).await;
    let bot = server.bot("spender").await;
    let path = format!("/api/bots/{bot}");
    let set = async |key: &str, budget: Value| {
        let answer = server.ask(key, Method::PATCH, &path, Some(json!({ "monthly_token_budget": budget }))).await;
        answer.status.as_u16()
    };
    assert_eq!(set(&operator, json!(100)).await, 200, "there was no limit");
    assert_eq!(set(&operator, json!(101)).await, 403);
    assert_eq!(set(&operator, Value::Null).await, 403);
    assert_eq!(set(&operator, json!(100)).await, 200);
    assert_eq!(set(&operator, json!(7)).await, 200);
    assert_eq!(set(&server.root, json!(101)).await, 200);
    assert_eq!(set(&server.root, Value::Null).await, 200);
}
