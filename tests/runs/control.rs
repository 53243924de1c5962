//! Runs that are paused, resumed, cancelled and retried.

use anyhow::Result;
use serde_json::{Value, json};
use support::{Canned, status_of};

use super::flows::{FAIL, Flows, PUT, READ, WRITE, call, told, with};
use crate::world::{eventually, text};

/// What runs ends, nothing new starts, and a run that goes on misses nothing.
#[tokio::test]
async fn a_paused_run_starts_nothing_until_it_goes_on() -> Result<()> {
    let mut flows = Flows::start().await?;
    flows.world.github.hold();
    let id = flows.begin(&json!({ "steps": [call("a", WRITE), call("b", WRITE)] }), &json!({})).await?;
    flows.reached(1).await?;
    flows.ask(&id, "pause", &json!({})).await?;
    flows.world.github.release();
    let run = flows.is(&id, "paused").await?;
    assert_eq!(status_of(&flows.steps(&run).await?), ["a succeeded"]);
    // Not even another server starts anything.
    flows.killed().await?;
    eventually("all turns have ended", async || {
        let (_, wakes) = flows.api().get("/api/wakes").await?;
        let wakes = wakes["items"].as_array().cloned().unwrap_or_default();
        Ok(wakes.iter().all(|wake| wake["claimed_by"].is_null()).then_some(()))
    })
    .await?;
    let run = flows.is(&id, "paused").await?;
    assert_eq!(status_of(&flows.steps(&run).await?), ["a succeeded"]);
    flows.ask(&id, "resume", &json!({})).await?;
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run)[0], "completed", "{run}");
    assert_eq!(flows.seen(), ["POST a", "POST b"]);
    Ok(())
}

/// The time of a wait passes while its run is paused.
#[tokio::test]
async fn timers_pass_while_a_run_is_paused() -> Result<()> {
    let flows = Flows::start().await?;
    let steps = json!([{ "id": "soon", "wait": { "for": "1s" } }, call("after", READ)]);
    let id = flows.begin(&json!({ "steps": steps }), &json!({})).await?;
    flows.waits(&id, "timer").await?;
    flows.ask(&id, "pause", &json!({})).await?;
    let passed = |run: &Value| run["status"] == "paused" && run["waiting_for"].is_null();
    let run = flows.api().run_that("still waits", &id, passed).await?;
    assert_eq!(status_of(&flows.steps(&run).await?), ["soon succeeded"]);
    assert!(flows.seen().is_empty());
    flows.ask(&id, "cancel", &json!({})).await?;
    assert_eq!(told(&flows.ended(&id).await?)[0], "cancelled", "a paused run can be cancelled");
    Ok(())
}

#[tokio::test]
async fn a_cancelled_run_stops_its_calls_and_undoes_if_that_is_asked() -> Result<()> {
    let flows = Flows::start().await?;
    let definition = json!({
        "steps": [
            with(call("a", WRITE), &json!({ "undo": { "tool": PUT, "params": { "marker": "undone" } } })),
            { "id": "go", "wait": { "event": "custom.go" } },
            with(call("r", READ), &json!({ "needs": ["go"] })),
            with(call("w", WRITE), &json!({ "needs": ["go"] })),
        ],
        "finally": [{ "id": "tell", "emit": "ended", "data": { "status": "${{ run.status }}" } }],
    });
    for undo in [false, true] {
        drop(flows.world.github.take_requests());
        let id = flows.begin(&definition, &json!({})).await?;
        flows.waits(&id, "event").await?;
        flows.world.github.hold();
        flows.emit("go", &json!({})).await?;
        flows.reached(3).await?;
        flows.ask(&id, "cancel", &json!({ "undo": undo })).await?;
        // The calls never have an answer; only the call that undoes gets one.
        if undo {
            flows.reached(4).await?;
            flows.world.github.release();
        }
        let run = flows.ended(&id).await?;
        flows.world.github.release();
        assert_eq!((told(&run)[0], &run["uncertain"]), ("cancelled", &json!([{ "step": "w" }])), "{run}");
        let mut ends = status_of(&flows.steps(&run).await?);
        ends.retain(|end| end.starts_with("r ") || end.starts_with("w "));
        ends.sort();
        assert_eq!(ends, ["r cancelled", "w uncertain"]);
        assert_eq!(flows.seen().contains(&"PUT undone".to_owned()), undo);
    }
    let ended = flows.events("custom.ended").await?;
    assert!(ended.len() == 2 && ended.iter().all(|event| event["data"]["status"] == "cancelled"), "{ended:?}");
    let failed = flows.events("workflow.failed").await?;
    assert!(failed.len() == 2 && failed.iter().all(|event| event["data"]["status"] == "cancelled"), "{failed:?}");
    assert!(flows.events("workflow.completed").await?.is_empty());
    Ok(())
}

/// A run that a person has cancelled can go on after all.
#[tokio::test]
async fn a_cancelled_run_is_retried() -> Result<()> {
    let flows = Flows::start().await?;
    let steps = json!([call("a", WRITE), { "id": "go", "wait": { "event": "custom.go" } }, call("b", WRITE)]);
    let id = flows.begin(&json!({ "steps": steps }), &json!({})).await?;
    flows.waits(&id, "event").await?;
    flows.ask(&id, "cancel", &json!({})).await?;
    assert_eq!(told(&flows.ended(&id).await?)[0], "cancelled");
    flows.ask(&id, "retry", &json!({})).await?;
    let wait = flows.waits(&id, "event").await?;
    assert_eq!(text(&wait["step"]), "go");
    flows.emit("go", &json!({})).await?;
    let run = flows.ended(&id).await?;
    assert_eq!((told(&run)[0], &run["attempt"], &run["error"]), ("completed", &json!(2), &Value::Null), "{run}");
    assert_eq!(flows.seen(), ["POST a", "POST b"]);
    Ok(())
}

#[tokio::test]
async fn a_run_is_retried_more_than_once() -> Result<()> {
    let flows = Flows::start().await?;
    for _ in 0..2 {
        flows.world.github.answer_next("/effects/b", Canned::json(500, &json!({ "message": "down" })));
    }
    let run = flows.run(&json!({ "steps": [call("a", WRITE), call("b", READ)] })).await?;
    let id = text(&run["id"]);
    assert_eq!(told(&run), ["failed", "plugin", "b"], "{run}");
    flows.ask(id, "retry", &json!({})).await?;
    let run = flows.ended(id).await?;
    assert_eq!((told(&run), &run["attempt"]), (["failed", "plugin", "b"], &json!(2)), "{run}");
    flows.ask(id, "retry", &json!({})).await?;
    let run = flows.ended(id).await?;
    assert_eq!((told(&run)[0], &run["attempt"]), ("completed", &json!(3)), "{run}");
    assert_eq!(flows.seen(), ["POST a", "GET b", "GET b", "GET b"]);
    Ok(())
}

/// What a run is not in a state for is refused, and changes nothing.
#[tokio::test]
async fn requests_that_do_not_fit_the_state_of_a_run_are_refused() -> Result<()> {
    let flows = Flows::start().await?;
    let waiting =
        flows.begin(&json!({ "steps": [{ "id": "go", "wait": { "event": "custom.go" } }] }), &json!({})).await?;
    flows.waits(&waiting, "event").await?;
    let completed = flows.run(&json!({ "steps": [call("a", READ)] })).await?;
    let failed = flows.run(&json!({ "steps": [call("a", FAIL)] })).await?;
    for (id, what) in [
        (waiting.as_str(), "retry"),
        (text(&completed["id"]), "retry"),
        (text(&completed["id"]), "cancel"),
        (text(&completed["id"]), "pause"),
        (text(&completed["id"]), "resume"),
        (text(&failed["id"]), "pause"),
        (waiting.as_str(), "resume"),
    ] {
        let before = flows.api().run(id).await?;
        let (status, refused) = flows.api().post(&format!("/api/runs/{id}/{what}"), &json!({})).await?;
        assert_eq!(status, 409, "{what} of {before}: {refused}");
        assert_eq!(flows.api().run(id).await?, before, "{what}");
    }
    for what in ["cancel", "pause", "resume", "retry"] {
        let path = format!("/api/runs/01939d2c-7f6a-7000-8000-000000000001/{what}");
        assert_eq!(flows.api().post(&path, &json!({})).await?.0, 404, "{what}");
    }
    flows.ask(&waiting, "cancel", &json!({})).await?;
    flows.ended(&waiting).await?;
    let (_, changes) = flows.api().get("/api/audit/changes?limit=1000").await?;
    let cancelled = changes["items"].as_array().into_iter().flatten().filter(|change| change["change"] == "run.cancel");
    assert_eq!(cancelled.filter(|change| change["status"] == "success").count(), 1, "{changes}");
    Ok(())
}
