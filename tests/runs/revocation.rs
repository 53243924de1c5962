//! What is revoked ends the calls of runs at once.

use anyhow::Result;
use serde_json::{Value, json};
use support::status_of;

use super::flows::{Flows, READ, WRITE, call, told, with};
use crate::world::text;

/// The upstream holds back every answer, so that only the revocation can end the call.
#[tokio::test]
async fn a_revoked_binding_ends_the_call_under_way() -> Result<()> {
    let flows = Flows::start().await?;
    flows.world.github.hold();
    let retry = json!({ "retry": { "attempts": 5, "backoff": "1s" } });
    let id = flows.begin(&json!({ "steps": [with(call("r", READ), &retry)] }), &json!({})).await?;
    flows.reached(1).await?;
    flows.world.rebind(&flows.bound, &json!({ "enabled": false })).await?;
    let run = flows.ended(&id).await?;
    assert_eq!((text(&run["status"]), text(&run["error"]["step"])), ("failed", "r"), "{run}");
    let steps = flows.steps(&run).await?;
    assert_eq!(status_of(&steps), ["r failed"], "a refusal is not repeated");
    let row = flows.api().audit(text(&steps[0]["request_id"])).await?;
    assert_eq!(text(&row["status"]), "permission_denied", "{row}");
    // What begins after it is refused as well.
    let run = flows.run(&json!({ "steps": [call("r", READ)] })).await?;
    assert_eq!(told(&run)[0], "failed", "{run}");
    assert_eq!(flows.seen(), ["GET r"]);
    Ok(())
}

/// A write that was under way is uncertain.
#[tokio::test]
async fn a_write_that_a_revocation_ends_is_uncertain() -> Result<()> {
    let flows = Flows::start().await?;
    flows.world.github.hold();
    let id = flows.begin(&json!({ "steps": [call("w", WRITE)] }), &json!({})).await?;
    flows.reached(1).await?;
    flows.world.rebind(&flows.bound, &json!({ "enabled": false })).await?;
    let run = flows.ended(&id).await?;
    assert_eq!((told(&run)[0], &run["uncertain"]), ("failed", &json!([{ "step": "w" }])), "{run}");
    assert_eq!(flows.seen(), ["POST w"]);
    Ok(())
}

#[tokio::test]
async fn a_bot_key_that_is_deleted_or_rotated_cancels_its_runs() -> Result<()> {
    let flows = Flows::start().await?;
    let workflow = flows.save("flow", &json!({ "steps": [call("r", READ), call("w", WRITE)] })).await?;
    for rotates in [false, true] {
        drop(flows.world.github.take_requests());
        flows.world.github.hold();
        let (key, api) = flows.key("bot", Some(&flows.world.bot)).await?;
        let id = api.start_run(&workflow, &json!({})).await?;
        flows.reached(1).await?;
        let (status, answer) = match rotates {
            true => flows.api().post(&format!("/api/keys/{key}/rotate"), &Value::Null).await?,
            false => flows.api().delete(&format!("/api/keys/{key}")).await?,
        };
        assert!(matches!(status, 200 | 204), "{status} {answer}");
        let run = flows.ended(&id).await?;
        assert_eq!(told(&run)[0], "cancelled", "{run}");
        assert_eq!(run["started_by"], json!({ "kind": "key", "id": key }), "{run}");
        assert_eq!(
            (status_of(&flows.steps(&run).await?), flows.seen()),
            (vec!["r cancelled".to_owned()], vec!["GET r".to_owned()])
        );
        flows.world.github.release();
    }
    Ok(())
}

/// A run that waits has no turn, and ends all the same.
#[tokio::test]
async fn a_run_that_waits_ends_with_its_bot_key() -> Result<()> {
    let flows = Flows::start().await?;
    let steps = json!([{ "id": "go", "wait": { "event": "custom.go" } }, call("w", WRITE)]);
    let workflow = flows.save("flow", &json!({ "steps": steps })).await?;
    let (key, api) = flows.key("bot", Some(&flows.world.bot)).await?;
    let id = api.start_run(&workflow, &json!({})).await?;
    flows.waits(&id, "event").await?;
    assert_eq!(flows.api().delete(&format!("/api/keys/{key}")).await?.0, 204);
    flows.emit("go", &json!({})).await?;
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run)[0], "cancelled", "{run}");
    assert!(flows.seen().is_empty());
    Ok(())
}

/// What runs at the end of the run does not act without the key either.
#[tokio::test]
async fn nothing_acts_in_finally_without_the_bot_key() -> Result<()> {
    let flows = Flows::start().await?;
    let llm = flows.with_model().await?;
    flows.save("inner", &json!({ "steps": [call("w", WRITE)] })).await?;
    let goes_on = json!({ "on_error": "continue", "retry": { "attempts": 3, "backoff": "1s" } });
    let definition = json!({
        "steps": [{ "id": "go", "wait": { "event": "custom.go" } }],
        "finally": [
            with(json!({ "id": "tell", "emit": "told" }), &goes_on),
            with(json!({ "id": "start", "workflow": "inner" }), &goes_on),
            with(json!({ "id": "think", "agent": { "instruction": "Think." } }), &goes_on),
        ],
    });
    let workflow = flows.save("flow", &definition).await?;
    let (key, api) = flows.key("bot", Some(&flows.world.bot)).await?;
    let id = api.start_run(&workflow, &json!({})).await?;
    flows.waits(&id, "event").await?;
    assert_eq!(flows.api().delete(&format!("/api/keys/{key}")).await?.0, 204);
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run)[..2], ["cancelled", "revoked"], "{run}");
    let steps = flows.steps(&run).await?;
    assert_eq!(status_of(&steps), ["go cancelled", "tell failed", "start failed", "think failed"]);
    for step in &steps[1..] {
        assert_eq!(text(&step["error"]["code"]), "revoked", "a refusal is not repeated: {step}");
    }
    assert!(flows.events("custom.told").await?.is_empty());
    assert_eq!((flows.runs().await?.len(), flows.seen().len(), llm.requests().len()), (1, 0, 0));
    Ok(())
}

/// The run of a step ends with the key that started the run above it.
#[tokio::test]
async fn a_child_ends_with_the_bot_key_of_its_parent() -> Result<()> {
    let flows = Flows::start().await?;
    let inner = json!({
        "steps": [{ "id": "go", "wait": { "event": "custom.go" } }, call("w", WRITE)],
        "finally": [
            with(call("last", WRITE), &json!({ "on_error": "continue" })),
            { "id": "tell", "emit": "told", "on_error": "continue" },
        ],
    });
    flows.save("inner", &inner).await?;
    let workflow = flows.save("flow", &json!({ "steps": [{ "id": "inner", "workflow": "inner" }] })).await?;
    let (key, api) = flows.key("bot", Some(&flows.world.bot)).await?;
    let id = api.start_run(&workflow, &json!({})).await?;
    let child = text(&flows.waits(&id, "run").await?["id"]).to_owned();
    flows.waits(&child, "event").await?;
    assert_eq!(flows.api().delete(&format!("/api/keys/{key}")).await?.0, 204);
    assert_eq!(told(&flows.ended(&id).await?)[..2], ["cancelled", "revoked"]);
    let run = flows.ended(&child).await?;
    assert_eq!(told(&run)[0], "cancelled", "{run}");
    assert_eq!(run["started_by"], json!({ "kind": "run", "id": id }), "{run}");
    for step in ["last", "tell"] {
        let step = flows.step(&run, step).await?;
        assert_eq!(text(&step["error"]["code"]), "revoked", "{step}");
    }
    assert!(flows.seen().is_empty() && flows.events("custom.told").await?.is_empty());
    Ok(())
}

/// What an operator has started goes on without their key.
#[tokio::test]
async fn a_run_outlives_the_key_of_an_operator() -> Result<()> {
    let flows = Flows::start().await?;
    let steps = json!([{ "id": "go", "wait": { "event": "custom.go" } }, call("w", WRITE)]);
    let workflow = flows.save("flow", &json!({ "steps": steps })).await?;
    let (key, api) = flows.key("operator", None).await?;
    let id = api.start_run(&workflow, &json!({})).await?;
    flows.waits(&id, "event").await?;
    assert_eq!(flows.api().delete(&format!("/api/keys/{key}")).await?.0, 204);
    flows.emit("go", &json!({})).await?;
    let run = flows.ended(&id).await?;
    assert_eq!((told(&run)[0], text(&run["started_by"]["id"])), ("completed", key.as_str()), "{run}");
    Ok(())
}

/// A tool that the bot no longer has fails the step, and the call is in the audit.
#[tokio::test]
async fn a_tool_that_the_bot_has_no_more_fails_its_step() -> Result<()> {
    let flows = Flows::start().await?;
    let steps = json!([{ "id": "go", "wait": { "event": "custom.go" } }, call("w", WRITE)]);
    let id = flows.begin(&json!({ "steps": steps }), &json!({})).await?;
    flows.waits(&id, "event").await?;
    let path = format!("/api/bots/{}/resources/{}", flows.world.bot, flows.bound.binding);
    assert_eq!(flows.api().delete(&path).await?.0, 204);
    flows.emit("go", &json!({})).await?;
    let run = flows.ended(&id).await?;
    assert_eq!((told(&run)[0], told(&run)[2]), ("failed", "w"), "{run}");
    let row = flows.api().audit(text(&flows.step(&run, "w").await?["request_id"])).await?;
    assert_eq!((text(&row["tool"]), &row["task_id"]), (WRITE, &run["id"]), "{row}");
    assert_ne!(text(&row["status"]), "success", "{row}");
    assert!(flows.seen().is_empty());
    Ok(())
}
