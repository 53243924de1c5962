//! The official clients: PyPI `mcp`, npm `@modelcontextprotocol/client` and `@modelcontextprotocol/sdk`. `cargo xtask
//! test` installs them in `target/mcp-clients`.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::McpPeer;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use super::Scene;
use super::calls::ended;
use crate::world::{eventually, text};

/// The time-out for a step of a client, which starts an interpreter first.
const STEP_MAX: Duration = Duration::from_secs(90);

/// A running client.
struct Peer {
    lines: Lines<BufReader<ChildStdout>>,
    input: ChildStdin,
    child: Child,
}

impl Peer {
    fn start(peer: McpPeer, scene: &Scene) -> Result<Peer> {
        let url = scene.world.server.url().context("the server is not running")?;
        let mut command = peer.command()?;
        command.arg(format!("{url}{}", scene.client.path)).arg(scene.client.api.key()).arg(peer.mode());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("the client cannot be run")?;
        let output = child.stdout.take().context("the client has no output")?;
        let input = child.stdin.take().context("the client has no input")?;
        Ok(Peer { lines: BufReader::new(output).lines(), input, child })
    }

    /// Returns what the client tells next.
    async fn next(&mut self) -> Result<Value> {
        let line = tokio::time::timeout(STEP_MAX, self.lines.next_line()).await.context("the client hangs")??;
        Ok(serde_json::from_str(&line.context("the client has ended")?)?)
    }
}

/// Lists and calls with one client, cancels a call, and changes the list. Returns what the client told.
async fn visit(peer: McpPeer) -> Result<String> {
    let scene = Scene::start().await?;
    scene.world.github.hold();
    let mut client = Peer::start(peer, &scene)?;
    let mut told = Vec::new();
    loop {
        let mut step = client.next().await?;
        match text(&step["step"]) {
            "waiting" => {
                scene.world.reached(1).await?;
                client.input.write_all(b"\n").await?;
            }
            "cancelled" => {
                let row = eventually("the call has ended", async || ended(&scene, "test_echo_fetch").await).await?;
                ensure!(row["code"] == "cancelled", "{row}");
            }
            "listening" => scene.change_list().await?,
            "listed" => step["tools"] = json!(step["tools"].as_array().map(Vec::len)),
            "call" => {
                // The echo contains ids and times of this run.
                step["structured"] = step["structured"].get("params").cloned().unwrap_or_default();
                if text(&step["texts"][0]).contains("request_id") {
                    let first = text(&step["texts"][0]).split(['{', '\n']).next().unwrap_or_default().to_owned();
                    step["texts"] = json!([first]);
                }
            }
            _ => {}
        }
        told.push(step.to_string());
        if step["step"] == "changed" {
            break;
        }
    }
    let status = tokio::time::timeout(STEP_MAX, client.child.wait()).await.context("the client does not end")??;
    ensure!(status.success(), "the client ended with {status}");
    Ok(told.join("\n"))
}

#[tokio::test]
async fn the_python_client_by_the_newest_revision() -> Result<()> {
    assert_snapshot!(visit(McpPeer::Python { is_legacy: false }).await?, @r#"
    {"step":"connected","revision":"2026-07-28","name":"monstrum","title":"tester"}
    {"step":"listed","tools":8}
    {"step":"call","tool":"test_echo_run","error":false,"texts":[""],"structured":{"repo":"acme/site"}}
    {"step":"call","tool":"test_echo_write","error":true,"texts":["Scope violation: Kind feature is not authorized"],"structured":null}
    {"step":"call","tool":"test_echo_mismatch","error":true,"texts":["The call succeeded, but its result does not match the tool's output schema:"],"structured":null}
    {"step":"call","tool":"absent","error":true,"texts":["Permission denied: tool 'absent' is not available to this bot"],"structured":null}
    {"step":"waiting"}
    {"step":"cancelled"}
    {"step":"listening"}
    {"step":"changed","tools":["test_echo_run"]}
    "#);
    Ok(())
}

#[tokio::test]
async fn the_python_client_by_initialize() -> Result<()> {
    assert_snapshot!(visit(McpPeer::Python { is_legacy: true }).await?, @r#"
    {"step":"connected","revision":"2025-11-25","name":"monstrum","title":"tester"}
    {"step":"listed","tools":8}
    {"step":"call","tool":"test_echo_run","error":false,"texts":[""],"structured":{"repo":"acme/site"}}
    {"step":"call","tool":"test_echo_write","error":true,"texts":["Scope violation: Kind feature is not authorized"],"structured":null}
    {"step":"call","tool":"test_echo_mismatch","error":true,"texts":["The call succeeded, but its result does not match the tool's output schema:"],"structured":null}
    {"step":"call","tool":"absent","error":true,"texts":["Permission denied: tool 'absent' is not available to this bot"],"structured":null}
    {"step":"waiting"}
    {"step":"cancelled"}
    {"step":"listening"}
    {"step":"changed","tools":["test_echo_run"]}
    "#);
    Ok(())
}

#[tokio::test]
async fn the_typescript_client_by_the_newest_revision() -> Result<()> {
    assert_snapshot!(visit(McpPeer::TypeScriptClient).await?, @r#"
    {"step":"connected","revision":"2026-07-28","name":"monstrum","title":"tester"}
    {"step":"listed","tools":8}
    {"step":"call","tool":"test_echo_run","error":false,"texts":[""],"structured":{"repo":"acme/site"}}
    {"step":"call","tool":"test_echo_write","error":true,"texts":["Scope violation: Kind feature is not authorized"],"structured":null}
    {"step":"call","tool":"test_echo_mismatch","error":true,"texts":["The call succeeded, but its result does not match the tool's output schema:"],"structured":null}
    {"step":"call","tool":"absent","error":true,"texts":["Permission denied: tool 'absent' is not available to this bot"],"structured":null}
    {"step":"waiting"}
    {"step":"cancelled"}
    {"step":"listening"}
    {"step":"changed","tools":["test_echo_run"]}
    "#);
    Ok(())
}

#[tokio::test]
async fn the_typescript_sdk_by_initialize() -> Result<()> {
    assert_snapshot!(visit(McpPeer::TypeScriptSdk).await?, @r#"
    {"step":"connected","revision":"2025-11-25","name":"monstrum","title":"tester"}
    {"step":"listed","tools":8}
    {"step":"call","tool":"test_echo_run","error":false,"texts":[""],"structured":{"repo":"acme/site"}}
    {"step":"call","tool":"test_echo_write","error":true,"texts":["Scope violation: Kind feature is not authorized"],"structured":null}
    {"step":"call","tool":"test_echo_mismatch","error":true,"texts":["The call succeeded, but its result does not match the tool's output schema:"],"structured":null}
    {"step":"call","tool":"absent","error":true,"texts":["Permission denied: tool 'absent' is not available to this bot"],"structured":null}
    {"step":"waiting"}
    {"step":"cancelled"}
    {"step":"listening"}
    {"step":"changed","tools":["test_echo_run"]}
    "#);
    Ok(())
}
