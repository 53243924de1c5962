//! The command line, run like people and scripts run it. Results go to standard output, and all other output goes to
//! standard error. The exit code indicates success or failure.

mod audit;
mod budgets;
mod configuration;
mod console;
mod doctor;
mod events;
mod help;
mod key;
mod logs;
mod operators;
mod plugin;
mod runs;
mod sandbox;
mod serve;
mod why;
mod workflow;

use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use regex::Regex;
use serde_json::{Value, json};
use support::Server;

use crate::stable::stable;

/// A time-out that is far longer than any command needs to end.
const COMMAND_MAX: Duration = Duration::from_secs(120);

/// Runs a command that ends without being interrupted.
pub(crate) async fn run(server: &Server, arguments: &[&str]) -> Result<Output> {
    let output = tokio::time::timeout(COMMAND_MAX, server.command(arguments)).await;
    output.with_context(|| format!("timed out waiting for `monstrum {}` to end", arguments.join(" ")))?
}

/// Runs a command that must succeed, and returns its standard output.
pub(crate) async fn succeed(server: &Server, arguments: &[&str]) -> Result<String> {
    let output = run(server, arguments).await?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "monstrum {}: {stderr}", arguments.join(" "));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Returns the output and the exit code of a command. Replaces the values that differ between runs, and omits log
/// lines, which begin with a time.
pub(crate) async fn told(server: &Server, arguments: &[&str]) -> Result<String> {
    let output = run(server, arguments).await?;
    let stderr = String::from_utf8(output.stderr)?;
    let stderr: Vec<&str> = stderr.lines().filter(|line| !line.starts_with("20")).collect();
    let code = output.status.code().context("the command was killed by a signal")?;
    let text = format!("{}[stderr]\n{}\n[exit {code}]", String::from_utf8(output.stdout)?, stderr.join("\n"));
    let text = stable(&json!(text)).as_str().unwrap_or_default().to_owned();
    let text = Regex::new("mk_[A-Za-z0-9_-]{5,43}")?.replace_all(&text, "[key]").into_owned();
    // Trailing whitespace is invisible, so it is not compared.
    Ok(text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").replace("\n[stderr]\n\n", "\n"))
}

/// Runs a command with `--json` and returns its exit code and the JSON that it printed.
pub(crate) async fn parsed(server: &Server, arguments: &[&str]) -> Result<(Option<i32>, Value)> {
    let output = run(server, &[arguments, &["--json"]].concat()).await?;
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    let value =
        serde_json::from_slice(&text).with_context(|| format!("no JSON: {}", String::from_utf8_lossy(&text)))?;
    Ok((output.status.code(), value))
}
