//! Tests of the commands `monstrum logs` and `monstrum audit show`.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use insta::assert_snapshot;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout};
use tokio::time::timeout;

use crate::cli::{parsed, run, told};
use crate::stable::stable;
use crate::world::{World, eventually, text};

/// A time-out that is far longer than any line needs.
const LINE_MAX: Duration = Duration::from_secs(60);

async fn world() -> Result<World> {
    let world = World::with(&["test-caller", "test-echo"]).await?;
    let caller = world.grant_all("test-caller").await?;
    world.grant("test-echo", &["echo.read"], &json!({ "repos": ["acme/*"] })).await?;
    world.rebind(&caller, &json!({ "allow_calls": ["*"] })).await?;
    Ok(world)
}

/// Returns an output without its times in milliseconds, which vary.
fn timeless(text: &str) -> Result<String> {
    Ok(regex::Regex::new("[0-9]+ ms")?.replace_all(text, "[ms]").into_owned())
}

#[tokio::test]
async fn a_call_is_shown_with_its_calls_as_a_tree() -> Result<()> {
    let world = world().await?;
    let read = |repo: &str| json!({ "tool": "test_echo_run", "params": { "repo": repo } });
    let outer = json!({ "tool": "test_caller_call", "params": read("other/\u{1b}[2J\nsite") });
    let answer = world.call("test_caller_call", &outer).await?;
    let root = text(&answer["request_id"]).to_owned();
    let shown = told(&world.server, &["audit", "show", &root]).await?;
    // The first part has the fields of the call, the second part the tree.
    let (fields, tree) = shown.split_once("\n\n").context("there is no tree")?;
    assert!(fields.starts_with("request") && fields.contains("test_caller_call"), "{fields}");
    assert_snapshot!(timeless(tree)?, @r#"
    test_caller_call  success  [ms]  [id 1]
      test_caller_call  success  [ms]  [id 4]
        test_echo_run  scope_violation  [ms]  [id 5]  Scope violation: Repository other/\u{1b}[2J\nsite is not authorized
    [exit 0]
    "#);
    let (code, tree) = parsed(&world.server, &["audit", "show", &root]).await?;
    assert_eq!((code, tree["items"].as_array().map(Vec::len)), (Some(0), Some(3)));
    let (_, api) = world.api.get(&format!("/api/audit?tree={root}&limit=200")).await?;
    assert_eq!(tree, api);
    // A call without calls of its own has no tree.
    let leaf = text(&tree["items"][2]["request_id"]).to_owned();
    assert!(!told(&world.server, &["audit", "show", &leaf]).await?.contains("\n\n"));
    let missing = "019a0000-0000-7000-8000-000000000001";
    assert_snapshot!(told(&world.server, &["audit", "show", missing]).await?.replace(missing, "MISSING"), @r#"
    [stderr]
    error: Not found (404)
      no such call
      request [id 1]
    hint: run `monstrum audit list` to see the calls; also check --workspace
    [exit 1]
    "#);
    assert!(told(&world.server, &["audit", "show", "x"]).await?.ends_with("[exit 2]"));
    Ok(())
}

#[tokio::test]
async fn the_newest_calls_are_printed_the_newest_last() -> Result<()> {
    let world = world().await?;
    assert_snapshot!(told(&world.server, &["logs"]).await?, @r#"
    [stderr]
    no calls
    [exit 0]
    "#);
    for repo in ["acme/1", "other/2", "acme/3"] {
        world.call("test_echo_run", &json!({ "repo": repo })).await?;
    }
    assert_snapshot!(timeless(&told(&world.server, &["logs", "--limit", "2"]).await?)?, @r#"
    [time]  scope_violation  test_echo_run  [id 1]  [ms]  Scope violation: Repository other/2 is not authorized
    [time]  success  test_echo_run  [id 2]  [ms]
    [exit 0]
    "#);
    let output = run(&world.server, &["logs", "--json", "--rule", "scope.repos"]).await?;
    let line: Value = serde_json::from_slice(&output.stdout)?;
    let (_, list) = world.api.get("/api/audit?rule=scope.repos").await?;
    assert_eq!((String::from_utf8(output.stdout)?.lines().count(), &line), (1, &list["items"][0]));
    assert!(told(&world.server, &["logs", "--follow", "--limit", "2"]).await?.ends_with("[exit 2]"));
    Ok(())
}

/// A running `monstrum logs --follow`.
struct Following {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Following {
    fn begin(world: &World, arguments: &[&str]) -> Result<Following> {
        let mut command = world.server.prepared_command(&[&["logs", "--follow"], arguments].concat())?;
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let output = process.stdout.take().context("the process has no output")?;
        Ok(Following { process, lines: BufReader::new(output).lines() })
    }

    async fn line(&mut self) -> Result<String> {
        let line = timeout(LINE_MAX, self.lines.next_line()).await.context("no line was printed")??;
        line.context("the command has ended")
    }

    /// Calls until the first line is printed, because the command connects some time after it was started. Returns the
    /// first line.
    async fn connected(&mut self, world: &World) -> Result<String> {
        eventually("the command prints a call", async || {
            world.call("test_echo_run", &json!({ "repo": "other/first" })).await?;
            let line = timeout(Duration::from_millis(500), self.lines.next_line()).await;
            line.ok().transpose().map(Option::flatten).map_err(Into::into)
        })
        .await
    }
}

#[tokio::test]
async fn calls_are_followed_as_they_end() -> Result<()> {
    let world = world().await?;
    let mut following = Following::begin(&world, &["--status", "scope_violation"])?;
    let first = following.connected(&world).await?;
    assert_snapshot!(
        timeless(stable(&json!(first)).as_str().unwrap_or_default())?,
        @"[time]  scope_violation  test_echo_run  [id 1]  [ms]  Scope violation: Repository other/first is not authorized"
    );
    world.call("test_echo_run", &json!({ "repo": "acme/allowed" })).await?;
    world.call("test_echo_run", &json!({ "repo": "other/second" })).await?;
    let mut line = following.line().await?;
    while line.contains("other/first") {
        line = following.line().await?;
    }
    assert!(line.contains("other/second"), "{line}");
    Ok(())
}

#[tokio::test]
async fn each_followed_call_is_an_object_on_one_line() -> Result<()> {
    let world = world().await?;
    let mut following = Following::begin(&world, &["--json"])?;
    let first: Value = serde_json::from_str(&following.connected(&world).await?)?;
    let (_, call) = world.api.get(&format!("/api/audit?tree={}", text(&first["request_id"]))).await?;
    assert_eq!(first, call["items"][0]);
    Ok(())
}

/// A key that ends stops the command with an error.
#[tokio::test]
async fn a_key_that_ends_stops_the_command() -> Result<()> {
    let world = world().await?;
    let (_, key) = world.api.post("/api/keys", &json!({ "name": "reader", "kind": "operator" })).await?;
    let mut following = Following::begin(&world, &["--key", text(&key["key"])])?;
    following.connected(&world).await?;
    world.api.delete(&format!("/api/keys/{}", text(&key["id"]))).await?;
    while timeout(LINE_MAX, following.lines.next_line()).await.context("the command goes on")??.is_some() {}
    let ended = timeout(LINE_MAX, following.process.wait()).await.context("the command goes on")??;
    assert_eq!(ended.code(), Some(1));
    Ok(())
}
