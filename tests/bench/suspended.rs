//! Measures the memory of a call that waits for its upstream, with the maximum number of waiting calls.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::{join_all, try_join_all};
use serde_json::json;
use support::{Build, Server};

use crate::load::Connection;
use crate::process::memory_bytes;
use crate::report::Row;
use crate::scene::{self, Grant, PLUGIN};
use crate::upstream::{HELD, OK, Upstream};

const TOOL: &str = "test_echo_fetch";
const CALLS: usize = 1_000;
/// The default limit of concurrent calls per bot.
const CALLS_OF_A_BOT: usize = 32;
const GOAL_BYTES: f64 = 100e3;
/// The maximum time until all calls are waiting. It is shorter than the 30 s after which calls end.
const GATHER_MAX: Duration = Duration::from_secs(25);
/// The number of rounds. The second round shows whether the first round leaked memory.
const ROUNDS: usize = 2;

/// Measures waiting calls and returns the row.
pub async fn measure() -> Result<Row> {
    let mut waiting = Waiting::start(&Build::current()?).await?;
    let held = waiting.held().await?;
    let idle = waiting.idle;
    waiting.server.stop().await?;
    let each = held.saturating_sub(idle) as f64 / CALLS as f64;
    let name = format!("{CALLS} calls that wait for their upstream, memory (Pss)");
    let goal = format!("<= 100 KB per call (now {:.1})", each / 1e3);
    Ok(Row::of_memory((&name, "idle"), held, idle).with_goal(&goal, each <= GOAL_BYTES))
}

/// A server and the requests for calls that wait for their upstream.
pub struct Waiting {
    pub server: Server,
    upstream: Upstream,
    requests: Vec<Vec<u8>>,
    /// The memory of the idle server, in bytes.
    pub idle: u64,
}

impl Waiting {
    /// Starts a server of `build`.
    pub async fn start(build: &Build) -> Result<Waiting> {
        let server = Server::prepare_from(build.clone(), &[PLUGIN])?;
        let mut server = server.argument(&format!("--max-calls-per-plugin={CALLS}"));
        server.launch().await?;
        let upstream = Upstream::start().await?;
        let (api, address, url) = (server.api()?, scene::address(&server)?, upstream.url());
        let mut bots = Vec::new();
        for number in 0..CALLS.div_ceil(CALLS_OF_A_BOT) {
            bots.push(scene::bot(&api, &format!("waits-{number}"), &url, &[Grant::all(PLUGIN)]).await?);
        }
        for bot in &bots {
            // Each bot makes a first call, so that the measured memory does not include allocations that happen only
            // once.
            let mut connection = Connection::open(&address).await?;
            let answer = connection.ask(&scene::call(bot, TOOL, &json!({ "path": OK }))?).await?;
            ensure!(answer.is_success(), "{answer}");
        }
        let idle = memory_bytes(server.pid().context("the server is not running")?)?;
        let requests = (0..CALLS).map(|number| scene::call(&bots[number % bots.len()], TOOL, &json!({ "path": HELD })));
        let requests = requests.collect::<Result<Vec<_>>>()?;
        Ok(Waiting { server, upstream, requests, idle })
    }

    /// Returns the memory of the server while all calls wait, in bytes: the maximum of all rounds.
    pub async fn held(&self) -> Result<u64> {
        let (address, pid) = (scene::address(&self.server)?, self.server.pid().context("the server is not running")?);
        let mut held = 0;
        for _ in 0..ROUNDS {
            held = held.max(round(&address, &self.requests, &self.upstream, pid).await?);
        }
        Ok(held)
    }
}

/// Starts all calls, waits until they all wait for the upstream, and returns the memory in use.
async fn round(address: &str, requests: &[Vec<u8>], upstream: &Upstream, pid: u32) -> Result<u64> {
    let mut connections = try_join_all(requests.iter().map(|_| Connection::open(address))).await?;
    try_join_all(connections.iter_mut().zip(requests).map(|(connection, request)| connection.send(request))).await?;
    let gathered = tokio::time::timeout(GATHER_MAX, upstream.holds(CALLS)).await;
    gathered.context("timed out waiting for all calls to reach the upstream")??;
    let held = memory_bytes(pid)?;
    upstream.release();
    for answer in join_all(connections.iter_mut().map(Connection::answer)).await {
        let answer = answer?;
        ensure!(answer.is_success(), "{answer}");
    }
    Ok(held)
}
