//! `POST /api/sandboxes/{id}/exec`: the call passes all stages, and the answer is returned as JSON or as events.

use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use futures::StreamExt;
use insta::assert_snapshot;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::http::one;
use crate::sandbox::{Doors, shown};
use crate::world::text;

async fn path(doors: &Doors) -> Result<String> {
    doors.shell("echo made").await?;
    Ok(format!("/api/sandboxes/{}/exec", text(&doors.sandbox().await?["id"])))
}

fn streamed(doors: &Doors, path: &str, command: &str) -> RequestBuilder {
    let request = doors.api.request(Method::POST, path).header("accept", "text/event-stream");
    request.json(&json!({ "command": command }))
}

/// Parses events into pairs of name and data, and skips comments.
fn events(body: &str) -> Vec<(String, Value)> {
    let event = |block: &str| {
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let data = field("data:").and_then(|data| serde_json::from_str(data).ok());
        field("event:").map(|name| (name.to_owned(), data.unwrap_or_default()))
    };
    body.split("\n\n").filter_map(event).collect()
}

#[tokio::test]
async fn a_command_is_a_call_of_the_bot_in_its_conversation() -> Result<()> {
    let doors = Doors::open().await?;
    let path = path(&doors).await?;
    let (status, answer) = doors.api.post(&path, &json!({ "command": "fail 3", "timeout": 5 })).await?;
    assert_eq!(status, 200);
    assert_snapshot!(shown(&answer), @r#"{"data":{"stdout":"","stderr":"failed\n","exitCode":3,"termination":"exited","truncated":false,"durationMs":7},"status":"success"}"#);
    let record = doors.api.audit(text(&answer["request_id"])).await?;
    assert_eq!((&record["tool"], &record["bot_id"]), (&json!("sandbox_shell"), &json!(doors.bot)));
    assert_eq!(record["params"], json!({ "command": "fail 3", "timeout": 5 }));
    for bad in [json!({}), json!({ "command": 1 }), json!({ "command": "x", "cwd": "/" })] {
        assert_eq!(doors.api.post(&path, &bad).await?.0, 422, "{bad}");
    }
    for (place, bad) in [
        ("/timeout", json!({ "command": "x", "timeout": 301 })),
        ("/timeout", json!({ "command": "x", "timeout": 0 })),
        ("/command", json!({ "command": "" })),
        ("/command", json!({ "command": "a\u{0}b" })),
        ("/command", json!({ "command": "x".repeat(32_769) })),
    ] {
        let (status, refused) = doors.api.post(&path, &bad).await?;
        assert_eq!((status, text(&refused["errors"][0]["path"])), (422, place));
    }
    doors.switch(&doors.bot, false).await?;
    let key = doors.key_of(&doors.bot).await?;
    for api in [&doors.api, &key] {
        let (status, answer) = api.post(&path, &json!({ "command": "echo x" })).await?;
        assert_eq!((status, text(&answer["status"])), (200, "permission_denied"));
    }
    assert_snapshot!(one(doors.api.post("/api/sandboxes/01939d2c-7f6a-7000-8000-000000000001/exec", &json!({ "command": "x" })).await?), @r#"404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such sandbox","request_id":"[id 1]"}"#);
    Ok(())
}

#[tokio::test]
async fn events_are_the_output_as_it_comes_and_the_answer() -> Result<()> {
    let doors = Doors::open().await?;
    let path = path(&doors).await?;
    let response = streamed(&doors, &path, "speak").send().await?;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let events = events(&response.text().await?);
    let (name, end) = events.last().context("the stream has no end event")?.clone();
    assert_eq!(name, "end");
    let record = doors.api.audit(text(&end["request_id"])).await?;
    assert_eq!(record["status"], "success");
    let output: Vec<String> = events[..events.len() - 1].iter().map(|(name, data)| format!("{name} {data}")).collect();
    assert_snapshot!(output.join("\n"), @r#"
    stdout {"text":"caf"}
    stderr {"text":"hm\n"}
    stdout {"text":"é\n"}
    stdout {"text":"end\n"}
    "#);
    let plain = doors.api.post(&path, &json!({ "command": "speak" })).await?.1;
    assert_eq!(shown(&end), shown(&plain), "the end event differs from the JSON answer");

    assert_eq!(streamed(&doors, &path, "").send().await?.status(), 422);
    doors.switch(&doors.bot, false).await?;
    let refused = self::events(&streamed(&doors, &path, "echo x").send().await?.text().await?);
    assert_eq!((refused.len(), &refused[0].1["code"]), (1, &json!("denied")));
    Ok(())
}

#[tokio::test]
async fn a_client_that_goes_away_ends_its_command() -> Result<()> {
    let doors = Doors::open().await?;
    let path = path(&doors).await?;
    let response = streamed(&doors, &path, "hang").send().await?;
    doors.counted("the command begins", &doors.machines.begun, 2).await?;
    drop(response);
    doors.counted("the command is ended", &doors.machines.ended, 1).await?;
    // A client that does not read pauses its command while the buffers are full. The command ends when the client
    // disconnects.
    let mut body = streamed(&doors, &path, "flood").send().await?.bytes_stream();
    assert!(body.next().await.is_some());
    doors.counted("the next command begins", &doors.machines.begun, 3).await?;
    assert_eq!(doors.machines.ended.load(Ordering::SeqCst), 1);
    drop(body);
    doors.counted("the next command is ended", &doors.machines.ended, 2).await?;
    Ok(())
}
