//! Runs the official conformance suite of the Model Context Protocol against Monstrum. The test `mcp::conformance` starts
//! this program in a network namespace of its own, because the suite listens on all addresses.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "the program prints its results")]

mod client;
mod server;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use serde_json::json;
use support::{ConformanceSuite, Side};

use client::ClientScenario;
use server::ServerScene;

/// The revisions whose requirements are run.
const REVISIONS: [&str; 2] = ["2026-07-28", "2025-11-25"];

/// Runs the MCP conformance suite
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run both sides by the requirements of both revisions, and print the results as JSON
    Run,
    /// Use the server of one scenario through Monstrum; the suite runs this command
    Client(ClientScenario),
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Run => run().await,
        Command::Client(scenario) => scenario.play().await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let suite = ConformanceSuite::installed()?;
    let results = tempfile::tempdir().context("cannot create a temporary folder")?;
    let mut scene = ServerScene::start().await?;
    let mut runs = Vec::new();
    for revision in REVISIONS {
        let url = scene.url();
        let folder = results.path().join(format!("server-{revision}"));
        let add_url = |command: &mut tokio::process::Command| {
            command.args(["--url", &url]);
        };
        runs.push(suite.run(Side::Server, revision, &folder, add_url).await?);
    }
    let monstrum = scene.server.url().context("the server is not running")?.to_owned();
    let place = client::prepare(&scene.server.api()?, &monstrum).await?;
    for revision in REVISIONS {
        let folder = results.path().join(format!("client-{revision}"));
        let add_client = |command: &mut tokio::process::Command| place.complete(command);
        runs.push(suite.run(Side::Client, revision, &folder, add_client).await?);
    }
    scene.server.stop().await?;
    println!("{}", json!(runs));
    Ok(())
}
