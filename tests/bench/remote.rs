//! Measures calls of tools that come from outside: of an MCP server, beside the request alone, and of a remote agent,
//! beside the call of a component.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use monstrum_types::BotId;
use serde_json::{Value, json};
use support::{Agent, Api, FakeMcp, Generation, Recorded};

use crate::governed::{Host, check};
use crate::machine::Machine;
use crate::report::{Measure, Row};
use crate::sample::{Rounds, Sample};
use crate::scene::{self, TOOL};

const ROUNDS: usize = 7;
const CALLS: usize = 300;
/// The maximum time until a bot has the tools of a connected agent, and the interval at which the list is read.
const LISTED_MAX: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);
const CLIENT_ADDED_MAX_US: f64 = 500.0;
const AGENT_ADDED_MAX_US: f64 = 300.0;
/// The names of the resources and of their tools.
const SERVER: &str = "notes";
const AGENT: &str = "lab";
const NAME: &str = "echo";

/// Measures both calls and returns the rows. `durable` is the row of the wait for the disk.
pub async fn measure(host: &Host, machine: &Machine, durable: &Row) -> Result<Vec<Row>> {
    let wait_us = durable.median_us().context("the row of the wait for the disk has no median time")?;
    let api = host.api()?;
    let bot = api.bot("outside").await?;
    let role = api.role("outside", &["*"]).await?;
    let id = bot.parse().map_err(|_| anyhow!("the id of the bot is invalid"))?;
    let mcp = FakeMcp::start(Generation::Stateless, &[tool("inputSchema")]).await?;
    add_server(&api, (&bot, &role), &mcp).await?;
    let client = client(host, id, &mcp, (machine, wait_us)).await?;
    let key = add_agent(&api, (&bot, &role)).await?;
    let connected = Agent::connect(host.url(), &key, &json!([tool("input_schema")]), &json!({})).await?;
    let echo = tokio::spawn(connected.echo());
    has_tool(&api, &bot, &format!("{AGENT}__{NAME}")).await?;
    let agent = agent(host, id, (machine, wait_us)).await?;
    echo.abort();
    Ok(vec![client, agent])
}

/// Returns a tool that takes any parameters.
fn tool(schema: &str) -> Value {
    json!({"name": NAME, "description": "Returns its parameters.", schema: {"type": "object", "additionalProperties": true}})
}

async fn made(api: &Api, path: &str, body: &Value) -> Result<Value> {
    let (status, answer) = api.post(path, body).await?;
    ensure!(status == 200 || status == 201, "POST {path}: {status} {answer}");
    Ok(answer)
}

fn id_of(answer: &Value) -> Result<String> {
    Ok(answer["id"].as_str().with_context(|| format!("the answer has no id: {answer}"))?.to_owned())
}

/// Creates the resource of the MCP server, and approves its tool.
async fn add_server(api: &Api, (bot, role): (&str, &str), mcp: &FakeMcp) -> Result<()> {
    let network = json!({"allow_addresses": ["127.0.0.0/8"], "allow_http": true});
    let config = json!({"url": mcp.url(), "definitions": "first"});
    let body = json!({"resource_type": "mcp", "name": SERVER, "config": config, "network": network});
    let resource = id_of(&made(api, "/api/resources", &body).await?)?;
    let path = format!("/api/resources/{resource}/tools/discover");
    let discovered: Value = api.request(reqwest::Method::POST, &path).send().await?.json().await?;
    ensure!(discovered["discovery"]["status"] == "ok", "{discovered}");
    api.bind(bot, &resource, role, &json!({})).await?;
    Ok(())
}

/// Creates the resource of the agent. Returns its key.
async fn add_agent(api: &Api, (bot, role): (&str, &str)) -> Result<String> {
    let resource = id_of(&made(api, "/api/resources", &json!({"resource_type": "agent", "name": AGENT})).await?)?;
    api.bind(bot, &resource, role, &json!({})).await?;
    let key = json!({"name": AGENT, "kind": "agent", "resource_id": resource});
    let key = made(api, "/api/keys", &key).await?;
    Ok(key["key"].as_str().context("the answer has no key")?.to_owned())
}

/// Waits until the bot has a tool.
async fn has_tool(api: &Api, bot: &str, tool: &str) -> Result<()> {
    let until = Instant::now() + LISTED_MAX;
    loop {
        let (_, list) = api.get(&format!("/api/bots/{bot}/tools")).await?;
        if list["items"].as_array().into_iter().flatten().any(|listed| listed["name"] == tool) {
            return Ok(());
        }
        ensure!(Instant::now() < until, "the bot does not get the tool {tool}");
        tokio::time::sleep(POLL).await;
    }
}

/// Compares a call of the MCP server with a POST of the same bytes.
async fn client(host: &Host, bot: BotId, mcp: &FakeMcp, (machine, wait_us): (&Machine, f64)) -> Result<Row> {
    let name = format!("{SERVER}__{NAME}");
    calls(host, bot, &name, 1).await?;
    let requests = mcp.requests();
    let sent = requests.iter().rev().find(|request| request.json()["method"] == "tools/call");
    let sent = sent.context("the server received no call")?.clone();
    let floor_client = reqwest::Client::builder().no_proxy().build()?;
    let mut rounds = Rounds::default();
    for round in 0..=ROUNDS {
        let (subject, floor) = if round % 2 == 0 {
            let floor = posts(&floor_client, &mcp.url(), &sent).await?;
            (calls(host, bot, &name, CALLS).await?, floor)
        } else {
            (calls(host, bot, &name, CALLS).await?, posts(&floor_client, &mcp.url(), &sent).await?)
        };
        // The first round opens the connections.
        if round > 0 {
            rounds.add(subject, floor);
        }
    }
    // Such a call writes two rows: the first row before the first byte is sent, the second row before the answer leaves.
    let (added, added_max) = (rounds.added_us(), machine.time_us(CLIENT_ADDED_MAX_US) + 2.0 * wait_us);
    let goal = format!("p50 <= {added_max:.0} us added, including two waits for rows (now {added:.0})");
    let names = ("call of a tool of a local MCP server", "a POST of the same bytes, with reqwest");
    Ok(Row::reported(names, Measure::Time, &rounds).with_goal(&goal, added <= added_max))
}

/// Compares a call of the agent with a call of a component whose row is on disk.
async fn agent(host: &Host, bot: BotId, (machine, wait_us): (&Machine, f64)) -> Result<Row> {
    let name = format!("{AGENT}__{NAME}");
    let mut rounds = Rounds::default();
    for round in 0..=ROUNDS {
        let (subject, floor) = if round % 2 == 0 {
            let floor = calls(host, host.bot(), TOOL, CALLS).await?;
            (calls(host, bot, &name, CALLS).await?, floor)
        } else {
            (calls(host, bot, &name, CALLS).await?, calls(host, host.bot(), TOOL, CALLS).await?)
        };
        // The first round fills the caches.
        if round > 0 {
            rounds.add(subject, floor);
        }
    }
    // The first row of a call of an agent is on disk before the agent receives the call. The component sends no requests,
    // so its call waits for its last row only.
    let (added, added_max) = (rounds.added_us(), machine.time_us(AGENT_ADDED_MAX_US) + wait_us);
    let goal = format!("p50 <= {added_max:.0} us added, including a wait for a row (now {added:.0})");
    let names = ("call of a tool of a remote agent, and back", "governed call, row on disk");
    Ok(Row::reported(names, Measure::Time, &rounds).with_goal(&goal, added <= added_max))
}

/// Calls a tool `count` times, one call after another.
async fn calls(host: &Host, bot: BotId, tool: &str, count: usize) -> Result<Sample> {
    let params = scene::params();
    let (began, mut times) = (Instant::now(), Vec::with_capacity(count));
    for _ in 0..count {
        let call = host.call_by(bot, tool, &params);
        let started = Instant::now();
        let answer = host.app().calls.run(call).await?;
        times.push(started.elapsed());
        check(&answer.outcome)?;
    }
    Ok(Sample::new(times, began.elapsed()))
}

/// Sends the bytes of a recorded request again and again.
async fn posts(client: &reqwest::Client, url: &str, sent: &Recorded) -> Result<Sample> {
    let mut headers = reqwest::header::HeaderMap::new();
    for (name, value) in &sent.headers {
        if name.starts_with("mcp-") || name == "content-type" || name == "accept" {
            headers.insert(reqwest::header::HeaderName::from_bytes(name.as_bytes())?, value.parse()?);
        }
    }
    let (began, mut times) = (Instant::now(), Vec::with_capacity(CALLS));
    for _ in 0..CALLS {
        let request = client.post(url).headers(headers.clone()).body(sent.body.clone());
        let started = Instant::now();
        let answer = request.send().await?;
        let status = answer.status();
        let body = answer.bytes().await?;
        times.push(started.elapsed());
        ensure!(status.is_success() && !body.is_empty(), "the server answered {status}");
    }
    Ok(Sample::new(times, began.elapsed()))
}
