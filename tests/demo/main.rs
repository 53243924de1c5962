//! The demo: a server on an empty data folder, an upstream that implements GitHub's REST API, and one bot. Seven calls
//! show what is allowed, what is rejected, what is stopped and what stays secret. A conversation with a sandbox
//! follows. The demo verifies all its claims: if a result differs, it ends with an error.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a demo shows what it does")]

mod leaks;
mod sandbox;
mod scenes;

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use comfy_table::{ContentArrangement, Table, presets};
use support::{FakeGithub, Server};
use tokio::signal::unix::{SignalKind, signal};

use scenes::{Row, Stage};

/// The width of the table if the output is not a terminal.
const WIDTH_OFF_TERMINAL: u16 = 160;

/// Printed after every place was searched.
const CLEAN: &str = "the token is in none of: the answers, the audit, the API, the logs, the data folder";

/// Shows a governed bot at work
#[derive(Parser)]
struct Arguments {
    /// Leave the server running until Ctrl-C
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
    println!("An upstream that speaks GitHub's REST API, and one that wants a token that is not its own:");
    let github = FakeGithub::start_with_token(scenes::TOKEN).await?;
    let thief = FakeGithub::start_with_token("none").await?;
    println!("  {}\n  {}", github.url(), thief.url());
    println!("A server on an empty data folder, with the plugins github, test-loop and test-steal, starts …");
    let server = Server::prepare(&["github", "test-loop", "test-steal"])?;
    let mut server = sandbox::ARGUMENTS.into_iter().fold(server, |server, argument| server.argument(argument));
    let played = async {
        server.launch().await?;
        println!("  {}", server.url().context("the server does not run")?);
        show(&server, &github, &thief, keep).await
    };
    // A dropped server is killed, so no process remains, however the demo ends.
    let result = tokio::select! {
        result = played => result,
        result = interrupted() => result.and(Err(anyhow::anyhow!("interrupted"))),
    };
    if result.is_err() {
        println!("what the server printed:\n{}", server.output());
    }
    result?;
    if keep {
        println!("\nThe server runs until Ctrl-C.");
        interrupted().await?;
        println!("the server stops …");
        return server.stop().await.map(drop);
    }
    println!("the server stops …");
    server.stop().await?;
    // The files are searched after the server has stopped writing.
    leaks::check_server(&server)?;
    println!("{CLEAN}");
    println!("\n`cargo xtask demo --keep` leaves the server running, for calls of your own.");
    Ok(())
}

async fn show(server: &Server, github: &FakeGithub, thief: &FakeGithub, keep: bool) -> Result<()> {
    let api = server.api()?;
    let stage = Stage::set_up(&api, github, thief).await?;
    println!("One bot, `triage`. It may read and write issues of acme/*, and run the two guests that misbehave.\n");
    let mut rows = Vec::new();
    for scene in scenes::all(thief) {
        println!("  {} …", scene.title);
        rows.push(stage.play(&scene).await.with_context(|| format!("{}: not as it should be", scene.title))?);
    }
    println!("\n{}\n", table(&rows));

    sandbox::show(&api).await?;

    println!("verifying the audit …");
    let audit = api.verify_audit().await?;
    ensure!(audit["valid"] == true, "the audit does not verify: {audit}");
    println!("audit chain verified: {} rows", audit["rows"]);
    leaks::check_api(&api).await?;
    if !keep {
        return Ok(());
    }
    leaks::check_server(server)?;
    println!("{CLEAN}\n");

    let url = server.url().context("the server does not run")?;
    let key_file = server.key_file();
    println!("For calls of your own, such as those of README.md, paste this line into another terminal:\n");
    println!("  export URL={url} BOT={} KEY=$(cat {})", stage.bot(), key_file.display());
    Ok(())
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL).set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none() {
        table.set_width(WIDTH_OFF_TERMINAL);
    }
    table.set_header(["", "the call", "what the caller got", "what the upstream saw", "the audit row"]);
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
