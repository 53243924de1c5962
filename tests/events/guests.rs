//! Plugins that emit events and subscribe their bot.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::{LlmReply, Server};

use super::{delivered, events};
use crate::tasks::{Tasks, ended};
use crate::world::{World, text};

const PLUGIN: &str = "test-events";

/// Changes whether the plugin may subscribe the bot.
async fn permit(world: &World, binding: &str) -> Result<()> {
    let path = format!("/api/bots/{}/resources/{binding}", world.bot);
    let (status, body) =
        world.api.patch(&path, &json!({ "allow_subscribe": true, "allow_calls": ["other_*"] })).await?;
    ensure!(status == 200, "{status} {body}");
    Ok(())
}

/// Calls a tool of the plugin. Returns the data of a call that has succeeded.
async fn run(world: &World, tool: &str, params: &Value) -> Result<Value> {
    let answer = world.call(&format!("test_events_{tool}"), params).await?;
    ensure!(answer["status"] == "success", "{answer}");
    Ok(answer["data"].clone())
}

#[tokio::test]
async fn a_plugin_emits_subscribes_lists_and_unsubscribes() -> Result<()> {
    let world = World::with(&[PLUGIN]).await?;
    let bound = world.grant_all(PLUGIN).await?;
    permit(&world, &bound.binding).await?;
    let params = json!({ "pattern": "custom.ticket.*", "instruction": "Look at {data}." });
    let id = text(&run(&world, "subscribe", &params).await?).to_owned();
    let listed = run(&world, "list", &json!({})).await?;
    let expected = json!([{
        "id": id,
        "pattern": "custom.ticket.*",
        "instruction": "Look at {data}.",
        "active": true,
        "created_at": listed[0]["created_at"],
    }]);
    assert_eq!(listed, expected);
    let (_, shown) = world.api.get(&format!("/api/subscriptions/{id}")).await?;
    let tools = ["emit", "subscribe", "unsubscribe", "list"].map(|tool| format!("test_events_{tool}"));
    let expected = json!({
        "id": id,
        "bot_id": world.bot,
        "pattern": "custom.ticket.*",
        "instruction": "Look at {data}.",
        "from": ["own"],
        "narrow": { "allowed_tools": [tools[0], tools[1], tools[2], tools[3], "other_*"] },
        "active": true,
        "made_by": { "kind": "plugin", "id": PLUGIN },
        "expires_at": shown["expires_at"],
        "created_at": shown["created_at"],
    });
    assert_eq!(shown, expected);

    let answer = world.call("test_events_emit", &json!({ "name": "ticket.closed", "data": { "id": 7 } })).await?;
    let event = delivered(&world.api, text(&answer["data"]["ids"][0])).await?;
    assert_eq!((text(&event["event_type"]), &event["data"]), ("custom.ticket.closed", &json!({ "id": 7 })));
    let source = [&event["source_type"], &event["source_id"], &event["bot_id"]].map(text);
    assert_eq!(source, ["bot", world.bot.as_str(), world.bot.as_str()]);
    let metadata = json!({ "request_id": answer["request_id"], "root_event_id": event["id"], "depth": 0 });
    assert_eq!(event["metadata"], metadata);
    // The bot has no model, but the subscription has matched.
    let delivery = &event["deliveries"][0];
    assert_eq!((&delivery["target"]["id"], &delivery["reason"]), (&json!(id), &json!("model")), "{event}");
    // Emitting is an effect: the call has two rows in the audit.
    let (_, audited) = world.api.get(&format!("/api/audit/{}", text(&answer["request_id"]))).await?;
    let kinds: Vec<&str> = audited["events"].as_array().into_iter().flatten().map(|row| text(&row["kind"])).collect();
    assert_eq!(kinds, ["started", "finished"], "{audited}");

    // An admin lets it go on without an end.
    let (status, confirmed) = world.api.post(&format!("/api/subscriptions/{id}/confirm"), &Value::Null).await?;
    ensure!(status == 200 && confirmed.get("expires_at").is_none(), "{status} {confirmed}");
    assert_eq!(run(&world, "unsubscribe", &json!({ "id": id })).await?, json!(true));
    assert_eq!(run(&world, "unsubscribe", &json!({ "id": id })).await?, json!(false));
    assert_eq!(run(&world, "list", &json!({})).await?, json!([]));
    Ok(())
}

#[tokio::test]
async fn a_plugin_sees_and_removes_only_what_it_has_made() -> Result<()> {
    let world = World::with(&[PLUGIN]).await?;
    let bound = world.grant_all(PLUGIN).await?;
    permit(&world, &bound.binding).await?;
    let body = json!({ "bot_id": world.bot, "pattern": "*", "instruction": "secret", "active": false });
    let (_, of_person) = world.api.post("/api/subscriptions", &body).await?;
    for id in [text(&of_person["id"]), "01939d2c-7f6a-7000-8000-000000000001", "x"] {
        assert_eq!(run(&world, "unsubscribe", &json!({ "id": id })).await?, json!(false), "{id}");
    }
    assert_eq!(run(&world, "list", &json!({})).await?, json!([]));
    assert_eq!(world.api.get(&format!("/api/subscriptions/{}", text(&of_person["id"]))).await?.0, 200);
    Ok(())
}

#[tokio::test]
async fn what_a_plugin_may_not_do_is_a_failure_with_a_code() -> Result<()> {
    let world = World::with(&[PLUGIN]).await?;
    let bound = world.grant_all(PLUGIN).await?;
    let subscribe = |pattern: &str, instruction: &str| json!({ "pattern": pattern, "instruction": instruction });
    for (tool, params) in [
        ("subscribe", subscribe("*", "x")),
        ("unsubscribe", json!({ "id": "01939d2c-7f6a-7000-8000-000000000001" })),
        ("list", json!({})),
    ] {
        let failure = run(&world, tool, &params).await?;
        let message = "the binding does not permit the plugin to subscribe the bot to events";
        assert_eq!(failure, json!({ "code": "denied", "message": message, "sent": false }), "{tool}");
    }
    permit(&world, &bound.binding).await?;
    for (params, code, message) in [
        (subscribe("", "x"), "invalid", "pattern: must not be empty"),
        (subscribe("*", "{x}"), "invalid", "instruction: unknown placeholder `{x}`"),
    ] {
        let failure = run(&world, "subscribe", &params).await?;
        assert_eq!(failure["code"], code, "{params}: {failure}");
        assert!(text(&failure["message"]).starts_with(message), "{params}: {failure}");
    }
    let large = json!({ "x": "x".repeat(64 << 10) });
    for (params, code) in [
        (json!({ "name": "custom.x" }), "invalid"),
        (json!({ "name": "task/completed" }), "invalid"),
        (json!({ "name": "large", "data": large }), "limit"),
    ] {
        let told = run(&world, "emit", &params).await?;
        assert_eq!((&told["ids"], &told["failure"]["code"]), (&json!([]), &json!(code)), "{told}");
    }
    let told = run(&world, "emit", &json!({ "name": "many", "times": 101 })).await?;
    assert_eq!(told["ids"].as_array().map(Vec::len), Some(100));
    let message = "a call and the calls below it may emit at most 100 events";
    assert_eq!(told["failure"], json!({ "code": "limit", "message": message, "sent": false }));
    assert_eq!(events(&world.api, "custom.*").await?.len(), 100);
    Ok(())
}

#[tokio::test]
async fn an_event_stays_if_its_call_fails() -> Result<()> {
    let world = World::with(&[PLUGIN]).await?;
    world.grant_all(PLUGIN).await?;
    let answer = world.call("test_events_emit", &json!({ "name": "kept", "times": 2, "fail": true })).await?;
    assert_eq!((&answer["status"], &answer["code"]), (&json!("error"), &json!("plugin")), "{answer}");
    let kept = events(&world.api, "custom.kept").await?;
    assert_eq!(kept.len(), 2);
    ensure!(kept.iter().all(|event| event["metadata"]["request_id"] == answer["request_id"]), "{kept:?}");
    Ok(())
}

/// A plugin that emits in a task which an event has started continues the chain of causes.
#[tokio::test]
async fn events_of_a_task_are_caused_by_its_event() -> Result<()> {
    let tasks = Tasks::on(Server::prepare(&["github", PLUGIN])?).await?;
    let world = &tasks.world;
    world.grant_all(PLUGIN).await?;
    let body = json!({ "bot_id": world.bot, "pattern": "custom.begin", "instruction": "Emit." });
    ensure!(world.api.post("/api/subscriptions", &body).await?.0 == 201, "it subscribes");
    tasks
        .llm
        .prepare([LlmReply::calls(&[("test_events_emit", json!({ "name": "next" }))]), LlmReply::says(&["Emitted."])]);
    let (_, begun) = world.api.post("/api/events", &json!({ "name": "begin" })).await?;
    let begun = delivered(&world.api, text(&begun["event_id"])).await?;
    let task = ended(&world.api, text(&begun["deliveries"][0]["task_id"])).await?;
    assert_eq!(text(&task["result"]), "Emitted.", "{task}");
    let next = events(&world.api, "custom.next").await?;
    let metadata = &next[0]["metadata"];
    assert_eq!((&metadata["root_event_id"], &metadata["depth"]), (&begun["id"], &json!(1)), "{next:?}");
    assert_eq!(metadata["task_id"], task["id"]);
    Ok(())
}

/// The tasks of a subscription would not have the restrictions of the call.
#[tokio::test]
async fn a_narrowed_call_subscribes_nothing() -> Result<()> {
    let tasks = Tasks::on(Server::prepare(&["github", PLUGIN])?).await?;
    let world = &tasks.world;
    let bound = world.grant_all(PLUGIN).await?;
    permit(world, &bound.binding).await?;
    tasks.llm.prepare([
        LlmReply::calls(&[("test_events_subscribe", json!({ "pattern": "*", "instruction": "x" }))]),
        LlmReply::says(&["Refused."]),
    ]);
    let narrow = json!({ "allowed_tools": ["test_events_*"] });
    let id = tasks.begin(&json!({ "instruction": "Subscribe.", "narrow": narrow })).await?;
    let task = ended(&world.api, &id).await?;
    let steps = tasks.steps(&task).await?;
    assert_eq!(steps[1]["result"]["code"], "denied", "{steps:?}");
    let (_, listed) = world.api.get("/api/subscriptions").await?;
    assert_eq!(listed["items"], json!([]));
    Ok(())
}
