//! The author's kit: from an empty folder to a tool that answers, with the commands of the author's guide.

mod cases;
mod dev;
mod scaffold;

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::Json;
use axum::extract::Path as Segment;
use axum::http::HeaderMap;
use axum::routing::get;
use serde_json::{Value, json};
use support::Server;
use tokio::process::Command;

use crate::cli::run;

/// A time-out that is far longer than the build of a plugin needs, even on a busy machine.
const BUILD_MAX: Duration = Duration::from_secs(900);

/// Locked by a test while it builds a plugin. One build at a time is enough for a machine that also runs other tests.
static BUILDING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// cargo retries if a registry is temporarily unavailable.
const RETRIES: (&str, &str) = ("CARGO_NET_RETRY", "10");

/// Runs cargo in a plugin's folder as an author would. Removes the variables that the outer cargo sets.
async fn cargo(folder: &Path, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).kill_on_drop(true);
    command.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS").envs([RETRIES]);
    let output =
        tokio::time::timeout(BUILD_MAX, command.output()).await.context("timed out waiting for cargo to end")??;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "cargo {}:\n{out}\n{err}", arguments.join(" "));
    Ok(output)
}

/// Runs a command of the kit, which must succeed, and returns its output.
async fn kit(server: &Server, arguments: &[&str]) -> Result<String> {
    let output = run(server, arguments).await?;
    let (out, err) = (String::from_utf8(output.stdout)?, String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "monstrum {}:\n{out}\n{err}", arguments.join(" "));
    Ok(out)
}

/// Starts an upstream with items of every id, which echoes the authorization of requests. Returns its URL.
async fn items() -> Result<String> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let item = async |Segment(id): Segment<String>, headers: HeaderMap| -> Json<Value> {
        let authorization = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
        Json(json!({ "id": id, "authorization": authorization }))
    };
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().route("/items/{id}", get(item))).await });
    Ok(url)
}

/// Creates the plugin `weather` next to the server's folders.
async fn weather(server: &Server) -> Result<PathBuf> {
    kit(server, &["plugin", "new", "weather"]).await?;
    Ok(server.home().join("weather"))
}
