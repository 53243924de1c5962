//! Measures the real server and two floors under load. Each of the three servers is a process on the same disk and the
//! same two cores.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use support::{Api, Server};

use crate::floor;
use crate::load;
use crate::machine::Machine;
use crate::process::cpu_time;
use crate::report::{Measure, Row};
use crate::sample::{Rounds, Sample};
use crate::scene::{self, Bot, PLUGIN, TOOL};

pub const CONNECTIONS: [usize; 2] = [64, 256];
/// The number of bots. One bot may have 32 concurrent calls.
pub const BOTS: usize = 10;
const CPU_GOAL_US: f64 = 95.0;

const LEAN: &str = "lean floor: axum + bare call + one raw row, group commit, fsync";
const WITHOUT: &str = "axum + bare call, no database";

/// A server process that answers calls: the real server or a floor.
pub struct Side {
    pub address: String,
    pub pid: u32,
}

/// The measurements of one side in one round.
pub struct Turn {
    pub sample: Sample,
    /// The CPU time of the process per call.
    pub cpu_us: f64,
}

impl Side {
    /// Loads the server, and measures its CPU time.
    pub async fn turn(&self, requests: &[Vec<u8>], duration: Duration) -> Result<Turn> {
        let before = cpu_time(self.pid)?;
        let sample = load::run(&self.address, requests, duration).await?;
        let cpu = cpu_time(self.pid)? - before;
        let calls = sample.per_second * duration.as_secs_f64();
        Ok(Turn { sample, cpu_us: cpu.as_secs_f64() * 1e6 / calls })
    }
}

/// Measures the call over HTTP and returns the rows.
pub async fn measure(rounds: usize, seconds: u64, machine: &Machine) -> Result<Vec<Row>> {
    let mut server = Server::prepare(&[PLUGIN])?;
    server.launch().await?;
    let api = server.api()?;
    let bots = scene::bots(&api, BOTS).await?;
    let echo = server.home().join("echo.json");
    write_echo(&api, &bots[0], &echo).await?;

    let wasm = server.plugins_dir().join(PLUGIN).join("plugin.wasm");
    let database = server.home().join("floor.db");
    let lean = floor::Running::start(&wasm, &echo, Some(&database)).await?;
    let without = floor::Running::start(&wasm, &echo, None).await?;
    let sides = [
        Side { address: scene::address(&server)?, pid: server.pid().context("the server is not running")? },
        Side { address: lean.address.clone(), pid: lean.pid },
        Side { address: without.address.clone(), pid: without.pid },
    ];

    let duration = Duration::from_secs(seconds);
    let mut rows = Vec::new();
    for connections in CONNECTIONS {
        let requests = scene::requests(&bots, connections)?;
        for side in &sides {
            load::run(&side.address, &requests, Duration::from_secs(1)).await?;
        }
        let (mut beside_lean, mut beside_none, mut cpu) = (Rounds::default(), Rounds::default(), Rounds::default());
        for round in 0..rounds {
            let [subject, lean, none] = turns(&sides, round, &requests, duration).await?;
            beside_lean.add(subject.sample, lean.sample);
            beside_none.add(subject.sample, none.sample);
            cpu.add(Sample::of_time_us(subject.cpu_us), Sample::of_time_us(machine.bare_us));
        }
        let name = format!("call over HTTP, {connections} connections, row on disk");
        rows.push(Row::new((&name, LEAN), Measure::Rate, &beside_lean, ">= 0.8", |ratio, _| ratio >= 0.8));
        rows.push(Row::new((&name, WITHOUT), Measure::Rate, &beside_none, ">= 0.65", |ratio, _| ratio >= 0.65));
        if connections == CONNECTIONS[0] {
            let goal = machine.time_us(CPU_GOAL_US);
            let names = ("CPU of the server for such a call", "bare call");
            let is_met = |_: f64, side: &Sample| side.median_us <= goal;
            rows.push(Row::new(names, Measure::Time, &cpu, &format!("<= {goal:.0} us"), is_met));
            rows.push(at_a_quarter(&sides, &requests, &beside_lean, rounds, duration).await?);
        }
    }
    server.stop().await?;
    Ok(rows)
}

/// Measures the three sides one after another. Each round begins with another side.
async fn turns(sides: &[Side; 3], round: usize, requests: &[Vec<u8>], duration: Duration) -> Result<[Turn; 3]> {
    let mut turns = [None, None, None];
    for place in 0..sides.len() {
        let number = (round + place) % sides.len();
        turns[number] = Some(sides[number].turn(requests, duration).await?);
    }
    let [Some(subject), Some(lean), Some(none)] = turns else { unreachable!("each side has had its turn") };
    Ok([subject, lean, none])
}

/// Returns the row of the latency at a quarter of the server's maximum throughput, with requests at fixed times.
async fn at_a_quarter(
    [server, lean, _]: &[Side; 3],
    requests: &[Vec<u8>],
    full: &Rounds,
    rounds: usize,
    duration: Duration,
) -> Result<Row> {
    let a_second = full.subject().per_second / 4.0;
    let mut all = Rounds::default();
    for round in 0..rounds {
        let of = |side: &Side| load::paced(side.address.clone(), requests.to_vec(), a_second, duration);
        let (subject, floor) = if round % 2 == 0 {
            let floor = of(lean).await?;
            (of(server).await?, floor)
        } else {
            (of(server).await?, of(lean).await?)
        };
        all.add(subject, floor);
    }
    let name = format!("latency of such a call at {a_second:.0} per second");
    Ok(Row::reported((&name, "lean floor"), Measure::Time, &all))
}

/// Writes the host's request to the component, from the echo of the component. The floors send the same request.
async fn write_echo(api: &Api, bot: &Bot, path: &Path) -> Result<()> {
    let answer = api.with_key(&bot.key).call(&bot.id, TOOL, &scene::params()).await?;
    let data: &Value = &answer["data"];
    fs::write(path, data.to_string()).with_context(|| format!("cannot write {}", path.display()))
}
