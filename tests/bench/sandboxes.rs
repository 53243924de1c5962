//! Measures the cost of a sandbox: a command, compared with the same command outside a sandbox, and the steps of a
//! sandbox's lifetime.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use monstrum_sandbox::{Ensured, ExecRequest, SandboxName, SandboxProvider, Spec};
use monstrum_sandbox_embedded::{Embedded, EmbeddedOptions};
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::report::{Measure, Row};
use crate::sample::{Rounds, Sample};

/// The number of commands on each side of a round.
const COMMANDS: usize = 100;
/// The number of times that one sandbox is created and deleted.
const LIVES: usize = 30;
/// The number of concurrent sandboxes.
const CROWD: usize = 20;
/// The time until the kernel's statistics no longer include ended processes.
const SETTLE: Duration = Duration::from_secs(2);
const EXEC_ADDED_US: f64 = 2e3;
const CREATE_US: f64 = 150e3;

/// Measures sandboxes and returns the rows.
pub async fn measure(rounds: usize) -> Result<Vec<Row>> {
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let mut options = EmbeddedOptions::new(folder.path());
    options.program = Some(support::program()?);
    let provider = Embedded::start(options)
        .await
        .context("cannot start sandboxes; run `monstrum sandbox doctor` as root to see what is missing")?;
    let provider = Arc::new(provider);
    let mut rows = vec![commands(&provider, rounds).await?];
    rows.extend(lives(&provider).await?);
    rows.extend(crowd(&provider).await?);
    Ok(rows)
}

/// Measures the same command inside and outside a sandbox.
async fn commands(provider: &Embedded, rounds: usize) -> Result<Row> {
    let name = name(0)?;
    provider.ensure_running(&name, Spec::default()).await?;
    let mut all = Rounds::default();
    for round in 0..=rounds {
        let (mut inside, mut bare) = (Vec::new(), Vec::new());
        // The two sides alternate, so that other load on the machine affects both.
        for _ in 0..COMMANDS {
            bare.push(timed(bare_command()).await?);
            inside.push(timed(command(provider, &name)).await?);
        }
        if round > 0 {
            all.add(sample(inside), sample(bare));
        }
    }
    provider.delete(&name).await?;
    let added_us = all.added_us();
    let goal = format!("<= 2 ms added (now {:.2})", added_us / 1e3);
    let row = Row::reported(("sandbox: exec of `true`", "`bash -c true`"), Measure::Time, &all);
    Ok(row.with_goal(&goal, added_us <= EXEC_ADDED_US))
}

async fn command(provider: &Embedded, name: &SandboxName) -> Result<()> {
    let output = provider.exec(name, ExecRequest::new("true"), None).await?;
    ensure!(output.exit_code == 0, "{output:?}");
    Ok(())
}

async fn bare_command() -> Result<()> {
    let output = Command::new("bash").args(["-c", "true"]).stdin(Stdio::null()).output().await?;
    ensure!(output.status.success(), "{output:?}");
    Ok(())
}

/// Creates, stops, resumes and deletes a sandbox repeatedly.
async fn lives(provider: &Embedded) -> Result<Vec<Row>> {
    let name = name(1)?;
    let (mut create, mut stop, mut resume, mut delete, mut bare) = (vec![], vec![], vec![], vec![], vec![]);
    for _ in 0..LIVES {
        bare.push(timed(bare_command()).await?);
        create.push(timed(running(provider, &name, Ensured::Created)).await?);
        stop.push(timed(async { Ok(provider.stop(&name).await?) }).await?);
        resume.push(timed(running(provider, &name, Ensured::Resumed)).await?);
        delete.push(timed(async { Ok(provider.delete(&name).await?) }).await?);
    }
    let floor = sample(bare);
    let row = |what: &str, times: Vec<Duration>| {
        let mut all = Rounds::default();
        all.add(sample(times), floor);
        Row::reported((&format!("sandbox: {what}"), "`bash -c true`"), Measure::Time, &all)
    };
    let median_us = sample(create.clone()).median_us;
    let goal = format!("< 150 ms (now {:.0})", median_us / 1e3);
    Ok(vec![
        row("create", create).with_goal(&goal, median_us < CREATE_US),
        row("stop", stop),
        row("resume", resume),
        row("delete while it runs", delete),
    ])
}

async fn running(provider: &Embedded, name: &SandboxName, how: Ensured) -> Result<()> {
    let ensured = provider.ensure_running(name, Spec::default()).await?;
    ensure!(ensured == how, "expected {how:?}, got {ensured:?}");
    Ok(())
}

/// Starts many sandboxes at once. Measures the memory of the host that each sandbox uses while idle and after its stop.
async fn crowd(provider: &Arc<Embedded>) -> Result<Vec<Row>> {
    let bare = timed(bare_command()).await?;
    let before = available_bytes()?;
    let began = Instant::now();
    let mut starting = JoinSet::new();
    for number in 0..CROWD {
        let (provider, name) = (Arc::clone(provider), name(100 + number)?);
        starting.spawn(async move { provider.ensure_running(&name, Spec::default()).await });
    }
    while let Some(started) = starting.join_next().await {
        started.context("a start failed")??;
    }
    let took = began.elapsed();
    tokio::time::sleep(SETTLE).await;
    let idle = before.saturating_sub(available_bytes()?);
    for number in 0..CROWD {
        provider.stop(&name(100 + number)?).await?;
    }
    tokio::time::sleep(SETTLE).await;
    let stopped = before.saturating_sub(available_bytes()?);
    for number in 0..CROWD {
        provider.delete(&name(100 + number)?).await?;
    }
    let mut all = Rounds::default();
    all.add(sample(vec![took]), sample(vec![bare]));
    let each = |bytes: u64| bytes / CROWD as u64;
    let page = 4096;
    Ok(vec![
        Row::reported((&format!("sandbox: {CROWD} created at once"), "`bash -c true`"), Measure::Time, &all),
        Row::of_memory(("sandbox: host memory while idle", "a page"), each(idle), page),
        Row::of_memory(("sandbox: host memory after the stop, including page cache", "a page"), each(stopped), page),
    ])
}

fn name(number: usize) -> Result<SandboxName> {
    Ok(format!("ms-be-{number}").parse()?)
}

async fn timed(work: impl Future<Output = Result<()>>) -> Result<Duration> {
    let began = Instant::now();
    work.await?;
    Ok(began.elapsed())
}

fn sample(times: Vec<Duration>) -> Sample {
    let elapsed = times.iter().sum();
    Sample::new(times, elapsed)
}

/// Returns the memory available to new programs. The value covers the whole machine, because most of a sandbox's memory
/// belongs to the kernel.
fn available_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .context("/proc/meminfo has no MemAvailable")?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().context("MemAvailable is not a number")?;
    Ok(kibibytes * 1024)
}
