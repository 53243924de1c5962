//! Runs and the versions of their workflow.

use anyhow::Result;
use serde_json::{Value, json};

use super::flows::{Flows, READ, call, told};
use crate::world::text;

fn definition(name: &str) -> Value {
    json!({
        "steps": [{ "id": "go", "wait": { "event": "custom.go" } }, call(name, READ)],
        "output": name,
    })
}

#[tokio::test]
async fn a_run_keeps_its_version_to_its_end() -> Result<()> {
    let mut flows = Flows::start().await?;
    let workflow = flows.save("flow", &definition("first")).await?;
    let old = flows.api().start_run(&workflow, &json!({})).await?;
    flows.waits(&old, "event").await?;
    assert_eq!(flows.save("flow", &definition("second")).await?, workflow);
    let new = flows.api().start_run(&workflow, &json!({})).await?;
    flows.waits(&new, "event").await?;
    let path = format!("/api/workflows/{workflow}/runs");
    let (status, chosen) = flows.api().post(&path, &json!({ "version": 1 })).await?;
    assert_eq!((status, &chosen["version"]), (202, &json!(1)), "{chosen}");
    flows.waits(text(&chosen["id"]), "event").await?;
    // The definition is read from its row again.
    flows.killed().await?;
    flows.emit("go", &json!({})).await?;
    for (id, version, output) in
        [(old.as_str(), 1, "first"), (new.as_str(), 2, "second"), (text(&chosen["id"]), 1, "first")]
    {
        let run = flows.ended(id).await?;
        assert_eq!((&run["version"], &run["output"]), (&json!(version), &json!(output)), "{run}");
    }
    // A retry keeps it too.
    flows.save("flow", &json!({ "steps": [{ "id": "end", "stop": "failed" }] })).await?;
    let failed = flows.api().start_run(&workflow, &json!({})).await?;
    assert_eq!(told(&flows.ended(&failed).await?), ["failed", "stopped", "end"]);
    flows.save("flow", &definition("fourth")).await?;
    flows.ask(&failed, "retry", &json!({})).await?;
    let run = flows.ended(&failed).await?;
    assert_eq!((told(&run), &run["version"]), (["failed", "stopped", "end"], &json!(3)), "{run}");
    Ok(())
}

#[tokio::test]
async fn a_disabled_workflow_starts_nothing_and_its_runs_go_on() -> Result<()> {
    let flows = Flows::start().await?;
    let workflow = flows.save("flow", &definition("first")).await?;
    let path = format!("/api/workflows/{workflow}");
    let id = flows.api().start_run(&workflow, &json!({})).await?;
    flows.waits(&id, "event").await?;
    assert_eq!(flows.api().patch(&path, &json!({ "enabled": false })).await?.0, 200);
    let (status, refused) = flows.api().post(&format!("{path}/runs"), &json!({})).await?;
    assert_eq!(status, 409, "{refused}");
    assert_eq!(flows.api().delete(&path).await?.0, 409, "a run goes on");
    flows.emit("go", &json!({})).await?;
    assert_eq!(told(&flows.ended(&id).await?)[0], "completed");
    assert_eq!(flows.api().delete(&path).await?.0, 204);
    assert_eq!(flows.api().post(&format!("{path}/runs"), &json!({})).await?.0, 404);
    Ok(())
}
