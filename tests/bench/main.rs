//! The benches measure the cost of the host against the cost of the same work without the host.
//!
//! Times vary between machines and from minute to minute, so no result is compared with a number from another run.
//! Every subject and its floor (the same work without the host) are measured alternately, in one run.

#![expect(clippy::print_stdout, reason = "a bench prints its results")]
#![expect(unreachable_pub, reason = "the modules of a program are private")]

/// The allocator of the server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod against;
mod agents;
mod bare;
mod changes;
mod charged;
mod console;
mod cpu;
mod durable;
mod egress;
mod floor;
mod governed;
mod hostile;
mod http;
mod kept;
mod load;
mod machine;
mod many;
mod mcp;
mod models;
mod neighbours;
mod postgres;
mod process;
mod pure;
mod reload;
mod remote;
mod report;
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

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand, ValueEnum};

use support::Server;

use against::Against;
use governed::Host;
use machine::Machine;
use report::{Report, Row};
use scene::PLUGIN;
use upstream::Upstream;

/// Measures the cost of the host, compared with floors: the same work without the host
#[derive(Parser)]
struct Arguments {
    /// Write all results to this file as JSON [default: target/bench.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure only these parts
    #[arg(long, value_delimiter = ',', value_name = "PART", conflicts_with = "quick")]
    only: Vec<Part>,
    /// Measure only the parts that take seconds, or at most a few minutes
    #[arg(long)]
    quick: bool,
    /// Also write the table into docs/performance.md
    #[arg(long)]
    write: bool,
    /// Compare this build with the build of another revision instead of with floors, and write target/against.json. The
    /// other revision is built in a worktree in target/against, which is kept
    #[arg(long, value_name = "REVISION", conflicts_with = "write")]
    against: Option<String>,
    /// Leave out the rows that need Chromium
    #[arg(long, hide = true)]
    without_browser: bool,
    /// The measured commit
    #[arg(long, value_name = "COMMIT", default_value = "unknown", hide = true)]
    revision: String,
    /// The number of rounds of server starts and of load over HTTP
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// The duration of the load on each side of a round, in seconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    seconds: u8,
    #[command(subcommand)]
    instead: Option<Instead>,
}

/// The subcommands, which do something other than measuring.
#[derive(Subcommand)]
enum Instead {
    #[command(hide = true)]
    Floor(floor::Floor),
    Soak(soak::Soak),
    #[command(name = soak::host::COMMAND, hide = true)]
    ArchivingHost(Box<soak::host::ArchivingHost>),
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A governed call in this process, and its steps
    Call,
    /// A call over HTTP
    Http,
    /// Calls with a cost
    Charged,
    /// Many plugins, resources and tools
    Many,
    /// Calls and lists over the Model Context Protocol
    Mcp,
    /// Connected remote agents
    Agents,
    /// The Guardian's decisions
    Guardian,
    Redaction,
    /// Computation in a guest
    Cpu,
    /// Verification of the audit
    Audit,
    /// Starts of the server with many plugins, and with a long audit
    Start,
    /// Starts of the server with many plugins, a large policy and a long audit at the same time
    StartAll,
    /// Replacing a plugin under load
    Reload,
    /// Calls that wait for their upstream
    Suspended,
    /// Good calls alongside hostile calls
    Neighbours,
    /// Commands in sandboxes, and the steps of a sandbox's lifetime
    Sandbox,
    /// A change of the policy on a host with 500 000 bindings
    Changes,
    /// Calls over HTTP of one and of two hosts on PostgreSQL
    Postgres,
    /// The pages of the console
    Console,
    /// Streams of models, steps of tasks, and waiting tasks
    Models,
}

impl Part {
    /// Returns the name of the part on the command line.
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns whether the part is included in `--quick`.
    fn is_quick(self) -> bool {
        matches!(self, Part::Call | Part::Http | Part::Charged | Part::Guardian | Part::Redaction)
    }
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
        Some(Instead::ArchivingHost(host)) => host.serve().await,
        None => bench(arguments).await,
    }
}

async fn bench(arguments: Arguments) -> Result<()> {
    let Arguments { json, only, quick, write, against, without_browser, revision, rounds, seconds, instead: _ } =
        arguments;
    let is_wanted = |part: Part| if quick { part.is_quick() } else { only.is_empty() || only.contains(&part) };
    let parts = Part::value_variants().iter().copied().filter(|part| is_wanted(*part));
    let (rounds, seconds) = (rounds.into(), seconds.into());
    if let Some(other) = against {
        let (own_revision, parts) = (revision, parts.collect());
        return Against { revision: other, own_revision, parts, rounds, seconds, json }.run().await;
    }
    let wasm = Server::plugin_source(PLUGIN)?.join("plugin.wasm");
    let machine = Machine::measure(&wasm, &scene::bare_request()).await?;
    println!("  a bare call takes {} on this machine", report::time(machine.bare_us));
    let mut report = Report::new(revision, machine);
    in_process(&mut report, is_wanted).await?;
    // A part that fails does not discard the results of the other parts.
    let mut failed = Vec::new();
    for part in parts {
        match measure(part, rounds, seconds, !without_browser, &report.machine).await {
            Ok(rows) => report.rows.extend(rows),
            Err(error) => {
                println!("  error: {error:#}");
                failed.push(part.name());
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
    if write {
        report.write_page(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/performance.md"))?;
    }
    println!("written to {}", path.display());
    ensure!(failed.is_empty(), "these parts failed: {}", failed.join(", "));
    Ok(())
}

/// Measures a part that starts its own servers or needs no server. `has_browser` tells whether Chromium and its packages
/// are installed.
async fn measure(part: Part, rounds: usize, seconds: u64, has_browser: bool, machine: &Machine) -> Result<Vec<Row>> {
    let title = match part {
        Part::Call | Part::Cpu | Part::Audit => return Ok(Vec::new()),
        Part::Http => "a call over HTTP",
        Part::Charged => "calls with a cost",
        Part::Many => "many plugins, resources and tools",
        Part::Mcp => "the Model Context Protocol",
        Part::Agents => "connected agents",
        Part::Guardian => "the Guardian",
        Part::Redaction => "redaction",
        Part::Start => "a start with many plugins",
        Part::StartAll => "a start with everything at once",
        Part::Reload => "hot reload under load",
        Part::Suspended => "calls that wait",
        Part::Neighbours => "hostile neighbours",
        Part::Changes => "a change among 500 000 bindings",
        Part::Sandbox => "sandboxes",
        Part::Postgres => "hosts on PostgreSQL",
        Part::Console => "the console",
        Part::Models => "models and tasks",
    };
    println!("  {title} …");
    match part {
        Part::Call | Part::Cpu | Part::Audit => Ok(Vec::new()),
        Part::Http => http::measure(rounds, seconds, machine).await,
        Part::Charged => Ok(vec![charged::measure(rounds, seconds).await?]),
        Part::Many => many::measure(rounds, seconds, machine).await,
        Part::Mcp => mcp::measure(rounds, seconds, machine).await,
        Part::Agents => Ok(vec![agents::measure().await?]),
        Part::Guardian => pure::guardian(machine),
        Part::Redaction => Ok(pure::redaction(machine)),
        Part::Start => start::measure(rounds, machine).await,
        Part::StartAll => Ok(vec![start::measure_all(rounds, machine).await?]),
        Part::Reload => reload::measure(rounds, seconds).await,
        Part::Suspended => Ok(vec![suspended::measure().await?]),
        Part::Neighbours => Ok(vec![neighbours::measure(rounds, seconds).await?]),
        Part::Changes => changes::measure(rounds, machine).await,
        Part::Sandbox => sandboxes::measure(rounds).await,
        Part::Postgres => postgres::measure(rounds, seconds).await,
        Part::Console => console::measure(rounds, seconds, machine, has_browser).await,
        Part::Models => models::measure(rounds).await,
    }
}

/// Measures the parts that need the host in this process.
async fn in_process(report: &mut Report, is_wanted: impl Fn(Part) -> bool) -> Result<()> {
    if ![Part::Call, Part::Cpu, Part::Audit].into_iter().any(&is_wanted) {
        return Ok(());
    }
    let (upstream, tls_upstream) = (Upstream::start().await?, Upstream::start_tls().await?);
    let host = Arc::new(Host::start(&upstream.url(), &tls_upstream.url()).await?);
    if is_wanted(Part::Call) {
        println!("  a governed call in process …");
        let (row, stages) = alone(governed::measure(Arc::clone(&host), report.machine.clone())).await?;
        report.rows.push(row);
        report.stages = stages;
        println!("  the wait for a durable row …");
        let durable = durable::measure(Arc::clone(&host), &report.machine).await?;
        println!("  a call with a request to an upstream …");
        let plain = egress::measure(&host, &upstream, &report.machine, &durable).await?;
        let tls = egress::measure(&host, &tls_upstream, &report.machine, &durable).await?;
        println!("  calls of tools from outside …");
        let outside = remote::measure(&host, &report.machine, &durable).await?;
        report.rows.extend([durable, plain, tls]);
        report.rows.extend(outside);
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
    Arc::into_inner(host).context("the host is still in use")?.stop().await;
    Ok(())
}

/// Runs `work` on a separate thread. The measured time of a call that only queues its row then does not include the
/// background work of the host, such as the writing of the audit.
async fn alone<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    let run = || tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work);
    tokio::task::spawn_blocking(run).await.context("the bench failed")?
}

/// Returns the path of `bench.json` in the target folder, next to the folder of the profile.
fn default_path() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let target = program
        .parent()
        .and_then(Path::parent)
        .context("this program is not in a profile folder of the target folder")?;
    Ok(target.join("bench.json"))
}
