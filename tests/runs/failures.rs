//! Steps that fail: what is repeated, with which id, and what is never repeated.

use anyhow::Result;
use serde_json::{Value, json};
use support::{Canned, status_of};

use super::flows::{FAIL, Flows, PUT, READ, WRITE, call, told, with};
use crate::world::text;

/// Returns the request ids of all attempts.
fn ids(steps: &[Value]) -> Vec<&str> {
    steps.iter().map(|step| text(&step["request_id"])).collect()
}

#[tokio::test]
async fn an_attempt_that_did_not_happen_is_repeated_under_a_new_id() -> Result<()> {
    let flows = Flows::start().await?;
    let step = with(call("a", FAIL), &json!({ "retry": { "attempts": 3, "backoff": "1s", "backoff_max": "1s" } }));
    let run = flows.run(&json!({ "steps": [step] })).await?;
    assert_eq!(told(&run), ["failed", "plugin", "a"], "{run}");
    let steps = flows.steps(&run).await?;
    assert_eq!(status_of(&steps), ["a failed"; 3]);
    let attempts: Vec<&Value> = steps.iter().map(|step| &step["attempt"]).collect();
    assert_eq!(attempts, [1, 2, 3]);
    let mut ids = ids(&steps);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 3, "each attempt is a call of its own: {steps:?}");
    for id in ids {
        assert_eq!(flows.api().audit(id).await?["task_id"], run["id"]);
    }
    for pair in steps.windows(2) {
        assert!(text(&pair[1]["started_at"]) > text(&pair[0]["ended_at"]), "no backoff: {pair:?}");
    }
    Ok(())
}

/// The upstream takes the request and closes the connection. Reads and idempotent calls run again under their id.
#[tokio::test]
async fn a_call_without_an_answer_is_repeated_under_its_id_if_that_is_harmless() -> Result<()> {
    let flows = Flows::start().await?;
    for (marker, tool) in [("r", READ), ("p", PUT)] {
        let step = with(call(marker, tool), &json!({ "retry": { "attempts": 3 } }));
        for _ in 0..2 {
            flows.world.github.hang_up_next(&format!("/effects/{marker}"));
        }
        let run = flows.run(&json!({ "steps": [step] })).await?;
        assert_eq!(told(&run)[0], "completed", "{run}");
        let steps = flows.steps(&run).await?;
        let expected = ["failed", "failed", "succeeded"].map(|status| format!("{marker} {status}"));
        assert_eq!(status_of(&steps), expected);
        let ids = ids(&steps);
        assert!(ids.iter().all(|id| *id == ids[0] && !id.is_empty()), "{ids:?}");
        assert_eq!(flows.keys(marker), ids, "the upstream has seen one key");
        // The page of the call has all its starts and ends, and the list the last of them.
        let row = flows.api().audit(ids[0]).await?;
        let kinds: Vec<&str> =
            row["events"].as_array().into_iter().flatten().map(|event| text(&event["kind"])).collect();
        assert_eq!(kinds, ["started", "finished"].repeat(3), "{row}");
        assert_eq!(text(&row["status"]), "success", "{row}");
    }
    assert_eq!(flows.api().verify_audit().await?["valid"], true);
    Ok(())
}

/// A write that may have happened is not repeated, whatever `retry` says.
#[tokio::test]
async fn a_write_without_an_answer_is_uncertain_and_not_repeated() -> Result<()> {
    let flows = Flows::start().await?;
    let retry = json!({ "retry": { "attempts": 5, "backoff": "1s" } });
    flows.world.github.hang_up_next("/effects/w");
    let run = flows.run(&json!({ "steps": [with(call("w", WRITE), &retry), call("after", READ)] })).await?;
    assert_eq!(told(&run), ["failed", "uncertain", "w"], "{run}");
    assert_eq!(run["uncertain"], json!([{ "step": "w" }]), "{run}");
    assert_eq!(status_of(&flows.steps(&run).await?), ["w uncertain"]);
    assert_eq!(flows.seen(), ["POST w"]);

    // The upstream does not answer in time.
    flows.world.github.hold();
    let fields = json!({ "timeout": "1s", "retry": { "attempts": 5, "backoff": "1s" } });
    let run = flows.run(&json!({ "steps": [with(call("w", WRITE), &fields)] })).await?;
    assert_eq!((told(&run), &run["uncertain"]), (["failed", "uncertain", "w"], &json!([{ "step": "w" }])), "{run}");
    assert_eq!(flows.seen(), ["POST w", "POST w"]);
    flows.world.github.release();
    assert_eq!(flows.api().verify_audit().await?["valid"], true);
    Ok(())
}

/// What an upstream has answered is certain: the write did not happen, and the step may be repeated if it says so.
#[tokio::test]
async fn a_read_that_the_upstream_rejects_is_repeated_for_the_codes_that_are_named() -> Result<()> {
    let flows = Flows::start().await?;
    let down = || Canned::json(500, &json!({ "message": "down" }));
    let step = |on: &str| with(call("a", READ), &json!({ "retry": { "attempts": 3, "on": [on] } }));
    flows.world.github.answer_next("/effects/a", down());
    let run = flows.run(&json!({ "steps": [step("timeout")] })).await?;
    assert_eq!(told(&run), ["failed", "plugin", "a"], "{run}");
    assert_eq!(flows.seen(), ["GET a"]);
    flows.world.github.answer_next("/effects/a", down());
    let run = flows.run(&json!({ "steps": [step("plugin")] })).await?;
    assert_eq!(told(&run)[0], "completed", "{run}");
    assert_eq!(flows.seen(), ["GET a"; 3]);
    Ok(())
}

/// The refusal is in the audit with its rule, and no attempt follows it.
#[tokio::test]
async fn a_refusal_is_recorded_and_never_repeated() -> Result<()> {
    let flows = Flows::start().await?;
    let role = flows.api().role("only put", &["effects.put"]).await?;
    let retry = json!({ "retry": { "attempts": 5, "backoff": "1s" }, "on_error": "continue" });
    let steps = json!([
        with(call("a", WRITE), &retry),
        with(call("b", PUT), &json!({ "params": { "marker": "secret" }, "retry": { "attempts": 5 } })),
    ]);
    let change = json!({ "role_id": role, "scope_constraints": { "markers": ["a", "b"] } });
    flows.world.rebind(&flows.bound, &change).await?;
    let run = flows.run(&json!({ "steps": steps })).await?;
    assert_eq!(told(&run), ["failed", "scope", "b"], "{run}");
    let steps = flows.steps(&run).await?;
    assert_eq!(status_of(&steps), ["a failed", "b failed"]);
    for (step, status, code) in [(&steps[0], "permission_denied", "denied"), (&steps[1], "scope_violation", "scope")] {
        assert_eq!(text(&step["error"]["code"]), code, "{step}");
        let row = flows.api().audit(text(&step["request_id"])).await?;
        assert_eq!((text(&row["status"]), text(&row["code"]), &row["task_id"]), (status, code, &run["id"]), "{row}");
        assert!(!text(&row["rule"]).is_empty(), "{row}");
    }
    assert!(flows.seen().is_empty());

    // Permission is judged at each step by the policy of that moment.
    let all = flows.api().role("everything", &["*"]).await?;
    flows.world.rebind(&flows.bound, &json!({ "role_id": all, "scope_constraints": {} })).await?;
    let run = flows.run(&json!({ "steps": [call("a", WRITE)] })).await?;
    assert_eq!(told(&run)[0], "completed", "{run}");
    Ok(())
}

#[tokio::test]
async fn a_read_that_takes_too_long_is_stopped_and_repeated() -> Result<()> {
    let flows = Flows::start().await?;
    flows.world.github.hold();
    let step = |attempts: u32| with(call("a", READ), &json!({ "timeout": "1s", "retry": { "attempts": attempts } }));
    let run = flows.run(&json!({ "steps": [step(1)] })).await?;
    assert_eq!(told(&run), ["failed", "timeout", "a"], "{run}");
    assert_eq!(status_of(&flows.steps(&run).await?), ["a failed"]);

    let id = flows.begin(&json!({ "steps": [step(9)] }), &json!({})).await?;
    // The second attempt is answered.
    flows.reached(3).await?;
    flows.world.github.release();
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run)[0], "completed", "{run}");
    let steps = flows.steps(&run).await?;
    let ids = ids(&steps);
    assert!(ids.len() > 1 && ids.iter().all(|id| *id == ids[0]), "{steps:?}");
    Ok(())
}

#[tokio::test]
async fn a_run_has_a_time() -> Result<()> {
    let flows = Flows::start().await?;
    flows.world.github.hold();
    let definition = json!({
        "timeout": "1s",
        "steps": [
            with(call("slow", READ), &json!({ "needs": [] })),
        ],
        "finally": [{ "id": "tell", "emit": "ended", "data": { "status": "${{ run.status }}" } }],
    });
    let run = flows.run(&definition).await?;
    assert_eq!(told(&run)[..2], ["failed", "timeout"], "{run}");
    let ended = flows.events("custom.ended").await?;
    assert_eq!(ended[0]["data"], json!({ "status": "failed" }));
    assert_eq!(status_of(&flows.steps(&run).await?), ["slow cancelled", "tell succeeded"]);
    flows.world.github.release();
    Ok(())
}

/// A call that ends with the server is repeated under its id if that is harmless, and otherwise uncertain.
#[tokio::test]
async fn a_run_goes_on_after_a_crash() -> Result<()> {
    let mut flows = Flows::start().await?;
    flows.world.github.hold();
    let steps = json!([
        with(call("r", READ), &json!({ "needs": [] })),
        with(call("p", PUT), &json!({ "needs": [] })),
        with(call("w", WRITE), &json!({ "needs": [], "on_error": "continue" })),
        with(call("after", READ), &json!({ "needs": ["r", "p", "w"] })),
    ]);
    let id = flows.begin(&json!({ "steps": steps }), &json!({})).await?;
    flows.reached(3).await?;
    flows.world.server.kill().await?;
    flows.world.github.release();
    flows.launched().await?;
    let run = flows.ended(&id).await?;
    assert_eq!((told(&run)[0], &run["uncertain"]), ("completed", &json!([{ "step": "w" }])), "{run}");
    let steps = flows.steps(&run).await?;
    for (step, tool, count) in [("r", READ, 2), ("p", PUT, 2), ("w", WRITE, 1), ("after", READ, 1)] {
        let keys = flows.keys(step);
        let attempts: Vec<&str> = steps
            .iter()
            .filter(|attempt| attempt["step"] == step)
            .map(|attempt| text(&attempt["request_id"]))
            .collect();
        assert_eq!(keys.len(), count, "{tool}: {keys:?}");
        assert!(keys.iter().all(|key| attempts.iter().all(|id| id == key)), "{tool}: {keys:?} {attempts:?}");
    }
    let mut ends = status_of(&steps);
    ends.sort();
    assert!(ends.contains(&"w uncertain".to_owned()) && ends.contains(&"after succeeded".to_owned()), "{ends:?}");
    assert_eq!(flows.api().verify_audit().await?["valid"], true);
    Ok(())
}
