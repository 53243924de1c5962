//! Measures the time from the start of the process until the server is ready, with many plugins, compared with a start
//! without plugins.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use support::{Build, Server};

use crate::load::Connection;
use crate::machine::Machine;
use crate::report::{Measure, Row, time};
use crate::sample::{Rounds, Sample};
use crate::scene::PLUGIN;
use crate::{scene, variant};

const POLL: Duration = Duration::from_millis(1);
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
        let mut warm = Rounds::default();
        for round in 0..rounds {
            let (subject, floor) = if round % 2 == 0 {
                let floor = start(&mut none).await?;
                (start(&mut many).await?, floor)
            } else {
                (start(&mut many).await?, start(&mut none).await?)
            };
            warm.add(subject, floor);
        }
        let (added, added_max) = (warm.added_us(), machine.time_us(added_max_us));
        let goal = format!("<= {} added (now {})", time(added_max), time(added));
        let name = format!("start with {count} precompiled plugins");
        let row = Row::reported((&name, "start without plugins"), Measure::Time, &warm);
        rows.push(row.with_goal(&goal, added <= added_max));
    }
    Ok(rows)
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
