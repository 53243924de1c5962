//! Steps that wait for a time or for an event.

use anyhow::Result;
use serde_json::{Value, json};
use support::status_of;

use super::flows::{Flows, READ, call, told, with};
use crate::world::text;

#[tokio::test]
async fn a_step_waits_for_a_time() -> Result<()> {
    let flows = Flows::start().await?;
    let definition = json!({
        "steps": [
            { "id": "past", "wait": { "until": "2020-01-31T12:00:00Z" } },
            { "id": "soon", "wait": { "for": "1s" } },
            call("after", READ),
        ],
        "output": ["${{ steps.past.data }}", "${{ steps.soon.data }}"],
    });
    let id = flows.begin(&definition, &json!({})).await?;
    let wait = flows.waits(&id, "timer").await?;
    assert_eq!((&wait["step"], wait["until"].is_string()), (&json!("soon"), true), "{wait}");
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run)[0], "completed", "{run}");
    assert!(text(&run["output"][0]).starts_with("2020-01-31T12:00:00"), "{run}");
    assert!(text(&run["ended_at"]) >= text(&wait["until"]), "{wait} {run}");
    assert_eq!(flows.seen(), ["GET after"]);
    Ok(())
}

#[tokio::test]
async fn a_run_that_waits_long_is_waiting_and_can_be_cancelled() -> Result<()> {
    let flows = Flows::start().await?;
    let definition = json!({ "timeout": "30d", "steps": [{ "id": "later", "wait": { "for": "20d" } }] });
    let id = flows.begin(&definition, &json!({})).await?;
    let run = flows.is(&id, "waiting").await?;
    let waits = run["waiting_for"].as_array().cloned().unwrap_or_default();
    assert_eq!((waits.len(), text(&waits[0]["kind"])), (1, "timer"), "{run}");
    flows.ask(&id, "cancel", &json!({})).await?;
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run)[0], "cancelled", "{run}");
    assert_eq!(status_of(&flows.steps(&run).await?), ["later cancelled"]);
    Ok(())
}

/// Only an event of the type, of the bot or of the platform, with the fields that the step names, ends the wait.
#[tokio::test]
async fn a_step_waits_for_an_event() -> Result<()> {
    let flows = Flows::start().await?;
    let other = flows.api().bot("other").await?;
    let definition = json!({
        "steps": [
            { "id": "deployed", "wait": {
                "event": "custom.deployed", "match": { "version": "${{ input.version }}", "ok": true },
            } },
        ],
        "output": "${{ steps.deployed.data }}",
    });
    // An event before the step does not count.
    let right = json!({ "version": { "n": 2 }, "ok": true, "more": "x" });
    let early = flows.emit("deployed", &json!({ "data": right })).await?;
    flows.delivered(&early).await?;
    let id = flows.begin(&definition, &json!({ "version": { "n": 2 } })).await?;
    let wait = flows.waits(&id, "event").await?;
    assert_eq!((text(&wait["step"]), text(&wait["id"])), ("deployed", "custom.deployed"), "{wait}");
    for (name, fields) in [
        ("deployed", json!({ "data": { "version": { "n": 3 }, "ok": true } })),
        ("deployed", json!({ "data": { "version": { "n": 2 } } })),
        ("deployed.x", json!({ "data": right })),
        ("deployed", json!({ "data": right, "bot_id": other })),
    ] {
        let event = flows.emit(name, &fields).await?;
        flows.delivered(&event).await?;
    }
    assert_eq!(text(&flows.api().run(&id).await?["status"]), "waiting");
    let event = flows.emit("deployed", &json!({ "data": right, "bot_id": flows.world.bot })).await?;
    let run = flows.ended(&id).await?;
    let output = &run["output"];
    assert_eq!(
        (text(&run["status"]), text(&output["id"]), &output["data"]),
        ("completed", event.as_str(), &right),
        "{run}"
    );
    assert_eq!(text(&output["event_type"]), "custom.deployed");
    Ok(())
}

/// The event arrives before the step begins to wait, and after the run has started.
#[tokio::test]
async fn an_event_since_the_start_of_the_run_counts_if_the_step_says_so() -> Result<()> {
    let flows = Flows::start().await?;
    let definition = |since: &str| {
        json!({
            "steps": [
                { "id": "tell", "emit": "told", "data": { "n": 1 } },
                { "id": "go", "wait": { "event": "custom.go" } },
                { "id": "told", "wait": { "event": "custom.told", "since": since }, "timeout": "1s" },
            ],
            "output": "${{ steps.told.data.id == steps.tell.data.event_id }}",
        })
    };
    for (since, expected) in [("run", ["completed", "", ""]), ("step", ["failed", "timeout", "told"])] {
        let id = flows.begin(&definition(since), &json!({})).await?;
        flows.waits(&id, "event").await?;
        let told_event = flows.events("custom.told").await?;
        flows.delivered(text(&told_event[0]["id"])).await?;
        flows.emit("go", &json!({})).await?;
        let run = flows.ended(&id).await?;
        assert_eq!(told(&run), expected, "{since}: {run}");
        assert_eq!(run["output"], if since == "run" { json!(true) } else { Value::Null }, "{run}");
    }
    Ok(())
}

#[tokio::test]
async fn one_event_ends_the_waits_of_all_runs() -> Result<()> {
    const RUNS: usize = 5;
    let flows = Flows::start().await?;
    let definition = json!({
        "steps": [{ "id": "go", "wait": { "event": "custom.go" } }], "output": "${{ steps.go.data.id }}",
    });
    let mut ids = Vec::new();
    for _ in 0..RUNS {
        let id = flows.begin(&definition, &json!({})).await?;
        flows.waits(&id, "event").await?;
        ids.push(id);
    }
    let event = flows.emit("go", &json!({})).await?;
    for id in &ids {
        assert_eq!(flows.ended(id).await?["output"], json!(event));
    }
    Ok(())
}

#[tokio::test]
async fn a_wait_without_an_event_in_time_fails() -> Result<()> {
    let flows = Flows::start().await?;
    let wait = json!({ "id": "go", "wait": { "event": "task.completed" }, "timeout": "1s", "on_error": "continue" });
    let definition =
        json!({ "steps": [wait, with(call("after", READ), &json!({ "when": "steps.go.error.code == 'timeout'" }))] });
    let run = flows.run(&definition).await?;
    assert_eq!(told(&run)[0], "completed", "{run}");
    assert_eq!(status_of(&flows.steps(&run).await?), ["go failed", "after succeeded"]);
    Ok(())
}

/// Events of before a crash are found after it, and none is missed in between.
#[tokio::test]
async fn a_wait_outlives_the_server() -> Result<()> {
    let mut flows = Flows::start().await?;
    let definition = json!({
        "steps": [{ "id": "go", "wait": { "event": "custom.go" } }, { "id": "soon", "wait": { "for": "1s" } }],
    });
    let id = flows.begin(&definition, &json!({})).await?;
    flows.waits(&id, "event").await?;
    flows.killed().await?;
    flows.waits(&id, "event").await?;
    flows.emit("go", &json!({})).await?;
    flows.waits(&id, "timer").await?;
    flows.killed().await?;
    assert_eq!(told(&flows.ended(&id).await?)[0], "completed");
    Ok(())
}
