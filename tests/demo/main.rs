//! The demo: a server on an empty data folder, an upstream that implements GitHub's REST API, and one bot. Seven calls
//! show allowed calls, rejected calls, stopped calls and the protection of secrets. A conversation with a sandbox
//! and the tools of an MCP server follow, then a task with a model and a workflow with an approval, during which the server is
//! killed. The demo verifies all results and ends with an error if a result differs.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a demo prints its steps")]

mod leaks;
mod mcp;
mod sandbox;
mod scenes;
mod task;
mod wiki;
mod workflow;

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use comfy_table::{ContentArrangement, Table, presets};
use serde_json::json;
use support::{Api, FakeGithub, Server};
use tokio::signal::unix::{SignalKind, signal};

use scenes::{Row, Stage};

/// The width of the table if the output is not a terminal.
const WIDTH_OFF_TERMINAL: u16 = 160;

/// The lifetime of the link to the console in seconds, which is the longest that the server permits.
const LINK_S: u32 = 600;

/// The message after all searches.
const CLEAN: &str = "the token does not occur in the answers, the audit, the API, the logs or the data folder";

/// Shows how Monstrum governs the calls of a bot
#[derive(Parser)]
struct Arguments {
    /// Keep the server running until Ctrl-C
    #[arg(long)]
    keep: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match demo(arguments.keep).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn demo(keep: bool) -> Result<()> {
    println!("An upstream with GitHub's REST API, and an upstream that tries to get the token:");
    let github = FakeGithub::start_with_token(scenes::TOKEN).await?;
    let thief = FakeGithub::start_with_token("none").await?;
    println!("  {}\n  {}", github.url(), thief.url());
    println!("Starting a server on an empty data folder, with the plugins github, test-loop and test-steal …");
    let server = Server::prepare(&["github", "test-loop", "test-steal"])?;
    let mut server = sandbox::ARGUMENTS.into_iter().fold(server, |server, argument| server.argument(argument));
    let played = async {
        server.launch().await?;
        println!("  {}", server.url().context("the server is not running")?);
        show(&mut server, &github, &thief, keep).await
    };
    // A dropped server is killed, so the process ends even if the demo fails.
    let result = tokio::select! {
        result = played => result,
        result = interrupted() => result.and(Err(anyhow::anyhow!("interrupted"))),
    };
    if result.is_err() {
        println!("output of the server:\n{}", server.output());
    }
    result?;
    if keep {
        println!("\nThe server runs until Ctrl-C.");
        interrupted().await?;
        println!("stopping the server …");
        return server.stop().await.map(drop);
    }
    println!("stopping the server …");
    server.stop().await?;
    // The files are searched after the server has stopped writing.
    leaks::check_server(&server)?;
    println!("{CLEAN}");
    println!("\nUse `cargo xtask demo --keep` to keep the server running and make other calls.");
    Ok(())
}

async fn show(server: &mut Server, github: &FakeGithub, thief: &FakeGithub, keep: bool) -> Result<()> {
    let api = server.api()?;
    let stage = Stage::set_up(&api, github, thief).await?;
    println!("One bot, `triage`, may read and write issues of acme/* and call the two misbehaving plugins.\n");
    let mut rows = Vec::new();
    for scene in scenes::all(thief) {
        println!("  {} …", scene.title);
        rows.push(stage.play(&scene).await.with_context(|| format!("{}: unexpected result", scene.title))?);
    }
    println!("\n{}\n", table(&rows));

    sandbox::show(&api).await?;
    mcp::show(&api).await?;
    task::show(server).await?;
    workflow::show(server).await?;
    // The server has started again, on another port.
    let api = server.api()?;

    println!("verifying the audit …");
    let audit = api.verify_audit().await?;
    ensure!(audit["valid"] == true, "the verification of the audit failed: {audit}");
    println!("audit chain verified: {} rows", audit["rows"]);
    leaks::check_api(&api).await?;
    if !keep {
        return Ok(());
    }
    leaks::check_server(server)?;
    println!("{CLEAN}\n");

    let url = server.url().context("the server is not running")?;
    let (program, key_file) = (support::program()?, server.key_file());
    let folder = program.parent().context("the program is in no folder")?;
    println!("To make other calls, such as the calls in README.md, paste this line into another terminal:\n");
    println!("  export MONSTRUM_URL={url} MONSTRUM_KEY=$(cat {}) PATH={}:$PATH", key_file.display(), folder.display());
    println!("\nTo see the same in a browser, open this link. It logs the browser in, once, within ten minutes:\n");
    println!("  {}", console_link(&api).await?);
    Ok(())
}

/// Returns a link that logs a browser in to the console, with the root key of the demo.
async fn console_link(api: &Api) -> Result<String> {
    let (status, ticket) = api.post("/api/console/tickets", &json!({ "ttl_s": LINK_S })).await?;
    ensure!(status == 201, "no link to the console was created: {status} {ticket}");
    Ok(ticket["url"].as_str().context("the ticket has no URL")?.to_owned())
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL).set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none() {
        table.set_width(WIDTH_OFF_TERMINAL);
    }
    table.set_header(["", "call", "answer to the caller", "requests to the upstream", "audit row"]);
    for row in rows {
        table.add_row([&row.title, &row.call, &row.caller, &row.upstream, &row.audit]);
    }
    table
}

/// Waits for Ctrl-C or a termination signal.
async fn interrupted() -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
