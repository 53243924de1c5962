//! The benches: what the host costs, beside what the same work costs without it.
//!
//! Figures drift from machine to machine and from minute to minute, so nothing is compared with a number of another
//! day: every row is measured beside its floor, in turns, in one run.

#![expect(clippy::print_stdout, reason = "a bench shows what it has measured")]
#![expect(unreachable_pub, reason = "the modules of a program are private")]

mod bare;
mod cpu;
mod floor;
mod governed;
mod hostile;
mod http;
mod load;
mod neighbours;
mod process;
mod pure;
mod reload;
mod report;
mod rows;
mod sample;
mod sandboxes;
mod scene;
mod soak;
mod start;
mod suspended;
mod tenant;
mod upstream;
mod variant;

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
    /// Rounds of starts and of load over HTTP
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// Seconds of load on each side of a round
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    seconds: u8,
    #[command(subcommand)]
    instead: Option<Instead>,
}

/// What this program does other than measuring everything.
#[derive(Subcommand)]
enum Instead {
    #[command(hide = true)]
    Floor(floor::Floor),
    Soak(soak::Soak),
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A governed call in process, and its steps
    Call,
    /// A call over HTTP
    Http,
    /// The Guardian's decisions
    Guardian,
    Redaction,
    /// Computing in a guest
    Cpu,
    /// Verifying the audit
    Audit,
    /// A start with many plugins
    Start,
    /// Replacing a plugin under load
    Reload,
    /// Calls that wait for their upstream
    Suspended,
    /// Good calls beside hostile ones
    Neighbours,
    /// Commands in sandboxes, and the steps of their life
    Sandbox,
    /// A change of a workspace with 100 000 bindings
    Rows,
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
    match arguments.instead {
        Some(Instead::Floor(floor)) => floor.serve().await,
        Some(Instead::Soak(soak)) => soak.run().await,
        None => bench(arguments).await,
    }
}

async fn bench(arguments: Arguments) -> Result<()> {
    let Arguments { json, only, rounds, seconds, instead: _ } = arguments;
    let is_wanted = |part: Part| only.is_empty() || only.contains(&part);
    let mut report = in_process(is_wanted).await?;
    let rows = &mut report.rows;
    let (rounds, seconds) = (rounds.into(), seconds.into());
    for part in Part::value_variants().iter().copied().filter(|part| is_wanted(*part)) {
        match part {
            Part::Call | Part::Cpu | Part::Audit => {}
            Part::Http => {
                println!("  a call over HTTP …");
                rows.extend(http::measure(rounds, seconds).await?);
            }
            Part::Guardian => {
                println!("  the Guardian …");
                rows.extend(pure::guardian()?);
            }
            Part::Redaction => {
                println!("  redaction …");
                rows.extend(pure::redaction());
            }
            Part::Start => {
                println!("  a start with many plugins …");
                rows.extend(start::measure(rounds).await?);
            }
            Part::Reload => {
                println!("  hot reload under load …");
                rows.extend(reload::measure(rounds, seconds).await?);
            }
            Part::Suspended => {
                println!("  calls that wait …");
                rows.push(suspended::measure().await?);
            }
            Part::Neighbours => {
                println!("  hostile neighbours …");
                rows.push(neighbours::measure(rounds, seconds).await?);
            }
            Part::Rows => {
                println!("  a change among 100 000 bindings …");
                rows.push(crate::rows::measure(rounds).await?);
            }
            Part::Sandbox => {
                println!("  sandboxes …");
                rows.extend(sandboxes::measure(rounds).await?);
            }
        }
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

/// What is measured with the host in this process.
async fn in_process(is_wanted: impl Fn(Part) -> bool) -> Result<Report> {
    let mut report = Report::default();
    if ![Part::Call, Part::Cpu, Part::Audit].into_iter().any(&is_wanted) {
        return Ok(report);
    }
    let host = Arc::new(Host::start().await?);
    if is_wanted(Part::Call) {
        println!("  a governed call in process …");
        let (row, stages) = alone(governed::measure(Arc::clone(&host))).await?;
        report.rows.push(row);
        report.stages = stages;
    }
    if is_wanted(Part::Cpu) {
        println!("  computing in a guest …");
        report.rows.extend(alone(cpu::measure(Arc::clone(&host))).await?);
    }
    if is_wanted(Part::Audit) {
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
