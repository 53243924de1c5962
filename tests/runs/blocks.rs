//! Steps that contain steps: `choose`, `parallel` and `each`.

use anyhow::Result;
use serde_json::{Value, json};
use support::status_of;

use super::flows::{FAIL, Flows, READ, WRITE, call, told, with};
use crate::world::text;

#[tokio::test]
async fn choose_runs_the_first_branch_that_holds() -> Result<()> {
    let flows = Flows::start().await?;
    let branch = |value: i64, steps: Value| json!({ "when": format!("input.n == {value}"), "steps": steps });
    let definition = |last: Value| {
        let branches =
            json!([branch(1, json!([call("a", READ), call("b", READ)])), branch(1, json!([call("c", READ)])), last]);
        json!({
            "steps": [{ "id": "way", "choose": branches }, call("after", READ)],
            "output": { "branch": "${{ steps.way.data.branch }}", "a": "${{ steps.a.status }}", "d": "${{ steps.d.status }}" },
        })
    };
    let otherwise = definition(json!({ "steps": [call("d", READ)] }));
    for (n, definition, branch, a, d, seen) in [
        (1, &otherwise, json!(0), "succeeded", "skipped", vec!["GET a", "GET b", "GET after"]),
        (2, &otherwise, json!(2), "skipped", "succeeded", vec!["GET d", "GET after"]),
        (3, &definition(branch(4, json!([call("d", READ)]))), Value::Null, "skipped", "skipped", vec!["GET after"]),
    ] {
        drop(flows.world.github.take_requests());
        let id = flows.begin(definition, &json!({ "n": n })).await?;
        let run = flows.ended(&id).await?;
        let expected = json!({ "branch": branch, "a": a, "d": d });
        assert_eq!((text(&run["status"]), &run["output"]), ("completed", &expected), "{n}: {run}");
        assert_eq!(flows.seen(), seen, "{n}");
    }
    Ok(())
}

#[tokio::test]
async fn branches_of_parallel_run_at_once() -> Result<()> {
    let flows = Flows::start().await?;
    flows.world.github.hold();
    let branches = json!({ "left": [call("a", READ), call("b", READ)], "right": [call("c", READ)] });
    let definition = json!({
        "steps": [{ "id": "both", "parallel": branches }, call("after", READ)],
        "output": { "both": "${{ steps.both.data }}", "b": "${{ steps.b.data.marker }}", "c": "${{ steps.c.data.marker }}" },
    });
    let id = flows.begin(&definition, &json!({})).await?;
    flows.reached(2).await?;
    let mut seen = flows.seen();
    seen.sort();
    assert_eq!(seen, ["GET a", "GET c"]);
    flows.world.github.release();
    let run = flows.ended(&id).await?;
    assert_eq!(
        (text(&run["status"]), &run["output"]),
        ("completed", &json!({ "both": {}, "b": "b", "c": "c" })),
        "{run}"
    );
    let seen = flows.seen();
    assert_eq!(seen[2..], ["GET b", "GET after"], "{seen:?}");
    Ok(())
}

/// The branch that waits for the upstream is stopped: a read is cancelled, and a write is uncertain.
#[tokio::test]
async fn a_branch_that_fails_stops_the_others() -> Result<()> {
    let flows = Flows::start().await?;
    flows.world.github.hold();
    let branches = json!({
        "left": [{ "id": "go", "wait": { "event": "custom.go" } }, call("a", FAIL)],
        "right": [call("b", READ)],
        "third": [call("c", WRITE)],
    });
    let id = flows
        .begin(&json!({ "steps": [{ "id": "all", "parallel": branches }, call("after", READ)] }), &json!({}))
        .await?;
    flows.reached(2).await?;
    flows.waits(&id, "event").await?;
    flows.emit("go", &json!({})).await?;
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run), ["failed", "plugin", "a"], "{run}");
    let mut ends = status_of(&flows.steps(&run).await?);
    ends.sort();
    assert_eq!(ends, ["a failed", "all failed", "b cancelled", "c uncertain", "go succeeded"]);
    assert_eq!(run["uncertain"], json!([{ "step": "c" }]), "{run}");
    assert!(!flows.seen().contains(&"GET after".to_owned()));
    Ok(())
}

#[tokio::test]
async fn items_run_a_few_at_a_time_and_their_results_are_in_order() -> Result<()> {
    let flows = Flows::start().await?;
    flows.world.github.hold();
    let inner = json!({ "id": "c", "tool": READ, "params": { "marker": "i${{ index }}", "any": "${{ item }}" } });
    let definition = |collect: &Value| {
        with(
            json!({ "steps": [
                with(json!({ "id": "all", "each": "${{ input.items }}", "concurrency": 2, "steps": [inner] }), collect),
            ] }),
            &json!({ "output": "${{ steps.all.data }}" }),
        )
    };
    let input = json!({ "items": ["a", { "b": 1 }, null, 4] });
    let id = flows.begin(&definition(&json!({ "collect": "steps.c.data.any" })), &input).await?;
    flows.reached(2).await?;
    let run = flows.is(&id, "running").await?;
    let mut begun = status_of(&flows.steps(&run).await?);
    begun.sort();
    assert_eq!(begun, ["all running", "c[0] running", "c[1] running"]);
    flows.world.github.release();
    let run = flows.ended(&id).await?;
    let of = |data: Value| json!({ "status": "succeeded", "data": data, "error": null });
    let expected = json!([of(json!("a")), of(json!({ "b": 1 })), of(Value::Null), of(json!(4))]);
    assert_eq!((text(&run["status"]), &run["output"]), ("completed", &expected), "{run}");

    // Without `collect`, an item has the data of its last step.
    let id = flows.begin(&definition(&json!({})), &json!({ "items": ["x"] })).await?;
    let run = flows.ended(&id).await?;
    assert_eq!(
        (&run["output"][0]["data"]["any"], &run["output"][0]["data"]["marker"]),
        (&json!("x"), &json!("i0")),
        "{run}"
    );
    let id = flows.begin(&definition(&json!({})), &json!({ "items": [] })).await?;
    let run = flows.ended(&id).await?;
    assert_eq!((text(&run["status"]), &run["output"]), ("completed", &json!([])), "{run}");
    Ok(())
}

#[tokio::test]
async fn an_item_that_fails_ends_the_others_or_is_one_result() -> Result<()> {
    let flows = Flows::start().await?;
    let inner = json!([
        { "id": "bad", "when": "item == 2", "tool": FAIL, "params": { "marker": "bad" } },
        { "id": "good", "tool": READ, "params": { "marker": "good${{ index }}" } },
    ]);
    let definition = |on_item_error: &str| {
        json!({
            "steps": [
                { "id": "all", "each": [1, 2, 3], "concurrency": 1, "on_item_error": on_item_error, "steps": inner,
                  "collect": "steps.good.data.marker" },
            ],
            "output": "${{ steps.all.data }}",
        })
    };
    let run = flows.run(&definition("continue")).await?;
    assert_eq!(told(&run)[0], "completed", "{run}");
    let results = run["output"].as_array().cloned().unwrap_or_default();
    let told_of = |at: usize| (text(&results[at]["status"]), &results[at]["data"], text(&results[at]["error"]["code"]));
    assert_eq!(told_of(0), ("succeeded", &json!("good0"), ""));
    assert_eq!(told_of(1), ("failed", &Value::Null, "plugin"));
    assert_eq!(told_of(2), ("succeeded", &json!("good2"), ""));
    assert_eq!(flows.seen(), ["GET good0", "GET good2"]);

    let run = flows.run(&definition("fail")).await?;
    assert_eq!((told(&run), &run["error"]["item"]), (["failed", "plugin", "bad"], &json!("1")), "{run}");
    assert_eq!(flows.seen()[2..], ["GET good0"], "the third item has not begun");
    Ok(())
}

#[tokio::test]
async fn blocks_stand_in_blocks() -> Result<()> {
    let flows = Flows::start().await?;
    let inner = json!({ "id": "c", "tool": READ, "params": { "marker": "${{ item }}" } });
    let definition = json!({
        "steps": [{ "id": "rows", "each": [["a", "b"], ["c"]], "concurrency": 1, "steps": [
            { "id": "way", "choose": [{ "when": "size(item) > 1", "steps": [
                { "id": "cells", "each": "${{ item }}", "concurrency": 1, "steps": [inner], "collect": "steps.c.data.marker" },
            ] }] },
        ], "collect": "steps.way.data.branch" }],
        "output": "${{ steps.rows.data.map(row, row.data) }}",
    });
    let run = flows.run(&definition).await?;
    assert_eq!((text(&run["status"]), &run["output"]), ("completed", &json!([0, null])), "{run}");
    assert_eq!(flows.seen(), ["GET a", "GET b"]);
    let steps = flows.steps(&run).await?;
    let mut ends = status_of(&steps);
    ends.retain(|end| end.starts_with("c[") || end.starts_with("cells["));
    ends.sort();
    assert_eq!(ends, ["c[0.0] succeeded", "c[0.1] succeeded", "cells[0] succeeded"]);
    Ok(())
}

#[tokio::test]
async fn a_block_has_a_time() -> Result<()> {
    let flows = Flows::start().await?;
    let inner = json!({ "id": "never", "wait": { "event": "custom.never" } });
    let block = json!({ "id": "all", "each": [1, 2], "steps": [inner], "timeout": "1s" });
    let run = flows.run(&json!({ "steps": [block] })).await?;
    assert_eq!(told(&run), ["failed", "timeout", "all"], "{run}");
    let mut ends = status_of(&flows.steps(&run).await?);
    ends.sort();
    assert_eq!(ends, ["all failed", "never[0] cancelled", "never[1] cancelled"]);
    Ok(())
}
