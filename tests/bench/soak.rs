//! The soak test: a server runs under good and hostile calls for a long time. Resource usage must not grow, and no
//! caller may get an answer that another caller caused. The crash test kills a server and cuts its power many times.

mod crash;
mod crew;
mod watch;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;
use support::{Api, Server};

use crate::report::{align_right, table, time};
use crate::sample::Sample;
use crate::scene::{self, PLUGIN};
use crate::upstream::Upstream;
use crate::{cpu, hostile};
use crew::{Crew, Tally};
use watch::Watch;

const MIB: f64 = 1048576.0;
/// The maximum number of bytes that a run writes.
const DISK_BYTES_MAX: u64 = 3_000_000_000;
/// The average size in bytes that a call of this mix adds to the database: one row, or two rows for a call that sent a
/// request.
const CALL_BYTES: u64 = 1_200;
/// The maximum time between the end of the last connection and the moment when all calls in flight are recorded.
const SETTLE_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);

/// Loads a server for a long time with good and hostile calls on 64 connections. Fails if memory or open files grow, if
/// a call has an unexpected outcome, or if the verification of the audit fails. Calls are paced so that a run of any
/// length writes at most 3 GB. With --crash, kills the server and cuts its power instead
#[derive(Args)]
pub struct Soak {
    /// The duration of the run, in minutes
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1440))]
    minutes: u16,
    /// Kill the server and cut its power at random moments, and fail if an answer is lost or the audit is damaged
    #[arg(long, conflicts_with = "minutes")]
    crash: bool,
    /// The number of kills and power cuts
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..), requires = "crash")]
    moments: u32,
    /// The seed of the random moments
    #[arg(long, default_value_t = 1, requires = "crash")]
    seed: u64,
}

impl Soak {
    /// Runs the soak test. Fails if any check fails.
    pub async fn run(self) -> Result<()> {
        if self.crash {
            return crash::run(usize::try_from(self.moments)?, self.seed).await;
        }
        let duration = Duration::from_secs(u64::from(self.minutes) * 60);
        // This process keeps log lines in memory. The run must not log errors.
        let mut server = Server::prepare(&[PLUGIN, cpu::PLUGIN])?.argument("--log=error");
        hostile::install(&server)?;
        server.launch().await?;
        let (api, upstream) = (server.api()?, Upstream::start().await?);
        let pid = server.pid().context("the server is not running")?;

        let calls_a_second = DISK_BYTES_MAX as f64 / CALL_BYTES as f64 / duration.as_secs_f64();
        println!("{} minutes, at most {calls_a_second:.0} calls per second", self.minutes);
        let began = Instant::now();
        let crew = Crew::start(&scene::address(&server)?, &api, &upstream.url(), duration, calls_a_second).await?;
        let watch = Watch::until(began + duration, pid, crew.count()).await?;
        let tallies = crew.ended().await?;
        let elapsed = began.elapsed();

        show(&tallies, elapsed);
        let mut faults = faults(&tallies);
        faults.extend(watch.faults());
        println!("{watch}");
        faults.extend(settled(&api).await?);
        faults.extend(audit(&api, &server, &tallies).await?);
        let ended = server.stop().await?;
        if !ended.success() {
            faults.push(format!("the server ended with {ended}"));
        }
        let output = server.output();
        faults.extend(output.lines().filter(|line| line.contains("ERROR")).take(5).map(str::to_owned));
        if !faults.is_empty() {
            bail!("the soak test failed:\n  {}", faults.join("\n  "));
        }
        println!("the soak test succeeded");
        Ok(())
    }
}

fn show(tallies: &[Tally], elapsed: Duration) {
    let mut shown = table(["", "calls", "busy", "wrong", "median", "p99"]);
    let mut add = |name: &str, counts: [u64; 3], times: &[Duration]| {
        let (median, p99) = match times {
            [] => (String::new(), String::new()),
            times => {
                let sample = Sample::new(times.to_vec(), elapsed);
                (time(sample.median_us), time(sample.p99_us))
            }
        };
        let [calls, busy, wrong] = counts.map(|count| count.to_string());
        shown.add_row([name.to_owned(), calls, busy, wrong, median, p99]);
    };
    for tally in tallies {
        add(tally.name, [tally.calls(), tally.busy, tally.wrong], &tally.times);
    }
    let good: Vec<&Tally> = tallies.iter().filter(|tally| tally.is_good).collect();
    let sum = |of: fn(&Tally) -> u64| good.iter().map(|tally| of(tally)).sum();
    let times: Vec<Duration> = good.iter().flat_map(|tally| tally.times.iter().copied()).collect();
    add("all good calls", [sum(Tally::calls), sum(|tally| tally.busy), sum(|tally| tally.wrong)], &times);
    align_right(&mut shown, &[1, 2, 3, 4, 5]);
    println!("\n{shown}");
    let calls: u64 = tallies.iter().map(Tally::calls).sum();
    println!("{calls} calls, {:.0} per second", calls as f64 / elapsed.as_secs_f64());
}

/// Describes unexpected answers, and kinds of calls that never had the expected outcome.
fn faults(tallies: &[Tally]) -> Vec<String> {
    let of_one = |tally: &Tally| match (&tally.example, tally.as_expected) {
        (Some(example), _) => {
            Some(format!("{}: {} calls had an unexpected outcome, for example: {example}", tally.name, tally.wrong))
        }
        (None, 0) => Some(format!("{}: no call had the expected outcome", tally.name)),
        (None, _) => None,
    };
    tallies.iter().filter_map(of_one).collect()
}

/// Waits until no calls are running after the last caller has ended. Returns a description if calls still run at the
/// time-out.
async fn settled(api: &Api) -> Result<Option<String>> {
    let until = Instant::now() + SETTLE_MAX;
    loop {
        let (status, list) = api.get("/api/audit?status=running&limit=10").await?;
        let running =
            list["items"].as_array().with_context(|| format!("the answer has no list of calls: {status} {list}"))?;
        if running.is_empty() {
            return Ok(None);
        }
        if Instant::now() > until {
            return Ok(Some(format!("calls are still running after {SETTLE_MAX:?}: {}", running[0])));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Verifies the audit, and prints the cost.
async fn audit(api: &Api, server: &Server, tallies: &[Tally]) -> Result<Option<String>> {
    let began = Instant::now();
    let report = api.verify_audit().await?;
    let rows =
        report["rows"].as_u64().with_context(|| format!("the report does not contain the number of rows: {report}"))?;
    let bytes = folder_bytes(server)?;
    let calls: u64 = tallies.iter().map(Tally::calls).sum();
    println!(
        "audit: {rows} rows, valid: {}, verified in {:.1} s; data folder {:.0} MiB, {:.0} bytes per call",
        report["valid"],
        began.elapsed().as_secs_f64(),
        bytes as f64 / MIB,
        bytes as f64 / calls as f64
    );
    let answered: u64 = tallies.iter().map(Tally::answered).sum();
    Ok(match report["valid"] {
        Value::Bool(true) if rows >= answered => None,
        Value::Bool(true) => Some(format!("the audit has {rows} rows for {answered} answers")),
        _ => Some(format!("the verification of the audit failed: {report}")),
    })
}

fn folder_bytes(server: &Server) -> Result<u64> {
    let folder = server.data_dir();
    let mut bytes = 0;
    for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        bytes += entry?.metadata()?.len();
    }
    ensure!(bytes > 0, "{} is empty", folder.display());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(as_expected: u64, wrong: u64) -> Tally {
        let example = (wrong > 0).then(|| "500".to_owned());
        Tally { name: "echo", as_expected, wrong, example, ..Tally::default() }
    }

    #[test]
    fn a_wrong_answer_and_no_answer_are_faults() {
        assert_eq!(faults(&[tally(5, 0)]), [""; 0]);
        assert_eq!(faults(&[tally(5, 2)]), ["echo: 2 calls had an unexpected outcome, for example: 500"]);
        assert_eq!(faults(&[tally(0, 0)]), ["echo: no call had the expected outcome"]);
    }
}
