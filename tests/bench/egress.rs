//! Compares a call that sends one request to an upstream on this machine with the request alone, with and without TLS.
//! Both keep their connections.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::governed::{Host, check};
use crate::machine::Machine;
use crate::report::{Measure, Row};
use crate::sample::{Rounds, Sample};
use crate::upstream::{OK, Upstream, authority};

const TOOL: &str = "test_echo_fetch";
const ROUNDS: usize = 7;
const CALLS: usize = 300;
const ADDED_MAX_US: f64 = 150.0;

/// Measures a call that sends a request to `upstream` of the host's bots and returns the row. `durable` is the row of the
/// wait for the disk.
pub async fn measure(host: &Host, upstream: &Upstream, machine: &Machine, durable: &Row) -> Result<Row> {
    let (authority, _) = authority()?;
    let authority = reqwest::Certificate::from_pem(authority)?;
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([authority]).build()?;
    let url = format!("{}{OK}", upstream.url());
    let uses_tls = url.starts_with("https://");
    let mut rounds = Rounds::default();
    for round in 0..=ROUNDS {
        let (subject, floor) = (calls(host, uses_tls).await?, requests(&client, &url).await?);
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
    let name = if uses_tls {
        "call with a request to a local upstream, TLS"
    } else {
        "call with a request to a local upstream"
    };
    let row = Row::reported((name, "the request alone, with reqwest"), Measure::Time, &rounds);
    Ok(row.with_goal(&goal, added <= added_max))
}

async fn calls(host: &Host, uses_tls: bool) -> Result<Sample> {
    let (began, mut times) = (Instant::now(), Vec::with_capacity(CALLS));
    for _ in 0..CALLS {
        let call = host.free_call(TOOL, &json!({ "path": OK }), uses_tls);
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
