//! Compares a call that sends one request to an upstream on this machine with the request alone.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::governed::{Host, check};
use crate::machine::Machine;
use crate::report::{Measure, Row};
use crate::sample::{Rounds, Sample};
use crate::upstream::OK;

const TOOL: &str = "test_echo_fetch";
const ROUNDS: usize = 7;
const CALLS: usize = 300;
const ADDED_MAX_US: f64 = 150.0;

/// Measures a call that sends a request and returns the row. `upstream` is the URL of the bot's resource, and `durable`
/// is the row of the wait for the disk.
pub async fn measure(host: &Host, upstream: &str, machine: &Machine, durable: &Row) -> Result<Row> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let url = format!("{upstream}{OK}");
    let mut rounds = Rounds::default();
    for round in 0..=ROUNDS {
        let (subject, floor) = (calls(host).await?, requests(&client, &url).await?);
        // The first round opens the connections.
        if round > 0 {
            rounds.add(subject, floor);
        }
    }
    // Such a call writes two rows: the first row before the first byte is sent, the second row before the answer
    // leaves.
    let waits = 2.0 * durable.median_us().context("the row of the wait for the disk has no median time")?;
    let (added, added_max) = (rounds.added_us(), machine.time_us(ADDED_MAX_US) + waits);
    let goal = format!("p50 <= {added_max:.0} us added, including two waits for rows (now {added:.0})");
    let names = ("call with a request to a local upstream", "the request alone, with reqwest");
    Ok(Row::reported(names, Measure::Time, &rounds).with_goal(&goal, added <= added_max))
}

async fn calls(host: &Host) -> Result<Sample> {
    let (began, mut times) = (Instant::now(), Vec::with_capacity(CALLS));
    for _ in 0..CALLS {
        let call = host.free_call(TOOL, &json!({ "path": OK }));
        let started = Instant::now();
        let answer = host.app().calls.run(call).await?;
        times.push(started.elapsed());
        check(&answer.outcome)?;
    }
    Ok(Sample::new(times, began.elapsed()))
}

async fn requests(client: &reqwest::Client, url: &str) -> Result<Sample> {
    let (began, mut times) = (Instant::now(), Vec::with_capacity(CALLS));
    for _ in 0..CALLS {
        let started = Instant::now();
        let answer = client.get(url).send().await?;
        let status = answer.status();
        let body = answer.bytes().await?;
        times.push(started.elapsed());
        ensure!(status.is_success() && !body.is_empty(), "the upstream answered {status}");
    }
    Ok(Sample::new(times, began.elapsed()))
}
