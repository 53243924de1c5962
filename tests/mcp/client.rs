//! MCP servers behind the host: resources of type `mcp`, against a scripted server, against server-everything, and against
//! servers that are written with the official SDKs.

mod bounds;
mod calls;
mod command;
mod credentials;
mod discovery;
mod everything;
mod functions;
mod hostile;
mod names;
mod oauth;
mod sdks;
mod sessions;
mod users;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{Api, FakeMcp, Generation, InProcess, Server};

use crate::http::{made, send};
use crate::world::{World, eventually, text};

/// A server whose bot may use all approved tools of the resource `notes`.
struct Behind {
    world: World,
    mcp: FakeMcp,
    resource: String,
    binding: support::Bound,
}

impl Behind {
    /// Starts a scripted server with these tools, and approves them all.
    async fn start(generation: Generation, tools: &[Value]) -> Result<Behind> {
        Behind::start_with(generation, tools, &json!({})).await
    }

    /// Like [`Behind::start`], with these members of the configuration.
    async fn start_with(generation: Generation, tools: &[Value], config: &Value) -> Result<Behind> {
        let behind = Behind::undecided(generation, tools, config).await?;
        behind.discovered().await?;
        behind.approve_all("write").await?;
        Ok(behind)
    }

    /// Starts a scripted server whose tools no admin has approved.
    async fn undecided(generation: Generation, tools: &[Value], config: &Value) -> Result<Behind> {
        let server = Server::prepare(&[])?.argument("--sandbox").argument("off");
        let world = World::on(server).await?;
        let mcp = FakeMcp::start(generation, tools).await?;
        let resource = resource(&world, "notes", &mcp.url(), config).await?;
        let role = world.api.role("everything", &["*"]).await?;
        let binding = world.api.bind(&world.bot, &resource, &role, &json!({})).await?;
        let binding = support::Bound { resource: resource.clone(), binding };
        Ok(Behind { world, mcp, resource, binding })
    }

    /// Runs a discovery and returns its result.
    async fn discover(&self) -> Result<Value> {
        discover(&self.world, &self.resource).await
    }

    /// Runs a discovery, which must succeed.
    async fn discovered(&self) -> Result<()> {
        let discovery = self.discover().await?;
        ensure!(discovery["status"] == "ok", "{discovery}");
        Ok(())
    }

    async fn pins(&self) -> Result<Vec<Value>> {
        pins(&self.world, &self.resource).await
    }

    /// Returns the original name and the status of each tool.
    async fn statuses(&self) -> Result<Vec<String>> {
        let pins = self.pins().await?;
        Ok(pins.iter().map(|pin| format!("{} {}", text(&pin["original_name"]), text(&pin["status"]))).collect())
    }

    /// Approves all tools with this effect.
    async fn approve_all(&self, effect: &str) -> Result<()> {
        approve_all(&self.world, &self.resource, effect).await
    }

    /// Calls a tool, and returns the answer with any status.
    async fn call(&self, tool: &str, params: &Value) -> Result<Value> {
        self.world.call(tool, params).await
    }

    /// Calls a tool that echoes its call. Returns the arguments that the server received.
    async fn echoed(&self, tool: &str, params: &Value) -> Result<Value> {
        let answer = self.call(tool, params).await?;
        ensure!(answer["status"] == "success", "{answer}");
        let echo: Value = serde_json::from_str(text(&answer["data"]["content"][0]["text"]))?;
        Ok(echo["arguments"].clone())
    }
}

/// A host in this process, whose clock the tests advance, with a bot that may use the tool `note` of a server.
struct Here {
    host: InProcess,
    api: Api,
    resource: String,
    bot: String,
}

impl Here {
    /// Discovers and approves the tool of the server at `url`.
    async fn start(host: InProcess, url: &str, config: &Value) -> Result<Here> {
        let api = host.api()?;
        let mut all = json!({ "url": url });
        all.as_object_mut().context("an object")?.extend(config.as_object().cloned().unwrap_or_default());
        let network = json!({ "allow_addresses": ["127.0.0.1/32"], "allow_http": true });
        let body = json!({ "resource_type": "mcp", "name": "notes", "config": all, "network": network });
        let resource = made(&api, "/api/resources", &body).await?;
        let bot = api.bot("tester").await?;
        let role = api.role("everything", &["*"]).await?;
        api.bind(&bot, &resource, &role, &json!({})).await?;
        let here = Here { host, api, resource, bot };
        let discovery = here.discover().await?;
        ensure!(discovery["status"] == "ok", "{discovery}");
        let path = format!("/api/resources/{}/tools", here.resource);
        let (_, pins) = here.api.get(&path).await?;
        let pin = pins["items"].get(0).context("the server declares a tool")?;
        let tools = json!({ "tools": [{ "original_name": pin["original_name"], "digest": pin["digest"] }] });
        let (status, body) = here.api.post(&format!("{path}/approve"), &tools).await?;
        ensure!(status == 200, "{status} {body}");
        Ok(here)
    }

    async fn discover(&self) -> Result<Value> {
        let path = format!("/api/resources/{}/tools/discover", self.resource);
        let (status, _, body) = send(self.api.request(reqwest::Method::POST, &path)).await?;
        ensure!(status == 200, "{status} {body}");
        Ok(body["discovery"].clone())
    }

    async fn call(&self) -> Result<Value> {
        self.api.call(&self.bot, "notes__note", &json!({})).await
    }
}

/// Creates a resource of type `mcp` that may reach servers on this machine.
pub(super) async fn resource(world: &World, name: &str, url: &str, config: &Value) -> Result<String> {
    let mut all = json!({ "url": url });
    all.as_object_mut().context("an object")?.extend(config.as_object().cloned().unwrap_or_default());
    let network = json!({ "allow_addresses": ["127.0.0.0/8"], "allow_http": true });
    let body = json!({ "resource_type": "mcp", "name": name, "config": all, "network": network });
    made(&world.api, "/api/resources", &body).await
}

pub(super) async fn discover(world: &World, resource: &str) -> Result<Value> {
    let path = format!("/api/resources/{resource}/tools/discover");
    let (status, _, body) = send(world.api.request(reqwest::Method::POST, &path)).await?;
    ensure!(status == 200, "{status} {body}");
    Ok(body["discovery"].clone())
}

pub(super) async fn pins(world: &World, resource: &str) -> Result<Vec<Value>> {
    let (status, body) = world.api.get(&format!("/api/resources/{resource}/tools")).await?;
    ensure!(status == 200, "{status} {body}");
    Ok(body["items"].as_array().context("the list has no items")?.clone())
}

/// Approves all tools that wait for a decision.
pub(super) async fn approve_all(world: &World, resource: &str, effect: &str) -> Result<()> {
    let pins = pins(world, resource).await?;
    let waits = |pin: &&Value| pin["status"] == "pending" || pin["status"] == "changed";
    let decision =
        |pin: &Value| json!({ "original_name": pin["original_name"], "digest": pin["digest"], "effect": effect });
    let tools: Vec<Value> = pins.iter().filter(waits).map(decision).collect();
    let path = format!("/api/resources/{resource}/tools/approve");
    let (status, body) = world.api.post(&path, &json!({ "tools": tools })).await?;
    ensure!(status == 200, "{status} {body}");
    Ok(())
}

/// Waits until the stored result of the last discovery fulfils a condition, and returns the result.
async fn until_discovery(world: &World, resource: &str, is_met: impl Fn(&Value) -> bool) -> Result<Value> {
    eventually("the discovery has ended", async || {
        let (_, body) = world.api.get(&format!("/api/resources/{resource}")).await?;
        Ok(Some(body["discovery"].clone()).filter(&is_met))
    })
    .await
}

/// Advances the clock of this process, with the host in it.
async fn advance(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Returns a tool with one optional text parameter.
fn tool(name: &str, description: &str) -> Value {
    json!({ "name": name, "description": description, "inputSchema": {
        "type": "object", "properties": { "text": { "type": "string" } },
    } })
}
