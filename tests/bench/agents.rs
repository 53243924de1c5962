//! Measures the memory of a server with many connected agents.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use serde_json::{Value, json};
use support::{Agent, Api, Server};

use crate::process::memory_bytes;
use crate::report::Row;

const RESOURCES: usize = 125;
/// The maximum number of agents of a resource.
const AGENTS_OF_A_RESOURCE: usize = 8;
const AGENTS: usize = RESOURCES * AGENTS_OF_A_RESOURCE;
const GOAL_KIB: f64 = 64.0;
/// The time after which the server has renewed its policy and freed what it needed for it.
const SETTLED: Duration = Duration::from_secs(3);

/// Measures connected agents and returns the row.
pub async fn measure() -> Result<Row> {
    let server = Server::prepare(&[])?.argument("--sandbox").argument("off");
    let mut server = server.argument("--max-connections-per-address=0");
    server.launch().await?;
    let (api, url) = (server.api()?, server.url().context("the server is not running")?.to_owned());
    let pid = server.pid().context("the server is not running")?;
    let mut keys = Vec::with_capacity(RESOURCES);
    for number in 0..RESOURCES {
        keys.push(key(&api, number).await?);
    }
    // Each resource has had an agent before, so that the measured memory does not include its tools.
    drop(connected(&url, &keys, 1).await?);
    tokio::time::sleep(SETTLED).await;
    let idle = memory_bytes(pid)?;
    let agents = connected(&url, &keys, AGENTS_OF_A_RESOURCE).await?;
    ensure!(agents.len() == AGENTS, "{} agents are connected", agents.len());
    tokio::time::sleep(SETTLED).await;
    let held = memory_bytes(pid)?;
    drop(agents);
    server.stop().await?;
    let each = held.saturating_sub(idle) as f64 / 1024.0 / AGENTS as f64;
    let name = format!("{AGENTS} connected agents, memory (Pss)");
    let goal = format!("<= {GOAL_KIB:.0} KiB per agent (now {each:.1})");
    Ok(Row::of_memory((&name, "idle"), held, idle).with_goal(&goal, each <= GOAL_KIB))
}

/// Creates a resource of type `agent`, and returns its key.
async fn key(api: &Api, number: usize) -> Result<String> {
    let name = format!("lab_{number}");
    let (status, resource) = api.post("/api/resources", &json!({"resource_type": "agent", "name": name})).await?;
    ensure!(status == 201, "{status} {resource}");
    let key = json!({"name": name, "kind": "agent", "resource_id": resource["id"]});
    let (status, key) = api.post("/api/keys", &key).await?;
    ensure!(status == 201, "{status} {key}");
    Ok(key["key"].as_str().context("the answer has no key")?.to_owned())
}

/// Connects `count` agents of each resource.
async fn connected(url: &str, keys: &[String], count: usize) -> Result<Vec<Agent>> {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}});
    let tool = |name: &str| json!({"name": name, "description": "Does something.", "input_schema": schema});
    let tools: Value = ["one", "two", "three"].into_iter().map(tool).collect();
    let mut agents = Vec::with_capacity(keys.len() * count);
    for number in 0..count {
        let change = json!({"instance": number.to_string()});
        agents.extend(try_join_all(keys.iter().map(|key| Agent::connect(url, key, &tools, &change))).await?);
    }
    Ok(agents)
}
