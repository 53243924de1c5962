//! The real server under load, beside two floors, each a process of its own on the same disk and the same two cores.

use std::time::Duration;

use anyhow::Result;
use support::Server;

use crate::floor;
use crate::load;
use crate::report::{Measure, Row};
use crate::sample::Rounds;
use crate::scene::{self, PLUGIN};

const CONNECTIONS: usize = 64;
/// More than two, for a bot has 32 calls at once at most.
const BOTS: usize = 4;

const WITH_ROWS: &str = "axum + bare call + plain row, group commit, fsync";
const WITHOUT: &str = "axum + bare call, no database";

/// The rows of the call over HTTP.
pub async fn measure(rounds: usize, seconds: u64) -> Result<Vec<Row>> {
    let mut server = Server::prepare(&[PLUGIN])?;
    server.launch().await?;
    let address = scene::address(&server)?;
    let requests = scene::requests(&scene::bots(&server.api()?, BOTS).await?, CONNECTIONS)?;

    let wasm = server.plugins_dir().join(PLUGIN).join("plugin.wasm");
    let database = server.home().join("floor.db");
    let with_rows = floor::Running::start(&wasm, Some(&database)).await?;
    let without = floor::Running::start(&wasm, None).await?;

    let sides = [address.as_str(), &with_rows.address, &without.address];
    for side in sides {
        load::run(side, &requests, Duration::from_secs(1)).await?;
    }
    let duration = Duration::from_secs(seconds);
    let (mut beside_rows, mut beside_none) = (Rounds::default(), Rounds::default());
    for _ in 0..rounds {
        // The subject runs once beside each floor, so that both pairs are neighbours in time.
        beside_rows
            .add(load::run(sides[0], &requests, duration).await?, load::run(sides[1], &requests, duration).await?);
        let floor = load::run(sides[2], &requests, duration).await?;
        beside_none.add(load::run(sides[0], &requests, duration).await?, floor);
    }
    server.stop().await?;
    let name = "call over HTTP, 64 connections, row on disk";
    Ok(vec![
        Row::new((name, WITH_ROWS), Measure::Rate, &beside_rows, ">= 0.9", |ratio, _| ratio >= 0.9),
        Row::new((name, WITHOUT), Measure::Rate, &beside_none, ">= 0.6", |ratio, _| ratio >= 0.6),
    ])
}
