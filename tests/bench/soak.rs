//! The soak test: a server runs under good and hostile calls for a long time. Resource usage must not grow, and no
//! caller may get an answer that another caller caused. The crash test kills a server and cuts its power many times.

mod crash;
mod crew;
pub mod host;
mod watch;

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use monstrum_core::audit::ARCHIVE_FOLDER;
use serde_json::Value;
use support::{Api, Server};

use crate::report::{align_right, table, time};
use crate::sample::Sample;
use crate::scene::{self, PLUGIN};
use crate::upstream::Upstream;
use crate::{cpu, hostile};
use crew::{Bots, Counts, Crew, Pace, Tally};
use watch::Watch;

const MIB: f64 = 1048576.0;
/// The default durations, in minutes.
const MINUTES: u16 = 20;
const MINUTES_OF_HOUR: u16 = 60;
/// The maximum number of bytes that a run without retention writes.
const DISK_BYTES_MAX: u64 = 3_000_000_000;
/// The maximum size of the data folder in bytes, including the archive.
const FOLDER_BYTES_MAX: u64 = 4_000_000_000;
/// The average size in bytes that a call of this mix adds to the database: one row, or two rows for a call that sent a
/// request.
const CALL_BYTES: u64 = 1_200;
/// The duration of the load without a limit, which shows how many calls per second the server can answer.
const FULL_LOAD: Duration = Duration::from_secs(20);
/// The share of full load of a run with retention.
const SHARE: f64 = 0.8;
/// The number of times that a run with retention is longer than the period for which rows stay in the database.
const PERIODS: u32 = 12;
/// The maximum time between the end of the last connection and the moment when all calls in flight are recorded.
const SETTLE_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);

/// Loads a server for a long time with good and hostile calls on 64 connections. Fails if memory or open files grow, if
/// a call has an unexpected outcome, or if the verification of the audit fails. Calls are paced so that a run of any
/// length writes at most 3 GB. With --crash, kills the server and cuts its power instead
#[derive(Args)]
pub struct Soak {
    /// The duration of the run, in minutes [default: 20, or 60 with --hour]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1440))]
    minutes: Option<u16>,
    /// Run for an hour at 80 % of full load, with an archive that keeps the data folder below 4 GB and is verified at
    /// the end
    #[arg(long)]
    hour: bool,
    /// Kill the server and cut its power at random moments, and fail if an answer is lost or the audit is damaged
    #[arg(long, conflicts_with_all = ["minutes", "hour"])]
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
        let minutes = self.minutes.unwrap_or(if self.hour { MINUTES_OF_HOUR } else { MINUTES });
        let duration = Duration::from_secs(u64::from(minutes) * 60);
        let mut server = self.server(duration)?;
        hostile::install(&server)?;
        server.launch().await?;
        let (api, upstream) = (server.api()?, Upstream::start().await?);
        let (pid, address) = (server.pid().context("the server is not running")?, scene::address(&server)?);
        let bots = Bots::create(&api, &upstream.url()).await?;
        let full = Full::measure(&address, &bots).await?;

        let began = Instant::now();
        let crew = Crew::start(&address, &bots, duration, self.pace(&full, duration))?;
        println!("{minutes} minutes; full load is {:.0} calls per second", full.calls_a_second());
        let watch = Watch::until(began + duration, pid, &server.data_dir(), crew.counts()).await?;
        let tallies = crew.ended().await?;
        let elapsed = began.elapsed();

        show(&tallies, elapsed);
        let calls = tallies.iter().map(Tally::calls).sum::<u64>() as f64 / elapsed.as_secs_f64();
        println!("{calls:.0} calls per second, {:.0} % of full load", calls / full.calls_a_second() * 100.0);
        let mut faults = faults(&tallies);
        faults.extend(full.faults());
        faults.extend(watch.faults());
        println!("{watch}");
        faults.extend(settled(&api).await?);
        let answered = tallies.iter().chain(&full.tallies).map(Tally::answered).sum();
        faults.extend(audit(&api, &server, answered).await?);
        if self.hour {
            faults.extend(archive(&server).await?);
        }
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

    /// Prepares the server. With retention, it archives rows that are older than a fraction of the run.
    fn server(&self, duration: Duration) -> Result<Server> {
        // This process keeps log lines in memory. The run must not log errors.
        let server = Server::prepare(&[PLUGIN, cpu::PLUGIN])?.argument("--log=error");
        if !self.hour {
            return Ok(server);
        }
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let keep = (duration / PERIODS).as_secs();
        // Sandboxes start another program, and this run uses no sandboxes.
        let server = server.served_by(program, host::COMMAND).argument("--sandbox=off");
        Ok(server.argument(&format!("--keep-s={keep}")))
    }

    fn pace(&self, full: &Full, duration: Duration) -> Pace {
        if self.hour {
            return Pace::share_of(&full.counts, FULL_LOAD, SHARE);
        }
        Pace::evenly(DISK_BYTES_MAX as f64 / CALL_BYTES as f64 / duration.as_secs_f64())
    }
}

/// The result of the load without a limit.
struct Full {
    counts: Arc<Counts>,
    tallies: Vec<Tally>,
}

impl Full {
    async fn measure(address: &str, bots: &Bots) -> Result<Full> {
        let crew = Crew::start(address, bots, FULL_LOAD, Pace::UNLIMITED)?;
        let counts = crew.counts();
        Ok(Full { counts, tallies: crew.ended().await? })
    }

    fn calls_a_second(&self) -> f64 {
        self.counts.total() as f64 / FULL_LOAD.as_secs_f64()
    }

    /// Describes unexpected answers. Some kinds of calls may have had no turn yet.
    fn faults(&self) -> Vec<String> {
        faults(&self.tallies.iter().filter(|tally| tally.wrong > 0).cloned().collect::<Vec<_>>())
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

/// Verifies the audit, and prints the cost. `answered` is the number of answered calls.
async fn audit(api: &Api, server: &Server, answered: u64) -> Result<Option<String>> {
    let began = Instant::now();
    let report = api.verify_audit().await?;
    let rows =
        report["rows"].as_u64().with_context(|| format!("the report does not contain the number of rows: {report}"))?;
    let archived = report["archived_rows"].as_u64().unwrap_or_default();
    let bytes = folder_bytes(&server.data_dir())?;
    println!(
        "audit: {rows} rows and {archived} archived rows, valid: {}, verified in {:.1} s; data folder {:.0} MiB, {:.0} bytes per call",
        report["valid"],
        began.elapsed().as_secs_f64(),
        bytes as f64 / MIB,
        bytes as f64 / answered as f64
    );
    Ok(match report["valid"] {
        Value::Bool(true) if rows + archived >= answered => None,
        Value::Bool(true) => Some(format!("the audit has {} rows for {answered} answers", rows + archived)),
        _ => Some(format!("the verification of the audit failed: {report}")),
    })
}

/// Verifies the archive with `monstrum audit verify --archive`.
async fn archive(server: &Server) -> Result<Option<String>> {
    let began = Instant::now();
    let folder = server.data_dir().join(ARCHIVE_FOLDER);
    if !folder.is_dir() {
        return Ok(Some("no rows of the audit were archived".to_owned()));
    }
    let output = server.command(&["audit", "verify", "--archive", &folder.display().to_string()]).await?;
    let printed = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    println!(
        "{}; {:.0} MiB, verified in {:.1} s",
        printed.trim(),
        folder_bytes(&folder)? as f64 / MIB,
        began.elapsed().as_secs_f64()
    );
    Ok((!output.status.success()).then(|| format!("the verification of the archive failed: {printed}")))
}

/// Returns the size of all files in a folder and its subfolders. Files may disappear meanwhile.
fn folder_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        bytes += match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => folder_bytes(&entry.path())?,
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(error).context("cannot read the size of a file"),
        };
    }
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
