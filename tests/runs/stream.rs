//! `GET /api/runs/{id}/events`: a run as it goes on.

use anyhow::{Context, Result, ensure};
use futures::StreamExt as _;
use reqwest::Method;
use serde_json::{Value, json};

use super::flows::{Flows, READ, WRITE, call, decide};
use crate::world::text;

/// An event of the stream: its id, name and data.
fn parsed(stream: &str) -> Vec<(String, String, Value)> {
    let field = |event: &str, name: &str| {
        event.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
    };
    let read = |event: &str| {
        let (name, data) = (field(event, "event:")?, field(event, "data:")?);
        Some((field(event, "id:").unwrap_or_default(), name, serde_json::from_str(&data).ok()?))
    };
    stream.split("\n\n").filter_map(read).collect()
}

fn names(events: &[(String, String, Value)]) -> Vec<&str> {
    events.iter().map(|(_, name, _)| name.as_str()).collect()
}

#[tokio::test]
async fn a_listener_reads_each_step_and_the_end() -> Result<()> {
    let flows = Flows::start().await?;
    let steps =
        json!([call("r", READ), { "id": "ok", "approve": { "text": "Write?", "for": ["w"] } }, call("w", WRITE)]);
    flows.world.github.hold();
    let id = flows.begin(&json!({ "steps": steps, "output": "done" }), &json!({})).await?;
    let path = format!("/api/runs/{id}/events");
    let mut body = flows.api().request(Method::GET, &path).send().await?.bytes_stream();
    let mut received = String::new();
    flows.reached(1).await?;
    flows.world.github.release();
    while !received.contains("event: approval") {
        received += &String::from_utf8_lossy(&body.next().await.context("the stream has ended")??);
    }
    let (_, admin) = flows.key("admin", None).await?;
    let wait = flows.waits(&id, "approval").await?;
    ensure!(received.contains(text(&wait["id"])), "{received}");
    assert_eq!(decide(&admin, text(&wait["id"]), "approve", "").await?.0, 200);
    while let Some(bytes) = body.next().await {
        received += &String::from_utf8_lossy(&bytes?);
    }
    let events = parsed(&received);
    let ends: Vec<String> = events
        .iter()
        .filter(|(_, name, step)| name == "step" && !step["ended_at"].is_null())
        .map(|(_, _, step)| format!("{} {}", text(&step["step"]), text(&step["status"])))
        .collect();
    assert_eq!(ends, ["r succeeded", "ok succeeded", "w succeeded"], "{received}");
    assert_eq!((names(&events).first(), names(&events).last()), (Some(&"run"), Some(&"end")), "{received}");
    let (_, _, end) = events.last().context("the stream has no events")?;
    assert_eq!((&end["id"], text(&end["status"]), text(&end["output"])), (&json!(id), "completed", "done"));

    // A late listener reads the same steps and the end.
    let late = flows.api().request(Method::GET, &path).send().await?.text().await?;
    let late = parsed(&late);
    let of_late = late.iter().filter(|(_, name, step)| name == "step" && !step["ended_at"].is_null()).count();
    assert_eq!((of_late, names(&late).last()), (3, Some(&"end")));
    // One that comes back reads only what it has missed.
    let middle =
        events.iter().position(|(_, name, step)| name == "step" && step["step"] == "ok" && !step["ended_at"].is_null());
    let last = &events[middle.context("the question is in the stream")?].0;
    ensure!(!last.is_empty(), "{received}");
    let request = flows.api().request(Method::GET, &path).header("last-event-id", last);
    let missed = parsed(&request.send().await?.text().await?);
    let of_read = missed.iter().filter(|(_, name, step)| name == "step" && step["step"] == "r").count();
    assert_eq!((of_read, names(&missed).last()), (0, Some(&"end")), "{missed:?}");
    Ok(())
}
