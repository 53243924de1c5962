//! The platform functions for events.

use anyhow::Result;
use serde_json::{Value, json};

use super::{delivered, subscribe};
use crate::world::{World, text};

#[tokio::test]
async fn infrastructure_emits_and_subscribes() -> Result<()> {
    let world = World::with(&[]).await?;
    let (api, bot) = (&world.api, &world.bot);
    let run = async |function: &str, params: Value| -> Result<Value> {
        let (status, answer) =
            api.post(&format!("/api/platform/events/{function}"), &json!({ "params": params })).await?;
        assert_eq!(status, 200, "{function}: {answer}");
        Ok(answer)
    };
    let subscribed =
        run("subscribe", json!({ "pattern": "custom.*", "bot_id": bot, "instruction": "Look at {data}." })).await?;
    let id = text(&subscribed["data"]["subscription_id"]).to_owned();
    let expected = json!({
        "request_id": subscribed["request_id"],
        "status": "success",
        "data": { "subscription_id": id, "pattern": "custom.*" },
        "duration_ms": subscribed["duration_ms"],
    });
    assert_eq!(subscribed, expected);
    let emitted = run("emit", json!({ "name": "paid", "data": { "total": 7 } })).await?;
    let event = text(&emitted["data"]["event_id"]).to_owned();
    assert_eq!(emitted["data"], json!({ "event_id": event, "event_type": "custom.paid" }));
    let event = delivered(api, &event).await?;
    assert_eq!((&event["data"], event["deliveries"].as_array().map(Vec::len)), (&json!({ "total": 7 }), Some(1)));
    let listed = run("get_subscriptions", json!({ "bot_id": bot })).await?;
    let expected = json!([{
        "subscription_id": id,
        "pattern": "custom.*",
        "instruction": "Look at {data}.",
        "active": true,
        "created_at": listed["data"][0]["created_at"],
    }]);
    assert_eq!(listed["data"], expected);

    // A subscription of another bot is not removed.
    let other = api.bot("other").await?;
    let foreign = subscribe(api, &other, "custom.*", &json!({})).await?;
    for absent in [foreign.as_str(), "01939d2c-7f6a-7000-8000-000000000001"] {
        let answer = run("unsubscribe", json!({ "subscription_id": absent, "bot_id": bot })).await?;
        assert_eq!(answer["data"], json!({ "subscription_id": absent, "removed": false }));
    }
    let removed = run("unsubscribe", json!({ "subscription_id": id, "bot_id": bot })).await?;
    assert_eq!(removed["data"], json!({ "subscription_id": id, "removed": true }));
    assert_eq!(run("get_subscriptions", json!({ "bot_id": bot })).await?["data"], json!([]));
    assert_eq!(run("get_subscriptions", json!({ "bot_id": other })).await?["data"][0]["subscription_id"], *foreign);

    // A refused call has its row in the audit too.
    let refused = run("emit", json!({ "name": "custom.paid" })).await?;
    let row = api.audit(text(&refused["request_id"])).await?;
    let found = [&row["tool"], &row["status"], &row["code"]].map(text);
    assert_eq!(found, ["platform.events.emit", "error", "invalid_params"], "{row}");
    Ok(())
}

#[tokio::test]
async fn refused_calls_say_why() -> Result<()> {
    let world = World::with(&[]).await?;
    let (api, bot) = (&world.api, &world.bot);
    for (function, params, message) in [
        ("emit", json!({}), "Invalid parameters: /name: required field is missing"),
        ("emit", json!({ "name": "a b" }), "Invalid parameters: /name: the name of an event has"),
        ("emit", json!({ "name": "n", "bot_id": "x" }), "Invalid parameters: /bot_id: "),
        ("subscribe", json!({ "pattern": "*", "bot_id": bot }), "Invalid parameters: /instruction: required field"),
        (
            "subscribe",
            json!({ "pattern": "*", "bot_id": bot, "instruction": "{x}" }),
            "Invalid parameters: /instruction: unknown placeholder `{x}`",
        ),
        (
            "subscribe",
            json!({ "pattern": "*", "bot_id": bot, "instruction": "x", "from": ["any"] }),
            "Invalid parameters: /from: unknown field `from`",
        ),
        ("unsubscribe", json!({ "bot_id": bot }), "Invalid parameters: /subscription_id: required field is missing"),
        ("get_subscriptions", json!({}), "Invalid parameters: /bot_id: required field is missing"),
    ] {
        let path = format!("/api/platform/events/{function}");
        let (status, answer) = api.post(&path, &json!({ "params": params })).await?;
        assert_eq!((status, &answer["code"]), (200, &json!("invalid_params")), "{function} {params}: {answer}");
        assert!(text(&answer["message"]).starts_with(message), "{function} {params}: {answer}");
    }
    let with_resource = json!({ "params": {}, "resource_id": "01939d2c-7f6a-7000-8000-000000000001" });
    assert_eq!(api.post("/api/platform/events/emit", &with_resource).await?.0, 422);
    assert_eq!(api.post("/api/platform/events/other", &json!({})).await?.0, 404);
    for kind in ["admin", "operator"] {
        let key = api.with_key(&api.new_key(kind, None).await?);
        assert_eq!(
            key.post("/api/platform/events/emit", &json!({ "params": { "name": "n" } })).await?.0,
            403,
            "{kind}"
        );
    }
    Ok(())
}
