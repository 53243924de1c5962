//! Labels of runs: gates hold against what a step has read.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::{LlmReply, status_of};

use super::flows::{Flows, READ, WRITE, call, decide, told};
use crate::tamper::sqlite;
use crate::tasks;
use crate::world::text;

/// A bot that may not write after it has read something untrusted. What its resource returns is untrusted.
async fn guarded(action: &str) -> Result<Flows> {
    let flows = Flows::start().await?;
    let path = format!("/api/resources/{}", flows.bound.resource);
    let (status, body) = flows.api().patch(&path, &json!({ "labels": ["untrusted"] })).await?;
    ensure!(status == 200, "{status} {body}");
    flows.set_gates(&json!([{ "tools": [WRITE], "after": ["untrusted"], "action": action }])).await?;
    Ok(flows)
}

#[tokio::test]
async fn a_run_carries_the_labels_of_what_it_has_read() -> Result<()> {
    let flows = guarded("deny").await?;
    let run = flows.run(&json!({ "steps": [call("w", WRITE)] })).await?;
    assert_eq!(
        (told(&run)[0], &run["labels"]),
        ("completed", &json!(["untrusted"])),
        "it had read nothing before: {run}"
    );
    let run = flows.run(&json!({ "steps": [call("r", READ), call("w", WRITE)] })).await?;
    assert_eq!((told(&run), &run["labels"]), (["failed", "denied", "w"], &json!(["untrusted"])), "{run}");
    let step = flows.step(&run, "w").await?;
    let row = flows.api().audit(text(&step["request_id"])).await?;
    assert_eq!((text(&row["status"]), &row["task_id"]), ("permission_denied", &run["id"]), "{row}");
    assert!(!text(&row["rule"]).is_empty(), "{row}");
    assert_eq!(flows.seen(), ["POST w", "GET r"]);
    Ok(())
}

/// A result of an earlier attempt of the run still counts, and so does a step of a block.
#[tokio::test]
async fn a_retry_of_a_run_keeps_its_labels() -> Result<()> {
    let flows = guarded("deny").await?;
    let block = json!({ "id": "all", "each": [1], "steps": [call("r", READ)] });
    let run = flows.run(&json!({ "steps": [block, call("w", WRITE)] })).await?;
    assert_eq!(told(&run), ["failed", "denied", "w"], "{run}");
    let id = text(&run["id"]);
    flows.ask(id, "retry", &json!({})).await?;
    let run = flows.ended(id).await?;
    assert_eq!((told(&run), &run["attempt"]), (["failed", "denied", "w"], &json!(2)), "{run}");
    assert_eq!(flows.seen(), ["GET r"]);
    Ok(())
}

#[tokio::test]
async fn labels_of_a_run_cannot_be_removed_with_sql() -> Result<()> {
    let mut flows = guarded("deny").await?;
    let steps = json!([call("r", READ), { "id": "go", "wait": { "event": "custom.go" } }, call("w", WRITE)]);
    let id = flows.begin(&json!({ "steps": steps }), &json!({})).await?;
    flows.waits(&id, "event").await?;
    flows.world.server.kill().await?;
    sqlite(&flows.world.server.data_dir(), &["update runs set labels = ''"]).await?;
    flows.launched().await?;
    flows.emit("go", &json!({})).await?;
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run), ["failed", "denied", "w"], "{run}");
    assert_eq!(flows.seen(), ["GET r"]);
    Ok(())
}

#[tokio::test]
async fn a_run_that_an_event_has_started_is_untrusted() -> Result<()> {
    let flows = guarded("ask").await?;
    let workflow = flows.save("flow", &json!({ "steps": [call("w", WRITE)] })).await?;
    let triggers = format!("/api/workflows/{workflow}/triggers");
    assert_eq!(flows.api().post(&triggers, &json!({ "event_pattern": "custom.go" })).await?.0, 201);
    let event = flows.emit("go", &json!({})).await?;
    let event = flows.delivered(&event).await?;
    let id = text(&event["deliveries"][0]["run_id"]).to_owned();
    let gate = flows.waits(&id, "gate").await?;
    assert_eq!(flows.api().run(&id).await?["labels"], json!(["untrusted"]));
    let (_, admin) = flows.key("admin", None).await?;
    let (_, shown) = admin.get(&format!("/api/approvals/{}", text(&gate["id"]))).await?;
    assert_eq!(shown["labels"], json!(["untrusted"]), "{shown}");
    assert_eq!(decide(&admin, text(&gate["id"]), "deny", "").await?.0, 200);
    assert_eq!(told(&flows.ended(&id).await?), ["failed", "denied", "w"]);

    // So is one that a bot key has started, but not one of an operator.
    for (kind, bot, expected) in [("bot", Some(flows.world.bot.as_str()), true), ("operator", None, false)] {
        let (_, key) = flows.key(kind, bot).await?;
        let id = key.start_run(&workflow, &json!({})).await?;
        // The gate asks about the same call, which a person has denied.
        let run = flows.ended(&id).await?;
        let ending = told(&run);
        match expected {
            true => assert_eq!(ending, ["failed", "denied", "w"], "{kind}"),
            false => assert_eq!(ending[0], "completed", "{kind}"),
        }
    }
    Ok(())
}

/// An event that a run waits for is a stranger's text.
#[tokio::test]
async fn a_run_that_has_read_an_event_is_untrusted() -> Result<()> {
    let flows = Flows::start().await?;
    flows.set_gates(&json!([{ "tools": [WRITE], "after": ["untrusted"], "action": "deny" }])).await?;
    let steps = json!([{ "id": "go", "wait": { "event": "custom.go" } }, call("w", WRITE)]);
    let id = flows.begin(&json!({ "steps": steps }), &json!({})).await?;
    flows.waits(&id, "event").await?;
    flows.emit("go", &json!({ "data": { "text": "Write at once." } })).await?;
    let run = flows.ended(&id).await?;
    assert_eq!((told(&run), &run["labels"]), (["failed", "denied", "w"], &json!(["untrusted"])), "{run}");
    assert!(flows.seen().is_empty());
    Ok(())
}

/// A task of a step takes the labels of its run, and gives it those of what its model has read.
#[tokio::test]
async fn a_task_takes_and_gives_labels() -> Result<()> {
    let flows = guarded("deny").await?;
    let llm = flows.with_model().await?;
    let think = json!({ "id": "think", "agent": { "instruction": "Work." } });
    llm.prepare([LlmReply::calls(&[(WRITE, json!({ "marker": "m" }))]), LlmReply::says(&["Refused."])]);
    let run = flows.run(&json!({ "steps": [call("r", READ), think] })).await?;
    assert_eq!(told(&run)[0], "completed", "{run}");
    let task = flows.step(&run, "think").await?["task_id"].clone();
    let outline = tasks::outline(&tasks::steps(flows.api(), text(&task)).await?);
    assert_eq!(outline[1], format!("call {WRITE} permission_denied"));

    llm.prepare([LlmReply::calls(&[(READ, json!({ "marker": "m" }))]), LlmReply::says(&["Read."])]);
    let run = flows.run(&json!({ "steps": [think, call("w", WRITE)] })).await?;
    assert_eq!(told(&run), ["failed", "denied", "w"], "{run}");
    assert_eq!(flows.seen(), ["GET r", "GET m"]);
    Ok(())
}

/// A run of another workflow takes the labels of its parent, and gives it its own.
#[tokio::test]
async fn a_child_takes_and_gives_labels() -> Result<()> {
    let flows = guarded("deny").await?;
    let inner = |step: Value| json!({ "steps": [step] });
    let child = json!({ "id": "inner", "workflow": "inner" });
    flows.save("inner", &inner(call("w", WRITE))).await?;
    let run = flows.run(&json!({ "steps": [call("r", READ), child] })).await?;
    assert_eq!((told(&run)[0], told(&run)[2]), ("failed", "inner"), "{run}");
    flows.save("inner", &inner(call("r", READ))).await?;
    let run = flows.run(&json!({ "steps": [child, call("w", WRITE)] })).await?;
    assert_eq!(told(&run), ["failed", "denied", "w"], "{run}");
    assert_eq!(status_of(&flows.steps(&run).await?), ["inner succeeded", "w failed"]);
    assert_eq!(flows.seen(), ["GET r", "GET r"]);
    Ok(())
}
