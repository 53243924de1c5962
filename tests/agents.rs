//! Tests of remote agents: programs that connect to `/ws/agent` and bring the tools of a resource.

mod calls;
mod connections;
mod ends;
mod frames;
mod keys;
mod limits;
mod progress;
mod python;
mod tools;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{Agent, Server};
use tokio::task::JoinHandle;

use crate::http::made;
use crate::world::{World, eventually, text};

/// A server with a resource of type `agent` that a bot may use.
struct Scene {
    world: World,
    resource: String,
    /// The id of the agent key.
    key_id: String,
    key: String,
}

impl Scene {
    async fn start() -> Result<Scene> {
        Scene::with(&json!({})).await
    }

    /// Starts a scene whose resource has this configuration.
    async fn with(config: &Value) -> Result<Scene> {
        // The tests of this module need no sandboxes.
        Scene::on(Server::prepare(&[])?.argument("--sandbox").argument("off"), config).await
    }

    /// Returns whether the audit says that the data of the answer does not match the tool's output schema.
    async fn is_mismatch(&self, answer: &Value) -> Result<bool> {
        let row = self.world.audit_of(answer).await?;
        Ok(row["events"]
            .as_array()
            .is_some_and(|events| events.iter().any(|event| event["flags"] == "output_mismatch")))
    }

    async fn on(server: Server, config: &Value) -> Result<Scene> {
        let world = World::on(server).await?;
        let resource = json!({ "resource_type": "agent", "name": "lab", "config": config });
        let resource = made(&world.api, "/api/resources", &resource).await?;
        let role = world.api.role("agents", &["*"]).await?;
        world.api.bind(&world.bot, &resource, &role, &json!({})).await?;
        let (key_id, key) = new_key(&world, &resource, "lab").await?;
        Ok(Scene { world, resource, key_id, key })
    }

    fn url(&self) -> Result<String> {
        Ok(self.world.server.url().context("the server is not running")?.to_owned())
    }

    /// Connects an agent with these tools.
    async fn agent(&self, tools: &Value) -> Result<Agent> {
        self.agent_as(tools, &json!({})).await
    }

    /// Connects an agent whose hello has these members.
    async fn agent_as(&self, tools: &Value, change: &Value) -> Result<Agent> {
        Agent::connect(&self.url()?, &self.key, tools, change).await
    }

    /// Opens a socket and says nothing.
    async fn socket(&self) -> Result<Agent> {
        let opened = Agent::open(Agent::request(&self.url()?, &self.key)?).await?;
        opened.map_err(|status| anyhow::anyhow!("the server refused the socket with {status}"))
    }

    /// Waits until the bot has exactly these tools.
    async fn has(&self, tools: &[&str]) -> Result<()> {
        let wanted: Vec<String> = tools.iter().map(ToString::to_string).collect();
        let listed = async || Ok((self.world.tools().await? == wanted).then_some(()));
        eventually(&format!("the bot has the tools {tools:?}"), listed).await
    }

    /// Starts a call.
    fn call(&self, tool: &str, params: &Value) -> JoinHandle<Result<Value>> {
        let (api, bot, tool, params) =
            (self.world.api.clone(), self.world.bot.clone(), tool.to_owned(), params.clone());
        tokio::spawn(async move { api.call(&bot, &tool, &params).await })
    }
}

/// Creates an agent key. Returns its id and its text.
async fn new_key(world: &World, resource: &str, name: &str) -> Result<(String, String)> {
    let body = json!({ "name": name, "kind": "agent", "resource_id": resource });
    let (status, key) = world.api.post("/api/keys", &body).await?;
    ensure!(status == 201, "{status} {key}");
    Ok((text(&key["id"]).to_owned(), text(&key["key"]).to_owned()))
}

/// Returns a tool that adds numbers.
fn sum() -> Value {
    tool("sum", "Adds numbers.")
}

/// Returns a tool with the parameter `n`.
fn tool(name: &str, description: &str) -> Value {
    json!({
        "name": name, "description": description,
        "input_schema": {"type": "object", "properties": {"n": {"type": "integer"}}},
    })
}

/// Returns the status, the code and the message of an answer.
fn ending(answer: &Value) -> String {
    let data = if answer["data"].is_null() { String::new() } else { format!(" {}", answer["data"]) };
    format!("{} {} {}{data}", text(&answer["status"]), text(&answer["code"]), text(&answer["message"]))
}

/// Runs `wait` and returns how long it took.
async fn timed(wait: impl Future<Output = Result<()>>) -> Result<Duration> {
    let began = std::time::Instant::now();
    wait.await?;
    Ok(began.elapsed())
}
