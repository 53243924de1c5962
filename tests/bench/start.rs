//! From the start of the process until it is ready, with many plugins, beside a start with one.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use support::Server;

use crate::load::Connection;
use crate::report::{Measure, Row};
use crate::sample::{Rounds, Sample};
use crate::scene::PLUGIN;
use crate::{scene, variant};

const PLUGINS: usize = 100;
/// Each compiles every plugin.
const COLD_ROUNDS: usize = 2;
const POLL: Duration = Duration::from_millis(1);
const READY_MAX: Duration = Duration::from_secs(120);

/// The rows of a start.
pub async fn measure(rounds: usize) -> Result<Vec<Row>> {
    let (mut many, mut one, mut none) = (with_plugins(PLUGINS)?, with_plugins(1)?, with_plugins(0)?);
    // The first start makes keys and the database.
    for server in [&mut many, &mut one, &mut none] {
        start(server).await?;
    }
    let mut cold = Rounds::default();
    for _ in 0..COLD_ROUNDS {
        cold.add(cold_start(&mut many).await?, cold_start(&mut one).await?);
    }
    let (mut beside_one, mut beside_none) = (Rounds::default(), Rounds::default());
    for _ in 0..rounds {
        beside_one.add(start(&mut many).await?, start(&mut one).await?);
        let floor = start(&mut none).await?;
        beside_none.add(start(&mut many).await?, floor);
    }
    let names = |what: &str| (format!("start with {PLUGINS} plugins, {what}"), format!("one plugin, {what}"));
    let added_ms = beside_none.added_us() / 1e3;
    let goal = format!("<= 150 ms over an empty start (now {added_ms:.0})");
    let (name, floor) = names("warm cache");
    let warm = Row::reported((&name, &floor), Measure::Time, &beside_one).with_goal(&goal, added_ms <= 150.0);
    let (name, floor) = names("cold cache");
    Ok(vec![warm, Row::reported((&name, &floor), Measure::Time, &cold)])
}

fn with_plugins(count: usize) -> Result<Server> {
    let server = Server::prepare(&[])?;
    for number in 0..count {
        variant::install(&server, PLUGIN, &format!("{PLUGIN}-{number:03}"))?;
    }
    Ok(server)
}

async fn cold_start(server: &mut Server) -> Result<Sample> {
    let cache = server.data_dir().join("cache");
    fs::remove_dir_all(&cache).with_context(|| format!("cannot remove {}", cache.display()))?;
    start(server).await
}

/// Starts a server, waits until it is ready, and stops it.
async fn start(server: &mut Server) -> Result<Sample> {
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
