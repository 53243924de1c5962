//! Measures the time from the start of the process until the server is ready, with many plugins, a long audit and a large
//! policy, compared with a start without them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use support::{Build, Server};

use crate::kept::{self, Kept};
use crate::load::Connection;
use crate::machine::Machine;
use crate::report::{Measure, Row, time};
use crate::sample::{Rounds, Sample};
use crate::scene::PLUGIN;
use crate::{scene, variant};

const POLL: Duration = Duration::from_millis(1);
const ROWS_ADDED_MAX_US: f64 = 20e3;
const ALL_MAX_US: f64 = 3e6;
/// The maximum time of the set-up through the API. It is not scaled to the machine.
const SET_UP_MAX: Duration = Duration::from_secs(600);
const READY_MAX: Duration = Duration::from_secs(600);

/// Measures starts of the server and returns the rows.
pub async fn measure(rounds: usize, machine: &Machine) -> Result<Vec<Row>> {
    let build = Build::current()?;
    let mut none = with_plugins(&build, 0)?;
    // The first start creates the keys and the database.
    start(&mut none).await?;
    let mut rows = Vec::new();
    for (count, added_max_us) in [(100, 40e3), (1_000, 300e3)] {
        let mut many = with_plugins(&build, count)?;
        // The first start compiles every plugin.
        let cold = start(&mut many).await?;
        println!("    {count} plugins without precompiled components: {}", time(cold.median_us));
        let warm = alternately(&mut many, &mut none, rounds).await?;
        rows.push(row(&format!("start with {count} precompiled plugins"), &warm, machine.time_us(added_max_us)));
    }
    let mut audit = kept::audit().await?.server;
    // The first start may migrate the database.
    start(&mut audit).await?;
    let warm = alternately(&mut audit, &mut none, rounds).await?;
    rows.push(row(&format!("start with {} rows of the audit", kept::ROWS), &warm, machine.time_us(ROWS_ADDED_MAX_US)));
    Ok(rows)
}

/// Measures starts of a server with many plugins, a large policy and a long audit at the same time.
pub async fn measure_all(rounds: usize, machine: &Machine) -> Result<Row> {
    let mut none = with_plugins(&Build::current()?, 0)?;
    start(&mut none).await?;
    let Kept { server: mut all, created_in } = kept::all().await?;
    println!("    the plugins and the policy were set up in {created_in:.0?}");
    // The first start compiles every plugin if this build differs from the build that created the folder.
    let first = start(&mut all).await?;
    println!("    first start: {}", time(first.median_us));
    let warm = alternately(&mut all, &mut none, rounds).await?;
    let (ready_us, ready_max_us) = (warm.subject().median_us, machine.time_us(ALL_MAX_US));
    let name = format!(
        "start with {} plugins, {} bots x {} bindings, {} rows of the audit",
        kept::PLUGINS,
        kept::BOTS,
        kept::RESOURCES,
        kept::ROWS
    );
    let goal = format!("ready in <= {}, set up in <= {SET_UP_MAX:.0?} (now {created_in:.0?})", time(ready_max_us));
    let row = Row::reported((&name, "start without plugins"), Measure::Time, &warm);
    Ok(row.with_goal(&goal, ready_us <= ready_max_us && created_in <= SET_UP_MAX))
}

fn row(name: &str, warm: &Rounds, added_max_us: f64) -> Row {
    let added_us = warm.added_us();
    let goal = format!("<= {} added (now {})", time(added_max_us), time(added_us));
    let row = Row::reported((name, "start without plugins"), Measure::Time, warm);
    row.with_goal(&goal, added_us <= added_max_us)
}

/// Starts both servers in each round. Each round begins with the other server.
async fn alternately(subject: &mut Server, floor: &mut Server, rounds: usize) -> Result<Rounds> {
    let mut all = Rounds::default();
    for round in 0..rounds {
        let (subject, floor) = if round % 2 == 0 {
            let floor = start(floor).await?;
            (start(subject).await?, floor)
        } else {
            (start(subject).await?, start(floor).await?)
        };
        all.add(subject, floor);
    }
    Ok(all)
}

/// Prepares a server of `build` with `count` plugins.
pub fn with_plugins(build: &Build, count: usize) -> Result<Server> {
    let server = Server::prepare_from(build.clone(), &[])?;
    for number in 0..count {
        variant::install(&server, PLUGIN, &format!("{PLUGIN}-{number:04}"))?;
    }
    Ok(server)
}

/// Starts a server, waits until it is ready, and stops it.
pub async fn start(server: &mut Server) -> Result<Sample> {
    const READY: &[u8] = b"GET /readyz HTTP/1.1\r\nHost: bench\r\n\r\n";
    let began = Instant::now();
    server.launch_unready().await?;
    let mut connection = Connection::open(&scene::address(server)?).await?;
    while !connection.ask(READY).await?.has_status(200) {
        ensure!(began.elapsed() < READY_MAX, "the server is not ready after {READY_MAX:?}\n{}", server.output());
        tokio::time::sleep(POLL).await;
    }
    let took = began.elapsed();
    drop(connection);
    server.stop().await?;
    Ok(Sample::new(vec![took], took))
}
