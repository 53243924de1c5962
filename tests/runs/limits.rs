//! The limits of a run.

use anyhow::Result;
use serde_json::{Value, json};

use super::flows::{Flows, READ, WRITE, call, told};
use crate::world::text;

/// A little less than a result may have. The record of an attempt is a third larger than its result.
const RESULT_BYTES: usize = 1_000_000;

#[tokio::test]
async fn the_records_of_a_run_have_16_mib_at_most() -> Result<()> {
    let flows = Flows::start().await?;
    let inner = json!({ "id": "r", "tool": READ, "params": { "marker": "r", "bytes": RESULT_BYTES } });
    let definition = json!({
        "steps": [
            { "id": "all", "each": "${{ input.items }}", "concurrency": 1, "collect": "index", "steps": [inner] },
            call("after", WRITE),
        ],
        "finally": [{ "id": "tell", "emit": "ended", "data": { "status": "${{ run.status }}" } }],
    });
    let id = flows.begin(&definition, &json!({ "items": vec![0; 30] })).await?;
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run)[..2], ["failed", "limit"], "{run}");
    let requests = flows.seen().len();
    assert!((12..=14).contains(&requests), "{requests} results");
    assert!(!flows.seen().contains(&"POST after".to_owned()));
    // The end of a run has limits of its own.
    assert_eq!(flows.events("custom.ended").await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_result_has_1_mib_at_most() -> Result<()> {
    let flows = Flows::start().await?;
    // The result of the tool is larger than that of any call.
    let steps = json!([{ "id": "r", "tool": READ, "params": { "marker": "r", "bytes": 1_100_000 } }]);
    let run = flows.run(&json!({ "steps": steps })).await?;
    assert_eq!((told(&run)[0], told(&run)[2]), ("failed", "r"), "{run}");
    // The results of two items are small enough, but not together.
    let inner = json!({ "id": "i", "tool": READ, "params": { "marker": "i", "bytes": 600_000 } });
    let run = flows.run(&json!({ "steps": [{ "id": "all", "each": [1, 2], "steps": [inner] }] })).await?;
    assert_eq!(told(&run), ["failed", "limit", "all"], "{run}");
    assert!(text(&run["error"]["message"]).contains("1 MiB"), "{run}");
    Ok(())
}

#[tokio::test]
async fn a_list_has_1000_items_at_most() -> Result<()> {
    let flows = Flows::start().await?;
    let definition = json!({
        "steps": [{ "id": "all", "each": "${{ input.items }}", "collect": "index", "steps": [
            { "id": "c", "choose": [{ "when": "false", "steps": [call("never", WRITE)] }] },
        ] }],
        "output": "${{ size(steps.all.data) }}",
    });
    for (items, expected, output) in
        [(1000, ["completed", "", ""], json!(1000)), (1001, ["failed", "limit", "all"], Value::Null)]
    {
        let id = flows.begin(&definition, &json!({ "items": vec![0; items] })).await?;
        let run = flows.ended(&id).await?;
        assert_eq!((told(&run), &run["output"]), (expected, &output), "{run}");
    }
    assert!(flows.seen().is_empty());
    Ok(())
}

/// A thousand items with eleven attempts each are more than a run may have.
#[tokio::test]
async fn a_run_has_10000_attempts_at_most() -> Result<()> {
    let flows = Flows::start().await?;
    let cell = |number: usize| {
        let branch = json!({ "when": "false", "steps": [{ "id": format!("never{number}"), "emit": "never" }] });
        json!({ "id": format!("c{number}"), "choose": [branch] })
    };
    let cells: Vec<Value> = (0..11).map(cell).collect();
    let definition = json!({
        "steps": [{ "id": "all", "each": "${{ input.items }}", "concurrency": 16, "collect": "index", "steps": cells }],
        "finally": [{ "id": "tell", "emit": "ended", "data": { "status": "${{ run.status }}" } }],
    });
    let id = flows.begin(&definition, &json!({ "items": vec![0; 1000] })).await?;
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run)[..2], ["failed", "limit"], "{run}");
    let steps = flows.steps(&run).await?;
    assert!((9_900..=10_020).contains(&steps.len()), "{} attempts", steps.len());
    assert_eq!(flows.events("custom.ended").await?.len(), 1);
    Ok(())
}

/// Expressions that would take seconds fail at once.
#[tokio::test]
async fn expressions_have_a_budget() -> Result<()> {
    let flows = Flows::start().await?;
    let when = "input.items.exists(a, input.items.exists(b, a + b == 1))";
    let definition = json!({ "steps": [{ "id": "e", "when": when, "emit": "never" }] });
    let id = flows.begin(&definition, &json!({ "items": vec![2; 1000] })).await?;
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run)[0], "failed", "{run}");
    assert!(["expression", "limit"].contains(&told(&run)[1]), "{run}");
    assert!(flows.events("custom.never").await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn the_input_of_a_run_has_1_mib_at_most() -> Result<()> {
    let flows = Flows::start().await?;
    let workflow = flows.save("flow", &json!({ "steps": [call("r", READ)] })).await?;
    let body = json!({ "input": { "text": "x".repeat(1 << 20) } });
    let (status, refused) = flows.api().post(&format!("/api/workflows/{workflow}/runs"), &body).await?;
    assert!(matches!(status, 413 | 422), "{status} {refused}");
    assert!(flows.runs().await?.is_empty());
    Ok(())
}
