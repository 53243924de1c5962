//! Tests of `/mcp/{bot}`, with a plain HTTP client and with the official clients.

mod approvals;
mod browser;
mod calls;
mod client;
mod conformance;
mod connect;
mod elicitation;
mod gateway;
mod hosts;
mod keys;
mod legacy;
mod lists;
mod oidc;
mod peers;
mod stateless;
mod streams;
mod tokens;

use anyhow::{Context, Result, ensure};
use reqwest::header::HeaderMap;
use reqwest::{Method, RequestBuilder};
use serde_json::{Map, Value, json};
use support::{Api, Server};

use crate::http::send;
use crate::world::{World, text};

const STATELESS: &str = "2026-07-28";
const ACCEPT: &str = "application/json, text/event-stream";

/// An MCP client that sends plain HTTP requests.
#[derive(Clone)]
struct Client {
    api: Api,
    path: String,
    /// The session, if the client has sent `initialize`.
    session: Option<String>,
}

impl Client {
    /// Creates a client for the bot, which `bot` names by its id or its name.
    fn new(api: &Api, bot: &str) -> Client {
        Client { api: api.clone(), path: format!("/mcp/{bot}"), session: None }
    }

    /// Starts a request without a body.
    fn bare(&self, method: Method) -> RequestBuilder {
        let request = self.api.request(method, &self.path).header("accept", ACCEPT);
        match &self.session {
            Some(session) => request.header("mcp-session-id", session),
            None => request,
        }
    }

    /// Creates a request of the stateless generation. Members of `params` can replace the standard ones.
    fn stateless(&self, method: &str, params: &Value) -> RequestBuilder {
        let mut meta = json!({
            "io.modelcontextprotocol/protocolVersion": STATELESS,
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let mut params: Map<String, Value> = params.as_object().cloned().unwrap_or_default();
        if let (Some(Value::Object(own)), Value::Object(meta)) = (params.remove("_meta"), &mut meta) {
            meta.extend(own);
        }
        params.insert("_meta".to_owned(), meta);
        let request = self.bare(Method::POST).header("mcp-protocol-version", STATELESS).header("mcp-method", method);
        let request = match params.get("name") {
            Some(name) => request.header("mcp-name", text(name)),
            None => request,
        };
        request.json(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
    }

    /// Sends a request of the stateless generation and returns its result.
    async fn ask(&self, method: &str, params: &Value) -> Result<Value> {
        result(send(self.stateless(method, params)).await?)
    }

    /// Calls a tool in the stateless generation and returns the result.
    async fn call(&self, tool: &str, arguments: &Value) -> Result<Value> {
        self.ask("tools/call", &json!({"name": tool, "arguments": arguments})).await
    }

    /// Sends `initialize` and remembers the session.
    async fn initialize(&mut self, revision: &str) -> Result<Value> {
        self.initialize_with(revision, &json!({})).await
    }

    /// Sends `initialize` with these capabilities and remembers the session.
    async fn initialize_with(&mut self, revision: &str, capabilities: &Value) -> Result<Value> {
        self.session = None;
        let client = json!({"name": "test", "version": "1"});
        let params = json!({"protocolVersion": revision, "capabilities": capabilities, "clientInfo": client});
        let answer = send(self.legacy(&json!(1), "initialize", &params)).await?;
        let session = answer.1.get("mcp-session-id").context("the answer to initialize has no session id")?;
        self.session = Some(session.to_str()?.to_owned());
        result(answer)
    }

    /// Creates a request of the generation that begins with `initialize`.
    fn legacy(&self, id: &Value, method: &str, params: &Value) -> RequestBuilder {
        self.bare(Method::POST).json(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
    }

    /// Sends a notification of that generation and returns the status.
    async fn notify(&self, method: &str, params: &Value) -> Result<u16> {
        let body = json!({"jsonrpc": "2.0", "method": method, "params": params});
        Ok(send(self.bare(Method::POST).json(&body)).await?.0)
    }
}

/// Returns the result of a JSON-RPC answer.
fn result((status, _, body): (u16, HeaderMap, Value)) -> Result<Value> {
    ensure!(status == 200 && body["result"].is_object(), "{status} {body}");
    Ok(body["result"].clone())
}

/// A server whose bot may use the test plugin to write the kind `bug`, and a client of the bot.
struct Scene {
    world: World,
    binding: support::Bound,
    client: Client,
}

impl Scene {
    async fn start() -> Result<Scene> {
        Scene::on(Server::prepare(&["test-echo"])?).await
    }

    async fn on(server: Server) -> Result<Scene> {
        // The tests of this module need no sandboxes.
        let world = World::on(server.argument("--sandbox").argument("off")).await?;
        let binding = world.grant("test-echo", &["*"], &json!({"kinds": ["bug"]})).await?;
        let key = world.api.new_key("bot", Some(&world.bot)).await?;
        let client = Client::new(&world.api.with_key(&key), &world.bot);
        Ok(Scene { world, binding, client })
    }

    /// Changes the list of the bot's tools.
    async fn change_list(&self) -> Result<()> {
        let permissions = json!({"permissions": {"allowed_tools": ["test_echo_run"]}, "role_id": null});
        self.world.rebind(&self.binding, &permissions).await
    }
}
