//! How runs end: steps are undone, and then `finally` runs.

use anyhow::Result;
use serde_json::{Value, json};
use support::{Canned, status_of};

use super::flows::{FAIL, Flows, PUT, READ, WRITE, call, told, with};
use crate::world::text;

/// Adds a call that undoes a step with the data of the step.
fn undone(step: Value) -> Value {
    let id = text(&step["id"]).to_owned();
    let params = json!({ "marker": format!("undo-{id}"), "any": format!("${{{{ steps.{id}.data.marker }}}}") });
    with(step, &json!({ "undo": { "tool": PUT, "params": params } }))
}

fn finally() -> Value {
    json!([{ "id": "tell", "emit": "ended", "data": { "status": "${{ run.status }}", "c": "${{ steps.c.status }}" } }])
}

#[tokio::test]
async fn a_failed_run_undoes_the_newest_first_and_runs_finally() -> Result<()> {
    let flows = Flows::start().await?;
    let items = json!({ "id": "all", "each": ["x", "y"], "concurrency": 1, "steps": [
        { "id": "i", "tool": WRITE, "params": { "marker": "${{ item }}" },
          "undo": { "tool": PUT, "params": { "marker": "undo-${{ item }}", "any": "${{ steps.i.data.marker }}" } } },
    ] });
    let steps = json!([undone(call("a", WRITE)), call("b", WRITE), items, undone(call("c", FAIL))]);
    let run = flows.run(&json!({ "steps": steps, "finally": finally() })).await?;
    assert_eq!(told(&run), ["failed", "plugin", "c"], "{run}");
    assert_eq!(run["undo_failed"], Value::Null, "{run}");
    let seen = ["POST a", "POST b", "POST x", "POST y", "PUT undo-y", "PUT undo-x", "PUT undo-a"];
    assert_eq!(flows.seen(), seen);
    let steps = flows.steps(&run).await?;
    let undo: Vec<&Value> = steps.iter().filter(|step| step["undo"] == true).collect();
    assert_eq!(undo.len(), 3, "{:?}", status_of(&steps));
    for step in undo {
        assert_eq!((text(&step["kind"]), text(&step["status"])), ("tool", "succeeded"), "{step}");
        let marker = text(&step["data"]["marker"]).to_owned();
        assert_eq!(marker, format!("undo-{}", text(&step["data"]["any"])), "it reads the data of its step: {step}");
        // It is a call like any other one.
        let row = flows.api().audit(text(&step["request_id"])).await?;
        assert_eq!((&row["task_id"], text(&row["tool"])), (&run["id"], PUT), "{row}");
    }
    let ended = flows.events("custom.ended").await?;
    assert_eq!(ended[0]["data"], json!({ "status": "failed", "c": "failed" }));
    Ok(())
}

#[tokio::test]
async fn an_undo_that_fails_does_not_stop_the_others() -> Result<()> {
    let flows = Flows::start().await?;
    let steps = json!([undone(call("a", WRITE)), undone(call("b", WRITE)), call("c", FAIL)]);
    flows.world.github.answer_next("/effects/undo-b", Canned::json(422, &json!({ "message": "no" })));
    let run = flows.run(&json!({ "steps": steps, "finally": finally() })).await?;
    assert_eq!(told(&run), ["failed", "plugin", "c"], "{run}");
    assert_eq!(run["undo_failed"], json!([{ "step": "b" }]), "{run}");
    assert_eq!(flows.seen(), ["POST a", "POST b", "PUT undo-b", "PUT undo-a"]);
    assert_eq!(flows.events("custom.ended").await?.len(), 1);
    Ok(())
}

/// A run that is cancelled ends as failed if a step could not be undone.
#[tokio::test]
async fn a_refused_undo_is_recorded() -> Result<()> {
    let flows = Flows::start().await?;
    let steps = json!([undone(call("a", WRITE)), { "id": "go", "wait": { "event": "custom.go" } }]);
    let id = flows.begin(&json!({ "steps": steps }), &json!({})).await?;
    flows.waits(&id, "event").await?;
    let role = flows.api().role("only write", &["effects.write"]).await?;
    flows.world.rebind(&flows.bound, &json!({ "role_id": role })).await?;
    flows.ask(&id, "cancel", &json!({ "undo": true })).await?;
    let run = flows.ended(&id).await?;
    assert_eq!((told(&run)[0], &run["undo_failed"]), ("failed", &json!([{ "step": "a" }])), "{run}");
    let steps = flows.steps(&run).await?;
    let undo = steps.iter().find(|step| step["undo"] == true).expect("the undo was tried");
    let row = flows.api().audit(text(&undo["request_id"])).await?;
    assert_eq!(text(&row["status"]), "permission_denied", "{row}");
    assert_eq!(flows.seen(), ["POST a"]);
    Ok(())
}

#[tokio::test]
async fn an_uncertain_step_is_not_undone() -> Result<()> {
    let flows = Flows::start().await?;
    flows.world.github.hang_up_next("/effects/b");
    let run = flows.run(&json!({ "steps": [undone(call("a", WRITE)), undone(call("b", WRITE))] })).await?;
    assert_eq!((told(&run), &run["uncertain"]), (["failed", "uncertain", "b"], &json!([{ "step": "b" }])), "{run}");
    assert_eq!(flows.seen(), ["POST a", "POST b", "PUT undo-a"]);
    Ok(())
}

#[tokio::test]
async fn finally_runs_at_the_end_of_every_run() -> Result<()> {
    let flows = Flows::start().await?;
    let definition = |steps: Value| json!({ "steps": steps, "finally": finally() });
    let completed = flows.run(&definition(json!([undone(call("c", READ))]))).await?;
    assert_eq!(told(&completed)[0], "completed", "{completed}");
    let steps = json!([{ "id": "go", "wait": { "event": "custom.go" } }, call("c", READ)]);
    let id = flows.begin(&definition(steps), &json!({})).await?;
    flows.waits(&id, "event").await?;
    flows.ask(&id, "cancel", &json!({})).await?;
    let cancelled = flows.ended(&id).await?;
    assert_eq!(told(&cancelled)[0], "cancelled", "{cancelled}");
    let ended = flows.events("custom.ended").await?;
    let data: Vec<&Value> = ended.iter().map(|event| &event["data"]).collect();
    let of = |status: &str, c: &str| json!({ "status": status, "c": c });
    assert_eq!(data, [&of("cancelled", "skipped"), &of("completed", "succeeded")]);
    assert_eq!(flows.seen(), ["GET c"]);

    // A failure in `finally` fails the run.
    let run = flows.run(&json!({ "steps": [call("c", READ)], "finally": [call("last", FAIL)] })).await?;
    assert_eq!(told(&run), ["failed", "plugin", "last"], "{run}");
    Ok(())
}

/// What was undone runs again when the run is retried, and what was not keeps its result.
#[tokio::test]
async fn a_retry_after_undoing_runs_the_undone_steps_again() -> Result<()> {
    let flows = Flows::start().await?;
    let steps = json!([
        call("kept", WRITE),
        undone(call("a", WRITE)),
        with(call("c", READ), &json!({ "params": { "marker": "c", "any": "${{ steps.a.data.marker }}" } })),
    ]);
    flows.world.github.answer_next("/effects/c", Canned::json(500, &json!({ "message": "down" })));
    let run = flows.run(&json!({ "steps": steps, "finally": finally(), "output": "${{ steps.c.data.any }}" })).await?;
    assert_eq!(told(&run), ["failed", "plugin", "c"], "{run}");
    let id = text(&run["id"]);
    flows.ask(id, "retry", &json!({})).await?;
    let run = flows.ended(id).await?;
    assert_eq!((text(&run["status"]), &run["attempt"], &run["output"]), ("completed", &json!(2), &json!("a")), "{run}");
    assert_eq!(run["error"], Value::Null, "{run}");
    assert_eq!(flows.seen(), ["POST kept", "POST a", "GET c", "PUT undo-a", "POST a", "GET c"]);
    let [first, second] = <[String; 2]>::try_from(flows.keys("a")).expect("two calls");
    assert_ne!(first, second);
    let steps = flows.steps(&run).await?;
    let of_attempt = |attempt: i64| -> Vec<String> {
        let steps: Vec<Value> = steps.iter().filter(|step| step["run_attempt"] == attempt).cloned().collect();
        status_of(&steps)
    };
    assert_eq!(of_attempt(2), ["a succeeded", "c succeeded", "tell succeeded"]);
    assert_eq!(flows.events("custom.ended").await?.len(), 2);
    Ok(())
}

/// The write that undoes a step reaches the upstream without an answer, and a retry of the run fails as well.
#[tokio::test]
async fn a_retry_does_not_repeat_an_undo_that_may_have_happened() -> Result<()> {
    let flows = Flows::start().await?;
    let undo = json!({ "undo": { "tool": WRITE, "params": { "marker": "undo-a" } } });
    let steps = json!([with(call("a", WRITE), &undo), undone(call("b", WRITE)), call("c", FAIL)]);
    flows.world.github.hang_up_next("/effects/undo-a");
    flows.world.github.answer_next("/effects/undo-b", Canned::json(422, &json!({ "message": "no" })));
    let run = flows.run(&json!({ "steps": steps })).await?;
    assert_eq!(run["undo_failed"], json!([{ "step": "b" }, { "step": "a" }]), "{run}");
    let id = text(&run["id"]);
    flows.ask(id, "retry", &json!({})).await?;
    let run = flows.ended(id).await?;
    assert_eq!((told(&run), &run["attempt"]), (["failed", "plugin", "c"], &json!(2)), "{run}");
    assert_eq!(run["undo_failed"], json!([{ "step": "a" }]), "{run}");
    assert_eq!(flows.seen(), ["POST a", "POST b", "PUT undo-b", "POST undo-a", "PUT undo-b"]);
    Ok(())
}

/// The server is killed while a step is undone.
#[tokio::test]
async fn undoing_goes_on_after_a_crash() -> Result<()> {
    let mut flows = Flows::start().await?;
    let steps = json!([
        undone(call("a", WRITE)),
        undone(call("b", WRITE)),
        { "id": "go", "wait": { "event": "custom.go" } },
        { "id": "end", "stop": "failed" },
    ]);
    let id = flows.begin(&json!({ "steps": steps, "finally": finally_without_c() }), &json!({})).await?;
    flows.waits(&id, "event").await?;
    flows.world.github.hold();
    flows.emit("go", &json!({})).await?;
    flows.reached(3).await?;
    let run = flows.is(&id, "undoing").await?;
    assert_eq!(run["ended_at"], Value::Null);
    flows.world.server.kill().await?;
    flows.world.github.release();
    flows.launched().await?;
    let run = flows.ended(&id).await?;
    assert_eq!((told(&run), &run["undo_failed"]), (["failed", "stopped", "end"], &Value::Null), "{run}");
    assert_eq!(flows.seen(), ["POST a", "POST b", "PUT undo-b", "PUT undo-b", "PUT undo-a"]);
    let keys = flows.keys("undo-b");
    assert_eq!(keys[0], keys[1], "the repetition is one call for the upstream");
    assert_eq!(flows.events("custom.ended").await?.len(), 1);
    Ok(())
}

fn finally_without_c() -> Value {
    json!([{ "id": "tell", "emit": "ended", "data": { "status": "${{ run.status }}" } }])
}
