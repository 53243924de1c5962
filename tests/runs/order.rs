//! The order of steps, their conditions, and the expressions that they read.

use anyhow::Result;
use serde_json::{Value, json};
use support::status_of;

use super::flows::{FAIL, Flows, READ, WRITE, call, told, with};
use crate::world::text;

#[tokio::test]
async fn a_step_whose_condition_does_not_hold_is_skipped() -> Result<()> {
    let flows = Flows::start().await?;
    let steps = json!([
        with(call("a", READ), &json!({ "when": "false" })),
        with(call("b", READ), &json!({ "when": "steps.a.status == 'skipped' && steps.a.data == null" })),
        with(call("c", READ), &json!({ "when": "${{ steps.b.data.marker == 'other' }}" })),
        call("d", READ),
    ]);
    let run = flows.run(&json!({ "steps": steps })).await?;
    assert_eq!(told(&run), ["completed", "", ""], "{run}");
    let steps = flows.steps(&run).await?;
    assert_eq!(status_of(&steps), ["a skipped", "b succeeded", "c skipped", "d succeeded"]);
    assert_eq!(flows.seen(), ["GET b", "GET d"]);
    assert_eq!((&steps[0]["data"], &steps[0]["request_id"]), (&Value::Null, &Value::Null));
    Ok(())
}

#[tokio::test]
async fn steps_begin_when_what_they_need_has_ended() -> Result<()> {
    let flows = Flows::start().await?;
    flows.world.github.hold();
    let steps = json!([
        call("a", READ),
        with(call("b", READ), &json!({ "needs": [] })),
        with(call("c", READ), &json!({ "needs": ["b", "a"] })),
        with(call("d", READ), &json!({ "needs": [] })),
    ]);
    let id = flows.begin(&json!({ "steps": steps }), &json!({})).await?;
    // Three of them run at once; the other one has not begun.
    flows.reached(3).await?;
    let run = flows.is(&id, "running").await?;
    let mut begun = status_of(&flows.steps(&run).await?);
    begun.sort();
    assert_eq!(begun, ["a running", "b running", "d running"]);
    flows.world.github.release();
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run)[0], "completed", "{run}");
    assert_eq!(flows.seen()[3..], ["GET c"]);
    Ok(())
}

#[tokio::test]
async fn the_steps_after_a_failure_go_on_only_if_it_says_so() -> Result<()> {
    let flows = Flows::start().await?;
    let steps = |on_error: &str| {
        json!([
            with(call("a", FAIL), &json!({ "on_error": on_error })),
            with(call("b", READ), &json!({ "params": { "marker": "b", "any": "${{ steps.a.error.code }}" } })),
            with(call("c", READ), &json!({ "when": "steps.a.status == 'failed'" })),
        ])
    };
    let run = flows.run(&json!({ "steps": steps("continue") })).await?;
    assert_eq!(told(&run), ["completed", "", ""], "{run}");
    let steps_now = flows.steps(&run).await?;
    assert_eq!(status_of(&steps_now), ["a failed", "b succeeded", "c succeeded"]);
    assert_eq!(steps_now[1]["data"]["any"], steps_now[0]["error"]["code"]);
    assert_eq!(steps_now[0]["error"]["code"], "plugin");
    let run = flows.run(&json!({ "steps": steps("fail") })).await?;
    assert_eq!(told(&run), ["failed", "plugin", "a"], "{run}");
    assert!(text(&run["error"]["message"]).contains("`a` fails on purpose"), "{run}");
    assert_eq!(status_of(&flows.steps(&run).await?), ["a failed"]);
    assert_eq!(flows.seen(), ["GET b", "GET c"]);
    Ok(())
}

#[tokio::test]
async fn a_step_whose_expression_fails_fails() -> Result<()> {
    let flows = Flows::start().await?;
    let absent = json!({ "marker": "b", "any": "${{ steps.a.data.absent }}" });
    for (steps, step) in [
        (json!([call("a", READ), with(call("b", WRITE), &json!({ "params": absent }))]), "b"),
        (json!([call("a", READ), with(call("b", WRITE), &json!({ "when": "steps.a.data.absent" }))]), "b"),
        (
            json!([call("a", READ), { "id": "b", "each": "${{ steps.a.data.marker }}", "steps": [call("c", WRITE)] }]),
            "b",
        ),
        (json!([call("a", READ), { "id": "b", "wait": { "until": "${{ steps.a.data.marker }}" } }]), "b"),
    ] {
        // A repetition would give the same error.
        let run = flows.run(&json!({ "steps": steps })).await?;
        assert_eq!(told(&run), ["failed", "expression", step], "{run}");
    }
    let run = flows.run(&json!({ "steps": [call("a", READ)], "output": "${{ steps.a.data.absent }}" })).await?;
    assert_eq!(told(&run)[..2], ["failed", "expression"], "{run}");
    assert!(flows.seen().iter().all(|seen| seen == "GET a"), "{:?}", flows.seen());
    Ok(())
}

/// What is put in is never read again, whatever a stranger writes into it.
#[tokio::test]
async fn values_keep_their_types_and_are_never_evaluated() -> Result<()> {
    let flows = Flows::start().await?;
    let hostile = "${{ input.secret }} $${{ x }} {{ steps.a.data }} \u{202e}";
    let definition = json!({
        "steps": [
            with(call("a", READ), &json!({ "params": { "marker": "a", "any": "${{ input.hostile }}" } })),
            with(call("b", READ), &json!({ "params": {
                "marker": "b",
                "any": {
                    "value": "${{ steps.a.data.any }}", "text": "<${{ steps.a.data.any }}>", "list": "${{ input.list }}",
                    "literal": "$${{ input.secret }}", "number": "${{ input.list[0] + 1 }}",
                },
            } })),
        ],
        "output": "${{ steps.b.data.any }}",
    });
    let input = json!({ "hostile": hostile, "secret": "not told", "list": [1, { "a": null }, true] });
    let id = flows.begin(&definition, &input).await?;
    let run = flows.ended(&id).await?;
    let expected = json!({
        "value": hostile, "text": format!("<{hostile}>"), "list": [1, { "a": null }, true],
        "literal": "${{ input.secret }}", "number": 2,
    });
    assert_eq!((text(&run["status"]), &run["output"]), ("completed", &expected), "{run}");
    Ok(())
}
