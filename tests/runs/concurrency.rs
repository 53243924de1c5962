//! The limit of runs of a workflow at once.

use anyhow::Result;
use serde_json::{Value, json};

use super::flows::{Flows, told};
use crate::world::{eventually, text};

fn definition(full: &str) -> Value {
    json!({
        "concurrency": { "max": 1, "key": "${{ input.repo }}", "full": full },
        "steps": [{ "id": "go", "wait": { "event": "custom.go", "match": { "n": "${{ input.n }}" } } }],
    })
}

#[tokio::test]
async fn runs_with_the_same_key_run_one_after_the_other() -> Result<()> {
    let flows = Flows::start().await?;
    let begin = async |repo: &str, n: u32| flows.begin(&definition("queue"), &json!({ "repo": repo, "n": n })).await;
    let first = begin("a", 1).await?;
    flows.waits(&first, "event").await?;
    let (second, third, other) = (begin("a", 2).await?, begin("a", 3).await?, begin("b", 4).await?);
    flows.waits(&other, "event").await?;
    for id in [&second, &third] {
        let run = flows.api().run(id).await?;
        assert_eq!((text(&run["status"]), &run["started_at"]), ("queued", &Value::Null), "{run}");
        assert!(flows.api().run_steps(id).await?.is_empty());
    }
    flows.emit("go", &json!({ "data": { "n": 1 } })).await?;
    assert_eq!(told(&flows.ended(&first).await?)[0], "completed");
    // The end of a run starts the oldest one that waits.
    flows.waits(&second, "event").await?;
    assert_eq!(text(&flows.api().run(&third).await?["status"]), "queued");
    // A queued run that is cancelled never starts, and a running one makes room.
    flows.ask(&second, "cancel", &json!({})).await?;
    assert_eq!(told(&flows.ended(&second).await?)[0], "cancelled");
    flows.waits(&third, "event").await?;
    let last = begin("a", 5).await?;
    flows.ask(&last, "cancel", &json!({})).await?;
    let run = flows.ended(&last).await?;
    assert_eq!((told(&run)[0], flows.api().run_steps(&last).await?), ("cancelled", Vec::new()), "{run}");
    flows.emit("go", &json!({ "data": { "n": 3 } })).await?;
    assert_eq!(told(&flows.ended(&third).await?)[0], "completed");
    assert_eq!(text(&flows.api().run(&other).await?["status"]), "waiting");
    Ok(())
}

#[tokio::test]
async fn a_queue_outlives_the_server() -> Result<()> {
    let mut flows = Flows::start().await?;
    let mut ids = Vec::new();
    for n in 0..4 {
        ids.push(flows.begin(&definition("queue"), &json!({ "repo": "a", "n": n })).await?);
        flows.waits(&ids[0], "event").await?;
    }
    flows.killed().await?;
    for (n, id) in ids.iter().enumerate() {
        flows.waits(id, "event").await?;
        let queued = flows.runs().await?.iter().filter(|run| run["status"] == "queued").count();
        assert_eq!(queued, 3 - n);
        flows.emit("go", &json!({ "data": { "n": n } })).await?;
        assert_eq!(told(&flows.ended(id).await?)[0], "completed");
    }
    Ok(())
}

#[tokio::test]
async fn a_run_beyond_the_limit_is_not_started_if_the_workflow_says_so() -> Result<()> {
    let flows = Flows::start().await?;
    let workflow = flows.save("flow", &definition("skip")).await?;
    let path = format!("/api/workflows/{workflow}/runs");
    let first = flows.api().start_run(&workflow, &json!({ "repo": "a", "n": 1 })).await?;
    flows.waits(&first, "event").await?;
    let input = json!({ "input": { "repo": "a", "n": 2 } });
    let (status, refused) = flows.api().post(&path, &input).await?;
    assert_eq!(status, 409, "{refused}");
    flows.api().start_run(&workflow, &json!({ "repo": "b", "n": 3 })).await?;
    assert_eq!(flows.runs().await?.len(), 2);
    flows.emit("go", &json!({ "data": { "n": 1 } })).await?;
    flows.ended(&first).await?;
    let (status, run) = flows.api().post(&path, &input).await?;
    assert_eq!(status, 202, "{run}");

    // An event that would start a run beyond the limit starts none, and is not kept for later.
    let triggers = format!("/api/workflows/{workflow}/triggers");
    assert_eq!(flows.api().post(&triggers, &json!({ "event_pattern": "custom.start" })).await?.0, 201);
    flows.waits(text(&run["id"]), "event").await?;
    let event = flows.emit("start", &json!({ "data": { "repo": "a", "n": 4 } })).await?;
    let event = flows.delivered(&event).await?;
    let delivery = &event["deliveries"][0];
    assert_eq!((text(&delivery["reason"]), &delivery["run_id"]), ("skipped", &Value::Null), "{event}");
    flows.emit("go", &json!({ "data": { "n": 2 } })).await?;
    flows.ended(text(&run["id"])).await?;
    assert_eq!(flows.runs().await?.len(), 3);
    Ok(())
}

/// A run that is retried needs room too.
#[tokio::test]
async fn a_retry_waits_for_room() -> Result<()> {
    let flows = Flows::start().await?;
    let begin = async |n: u32| flows.begin(&definition("queue"), &json!({ "repo": "a", "n": n })).await;
    let first = begin(1).await?;
    flows.waits(&first, "event").await?;
    flows.ask(&first, "cancel", &json!({})).await?;
    flows.ended(&first).await?;
    let second = begin(2).await?;
    flows.waits(&second, "event").await?;
    flows.ask(&first, "retry", &json!({})).await?;
    eventually("the turns of the retried run have ended", async || {
        let (_, wakes) = flows.api().get("/api/wakes").await?;
        let key = format!("run/{first}");
        let wakes = wakes["items"].as_array().cloned().unwrap_or_default();
        Ok((!wakes.iter().any(|wake| wake["key"] == key.as_str() && !wake["claimed_by"].is_null())).then_some(()))
    })
    .await?;
    let waits = flows.runs().await?.iter().filter(|run| run["status"] == "waiting").count();
    assert_eq!(waits, 1, "one of them has the place");
    flows.emit("go", &json!({ "data": { "n": 2 } })).await?;
    flows.ended(&second).await?;
    flows.waits(&first, "event").await?;
    flows.emit("go", &json!({ "data": { "n": 1 } })).await?;
    assert_eq!(told(&flows.ended(&first).await?)[0], "completed");
    Ok(())
}
