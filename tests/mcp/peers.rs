//! The official clients and others that are widely used, installed by `cargo xtask test` in `target/mcp-clients`.
//!
//! Each test is an ability, with the clients that have it:
//!
//! | | list, call | approval | cancel | list_changed |
//! | --- | --- | --- | --- | --- |
//! | PyPI `mcp`, both generations | yes | at a URL | yes | yes |
//! | npm `@modelcontextprotocol/client` and `sdk` | yes | at a URL | yes | yes |
//! | npm `@ai-sdk/mcp`, both generations | yes | in words: it opens no URLs | yes | no: it reads no notifications |
//! | npm `@modelcontextprotocol/inspector --cli`, both | yes | in words: it opens no URLs | by its end | no: it ends after one request |

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rstest::rstest;
use serde_json::{Value, json};
use support::McpPeer::{
    self, AiSdk, AiSdkInitialize, Inspector, InspectorStateless, Python, PythonInitialize, TypeScriptClient,
    TypeScriptSdk,
};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::Scene;
use super::approvals::{PERSONS, approve, gated};
use super::calls::ended;
use crate::world::{eventually, text};

/// The time-out for a step of a client, which starts an interpreter first.
const STEP_MAX: Duration = Duration::from_secs(90);
const RUN: &str = "test_echo_run";

/// A client that uses the bot of a scene.
struct Peer<'a> {
    peer: McpPeer,
    scene: &'a Scene,
    /// The running program, for clients that are programs of their own and not libraries.
    driver: Option<Driver>,
    /// The home of a client that is a program, with its settings.
    home: TempDir,
    running: Option<Child>,
}

/// What a client shows of a result.
#[derive(Debug)]
struct Shown {
    is_error: bool,
    text: String,
    structured: Value,
}

impl<'a> Peer<'a> {
    async fn start(peer: McpPeer, scene: &'a Scene) -> Result<Peer<'a>> {
        let mut started = Peer { peer, scene, driver: None, home: tempfile::tempdir()?, running: None };
        if peer.mode().is_some() {
            let (driver, revision) = Driver::connect(peer, &started.url()?, scene.client.api.key()).await?;
            assert_eq!(revision, peer.revision());
            started.driver = Some(driver);
        }
        Ok(started)
    }

    fn url(&self) -> Result<String> {
        let url = self.scene.world.server.url().context("the server is not running")?;
        Ok(format!("{url}{}", self.scene.client.path))
    }

    /// Returns the command of docs/mcp.md for the Inspector, with these further arguments.
    fn inspector(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = self.peer.command()?;
        let key = format!("Authorization: Bearer {}", self.scene.client.api.key());
        command.args(["--cli", &self.url()?, "--transport", "http", "--header", &key]);
        if self.peer == InspectorStateless {
            command.args(["--protocol-era", "modern"]);
        }
        command.args(arguments).args(["--format", "json"]).env("HOME", self.home.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        Ok(command)
    }

    /// Runs the Inspector. Returns the result of the request, or the error that the Inspector prints.
    async fn inspected(&self, arguments: &[&str]) -> Result<Value> {
        let run = self.inspector(arguments)?.output();
        let output = tokio::time::timeout(STEP_MAX, run).await.context("the Inspector hangs")??;
        let printed = if output.stdout.is_empty() { &output.stderr } else { &output.stdout };
        let answer: Value = serde_json::from_slice(printed)
            .with_context(|| format!("no JSON: {}", String::from_utf8_lossy(&output.stderr)))?;
        let failed = answer.get("error").is_some() || answer["result"]["isError"] == true;
        // The Inspector has a code of its own for tools that fail.
        ensure!(output.status.code() == Some(if failed { 5 } else { 0 }), "{} {answer}", output.status);
        Ok(answer)
    }

    async fn list(&mut self) -> Result<Vec<String>> {
        let names = match &mut self.driver {
            Some(driver) => driver.ask(&json!({"do": "list"})).await?["tools"].clone(),
            None => {
                let answer = self.inspected(&["--method", "tools/list"]).await?;
                answer["result"]["tools"].as_array().into_iter().flatten().map(|tool| tool["name"].clone()).collect()
            }
        };
        Ok(serde_json::from_value(names)?)
    }

    async fn call(&mut self, tool: &str, arguments: &Value) -> Result<Shown> {
        let answer = match &mut self.driver {
            Some(driver) => driver.ask(&json!({"do": "call", "tool": tool, "arguments": arguments})).await?,
            None => {
                let answer = self.inspected(&call_arguments(tool, &arguments.to_string())).await?;
                let result = &answer["result"];
                let text = if result.is_null() { &answer["error"]["message"] } else { &result["content"][0]["text"] };
                let is_error = result.is_null() || result["isError"] == true;
                json!({"error": is_error, "texts": [text], "structured": result["structuredContent"]})
            }
        };
        Ok(shown(&answer))
    }

    /// Starts a call and does not wait for its answer.
    async fn begin(&mut self, tool: &str, arguments: &Value) -> Result<()> {
        match &mut self.driver {
            Some(driver) => driver.say(&json!({"do": "begin", "tool": tool, "arguments": arguments})).await,
            None => {
                let mut command = self.inspector(&call_arguments(tool, &arguments.to_string()))?;
                self.running = Some(command.spawn().context("the client cannot be run")?);
                Ok(())
            }
        }
    }

    /// Cancels the call: with the client's own means, or by ending a client that cannot cancel.
    async fn cancel(&mut self) -> Result<()> {
        if let Some(driver) = &mut self.driver {
            ensure!(driver.ask(&json!({"do": "cancel"})).await?["cancelled"] == true);
        }
        match &mut self.running {
            Some(running) => Ok(running.kill().await?),
            None => Ok(()),
        }
    }

    fn driver(&mut self) -> Result<&mut Driver> {
        self.driver.as_mut().context("the client is a program")
    }
}

fn call_arguments<'a>(tool: &'a str, arguments: &'a str) -> [&'a str; 6] {
    ["--method", "tools/call", "--tool-name", tool, "--tool-args-json", arguments]
}

fn shown(answer: &Value) -> Shown {
    let text = text(&answer["texts"][0]).to_owned();
    Shown { is_error: answer["error"] == true, text, structured: answer["structured"].clone() }
}

/// A script of `tests/mcp-clients` that uses a client library.
pub(super) struct Driver {
    lines: Lines<BufReader<ChildStdout>>,
    input: ChildStdin,
    _child: Child,
}

impl Driver {
    /// Connects a client library with a server. Returns it with the revision on which they agree.
    pub(super) async fn connect(peer: McpPeer, url: &str, key: &str) -> Result<(Driver, String)> {
        let mut command = peer.command()?;
        command.arg(url).arg(key).arg(peer.mode().context("the client is a program")?);
        let mut driver = Driver::start(command)?;
        let connected = driver.next().await?;
        Ok((driver, text(&connected["revision"]).to_owned()))
    }

    fn start(mut command: Command) -> Result<Driver> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("the client cannot be run")?;
        let output = child.stdout.take().context("the client has no output")?;
        let input = child.stdin.take().context("the client has no input")?;
        Ok(Driver { lines: BufReader::new(output).lines(), input, _child: child })
    }

    /// Returns what the client tells next.
    async fn next(&mut self) -> Result<Value> {
        let line = tokio::time::timeout(STEP_MAX, self.lines.next_line()).await.context("the client hangs")??;
        Ok(serde_json::from_str(&line.context("the client has ended")?)?)
    }

    async fn say(&mut self, command: &Value) -> Result<()> {
        Ok(self.input.write_all(format!("{command}\n").as_bytes()).await?)
    }

    pub(super) async fn ask(&mut self, command: &Value) -> Result<Value> {
        self.say(command).await?;
        self.next().await
    }
}

#[rstest]
#[tokio::test]
async fn lists_the_tools_of_the_bot(
    #[values(
        Python,
        PythonInitialize,
        TypeScriptClient,
        TypeScriptSdk,
        AiSdk,
        AiSdkInitialize,
        Inspector,
        InspectorStateless
    )]
    peer: McpPeer,
) -> Result<()> {
    let scene = Scene::start().await?;
    let listed = Peer::start(peer, &scene).await?.list().await?;
    let mut tools = scene.world.tools().await?;
    tools.sort_unstable();
    assert_eq!(listed, tools);
    assert!(listed.iter().any(|name| name == RUN), "{listed:?}");
    Ok(())
}

#[rstest]
#[tokio::test]
async fn calls_a_tool(
    #[values(
        Python,
        PythonInitialize,
        TypeScriptClient,
        TypeScriptSdk,
        AiSdk,
        AiSdkInitialize,
        Inspector,
        InspectorStateless
    )]
    peer: McpPeer,
) -> Result<()> {
    let scene = Scene::start().await?;
    let mut client = Peer::start(peer, &scene).await?;
    let arguments = json!({"repo": "acme/site"});
    let result = client.call(RUN, &arguments).await?;
    assert_eq!((result.is_error, &result.structured["params"]), (false, &arguments), "{result:?}");

    // The client would discard a result that does not match its schema. The model reads that the call has succeeded.
    let result = client.call("test_echo_mismatch", &arguments).await?;
    assert!(result.is_error, "{result:?}");
    let told = "The call succeeded, but its result does not match the tool's output schema:";
    assert!(result.text.starts_with(told), "{result:?}");
    Ok(())
}

#[rstest]
#[tokio::test]
async fn shows_a_refusal_and_a_scope_violation(
    #[values(
        Python,
        PythonInitialize,
        TypeScriptClient,
        TypeScriptSdk,
        AiSdk,
        AiSdkInitialize,
        Inspector,
        InspectorStateless
    )]
    peer: McpPeer,
) -> Result<()> {
    let scene = Scene::start().await?;
    let mut client = Peer::start(peer, &scene).await?;
    let refused = client.call("absent", &json!({})).await?;
    let reason = match peer {
        // The Inspector calls only tools that it finds in the list.
        Inspector | InspectorStateless => "Tool 'absent' not found on server.",
        _ => "Permission denied: tool 'absent' is not available to this bot",
    };
    assert_eq!((refused.is_error, refused.text.as_str()), (true, reason));
    let violation = client.call("test_echo_write", &json!({"kind": "feature"})).await?;
    assert_eq!(
        (violation.is_error, violation.text.as_str()),
        (true, "Scope violation: Kind feature is not authorized")
    );
    Ok(())
}

/// The client shows its user the page on which a person decides, and the call goes on afterwards.
#[rstest]
#[tokio::test]
async fn opens_the_page_of_an_approval(
    #[values(Python, PythonInitialize, TypeScriptClient, TypeScriptSdk)] peer: McpPeer,
) -> Result<()> {
    let scene = gated(Some(PERSONS)).await?;
    let mut client = Peer::start(peer, &scene).await?;
    let arguments = json!({"repo": "acme/site"});
    let asked = client.driver()?.ask(&json!({"do": "call", "tool": RUN, "arguments": arguments})).await?;
    assert!(text(&asked["asked"]).starts_with("https://people.example/"), "{asked}");
    approve(&scene).await?;
    let result = shown(&client.driver()?.ask(&json!("decided")).await?);
    assert_eq!((result.is_error, &result.structured["params"]), (false, &arguments), "{result:?}");
    Ok(())
}

/// A client that opens no URLs gets the URL in words. The user calls again after the decision.
#[rstest]
#[tokio::test]
async fn says_in_words_where_a_person_decides(
    #[values(AiSdk, AiSdkInitialize, Inspector, InspectorStateless)] peer: McpPeer,
) -> Result<()> {
    let scene = gated(Some(PERSONS)).await?;
    let mut client = Peer::start(peer, &scene).await?;
    let arguments = json!({"repo": "acme/site"});
    let asked = client.call(RUN, &arguments).await?;
    assert!(asked.is_error && asked.text.contains("https://people.example/"), "{asked:?}");
    approve(&scene).await?;
    let result = client.call(RUN, &arguments).await?;
    assert_eq!((result.is_error, &result.structured["params"]), (false, &arguments), "{result:?}");
    Ok(())
}

#[rstest]
#[tokio::test]
async fn cancels_a_call(
    #[values(
        Python,
        PythonInitialize,
        TypeScriptClient,
        TypeScriptSdk,
        AiSdk,
        AiSdkInitialize,
        Inspector,
        InspectorStateless
    )]
    peer: McpPeer,
) -> Result<()> {
    let scene = Scene::start().await?;
    scene.world.github.hold();
    let mut client = Peer::start(peer, &scene).await?;
    client.begin("test_echo_fetch", &json!({"path": "/user"})).await?;
    scene.world.reached(1).await?;
    client.cancel().await?;
    let row = eventually("the call has ended", async || ended(&scene, "test_echo_fetch").await).await?;
    assert_eq!(row["code"], "cancelled", "{row}");
    Ok(())
}

#[rstest]
#[tokio::test]
async fn learns_of_a_changed_list(
    #[values(Python, PythonInitialize, TypeScriptClient, TypeScriptSdk)] peer: McpPeer,
) -> Result<()> {
    let scene = Scene::start().await?;
    let mut client = Peer::start(peer, &scene).await?;
    assert!(client.list().await?.len() > 1);
    ensure!(client.driver()?.ask(&json!({"do": "listen"})).await?["listening"] == true);
    scene.change_list().await?;
    ensure!(client.driver()?.next().await?["changed"] == true);
    assert_eq!(client.list().await?, [RUN]);
    Ok(())
}
