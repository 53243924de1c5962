//! Measures the time that a call waits until its row is on disk, at a quarter of the host's maximum load. The time
//! starts when the row is queued and ends when the answer may leave.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::governed::{Host, check};
use crate::machine::Machine;
use crate::report::{Measure, Row};
use crate::sample::{Rounds, Sample};
use crate::scene::{self, TOOL};

const ROUNDS: usize = 5;
const CALLS: u32 = 2_000;
const CONCURRENT: usize = 16;
const LOAD: f64 = 0.25;
/// The number of bytes that are appended to the file, about the size of the row of such a call.
const ROW_BYTES: usize = 2_048;
const SYNCS: usize = 200;
const ADDED_MAX_US: f64 = 200.0;

/// Measures the wait for the disk and returns the row.
pub async fn measure(host: Arc<Host>, machine: &Machine) -> Result<Row> {
    let interval = Duration::from_secs_f64(1.0 / (calls_a_second(&host).await? * LOAD));
    let mut rounds = Rounds::default();
    for _ in 0..ROUNDS {
        rounds.add(wait(&host, interval).await?, sync(&host)?);
    }
    let (added, added_max) = (rounds.added_us(), machine.time_us(ADDED_MAX_US));
    let tails = rounds.ratio_of_tails();
    let name = format!("wait for the durable row, {:.0} calls per second", 1.0 / interval.as_secs_f64());
    let goal = format!("p50 <= {added_max:.0} us added (now {added:.0}), p99 <= 3 x (now {tails:.1})");
    let row = Row::reported((&name, "append of the same bytes, one fdatasync"), Measure::Time, &rounds);
    Ok(row.with_goal(&goal, added <= added_max && tails <= 3.0))
}

/// Measures how many calls per second the host can answer.
async fn calls_a_second(host: &Arc<Host>) -> Result<f64> {
    const FULL: Duration = Duration::from_secs(2);
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..CONCURRENT {
        let host = Arc::clone(host);
        tasks.spawn(async move {
            let mut calls = 0_u32;
            while began.elapsed() < FULL {
                check(&host.app().calls.run(host.call_of(TOOL, &scene::params())).await?.outcome)?;
                calls += 1;
            }
            anyhow::Ok(calls)
        });
    }
    let mut calls = 0;
    while let Some(ended) = tasks.join_next().await {
        calls += ended.context("a caller failed")??;
    }
    Ok(f64::from(calls) / began.elapsed().as_secs_f64())
}

/// Starts calls at fixed times and measures their waits.
async fn wait(host: &Arc<Host>, interval: Duration) -> Result<Sample> {
    let began = Instant::now();
    let (due, mut queue) = tokio::sync::mpsc::unbounded_channel();
    // A thread is used because a timer of the runtime has a resolution of a millisecond.
    let clock = std::thread::spawn(move || {
        for number in 0..CALLS {
            std::thread::sleep((began + interval * number).saturating_duration_since(Instant::now()));
            if due.send(()).is_err() {
                return;
            }
        }
    });
    let mut tasks = JoinSet::new();
    while queue.recv().await.is_some() {
        let host = Arc::clone(host);
        tasks.spawn(async move {
            let call = host.call_of(TOOL, &scene::params());
            let ending = host.app().calls.govern(call, CancellationToken::new()).await?;
            let queued = Instant::now();
            let outcome = ending.committed().await?.outcome;
            let waited = queued.elapsed();
            check(&outcome)?;
            anyhow::Ok(waited)
        });
    }
    let mut times = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        times.push(ended.context("a caller failed")??);
    }
    clock.join().ok().context("the thread that starts the calls panicked")?;
    Ok(Sample::new(times, began.elapsed()))
}

/// Appends the bytes of a row repeatedly to a file on the same disk, with one sync after each append.
fn sync(host: &Host) -> Result<Sample> {
    let path = host.app().data_dir.join("bench-sync");
    let mut file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    let began = Instant::now();
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let started = Instant::now();
        file.write_all(&[b'r'; ROW_BYTES])?;
        file.sync_data()?;
        times.push(started.elapsed());
    }
    let sample = Sample::new(times, began.elapsed());
    std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    Ok(sample)
}
