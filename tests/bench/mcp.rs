//! Measures `/mcp/{bot}` beside the same work over the HTTP API: calls, and the list of many tools.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::Server;

use crate::load::{self, Connection};
use crate::machine::Machine;
use crate::report::{Measure, Row};
use crate::sample::{Rounds, Sample};
use crate::scene::{self, Bot, Grant, NO_UPSTREAM, PLUGIN, TOOL};
use crate::variant;

const CONNECTIONS: usize = 64;
const BOTS: usize = 10;
/// Each plugin has eight tools.
const PLUGINS: usize = 125;
const TOOLS: usize = 8 * PLUGINS;
const LIST_MAX_US: f64 = 5_000.0;
const REVISION: &str = "2026-07-28";

/// Measures calls and lists and returns the rows.
pub async fn measure(rounds: usize, seconds: u64, machine: &Machine) -> Result<Vec<Row>> {
    let duration = Duration::from_secs(seconds);
    Ok(vec![calls(rounds, duration).await?, lists(rounds, duration, machine).await?])
}

/// Returns the text of a message to the bot.
fn message(address: &str, bot: &Bot, method: &str, params: Value) -> Result<Vec<u8>> {
    let name = params.get("name").and_then(Value::as_str).map(|name| format!("Mcp-Name: {name}\r\n"));
    let mut params = params;
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": REVISION,
        "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let head = format!(
        "POST /mcp/{} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\nAccept: application/json, \
         text/event-stream\r\nContent-Type: application/json\r\nMcp-Protocol-Version: {REVISION}\r\nMcp-Method: \
         {method}\r\n{}Content-Length: {}\r\n\r\n",
        bot.id,
        bot.key,
        name.unwrap_or_default(),
        body.len()
    );
    Ok((head + &body).into_bytes())
}

/// Compares `tools/call` with the same call over the HTTP API.
async fn calls(rounds: usize, duration: Duration) -> Result<Row> {
    let mut server = Server::prepare(&[PLUGIN])?;
    server.launch().await?;
    let address = scene::address(&server)?;
    let bots = scene::bots(&server.api()?, BOTS).await?;
    let over_http = scene::requests(&bots, CONNECTIONS)?;
    let params = || json!({"name": TOOL, "arguments": scene::params()});
    let over_mcp = bots.iter().cycle().take(CONNECTIONS).map(|bot| message(&address, bot, "tools/call", params()));
    let over_mcp = over_mcp.collect::<Result<Vec<_>>>()?;
    let mut all = Rounds::default();
    for round in 0..=rounds {
        let subject = load::run(&address, &over_mcp, duration);
        let floor = load::run(&address, &over_http, duration);
        let (subject, floor) = if round % 2 == 0 {
            let floor = floor.await?;
            (subject.await?, floor)
        } else {
            (subject.await?, floor.await?)
        };
        // The first round fills the caches.
        if round > 0 {
            all.add(subject, floor);
        }
    }
    server.stop().await?;
    let names = ("tools/call over /mcp, 64 connections", "the same call over the HTTP API");
    Ok(Row::new(names, Measure::Time, &all, "p50 <= 1.25 x", |ratio, _| ratio <= 1.25))
}

/// Compares all pages of `tools/list` with the list of the HTTP API.
async fn lists(rounds: usize, duration: Duration, machine: &Machine) -> Result<Row> {
    let mut server = Server::prepare(&[PLUGIN])?;
    let names: Vec<String> = (0..PLUGINS).map(|number| format!("{PLUGIN}-{number:03}")).collect();
    for name in &names {
        variant::install(&server, PLUGIN, name)?;
    }
    server.launch().await?;
    let address = scene::address(&server)?;
    let grants: Vec<Grant<'_>> = names.iter().map(|name| Grant::all(name)).collect();
    let bot = scene::bot(&server.api()?, "many-tools", NO_UPSTREAM, &grants).await?;
    let pages = pages(&address, &bot).await?;
    let path = format!("/api/bots/{}/tools", bot.id);
    let over_http = format!("GET {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {}\r\n\r\n", bot.key);
    let mut all = Rounds::default();
    for round in 0..=rounds {
        let subject = in_pages(&address, &pages, duration).await?;
        let floor = load::again(&address, over_http.as_bytes(), duration).await?;
        if round > 0 {
            all.add(subject, floor);
        }
    }
    server.stop().await?;
    let goal = machine.time_us(LIST_MAX_US);
    let name = format!("list of {TOOLS} tools over /mcp, {} pages", pages.len());
    let is_met = |_: f64, subject: &Sample| subject.median_us <= goal;
    let names = (name.as_str(), "the list of the HTTP API");
    Ok(Row::new(names, Measure::Time, &all, &format!("p50 <= {goal:.0} us"), is_met))
}

/// Returns the requests for all pages of the list, and checks that the pages contain all tools.
async fn pages(address: &str, bot: &Bot) -> Result<Vec<Vec<u8>>> {
    let (mut requests, mut count, mut cursor) = (Vec::new(), 0, None);
    let mut connection = Connection::open(address).await?;
    loop {
        let params = cursor.map_or_else(|| json!({}), |cursor: Value| json!({ "cursor": cursor }));
        let request = message(address, bot, "tools/list", params)?;
        let answer = connection.ask(&request).await?;
        ensure!(answer.has_status(200), "{answer}");
        let page: Value = serde_json::from_slice(answer.body()).context("the page is not JSON")?;
        count += page["result"]["tools"].as_array().context("the page has no tools")?.len();
        requests.push(request);
        match page["result"].get("nextCursor") {
            Some(next) => cursor = Some(next.clone()),
            None => break,
        }
    }
    ensure!(count == TOOLS, "the list has {count} tools");
    Ok(requests)
}

/// Requests all pages again and again over one connection, and returns the times of whole lists.
async fn in_pages(address: &str, pages: &[Vec<u8>], duration: Duration) -> Result<Sample> {
    let mut connection = Connection::open(address).await?;
    let (began, mut times) = (Instant::now(), Vec::new());
    while began.elapsed() < duration {
        let sent = Instant::now();
        for page in pages {
            let answer = connection.ask(page).await?;
            ensure!(answer.has_status(200), "{answer}");
        }
        times.push(sent.elapsed());
    }
    Ok(Sample::new(times, began.elapsed()))
}
