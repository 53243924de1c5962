//! Compares calls of a plugin that is replaced repeatedly with the same calls of a plugin that is not replaced.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use support::{Api, Build, Server};
use tokio_util::sync::CancellationToken;

use crate::load::{self, Load};
use crate::report::{Measure, Row};
use crate::sample::Rounds;
use crate::scene::PLUGIN;
use crate::{scene, variant};

const CONNECTIONS: usize = 32;
const BOTS: usize = 4;
/// The pause between the end of one reload and the start of the next.
const PAUSE: Duration = Duration::from_millis(100);

/// The choice of the next version.
#[derive(Clone, Copy)]
pub enum Next {
    /// Alternates between two versions that were compiled before the measurement.
    OneOfTwo,
    /// A new version that must be compiled.
    New,
}

/// Measures hot reload and returns the rows.
pub async fn measure(rounds: usize, seconds: u64) -> Result<Vec<Row>> {
    let mut reloads = Reloads::start(&Build::current()?).await?;
    let duration = Duration::from_secs(seconds);
    let mut rows = Vec::new();
    for next in [Next::OneOfTwo, Next::New] {
        let (mut all, mut failed, before) = (Rounds::default(), 0, reloads.count);
        for _ in 0..rounds {
            let loaded = reloads.during(duration, next).await?;
            failed += loaded.failed;
            all.add(loaded.sample, load::run(&reloads.address, &reloads.requests, duration).await?);
        }
        let done = reloads.count - before;
        ensure!(done >= rounds, "only {done} reloads were completed in {rounds} rounds");
        rows.push(row(next, done, failed, &all));
    }
    reloads.server.stop().await?;
    Ok(rows)
}

fn row(next: Next, reloads: usize, failed: usize, rounds: &Rounds) -> Row {
    let what = match next {
        Next::OneOfTwo => "two versions in turn",
        Next::New => "each compiled first",
    };
    let name = format!("{CONNECTIONS} connections, {reloads} hot reloads, {what}");
    let names = (name.as_str(), "the same load, no reload");
    let goal = format!("p99 <= 1.5 x, no call fails ({failed} failed)");
    match next {
        Next::OneOfTwo => Row::new(names, Measure::Tail, rounds, &goal, |ratio, _| ratio <= 1.5 && failed == 0),
        Next::New => Row::reported(names, Measure::Tail, rounds)
            .with_goal(&format!("no call fails ({failed} failed)"), failed == 0),
    }
}

/// A server whose plugin is replaced repeatedly.
pub struct Reloads {
    pub server: Server,
    api: Api,
    address: String,
    requests: Vec<Vec<u8>>,
    count: usize,
}

impl Reloads {
    /// Starts a server of `build`, and compiles two versions of the plugin.
    pub async fn start(build: &Build) -> Result<Reloads> {
        let mut server = Server::prepare_from(build.clone(), &[PLUGIN])?;
        server.launch().await?;
        let (api, address) = (server.api()?, scene::address(&server)?);
        let requests = scene::requests(&scene::bots(&api, BOTS).await?, CONNECTIONS)?;
        let mut reloads = Reloads { server, api, address, requests, count: 0 };
        reloads.once(Next::OneOfTwo).await?;
        reloads.once(Next::OneOfTwo).await?;
        load::run(&reloads.address, &reloads.requests, Duration::from_secs(1)).await?;
        Ok(reloads)
    }

    /// Loads the server, and puts one version after another in force until the load ends. The last reload is completed,
    /// because an aborted reload would continue during the measurement of the floor.
    pub async fn during(&mut self, duration: Duration, next: Next) -> Result<Load> {
        let (address, requests) = (self.address.clone(), self.requests.clone());
        let load = load::count(&address, &requests, duration);
        let is_over = CancellationToken::new();
        let load = async {
            let _over = is_over.clone().drop_guard();
            load.await
        };
        let reloads = async {
            while !is_over.is_cancelled() {
                self.once(next).await?;
            }
            anyhow::Ok(())
        };
        let (loaded, reloaded) = tokio::join!(load, reloads);
        reloaded?;
        loaded
    }

    /// Puts the next version in force, and pauses briefly.
    async fn once(&mut self, next: Next) -> Result<()> {
        self.count += 1;
        let patch = match next {
            Next::OneOfTwo => self.count % 2,
            Next::New => self.count + 2,
        };
        variant::release(&self.server, PLUGIN, patch)?;
        let (status, entry) = self.api.post(&format!("/api/plugins/{PLUGIN}/reload"), &Value::Null).await?;
        let is_in_force = entry["status"] == "loaded" && entry["version"] == format!("1.0.{patch}");
        ensure!(status == 200 && is_in_force, "the reload of version 1.0.{patch} failed: {status} {entry}");
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }
}
