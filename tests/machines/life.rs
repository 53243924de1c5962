//! The lifecycle of a conversation, tested through the API of the server.

use std::io::{Cursor, Read};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::join_all;
use reqwest::Method;
use serde_json::json;

use super::remains::marked;
use super::{MARKED, Machine};
use crate::world::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn idle_one_is_stopped_resumed_and_its_files_downloaded() -> Result<()> {
    let mut machine = Machine::start(&["--sandbox-idle-s=5", "--sandbox-sweep-s=1"]).await?;
    machine
        .text("c", "mkdir -p site && echo '<h1>hello</h1>' >site/index.html && python3 -c 'print(6*7)' >site/answer")
        .await?;
    let ended = Instant::now();
    let status = machine.status("c").await?;
    // After 4 s, the reaper may already have stopped the sandbox.
    ensure!(status.as_deref() == Some("running") || ended.elapsed() > Duration::from_secs(4), "{status:?}");
    eventually("the reaper has stopped the sandbox", async || {
        Ok((machine.status("c").await?.as_deref() == Some("stopped")).then_some(()))
    })
    .await?;
    ensure!(machine.text("c", "cat site/answer").await? == "42\n");
    let (status, listed) = file(&machine, json!({ "action": "list", "path": "/workspace/site" })).await?;
    ensure!(status == 200 && listed["files"].as_array().is_some_and(|files| files.len() == 2), "{listed}");
    let body = json!({ "appId": "a", "chatId": "c", "path": "/workspace/site" });
    let answer = machine.api.request(Method::POST, "/api/core/ai/sandbox/download").json(&body).send().await?;
    ensure!(answer.status() == 200, "{answer:?}");
    let mut archive = zip::ZipArchive::new(Cursor::new(answer.bytes().await?))?;
    let mut text = String::new();
    archive.by_name("index.html").context("the archive does not contain the page")?.read_to_string(&mut text)?;
    ensure!(text == "<h1>hello</h1>\n");
    machine.server.stop().await?;
    machine.remains().gone().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_ends_when_its_key_is_taken_back() -> Result<()> {
    let mut machine = Machine::start(&[]).await?;
    // The file is larger than the socket buffers, so that most of it has not been sent when the key is deleted.
    machine.text("c", "head -c 40M /dev/zero >large").await?;
    let body = json!({ "name": "reader", "kind": "operator" });
    let (status, key) = machine.api.post("/api/keys", &body).await?;
    ensure!(status == 201, "{key}");
    let reader = machine.api.with_key(key["key"].as_str().context("a key")?);
    let body = json!({ "appId": "a", "chatId": "c", "path": "large" });
    let mut answer = reader.request(Method::POST, "/api/core/ai/sandbox/download").json(&body).send().await?;
    ensure!(answer.status() == 200 && answer.content_length() == Some(40 << 20), "{answer:?}");
    let mut read = answer.chunk().await?.context("it begins")?.len();
    let id = key["id"].as_str().context("an id")?;
    let (status, _) = machine.api.delete(&format!("/api/keys/{id}")).await?;
    ensure!(status == 204);
    let broken_off = loop {
        match answer.chunk().await {
            Ok(Some(piece)) => read += piece.len(),
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    ensure!(broken_off && read < 40 << 20, "the stream was not cut off: {read} bytes arrived");
    machine.server.stop().await?;
    machine.remains().gone().await
}

async fn file(machine: &Machine, mut body: serde_json::Value) -> Result<(u16, serde_json::Value)> {
    body["appId"] = "a".into();
    body["chatId"] = "c".into();
    machine.api.post("/api/core/ai/sandbox/file", &body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_first_calls_make_one_sandbox_and_one_row() -> Result<()> {
    let mut machine = Machine::start(&[]).await?;
    let calls = (0..20).map(|number| {
        let command = format!("echo {number} >>/workspace/calls; hostname");
        let machine = &machine;
        async move { machine.text("c", &command).await }
    });
    for answer in join_all(calls).await {
        ensure!(answer? == "sandbox\n");
    }
    ensure!(machine.text("c", "wc -l <calls").await?.trim() == "20", "the commands ran in different sandboxes");
    ensure!(machine.remains().images() == 1);
    let (_, rows) = machine.api.get("/api/sandboxes").await?;
    ensure!(rows["items"].as_array().is_some_and(|rows| rows.len() == 1), "{rows}");
    machine.server.stop().await?;
    machine.remains().gone().await
}

#[tokio::test(flavor = "multi_thread")]
async fn workspaces_with_the_same_triple_never_meet() -> Result<()> {
    let mut machine = Machine::start(&[]).await?;
    machine.text("c", "echo mine >secret").await?;
    let (status, body) = machine.api.post("/api/workspaces", &json!({ "name": "other" })).await?;
    ensure!(status == 201, "{body}");
    let inside = |method, path: &str| machine.api.request(method, path).header("Monstrum-Workspace", "other");
    let bot = inside(Method::POST, "/api/bots").json(&json!({ "name": "coder", "use_agent_sandbox": true }));
    let bot: serde_json::Value = bot.send().await?.json().await?;
    let path = format!("/api/bots/{}/tools/sandbox_shell/call", bot["id"].as_str().context("an id")?);
    let chat = json!({ "app_id": "a", "user_id": "u", "chat_id": "c" });
    let call = json!({ "params": { "command": "ls -A /workspace; hostname" }, "chat": chat });
    let answer: serde_json::Value = inside(Method::POST, &path).json(&call).send().await?.json().await?;
    ensure!(answer["data"]["stdout"] == "sandbox\n", "{answer}");
    ensure!(machine.remains().images() == 2);
    machine.server.stop().await?;
    machine.remains().gone().await
}

#[tokio::test(flavor = "multi_thread")]
async fn switch_that_is_turned_off_ends_what_runs() -> Result<()> {
    let mut machine = Machine::start(&[]).await?;
    let marker = format!("{MARKED}5{:05}", std::process::id() % 100_000);
    let command = format!("(setsid {marker} >/dev/null 2>&1 &) && echo begun >/dev/stdout");
    ensure!(machine.text("c", &command).await? == "begun\n");
    eventually("the command is running", async || Ok((marked(&marker) == 1).then_some(()))).await?;
    let off = json!({ "use_agent_sandbox": false });
    let (status, body) = machine.api.patch(&format!("/api/bots/{}", machine.bot), &off).await?;
    ensure!(status == 200, "{body}");
    eventually("the command has ended", async || Ok((marked(&marker) == 0).then_some(()))).await?;
    eventually("the row says that the sandbox is stopped", async || {
        Ok((machine.status("c").await?.as_deref() == Some("stopped")).then_some(()))
    })
    .await?;
    machine.server.stop().await?;
    machine.remains().gone().await
}
