//! Measures a bot with many plugins and resources: the list of its tools, and calls of all its tools one after another.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use serde_json::Value;
use support::{Build, Server};
use tokio::net::TcpListener;

use crate::load;
use crate::machine::Machine;
use crate::report::{Measure, Row};
use crate::sample::Rounds;
use crate::scene::{self, Grant, NO_UPSTREAM, PLUGIN};
use crate::variant;

const PLUGINS: usize = 100;
const RESOURCES: usize = 100;
pub const CONNECTIONS: usize = 16;
const LIST_ADDED_MAX_US: f64 = 1_000.0;

/// Measures a server with many plugins and resources and returns the rows.
pub async fn measure(rounds: usize, seconds: u64, machine: &Machine) -> Result<Vec<Row>> {
    let mut many = Many::start(&Build::current()?).await?;
    let (address, duration) = (&many.address, Duration::from_secs(seconds));
    let plugins = in_turn("plugins", address, &many.of_plugins, rounds, duration).await?;
    let list = list(&many, rounds, duration, machine).await?;
    let resources = "bots with one resource and one secret each";
    let resources = in_turn(resources, address, &many.of_resources, rounds, duration).await?;
    many.server.stop().await?;
    Ok(vec![list, plugins, resources])
}

/// A server with many plugins and resources, and the requests for it.
pub struct Many {
    pub server: Server,
    pub address: String,
    /// A call of each plugin.
    pub of_plugins: Vec<Vec<u8>>,
    /// A call of each of many bots, which have a resource and a secret of their own.
    pub of_resources: Vec<Vec<u8>>,
    /// The request for the list of a bot's tools, and the body of its answer.
    pub list: Vec<u8>,
    pub listed: Value,
}

impl Many {
    /// Starts a server of `build`.
    pub async fn start(build: &Build) -> Result<Many> {
        let mut server = Server::prepare_from(build.clone(), &[PLUGIN])?;
        let names: Vec<String> = (0..PLUGINS).map(|number| format!("{PLUGIN}-{number:03}")).collect();
        for name in &names {
            variant::install(&server, PLUGIN, name)?;
        }
        server.launch().await?;
        let (api, address) = (server.api()?, scene::address(&server)?);
        let grants: Vec<Grant<'_>> = names.iter().map(|name| Grant::all(name)).collect();
        let bot = scene::bot(&api, "many-plugins", NO_UPSTREAM, &grants).await?;
        let of_plugins =
            names.iter().map(|name| scene::call(&bot, &variant::tool(PLUGIN, name, scene::TOOL), &scene::params()));
        let of_plugins = of_plugins.collect::<Result<Vec<_>>>()?;
        let mut of_resources = Vec::new();
        for number in 0..RESOURCES {
            let bot = scene::bot(&api, &format!("secret-{number}"), NO_UPSTREAM, &[Grant::with_patterns()]).await?;
            of_resources.push(scene::request(&bot)?);
        }
        let path = format!("/api/bots/{}/tools", bot.id);
        let (status, listed) = api.with_key(&bot.key).get(&path).await?;
        ensure!(status == 200, "cannot list the tools: {status} {listed}");
        let list = format!("GET {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {}\r\n\r\n", bot.key);
        Ok(Many { server, address, of_plugins, of_resources, list: list.into_bytes(), listed })
    }

    /// Returns the number of listed tools.
    pub fn tools(&self) -> Result<usize> {
        Ok(self.listed["items"].as_array().context("the list of tools has no items")?.len())
    }
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
async fn list(many: &Many, rounds: usize, duration: Duration, machine: &Machine) -> Result<Row> {
    let floor = same_bytes(many.listed.to_string()).await?;
    let mut all = Rounds::default();
    for round in 0..=rounds {
        let subject = load::again(&many.address, &many.list, duration).await?;
        let floor = load::again(&floor, &many.list, duration).await?;
        if round > 0 {
            all.add(subject, floor);
        }
    }
    let (added, added_max) = (all.added_us(), machine.time_us(LIST_ADDED_MAX_US));
    let goal = format!("p50 <= {added_max:.0} us added (now {added:.0})");
    let name = format!("list of {} tools over HTTP", many.tools()?);
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
