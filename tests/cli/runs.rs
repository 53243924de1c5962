//! The commands of `monstrum workflow` on runs.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::time::timeout;

use crate::cli::{parsed, run, succeed, told};
use crate::world::{World, eventually, text};

/// A time-out that is far longer than any line needs.
const LINE_MAX: Duration = Duration::from_secs(60);

/// A workflow that greets, waits if its input says so, and fails if its input says so.
const DEFINITION: &str = "\
workflow: greet
bot: tester
input: { type: object, properties: { name: { type: string }, waits: { type: boolean }, fails: { type: boolean } } }
steps:
  - { id: hello, emit: hello, data: { name: '${{ has(input.name) ? input.name : \"world\" }}' } }
  - { id: rest, when: has(input.waits), wait: { for: 1h } }
  - { id: broken, when: has(input.fails), stop: failed, message: it was asked for }
finally:
  - { id: bye, emit: bye }
output: { greeted: true }
";

async fn world() -> Result<World> {
    let world = World::with(&[]).await?;
    let file = world.server.home().join("greet.yaml");
    fs::write(&file, DEFINITION)?;
    succeed(&world.server, &["workflow", "apply", file.to_str().unwrap_or_default()]).await?;
    Ok(world)
}

/// Starts a run that waits, and returns its id when it does.
async fn waiting(world: &World) -> Result<String> {
    let id = succeed(&world.server, &["workflow", "run", "greet", "--input", r#"{"waits": true}"#]).await?;
    status(world, &id, "waiting").await?;
    Ok(id)
}

/// Waits until a run has a status, and returns the run.
async fn status(world: &World, id: &str, status: &str) -> Result<Value> {
    eventually(&format!("run {id} is {status}"), async || {
        let (_, run) = world.api.get(&format!("/api/runs/{id}")).await?;
        Ok((run["status"] == status).then_some(run))
    })
    .await
}

#[tokio::test]
async fn a_run_is_watched_until_it_ends() -> Result<()> {
    let world = world().await?;
    let server = &world.server;
    let watched = told(server, &["workflow", "run", "greet", "--input", r#"{"name": "you"}"#, "--watch"]).await?;
    for part in [
        "✓ hello",
        "· rest skipped",
        "· broken skipped",
        "✓ bye",
        r#"{"greeted":true}"#,
        "completed (4 steps",
        "[exit 0]",
    ] {
        assert!(watched.contains(part), "{part}: {watched}");
    }
    let input = server.home().join("input.json");
    fs::write(&input, r#"{"fails": true}"#)?;
    let from_file = format!("@{}", input.display());
    let failed = told(server, &["workflow", "run", "greet", "--input", &from_file, "--watch"]).await?;
    assert!(failed.contains("failed: broken: stopped: it was asked for") && failed.ends_with("[exit 1]"), "{failed}");
    let output = run(server, &["workflow", "run", "greet", "--watch", "--json"]).await?;
    let lines: Vec<Value> =
        String::from_utf8(output.stdout)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let last = lines.last().context("no line was printed")?;
    assert_eq!((&last["event"], &last["data"]["status"]), (&json!("end"), &json!("completed")));
    assert!(lines.iter().any(|line| line["event"] == "step" && line["data"]["step"] == "hello"), "{lines:?}");
    // A run that has ended is followed to its end at once.
    let id = text(&last["data"]["id"]).to_owned();
    assert!(told(server, &["workflow", "watch", &id]).await?.ends_with("[exit 0]"));
    Ok(())
}

#[tokio::test]
async fn runs_are_listed_shown_and_steered() -> Result<()> {
    let world = world().await?;
    let server = &world.server;
    assert!(told(server, &["workflow", "runs"]).await?.contains("there are no such runs"));
    let id = waiting(&world).await?;
    let listed = succeed(server, &["workflow", "runs", "--workflow", "greet", "--status", "waiting"]).await?;
    assert!(listed.contains(&id) && listed.contains("rest: timer"), "{listed}");
    let (_, none) = parsed(server, &["workflow", "runs", "--status", "failed"]).await?;
    assert_eq!(none["items"], json!([]));
    let shown = succeed(server, &["workflow", "runs", &id]).await?;
    for part in ["waits for", "rest: timer until", "hello", "succeeded", r#"{"waits":true}"#] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let (_, whole) = parsed(server, &["workflow", "runs", &id]).await?;
    assert_eq!((&whole["id"], &whole["items"][0]["step"]), (&json!(id), &json!("hello")));

    succeed(server, &["workflow", "pause", &id]).await?;
    status(&world, &id, "paused").await?;
    succeed(server, &["workflow", "resume", &id]).await?;
    status(&world, &id, "waiting").await?;
    succeed(server, &["workflow", "cancel", &id, "--undo"]).await?;
    let watched = told(server, &["workflow", "watch", &id]).await?;
    assert!(watched.contains("cancelled") && watched.ends_with("[exit 1]"), "{watched}");
    let (_, retried) = parsed(server, &["workflow", "retry", &id]).await?;
    assert_eq!(retried["attempt"], json!(2));
    status(&world, &id, "waiting").await?;
    succeed(server, &["workflow", "cancel", &id]).await?;
    status(&world, &id, "cancelled").await?;
    Ok(())
}

#[tokio::test]
async fn wrong_input_is_refused_with_a_remedy() -> Result<()> {
    let world = world().await?;
    let server = &world.server;
    let id = waiting(&world).await?;
    let missing = "019a0000-0000-7000-8000-000000000001";
    for (arguments, parts) in [
        (&["run", "absent"][..], &["has no workflow `absent`", "`monstrum workflow list`"][..]),
        (&["run", "greet", "--input", "{"], &["the input is not JSON", "set --input to JSON"]),
        (&["run", "greet", "--input", r#"{"name": 7}"#], &["/name"]),
        (&["run", "greet", "--version", "9"], &["422", "/version"]),
        (&["runs", missing], &["404", "`monstrum workflow runs`"]),
        (&["retry", &id], &["409"]),
        (&["resolve", &id, "rest", "--as", "failed"], &["409"]),
        (&["resolve", &id, "rest", "--as", "failed", "--data", "1"], &["has no result", "omit --data"]),
    ] {
        let refused = told(server, &[&["workflow"], arguments].concat()).await?;
        assert!(refused.ends_with("[exit 1]") && refused.contains("\nhint: "), "{arguments:?}: {refused}");
        assert!(parts.iter().all(|part| refused.contains(part)), "{arguments:?}: {refused}");
    }
    for arguments in
        [&["runs", &id, "--status", "waiting"][..], &["runs", "--status", "asleep"], &["resolve", &id, "rest"]]
    {
        assert!(told(server, &[&["workflow"], arguments].concat()).await?.ends_with("[exit 2]"), "{arguments:?}");
    }
    Ok(())
}

/// Ctrl-C ends the command that watches. The run goes on.
#[tokio::test]
async fn ctrl_c_leaves_the_run_running() -> Result<()> {
    let world = world().await?;
    let arguments = ["workflow", "run", "greet", "--input", r#"{"waits": true}"#, "--watch"];
    let mut command = world.server.prepared_command(&arguments)?;
    let mut watching = command.stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true).spawn()?;
    let mut lines = BufReader::new(watching.stderr.take().context("the process has no output")?).lines();
    loop {
        let line = timeout(LINE_MAX, lines.next_line()).await.context("no line was printed")??;
        if line.context("the command has ended")?.contains("rest waits for") {
            break;
        }
    }
    let pid = i32::try_from(watching.id().context("the command has ended")?)?;
    kill_process(Pid::from_raw(pid).context("the id of the process is 0")?, Signal::INT)?;
    let mut rest = String::new();
    lines.into_inner().read_to_string(&mut rest).await?;
    assert_eq!(watching.wait().await?.code(), Some(130));
    assert!(rest.contains("the run goes on: `monstrum workflow watch "), "{rest}");
    let (_, runs) = world.api.get("/api/runs?status=waiting").await?;
    assert_eq!(runs["items"].as_array().map(Vec::len), Some(1), "{runs}");
    Ok(())
}
