//! Events start runs.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::flows::{Flows, READ, WRITE, call, told, with};
use crate::world::{eventually, text};

/// Adds a trigger to a workflow, and returns its id.
async fn triggered(flows: &Flows, workflow: &str, trigger: &Value) -> Result<String> {
    let (status, made) = flows.api().post(&format!("/api/workflows/{workflow}/triggers"), trigger).await?;
    ensure!(status == 201, "{status} {made}");
    Ok(text(&made["id"]).to_owned())
}

/// Emits an event and returns the only delivery of it.
async fn delivery(flows: &Flows, fields: &Value) -> Result<(String, Value)> {
    let id = flows.emit("go", fields).await?;
    let event = flows.delivered(&id).await?;
    let deliveries = event["deliveries"].as_array().cloned().unwrap_or_default();
    ensure!(deliveries.len() == 1, "{event}");
    Ok((id, deliveries[0].clone()))
}

fn with_input() -> Value {
    json!({
        "input": { "type": "object", "required": ["n"], "properties": { "n": { "type": "integer" } } },
        "steps": [with(call("w", WRITE), &json!({ "params": { "marker": "w", "any": {
            "n": "${{ input.n }}", "type": "${{ trigger.event.event_type }}", "instruction": "${{ trigger.instruction }}",
        } } }))],
        "output": "${{ steps.w.data.any }}",
    })
}

#[tokio::test]
async fn an_event_starts_one_run_with_its_data() -> Result<()> {
    let flows = Flows::start().await?;
    let workflow = flows.save("flow", &with_input()).await?;
    let trigger =
        triggered(&flows, &workflow, &json!({ "event_pattern": "custom.g*", "instruction": "See {data}." })).await?;
    let (event, done) = delivery(&flows, &json!({ "data": { "n": 7 } })).await?;
    assert_eq!((text(&done["status"]), text(&done["target"]["id"])), ("done", trigger.as_str()), "{done}");
    let run = flows.ended(text(&done["run_id"])).await?;
    assert_eq!(
        (text(&run["status"]), &run["input"], &run["event_id"]),
        ("completed", &json!({ "n": 7 }), &json!(event)),
        "{run}"
    );
    assert_eq!(run["started_by"], json!({ "kind": "trigger", "id": trigger }), "{run}");
    assert_eq!((&run["output"]["n"], text(&run["output"]["type"])), (&json!(7), "custom.go"), "{run}");
    let instruction = text(&run["output"]["instruction"]);
    assert!(instruction.starts_with("See ") && instruction.contains("{\"n\":7}"), "{instruction}");
    assert_eq!((flows.seen(), flows.runs().await?.len()), (vec!["POST w".to_owned()], 1));
    // The end of the run is caused by the event.
    let completed = flows.events("workflow.completed").await?;
    let metadata = &completed[0]["metadata"];
    assert_eq!((&metadata["root_event_id"], &metadata["depth"]), (&json!(event), &json!(1)), "{completed:?}");
    Ok(())
}

#[tokio::test]
async fn data_that_does_not_fit_starts_nothing() -> Result<()> {
    let flows = Flows::start().await?;
    let workflow = flows.save("flow", &with_input()).await?;
    triggered(&flows, &workflow, &json!({ "event_pattern": "custom.go" })).await?;
    for data in [json!({ "n": "seven" }), json!({}), json!([1]), json!("text")] {
        let (_, dead) = delivery(&flows, &json!({ "data": data })).await?;
        assert_eq!((text(&dead["status"]), &dead["run_id"]), ("dead", &Value::Null), "{dead}");
        assert_eq!(text(&dead["reason"]), "input", "{dead}");
    }
    let (_, dead) = delivery(&flows, &json!({ "data": { "n": "seven" } })).await?;
    assert_eq!(dead["invalid_paths"], json!(["/n"]), "{dead}");
    assert!(flows.runs().await?.is_empty() && flows.seen().is_empty());
    Ok(())
}

#[tokio::test]
async fn what_a_trigger_narrows_holds_for_its_runs() -> Result<()> {
    let flows = Flows::start().await?;
    let steps =
        json!([with(call("w", WRITE), &json!({ "on_error": "continue" })), call("r", READ), call("other", READ)]);
    let workflow = flows.save("flow", &json!({ "steps": steps })).await?;
    let narrow = json!({ "allowed_tools": [READ], "scope_constraints": { "markers": ["r"] } });
    triggered(&flows, &workflow, &json!({ "event_pattern": "custom.go", "narrow": narrow })).await?;
    let (_, done) = delivery(&flows, &json!({})).await?;
    let run = flows.ended(text(&done["run_id"])).await?;
    assert_eq!(told(&run), ["failed", "scope", "other"], "{run}");
    for step in flows.steps(&run).await? {
        let row = flows.api().audit(text(&step["request_id"])).await?;
        assert_eq!(row["delegation"], json!([{ "narrow": narrow }]), "{row}");
    }
    assert_eq!(flows.step(&run, "w").await?["error"]["code"], "denied");
    assert_eq!(flows.seen(), ["GET r"]);
    // The next run of the workflow is not narrowed.
    let run = flows.ended(&flows.api().start_run(&workflow, &json!({})).await?).await?;
    assert_eq!(told(&run)[0], "completed", "{run}");
    Ok(())
}

#[tokio::test]
async fn only_events_of_its_sources_start_a_run() -> Result<()> {
    let flows = Flows::start().await?;
    let other = flows.api().bot("other").await?;
    let workflow = flows.save("flow", &json!({ "steps": [call("r", READ)] })).await?;
    let trigger = triggered(&flows, &workflow, &json!({ "event_pattern": "custom.*" })).await?;
    let foreign = flows.emit("go", &json!({ "bot_id": other })).await?;
    assert_eq!(flows.delivered(&foreign).await?["deliveries"], json!([]));
    for fields in [json!({ "bot_id": flows.world.bot }), json!({})] {
        let (_, done) = delivery(&flows, &fields).await?;
        assert_eq!(text(&done["status"]), "done", "{done}");
        flows.ended(text(&done["run_id"])).await?;
    }
    let path = format!("/api/workflows/{workflow}/triggers/{trigger}");
    assert_eq!(flows.api().patch(&path, &json!({ "enabled": false })).await?.0, 200);
    let none = flows.emit("go", &json!({})).await?;
    assert_eq!(flows.delivered(&none).await?["deliveries"], json!([]));
    assert_eq!(flows.runs().await?.len(), 2);
    Ok(())
}

/// The delivery of an event to a workflow that was disabled meanwhile is dead.
#[tokio::test]
async fn a_disabled_workflow_is_not_started_by_events() -> Result<()> {
    let flows = Flows::start().await?;
    let workflow = flows.save("flow", &json!({ "steps": [call("r", READ)] })).await?;
    triggered(&flows, &workflow, &json!({ "event_pattern": "custom.go" })).await?;
    let path = format!("/api/workflows/{workflow}");
    assert_eq!(flows.api().patch(&path, &json!({ "enabled": false })).await?.0, 200);
    let event = flows.emit("go", &json!({})).await?;
    let event = flows.delivered(&event).await?;
    let started = event["deliveries"].as_array().into_iter().flatten().filter(|delivery| delivery["status"] == "done");
    assert_eq!(started.count(), 0, "{event}");
    assert!(flows.runs().await?.is_empty() && flows.seen().is_empty());
    Ok(())
}

/// A workflow that emits the event that starts it ends at depth 8.
#[tokio::test]
async fn a_workflow_that_starts_itself_comes_to_an_end() -> Result<()> {
    let flows = Flows::start().await?;
    let workflow = flows.save("flow", &json!({ "steps": [{ "id": "again", "emit": "go", "data": {} }] })).await?;
    triggered(&flows, &workflow, &json!({ "event_pattern": "custom.go" })).await?;
    let first = flows.emit("go", &json!({})).await?;
    let dead = eventually("a delivery is dead", async || {
        let (_, dead) = flows.api().get("/api/deliveries?status=dead").await?;
        Ok((!dead["items"][0].is_null()).then(|| dead["items"].clone()))
    })
    .await?;
    assert_eq!((dead.as_array().map(Vec::len), text(&dead[0]["reason"])), (Some(1), "loop"), "{dead}");
    let emitted = flows.events("custom.go").await?;
    let depths: Vec<u64> = emitted.iter().filter_map(|event| event["metadata"]["depth"].as_u64()).collect();
    assert_eq!(depths, [8, 7, 6, 5, 4, 3, 2, 1, 0]);
    assert!(emitted.iter().all(|event| event["metadata"]["root_event_id"] == json!(first)), "{emitted:?}");
    assert_eq!(flows.runs().await?.len(), 8);
    Ok(())
}

/// The run that a trigger has started goes on without the key that made the trigger, and so does the trigger.
#[tokio::test]
async fn a_trigger_outlives_the_key_that_made_it() -> Result<()> {
    let flows = Flows::start().await?;
    let workflow =
        flows.save("flow", &json!({ "steps": [{ "id": "more", "wait": { "event": "custom.more" } }] })).await?;
    let (key, maker) = flows.key("operator", None).await?;
    let path = format!("/api/workflows/{workflow}/triggers");
    let (status, made) = maker.post(&path, &json!({ "event_pattern": "custom.go" })).await?;
    ensure!(status == 201, "{status} {made}");
    let (_, first) = delivery(&flows, &json!({})).await?;
    flows.waits(text(&first["run_id"]), "event").await?;
    assert_eq!(flows.api().delete(&format!("/api/keys/{key}")).await?.0, 204);
    let (_, second) = delivery(&flows, &json!({})).await?;
    flows.waits(text(&second["run_id"]), "event").await?;
    flows.emit("more", &json!({})).await?;
    for started in [first, second] {
        assert_eq!(told(&flows.ended(text(&started["run_id"])).await?)[0], "completed");
    }
    Ok(())
}
