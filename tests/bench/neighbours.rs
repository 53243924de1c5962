//! Compares good calls alongside hostile calls with the same good calls alone. The hostile callers are another bot with
//! misbehaving plugins, and another tenant whose patterns, checks and changes require the maximum allowed work.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use support::{Build, Server};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::hostile::{self, Kind, Verdict};
use crate::load::{self, Connection, Load};
use crate::report::{Measure, Row};
use crate::sample::Rounds;
use crate::scene::{self, Bot, PLUGIN};
use crate::tenant;
use crate::upstream::Upstream;

/// The number of connections with good calls, a quarter of the full load.
const CONNECTIONS: usize = 16;
const BOTS: usize = 4;
const HOSTILE_CONNECTIONS: usize = 16;
/// The time until every hostile connection has its first call in flight. Most of these calls take less time.
const SETTLE: Duration = Duration::from_secs(1);
const GOAL_US: f64 = 30e3;

/// Measures good calls alongside hostile calls and returns the row.
pub async fn measure(rounds: usize, seconds: u64) -> Result<Row> {
    let mut place = Place::start(&Build::current()?).await?;
    let duration = Duration::from_secs(seconds);
    let (mut all, mut failed) = (Rounds::default(), 0);
    for _ in 0..rounds {
        let beside = place.beside(duration).await?;
        failed += beside.failed;
        all.add(beside.sample, load::run(&place.address, &place.requests, duration).await?);
    }
    place.server.stop().await?;
    let added_us = all.added_to_tail_us();
    let hostile_connections = HOSTILE_CONNECTIONS + place.tenant.len();
    let name =
        format!("{CONNECTIONS} connections beside {hostile_connections} hostile connections, some of a hostile tenant");
    let goal = format!("p99 <= 30 ms added (now {:.1}), no call fails ({failed} failed)", added_us / 1e3);
    let is_met = added_us <= GOAL_US && failed == 0;
    Ok(Row::reported((&name, "the same calls alone"), Measure::Tail, &all).with_goal(&goal, is_met))
}

/// A server with good and hostile bots, and a hostile tenant.
pub struct Place {
    pub server: Server,
    address: String,
    /// The good requests, one for each connection.
    requests: Vec<Vec<u8>>,
    hostile: Bot,
    /// The requests of the tenant, one for each connection.
    tenant: Vec<Vec<u8>>,
    /// The upstream of the hostile bot, which runs as long as the server.
    _upstream: Upstream,
}

impl Place {
    /// Starts a server of `build`.
    pub async fn start(build: &Build) -> Result<Place> {
        // The server logs errors only, because this process would keep the log lines of the guests in memory.
        let mut server = Server::prepare_from(build.clone(), &[PLUGIN])?.argument("--log=error");
        hostile::install(&server)?;
        server.launch().await?;
        let (api, address, upstream) = (server.api()?, scene::address(&server)?, Upstream::start().await?);
        let requests = scene::requests(&scene::bots(&api, BOTS).await?, CONNECTIONS)?;
        let hostile = hostile::bot(&api, "hostile", &upstream.url()).await?;
        let tenant = tenant::requests(&api).await?;
        load::run(&address, &requests, Duration::from_secs(1)).await?;
        Ok(Place { server, address, requests, hostile, tenant, _upstream: upstream })
    }

    /// Measures the good calls during hostile calls.
    pub async fn beside(&self, duration: Duration) -> Result<Load> {
        let attack = Attack::start(&self.address, &self.hostile, &self.tenant)?;
        tokio::time::sleep(SETTLE).await;
        let beside = load::count(&self.address, &self.requests, duration).await?;
        let hostile_calls = attack.stop().await?;
        ensure!(hostile_calls >= HOSTILE_CONNECTIONS, "only {hostile_calls} hostile calls were answered");
        Ok(beside)
    }
}

/// Connections that send hostile calls one after another.
struct Attack {
    connections: JoinSet<Result<usize>>,
    is_over: CancellationToken,
}

impl Attack {
    fn start(address: &str, bot: &Bot, tenant: &[Vec<u8>]) -> Result<Attack> {
        let kinds = hostile::kinds();
        let calls = kinds.into_iter().map(|kind| Ok((scene::call(bot, kind.tool, &kind.params)?, kind)));
        let calls: Arc<Vec<(Vec<u8>, Kind)>> = Arc::new(calls.collect::<Result<_>>()?);
        let is_over = CancellationToken::new();
        let mut connections = JoinSet::new();
        for number in 0..HOSTILE_CONNECTIONS {
            connections.spawn(attack(address.to_owned(), Arc::clone(&calls), number, is_over.clone()));
        }
        for request in tenant {
            connections.spawn(repeat(address.to_owned(), request.clone(), is_over.clone()));
        }
        Ok(Attack { connections, is_over })
    }

    /// Waits for the last calls and returns the number of calls.
    async fn stop(mut self) -> Result<usize> {
        self.is_over.cancel();
        let mut count = 0;
        while let Some(ended) = self.connections.join_next().await {
            count += ended.context("the task of a connection failed")??;
        }
        Ok(count)
    }
}

/// Sends the same request repeatedly, regardless of the answer.
async fn repeat(address: String, request: Vec<u8>, is_over: CancellationToken) -> Result<usize> {
    let mut connection = Connection::open(&address).await?;
    let mut count = 0;
    while !is_over.is_cancelled() {
        let answer = connection.ask(&request).await?;
        ensure!(!answer.is_success(), "a hostile request succeeded: {answer}");
        count += 1;
    }
    Ok(count)
}

/// Sends the calls one after another, starting with the call at `first`.
async fn attack(
    address: String,
    calls: Arc<Vec<(Vec<u8>, Kind)>>,
    first: usize,
    is_over: CancellationToken,
) -> Result<usize> {
    let mut connection = Connection::open(&address).await?;
    let mut count = 0;
    for (request, kind) in calls.iter().cycle().skip(first) {
        if is_over.is_cancelled() {
            break;
        }
        let answer = connection.ask(request).await?;
        if kind.judge(&answer) == Verdict::Wrong {
            bail!("{}: {answer}", kind.name);
        }
        count += 1;
    }
    Ok(count)
}
