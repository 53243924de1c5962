//! Steps that run another workflow of the same bot.

use anyhow::Result;
use serde_json::{Value, json};
use support::status_of;

use super::flows::{FAIL, Flows, READ, WRITE, call, told, with};
use crate::world::text;

fn parent() -> Value {
    json!({
        "steps": [{ "id": "inner", "workflow": "inner", "input": { "n": "${{ input.n }}" } }],
        "output": "${{ steps.inner.data }}",
    })
}

#[tokio::test]
async fn the_output_of_a_child_is_the_data_of_the_step() -> Result<()> {
    let flows = Flows::start().await?;
    let step = with(call("w", WRITE), &json!({ "params": { "marker": "w", "any": "${{ input.n }}" } }));
    flows.save("inner", &json!({ "steps": [step], "output": { "n": "${{ steps.w.data.any }}" } })).await?;
    let id = flows.begin(&parent(), &json!({ "n": 7 })).await?;
    let run = flows.ended(&id).await?;
    assert_eq!((text(&run["status"]), &run["output"]), ("completed", &json!({ "n": 7 })), "{run}");
    let step = flows.step(&run, "inner").await?;
    assert_eq!(text(&step["kind"]), "workflow");
    let child = flows.api().run(text(&step["run_id"])).await?;
    assert_eq!((&child["parent_run_id"], &child["input"]), (&run["id"], &json!({ "n": 7 })), "{child}");
    assert_eq!(child["started_by"], json!({ "kind": "run", "id": run["id"] }), "{child}");
    assert_eq!((text(&child["status"]), text(&child["workflow"])), ("completed", "inner"), "{child}");
    // Its calls are those of the child.
    let of_child = flows.step(&child, "w").await?;
    let row = flows.api().audit(text(&of_child["request_id"])).await?;
    assert_eq!(row["task_id"], child["id"], "{row}");
    assert_eq!(flows.runs().await?.len(), 2);
    Ok(())
}

#[tokio::test]
async fn a_child_that_fails_fails_its_step() -> Result<()> {
    let flows = Flows::start().await?;
    let inner = json!({
        "input": { "type": "object", "properties": { "n": { "type": "integer" } } },
        "steps": [call("w", FAIL)],
    });
    flows.save("inner", &inner).await?;
    let id = flows.begin(&parent(), &json!({ "n": 7 })).await?;
    let run = flows.ended(&id).await?;
    assert_eq!((text(&run["status"]), text(&run["error"]["step"])), ("failed", "inner"), "{run}");
    assert_eq!(flows.runs().await?.len(), 2);
    // Input that the child does not take starts no child.
    let id = flows.begin(&parent(), &json!({ "n": "seven" })).await?;
    let run = flows.ended(&id).await?;
    assert_eq!((text(&run["status"]), text(&run["error"]["step"])), ("failed", "inner"), "{run}");
    assert_eq!(flows.runs().await?.len(), 3, "the child did not start");
    Ok(())
}

#[tokio::test]
async fn a_child_is_cancelled_with_its_parent() -> Result<()> {
    let flows = Flows::start().await?;
    flows.world.github.hold();
    flows.save("inner", &json!({ "steps": [call("r", READ)] })).await?;
    let id = flows.begin(&parent(), &json!({ "n": 1 })).await?;
    flows.reached(1).await?;
    let runs = flows.runs().await?;
    assert_eq!(runs.len(), 2, "{runs:?}");
    flows.ask(&id, "cancel", &json!({})).await?;
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run)[0], "cancelled", "{run}");
    assert_eq!(status_of(&flows.steps(&run).await?), ["inner cancelled"]);
    let child = flows.step(&run, "inner").await?["run_id"].clone();
    let child = flows.ended(text(&child)).await?;
    assert_eq!(told(&child)[0], "cancelled", "{child}");
    assert_eq!(status_of(&flows.steps(&child).await?), ["r cancelled"]);
    Ok(())
}

/// A child of which it is unknown what it has done.
#[tokio::test]
async fn a_child_keeps_its_own_uncertain_steps() -> Result<()> {
    let flows = Flows::start().await?;
    flows.world.github.hang_up_next("/effects/w");
    flows.save("inner", &json!({ "steps": [call("w", WRITE)] })).await?;
    let id = flows.begin(&parent(), &json!({ "n": 1 })).await?;
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run)[0], "failed", "{run}");
    let child = flows.api().run(text(&flows.step(&run, "inner").await?["run_id"])).await?;
    assert_eq!(
        (told(&child), &child["uncertain"]),
        (["failed", "uncertain", "w"], &json!([{ "step": "w" }])),
        "{child}"
    );
    assert_eq!(flows.seen(), ["POST w"]);
    Ok(())
}

#[tokio::test]
async fn a_disabled_or_absent_child_does_not_start() -> Result<()> {
    let flows = Flows::start().await?;
    let inner = flows.save("inner", &json!({ "steps": [call("w", WRITE)] })).await?;
    let path = format!("/api/workflows/{inner}");
    let workflow = flows.save("flow", &parent()).await?;
    assert_eq!(flows.api().patch(&path, &json!({ "enabled": false })).await?.0, 200);
    let run = flows.ended(&flows.api().start_run(&workflow, &json!({ "n": 1 })).await?).await?;
    assert_eq!((text(&run["status"]), text(&run["error"]["step"])), ("failed", "inner"), "{run}");
    assert_eq!(flows.api().delete(&path).await?.0, 204);
    let run = flows.ended(&flows.api().start_run(&workflow, &json!({ "n": 1 })).await?).await?;
    assert_eq!((text(&run["status"]), text(&run["error"]["step"])), ("failed", "inner"), "{run}");
    assert!(flows.seen().is_empty() && flows.runs().await?.len() == 2);
    Ok(())
}

/// Nine workflows that run each other: the ninth does not start.
#[tokio::test]
async fn runs_are_nested_at_most_eight_deep() -> Result<()> {
    let flows = Flows::start().await?;
    flows.save("w9", &json!({ "steps": [call("deep", WRITE)] })).await?;
    for level in (1..9).rev() {
        let steps = json!([{ "id": "next", "workflow": format!("w{}", level + 1) }]);
        flows.save(&format!("w{level}"), &json!({ "steps": steps })).await?;
    }
    let start = async |name: &str| -> Result<Value> {
        let (_, listed) = flows.api().get("/api/workflows?limit=1000").await?;
        let workflows = listed["items"].as_array().cloned().unwrap_or_default();
        let workflow = workflows.iter().find(|workflow| workflow["name"] == name).cloned().unwrap_or_default();
        flows.ended(&flows.api().start_run(text(&workflow["id"]), &json!({})).await?).await
    };
    let run = start("w1").await?;
    assert_eq!(told(&run)[0], "failed", "{run}");
    assert!(flows.seen().is_empty());
    assert_eq!(flows.runs().await?.len(), 8);
    let run = start("w2").await?;
    assert_eq!((told(&run)[0], flows.seen()), ("completed", vec!["POST deep".to_owned()]), "{run}");
    Ok(())
}

/// Neither is lost, and neither starts twice.
#[tokio::test]
async fn a_parent_goes_on_after_a_crash_of_its_child() -> Result<()> {
    let mut flows = Flows::start().await?;
    flows.world.github.hold();
    flows.save("inner", &json!({ "steps": [call("r", READ)], "output": "${{ steps.r.data.marker }}" })).await?;
    let id = flows.begin(&parent(), &json!({ "n": 1 })).await?;
    flows.reached(1).await?;
    flows.world.server.kill().await?;
    flows.world.github.release();
    flows.launched().await?;
    let run = flows.ended(&id).await?;
    assert_eq!((text(&run["status"]), &run["output"]), ("completed", &json!("r")), "{run}");
    assert_eq!(flows.runs().await?.len(), 2);
    Ok(())
}

/// A second child would write again.
#[tokio::test]
async fn a_child_that_may_have_written_is_not_repeated() -> Result<()> {
    let flows = Flows::start().await?;
    flows.world.github.hang_up_next("/effects/w");
    flows.save("inner", &json!({ "steps": [call("w", WRITE)] })).await?;
    let step = json!({ "id": "inner", "workflow": "inner", "retry": { "attempts": 3, "backoff": "1s" } });
    let run = flows.run(&json!({ "steps": [step] })).await?;
    assert_eq!((told(&run)[0], told(&run)[2]), ("failed", "inner"), "{run}");
    assert_eq!(flows.seen(), ["POST w"]);
    assert_eq!(flows.runs().await?.len(), 2);
    Ok(())
}
