//! Measures a bot with many plugins and resources: the list of its tools, and calls of all its tools one after another.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use support::{Api, Server};
use tokio::net::TcpListener;

use crate::load;
use crate::machine::Machine;
use crate::report::{Measure, Row};
use crate::sample::Rounds;
use crate::scene::{self, Bot, Grant, NO_UPSTREAM, PLUGIN};
use crate::variant;

const PLUGINS: usize = 100;
const RESOURCES: usize = 100;
const CONNECTIONS: usize = 16;
const LIST_ADDED_MAX_US: f64 = 1_000.0;

/// Measures a server with many plugins and resources and returns the rows.
pub async fn measure(rounds: usize, seconds: u64, machine: &Machine) -> Result<Vec<Row>> {
    let mut server = Server::prepare(&[PLUGIN])?;
    let names: Vec<String> = (0..PLUGINS).map(|number| format!("{PLUGIN}-{number:03}")).collect();
    for name in &names {
        variant::install(&server, PLUGIN, name)?;
    }
    server.launch().await?;
    let (api, address) = (server.api()?, scene::address(&server)?);
    let duration = Duration::from_secs(seconds);

    let grants: Vec<Grant<'_>> = names.iter().map(|name| Grant::all(name)).collect();
    let bot = scene::bot(&api, "many-plugins", NO_UPSTREAM, &grants).await?;
    let calls = names.iter().map(|name| scene::call(&bot, &variant::tool(PLUGIN, name, scene::TOOL), &scene::params()));
    let calls = calls.collect::<Result<Vec<_>>>()?;
    let plugins = in_turn("plugins", &address, &calls, rounds, duration).await?;
    let list = list(&api, &address, &bot, rounds, duration, machine).await?;

    let mut resources = Vec::new();
    for number in 0..RESOURCES {
        let bot = scene::bot(&api, &format!("secret-{number}"), NO_UPSTREAM, &[Grant::with_patterns()]).await?;
        resources.push(scene::request(&bot)?);
    }
    let resources =
        in_turn("bots with one resource and one secret each", &address, &resources, rounds, duration).await?;
    server.stop().await?;
    Ok(vec![list, plugins, resources])
}

/// Compares calls of different tools with repetitions of the first of these calls.
async fn in_turn(what: &str, address: &str, calls: &[Vec<u8>], rounds: usize, duration: Duration) -> Result<Row> {
    let one = &calls[..1];
    let mut all = Rounds::default();
    for round in 0..=rounds {
        let all_calls = load::in_turn(address, calls, CONNECTIONS, duration);
        let one_call = load::in_turn(address, one, CONNECTIONS, duration);
        let (subject, floor) = if round % 2 == 0 {
            let floor = one_call.await?;
            (all_calls.await?, floor)
        } else {
            (all_calls.await?, one_call.await?)
        };
        // The first round loads the components and fills the caches.
        if round > 0 {
            all.add(subject, floor);
        }
    }
    let name = format!("calls of {} {what} in turn", calls.len());
    Ok(Row::new((&name, "the first of these calls repeated"), Measure::Time, &all, "p50 <= 1.15 x", |ratio, _| {
        ratio <= 1.15
    }))
}

/// Compares the list of a bot's tools over one connection with a server that returns the same bytes.
async fn list(
    api: &Api,
    address: &str,
    bot: &Bot,
    rounds: usize,
    duration: Duration,
    machine: &Machine,
) -> Result<Row> {
    let path = format!("/api/bots/{}/tools", bot.id);
    let (status, body) = api.with_key(&bot.key).get(&path).await?;
    ensure!(status == 200, "cannot list the tools: {status} {body}");
    let count = body["items"].as_array().context("the list of tools has no items")?.len();
    let floor = same_bytes(body.to_string()).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {}\r\n\r\n", bot.key);
    let mut all = Rounds::default();
    for round in 0..=rounds {
        let subject = load::again(address, request.as_bytes(), duration).await?;
        let floor = load::again(&floor, request.as_bytes(), duration).await?;
        if round > 0 {
            all.add(subject, floor);
        }
    }
    let (added, added_max) = (all.added_us(), machine.time_us(LIST_ADDED_MAX_US));
    let goal = format!("p50 <= {added_max:.0} us added (now {added:.0})");
    let name = format!("list of {count} tools over HTTP");
    let row = Row::reported((&name, "axum that serves the same bytes"), Measure::Time, &all);
    Ok(row.with_goal(&goal, added <= added_max))
}

/// Starts a server that answers every request with `body`, and returns its address.
async fn same_bytes(body: String) -> Result<String> {
    let body = bytes::Bytes::from(body);
    let router =
        Router::new().fallback(get(move || std::future::ready(([(CONTENT_TYPE, "application/json")], body.clone()))));
    let listener = TcpListener::bind("127.0.0.1:0").await.context("the floor cannot listen on a port")?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}
