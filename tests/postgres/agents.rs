//! Remote agents and two hosts. The connection of an agent belongs to one host; the other one lists its tools, and its
//! calls say which host has the agent.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{Agent, Api, Postgres, Server};

use super::VARIABLE;
use super::hosts::{api_of, beside};
use crate::http::made;
use crate::world::{World, eventually, text};

/// The time within which the tools of a killed host must vanish: its lease of 10 s, and time for a busy machine.
const LEASE_MAX: Duration = Duration::from_secs(14);

/// Two hosts on one database.
struct Hosts {
    postgres: Postgres,
    database: String,
    /// The first host, and a bot.
    world: World,
    second: Server,
    role: String,
}

impl Hosts {
    async fn start() -> Result<Hosts> {
        let postgres = Postgres::start(&["fsync=off"])?;
        let url = postgres.database()?;
        let server =
            || anyhow::Ok(Server::prepare(&[])?.variable(VARIABLE, &url).argument("--sandbox").argument("off"));
        let world = World::on(server()?).await?;
        let second = beside(&world.server, server()?).await?;
        let role = world.api.role("agents", &["*"]).await?;
        let database = url.split(['/', '?']).nth(3).context("the address names no database")?.to_owned();
        Ok(Hosts { postgres, database, world, second, role })
    }

    /// Creates a resource of type `agent` that the bot may use, and its key.
    async fn resource(&self, name: &str) -> Result<(String, String)> {
        let api = &self.world.api;
        let resource = json!({ "resource_type": "agent", "name": name });
        let resource = made(api, "/api/resources", &resource).await?;
        api.bind(&self.world.bot, &resource, &self.role, &json!({})).await?;
        let body = json!({ "name": name, "kind": "agent", "resource_id": resource });
        let (status, key) = api.post("/api/keys", &body).await?;
        ensure!(status == 201, "{status} {key}");
        Ok((resource, text(&key["key"]).to_owned()))
    }

    fn first(&self) -> Place<'_> {
        Place { server: &self.world.server, api: self.world.api.clone(), bot: &self.world.bot }
    }

    fn second(&self) -> Result<Place<'_>> {
        let api = api_of(&self.second, self.world.api.key())?;
        Ok(Place { server: &self.second, api, bot: &self.world.bot })
    }
}

/// One of the hosts, as the bot sees it.
struct Place<'h> {
    server: &'h Server,
    api: Api,
    bot: &'h str,
}

impl Place<'_> {
    /// Connects an agent with the tool `sum`. A host that does not know the key yet refuses it.
    async fn agent(&self, key: &str, instance: &str) -> Result<Agent> {
        let url = self.server.url().context("the server is not running")?;
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        let tools = json!([{"name": "sum", "description": "Adds numbers.", "input_schema": schema}]);
        let change = json!({ "instance": instance });
        eventually("the agent is connected", async || Ok(Agent::connect(url, key, &tools, &change).await.ok())).await
    }

    /// Waits until the bot has exactly these tools.
    async fn has(&self, tools: &[&str]) -> Result<Duration> {
        let began = Instant::now();
        let listed = async || {
            let (status, body) = self.api.get(&format!("/api/bots/{}/tools", self.bot)).await?;
            ensure!(status == 200, "{status} {body}");
            let items = body["items"].as_array().context("the list has no items")?;
            let names: Vec<&str> = items.iter().map(|tool| text(&tool["name"])).collect();
            Ok((names == tools).then_some(()))
        };
        eventually(&format!("the bot has the tools {tools:?}"), listed).await?;
        Ok(began.elapsed())
    }

    async fn call(&self, tool: &str, n: i64) -> Result<Value> {
        self.api.call(self.bot, tool, &json!({ "n": n })).await
    }

    /// Returns the id of the host.
    fn node(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.server.data_dir().join("node.id"))?.trim().to_owned())
    }

    /// Calls a tool and checks that the answer names the host that has the agent.
    async fn names(&self, tool: &str, other: &Place<'_>) -> Result<()> {
        let answer = self.call(tool, 1).await?;
        assert_eq!((text(&answer["status"]), text(&answer["code"])), ("error", "unavailable"), "{answer}");
        let message = text(&answer["message"]);
        assert!(message.contains("another host") && message.contains(&other.node()?), "{message}");
        let row = self.api.audit(text(&answer["request_id"])).await?;
        assert_eq!(row["code"], "unavailable", "{row}");
        Ok(())
    }
}

#[tokio::test]
async fn a_host_lists_the_tools_of_the_agents_of_another_one_and_says_where_they_are() -> Result<()> {
    let hosts = Hosts::start().await?;
    let (_, key) = hosts.resource("lab").await?;
    let (first, second) = (hosts.first(), hosts.second()?);
    let mut agent = first.agent(&key, "one").await?;
    first.has(&["lab__sum"]).await?;
    second.has(&["lab__sum"]).await?;
    second.names("lab__sum", &first).await?;
    // The agent gets the call of its own host, and has not got the other one.
    let (api, bot) = (first.api.clone(), first.bot.to_owned());
    let call = tokio::spawn(async move { api.call(&bot, "lab__sum", &json!({ "n": 7 })).await });
    let frame = agent.next_of("call").await?;
    assert_eq!(frame["params"], json!({ "n": 7 }));
    agent.succeed(&frame, &json!("here")).await?;
    assert_eq!(call.await??["data"], "here");

    // With an agent at each host, each host calls its own.
    let mut other = second.agent(&key, "two").await?;
    let (api, bot) = (second.api.clone(), second.bot.to_owned());
    let call = tokio::spawn(async move { api.call(&bot, "lab__sum", &json!({ "n": 8 })).await });
    let frame = other.next_of("call").await?;
    other.succeed(&frame, &json!("there")).await?;
    assert_eq!(call.await??["data"], "there");
    drop(agent);
    first.has(&["lab__sum"]).await?;
    eventually("the first host knows that only the other host has an agent", async || {
        let answer = first.call("lab__sum", 1).await?;
        Ok(text(&answer["message"]).contains(&second.node()?).then_some(()))
    })
    .await?;
    first.names("lab__sum", &second).await?;
    drop(other);
    for place in [&first, &second] {
        let took = place.has(&[]).await?;
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_tools_of_a_killed_host_vanish_with_its_lease() -> Result<()> {
    let mut hosts = Hosts::start().await?;
    let (_, key) = hosts.resource("lab").await?;
    let _agent = hosts.first().agent(&key, "one").await?;
    hosts.second()?.has(&["lab__sum"]).await?;
    hosts.world.server.kill().await?;
    let took = hosts.second()?.has(&[]).await?;
    assert!(took < LEASE_MAX, "{took:?}");
    let answer = hosts.second()?.call("lab__sum", 1).await?;
    assert_eq!(answer["status"], "permission_denied", "{answer}");

    // The rows of the killed process mean nothing after the restart of its host.
    hosts.world.server.launch().await?;
    hosts.world.api = hosts.world.server.api()?;
    let sql = "select count(*) from agent_presences";
    eventually("the host has deleted its rows", async || {
        Ok((hosts.postgres.sql(&hosts.database, sql)? == "0").then_some(()))
    })
    .await?;
    hosts.second()?.has(&[]).await?;
    let _agent = hosts.first().agent(&key, "one").await?;
    hosts.second()?.has(&["lab__sum"]).await?;

    // A host that stops in an orderly way tells the others.
    hosts.world.server.stop().await?;
    let took = hosts.second()?.has(&[]).await?;
    assert!(took < Duration::from_secs(5), "{took:?}");
    Ok(())
}

/// Rows that another program has written make no host list tools.
#[tokio::test]
async fn forged_agents_bring_no_tools() -> Result<()> {
    let hosts = Hosts::start().await?;
    let [(lab, lab_key), (plant, plant_key), (_, third_key)] =
        [hosts.resource("lab").await?, hosts.resource("plant").await?, hosts.resource("third").await?];
    let (first, second) = (hosts.first(), hosts.second()?);
    let _lab = first.agent(&lab_key, "lab").await?;
    let plant_agent = first.agent(&plant_key, "plant").await?;
    second.has(&["lab__sum", "plant__sum"]).await?;
    drop(plant_agent);
    second.has(&["lab__sum"]).await?;
    let forged = format!(
        "insert into agent_presences (node, resource_id, workspace_id, mac) \
         select node, '{plant}', workspace_id, mac from agent_presences where resource_id = '{lab}'"
    );
    hosts.postgres.sql(&hosts.database, &forged)?;
    // The next change makes the host read the rows.
    let _third = first.agent(&third_key, "third").await?;
    second.has(&["lab__sum", "third__sum"]).await?;
    let answer = second.call("plant__sum", 1).await?;
    assert_eq!(answer["status"], "permission_denied", "{answer}");
    let forged = "insert into agent_hosts (node, version, lease_until, mac) \
                  select 'forged', version, lease_until + 1000000, mac from agent_hosts limit 1";
    hosts.postgres.sql(&hosts.database, forged)?;
    eventually("the host reports the row", async || {
        Ok(hosts.second.output().contains("row agent_hosts/forged is not authentic").then_some(()))
    })
    .await
}
