//! The benches: what the host costs, beside what the same work costs without it.
//!
//! Figures drift from machine to machine and from minute to minute, so nothing is compared with a number of another
//! day: every row is measured beside its floor, in turns, in one run.

#![expect(clippy::print_stdout, reason = "a bench shows what it has measured")]

mod bare;
mod floor;
mod governed;
mod http;
mod load;
mod pure;
mod report;
mod sample;
mod scene;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand, ValueEnum};

use governed::Host;
use report::Report;

/// Measures the host beside its floors
#[derive(Parser)]
struct Arguments {
    /// Where everything is written as JSON [default: target/bench.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only these parts
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    only: Vec<Part>,
    /// Rounds of load over HTTP
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// Seconds of load on each side of a round
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    seconds: u8,
    #[command(subcommand)]
    floor: Option<Process>,
}

#[derive(Subcommand)]
enum Process {
    #[command(hide = true)]
    Floor(floor::Floor),
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A governed call in process, and its steps
    Call,
    /// A call over HTTP
    Http,
    Guardian,
    Redaction,
    /// Verifying the audit
    Audit,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<()> {
    if let Some(Process::Floor(floor)) = arguments.floor {
        return floor.serve().await;
    }
    let Arguments { json, only, rounds, seconds, floor: _ } = arguments;
    let is_wanted = |part: Part| only.is_empty() || only.contains(&part);
    let mut report = in_process(is_wanted(Part::Call), is_wanted(Part::Audit)).await?;
    if is_wanted(Part::Http) {
        println!("  a call over HTTP …");
        report.rows.extend(http::measure(rounds.into(), seconds.into()).await?);
    }
    if is_wanted(Part::Guardian) {
        println!("  the Guardian …");
        report.rows.extend(pure::guardian()?);
    }
    if is_wanted(Part::Redaction) {
        println!("  redaction …");
        report.rows.push(pure::redaction());
    }
    println!("\n{}", report.table());
    if !report.stages.is_empty() {
        println!("{}", report.stages_table());
    }
    let path = match json {
        Some(path) => path,
        None => default_path()?,
    };
    report.write(&path)?;
    println!("written to {}", path.display());
    Ok(())
}

async fn in_process(call: bool, audit: bool) -> Result<Report> {
    let mut report = Report::default();
    if !call && !audit {
        return Ok(report);
    }
    let host = Arc::new(Host::start().await?);
    if call {
        println!("  a governed call in process …");
        let (row, stages) = alone(governed::measure(Arc::clone(&host))).await?;
        report.rows.push(row);
        report.stages = stages;
    }
    if audit {
        println!("  audit verify …");
        governed::fill_audit(&host).await?;
        report.rows.push(pure::audit(&host).await?);
    }
    Arc::into_inner(host).context("nothing else uses the host any more")?.stop().await;
    Ok(report)
}

/// Runs `work` on a thread of its own, so that what the host does in the background, which is above all the writing of
/// the audit, is not in the times of a call that only queues its row.
async fn alone<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    let run = || tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work);
    tokio::task::spawn_blocking(run).await.context("the bench failed")?
}

/// `bench.json` in the target folder: beside the folder of the profile.
fn default_path() -> Result<PathBuf> {
    let program = std::env::current_exe().context("a program does not know where it is")?;
    let target = program.parent().and_then(Path::parent).context("a program lies in a profile of the target folder")?;
    Ok(target.join("bench.json"))
}
