//! Compares calls of a tool with a cost with calls of the same tool without a cost.

use std::time::Duration;

use anyhow::Result;
use support::{Build, Server};

use crate::load;
use crate::report::{Measure, Row};
use crate::sample::Rounds;
use crate::scene::{self, Grant, NO_UPSTREAM, PLUGIN};

const CHARGED: &str = "test_echo_write";
const FREE: &str = "test_echo_again";
const CONNECTIONS: usize = 64;
const BOTS: usize = 4;

/// A server, and the requests for calls of its tools.
pub struct Charged {
    pub server: Server,
    pub address: String,
    /// The requests of the connections that call a tool with a cost.
    pub charged: Vec<Vec<u8>>,
    /// The requests of the connections that call the same tool without a cost.
    pub free: Vec<Vec<u8>>,
}

impl Charged {
    /// Starts a server of `build`.
    pub async fn start(build: &Build) -> Result<Charged> {
        let mut server = Server::prepare_from(build.clone(), &[PLUGIN])?;
        server.launch().await?;
        let (api, address) = (server.api()?, scene::address(&server)?);
        let mut bots = Vec::new();
        for number in 0..BOTS {
            bots.push(scene::bot(&api, &format!("charged-{number}"), NO_UPSTREAM, &[Grant::all(PLUGIN)]).await?);
        }
        let of = |tool: &str| -> Result<Vec<Vec<u8>>> {
            bots.iter().cycle().take(CONNECTIONS).map(|bot| scene::call(bot, tool, &scene::params())).collect()
        };
        let (charged, free) = (of(CHARGED)?, of(FREE)?);
        Ok(Charged { server, address, charged, free })
    }
}

/// Measures calls of a tool with a cost and returns the row.
pub async fn measure(rounds: usize, seconds: u64) -> Result<Row> {
    let Charged { mut server, address, charged, free } = Charged::start(&Build::current()?).await?;
    let duration = Duration::from_secs(seconds);
    let mut all = Rounds::default();
    for round in 0..=rounds {
        let (subject, floor) = if round % 2 == 0 {
            let floor = load::run(&address, &free, duration).await?;
            (load::run(&address, &charged, duration).await?, floor)
        } else {
            let subject = load::run(&address, &charged, duration).await?;
            (subject, load::run(&address, &free, duration).await?)
        };
        // The first round warms up the caches.
        if round > 0 {
            all.add(subject, floor);
        }
    }
    server.stop().await?;
    let names = ("call of a tool with a cost, 64 connections", "the same without a cost");
    Ok(Row::new(names, Measure::Rate, &all, ">= 0.9", |ratio, _| ratio >= 0.9))
}
