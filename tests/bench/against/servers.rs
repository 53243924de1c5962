//! The rows that need a server: a server of each build under the load of this program. The servers are killed when both
//! sides are measured.

use std::time::Duration;

use anyhow::{Context, Result};
use support::{Build, Server};

use super::{Builds, Figure, Pairs};
use crate::charged::Charged;
use crate::http::{self, Side};
use crate::load;
use crate::many::{self, Many};
use crate::neighbours::Place;
use crate::postgres::Hosts;
use crate::reload::{Next, Reloads};
use crate::report::{Figures, Measure};
use crate::sample::Sample;
use crate::scene::{self, Bot, PLUGIN};
use crate::start::{self, with_plugins};
use crate::suspended::Waiting;

/// The share of the slower build's maximum rate at which latencies are measured.
const QUARTER: f64 = 0.25;

fn figure(row: &str, measure: Measure, sample: Sample) -> Figure {
    Figure { row: row.to_owned(), measure, figures: Figures::Times(sample) }
}

/// Prepares both sides of a comparison.
async fn both<S>(builds: &Builds, start: impl AsyncFn(&Build) -> Result<S>) -> Result<[S; 2]> {
    let own = start(&builds[0]).await.context("cannot start the servers of this build")?;
    let other = start(&builds[1]).await.context("cannot start the servers of the other revision")?;
    Ok([own, other])
}

/// Measures both sides in each round. Each round begins with another side, and the first round, which warms up the
/// caches, is not counted.
async fn in_turn<S>(
    sides: &mut [S; 2],
    rounds: usize,
    turn: impl AsyncFn(&mut S) -> Result<Vec<Figure>>,
) -> Result<Pairs> {
    let mut pairs = Pairs::default();
    for round in 0..=rounds {
        let mut figures = [Vec::new(), Vec::new()];
        for place in 0..sides.len() {
            let side = (round + place) % sides.len();
            let which = if side == 0 { "this build" } else { "the other revision" };
            figures[side] = turn(&mut sides[side]).await.with_context(|| format!("cannot measure {which}"))?;
        }
        if round > 0 {
            pairs.add(figures);
        }
    }
    Ok(pairs)
}

/// A server with bots, for calls over HTTP.
struct Called {
    _server: Server,
    side: Side,
    bots: Vec<Bot>,
}

impl Called {
    async fn start(build: &Build) -> Result<Called> {
        let mut server = Server::prepare_from(build.clone(), &[PLUGIN])?;
        server.launch().await?;
        let bots = scene::bots(&server.api()?, http::BOTS).await?;
        let pid = server.pid().context("the server is not running")?;
        let side = Side { address: scene::address(&server)?, pid };
        Ok(Called { _server: server, side, bots })
    }

    /// Loads the server at its maximum, and measures the rate and the CPU time of a call.
    async fn full_load(&self, duration: Duration) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        for connections in http::CONNECTIONS {
            let turn = self.side.turn(&scene::requests(&self.bots, connections)?, duration).await?;
            let name = format!("call over HTTP, {connections} connections, row on disk");
            figures.push(figure(&name, Measure::Rate, turn.sample));
            if connections == http::CONNECTIONS[0] {
                let cpu = Sample::of_time_us(turn.cpu_us);
                figures.push(figure("CPU of the server for such a call", Measure::Time, cpu));
            }
        }
        Ok(figures)
    }
}

/// Compares calls over HTTP: at the maximum rate, and at a quarter of the slower build's maximum rate.
pub async fn http(builds: &Builds, rounds: usize, duration: Duration) -> Result<Pairs> {
    let mut sides = both(builds, Called::start).await?;
    let mut pairs = in_turn(&mut sides, rounds, async |side| side.full_load(duration).await).await?;
    let rates = pairs.comparisons().find(|rates| rates.is_rate()).context("no rate was measured")?;
    let a_second = rates.own.min(rates.other) * QUARTER;
    let name = format!("latency of such a call at {a_second:.0} per second");
    let paced = in_turn(&mut sides, rounds, async |side| {
        let requests = scene::requests(&side.bots, http::CONNECTIONS[0])?;
        let sample = load::paced(side.side.address.clone(), requests, a_second, duration).await?;
        Ok(vec![figure(&name, Measure::Time, sample)])
    });
    pairs.extend(paced.await?);
    Ok(pairs)
}

/// Compares calls of a tool with a cost.
pub async fn charged(builds: &Builds, rounds: usize, duration: Duration) -> Result<Pairs> {
    let mut sides = both(builds, Charged::start).await?;
    in_turn(&mut sides, rounds, async |side| {
        let charged = load::run(&side.address, &side.charged, duration).await?;
        let free = load::run(&side.address, &side.free, duration).await?;
        Ok(vec![
            figure("call of a tool with a cost, 64 connections", Measure::Rate, charged),
            figure("the same without a cost", Measure::Rate, free),
        ])
    })
    .await
}

/// Compares servers with many plugins and resources.
pub async fn many(builds: &Builds, rounds: usize, duration: Duration) -> Result<Pairs> {
    let mut sides = both(builds, Many::start).await?;
    in_turn(&mut sides, rounds, async |side: &mut Many| {
        let list = load::again(&side.address, &side.list, duration).await?;
        let list_name = format!("list of {} tools over HTTP", side.tools()?);
        let plugins = load::in_turn(&side.address, &side.of_plugins, many::CONNECTIONS, duration).await?;
        let resources = load::in_turn(&side.address, &side.of_resources, many::CONNECTIONS, duration).await?;
        Ok(vec![
            figure(&list_name, Measure::Time, list),
            figure("calls of 100 plugins in turn", Measure::Time, plugins),
            figure("calls of 100 bots with one resource and one secret each in turn", Measure::Time, resources),
        ])
    })
    .await
}

/// Compares starts with precompiled plugins. The uncounted first round creates the database and compiles the plugins.
pub async fn start(builds: &Builds, rounds: usize) -> Result<Pairs> {
    let prepare = async |build: &Build| {
        [0, 100, 1_000].into_iter().map(|count| Ok((count, with_plugins(build, count)?))).collect::<Result<Vec<_>>>()
    };
    let mut sides = both(builds, prepare).await?;
    in_turn(&mut sides, rounds, async |servers| {
        let mut figures = Vec::new();
        for (count, server) in servers.iter_mut() {
            let name = format!("start with {count} precompiled plugins");
            figures.push(figure(&name, Measure::Time, start::start(server).await?));
        }
        Ok(figures)
    })
    .await
}

/// Compares calls during hot reloads.
pub async fn reload(builds: &Builds, rounds: usize, duration: Duration) -> Result<Pairs> {
    let mut sides = both(builds, Reloads::start).await?;
    in_turn(&mut sides, rounds, async |side| {
        let loaded = side.during(duration, Next::OneOfTwo).await?;
        Ok(vec![figure("calls during hot reloads, two versions in turn", Measure::Tail, loaded.sample)])
    })
    .await
}

/// Compares the memory of calls that wait for their upstream.
pub async fn suspended(builds: &Builds, rounds: usize) -> Result<Pairs> {
    let mut sides = both(builds, Waiting::start).await?;
    let memory = |row: &str, bytes: u64| Figure {
        row: row.to_owned(),
        measure: Measure::Memory,
        figures: Figures::Memory { kibibytes: bytes as f64 / 1024.0 },
    };
    in_turn(&mut sides, rounds, async |side| {
        let held = side.held().await?;
        Ok(vec![
            memory("1000 calls that wait for their upstream, memory (Pss)", held),
            memory("the same server, idle at first", side.idle),
        ])
    })
    .await
}

/// Compares good calls alongside hostile calls.
pub async fn neighbours(builds: &Builds, rounds: usize, duration: Duration) -> Result<Pairs> {
    let mut sides = both(builds, Place::start).await?;
    in_turn(&mut sides, rounds, async |side| {
        let beside = side.beside(duration).await?;
        Ok(vec![figure("16 connections beside hostile connections", Measure::Tail, beside.sample)])
    })
    .await
}

/// Compares one and two hosts on PostgreSQL. Each side has a PostgreSQL server of its own.
pub async fn postgres(builds: &Builds, rounds: usize, duration: Duration) -> Result<Pairs> {
    let mut sides = both(builds, Hosts::start).await?;
    in_turn(&mut sides, rounds, async |side| {
        Ok(vec![
            figure("call over HTTP, one host on PostgreSQL", Measure::Rate, side.load(1, duration).await?),
            figure("call over HTTP, two hosts on PostgreSQL", Measure::Rate, side.load(2, duration).await?),
        ])
    })
    .await
}
