//! The whole answers of `/api/events` and `/api/deliveries`, and what they refuse.

use anyhow::{Context, Result, ensure};
use futures::StreamExt as _;
use reqwest::Method;
use serde_json::{Value, json};
use support::Api;

use super::{delivered, emit, events, subscribe};
use crate::http::roles::faults;
use crate::http::send;
use crate::world::{World, eventually, text};

async fn operator(world: &World) -> Result<Api> {
    Ok(world.api.with_key(&world.api.new_key("operator", None).await?))
}

#[tokio::test]
async fn an_event_is_emitted_listed_and_shown() -> Result<()> {
    let world = World::with(&[]).await?;
    let (api, bot) = (operator(&world).await?, &world.bot);
    let (_, me) = api.get("/api/me").await?;
    let (status, emitted) = api.post("/api/events", &json!({ "name": "order.paid", "data": { "total": 7 } })).await?;
    assert_eq!((status, &emitted["event_type"]), (201, &json!("custom.order.paid")), "{emitted}");
    assert_eq!(emitted.as_object().map(serde_json::Map::len), Some(2), "{emitted}");
    let id = text(&emitted["event_id"]).to_owned();
    let event = delivered(&api, &id).await?;
    let expected = json!({
        "id": id,
        "sequence": 1,
        "event_type": "custom.order.paid",
        "source_type": "platform",
        "source_id": me["key_id"],
        "data": { "total": 7 },
        "metadata": { "request_id": event["metadata"]["request_id"], "root_event_id": id, "depth": 0 },
        "created_at": event["created_at"],
        "deliveries": [],
    });
    assert_eq!(event, expected);
    ensure!(text(&event["created_at"]).ends_with('Z') && !event["metadata"]["request_id"].is_null(), "{event}");

    let own = emit(&api, "ready", &json!({ "bot_id": bot })).await?;
    let own = delivered(&api, &own).await?;
    assert_eq!((&own["bot_id"], &own["data"], &own["sequence"]), (&json!(bot), &json!({}), &json!(2)));
    let listed = events(&api, "custom.*").await?;
    assert_eq!(listed.iter().map(|event| text(&event["id"])).collect::<Vec<_>>(), [text(&own["id"]), &id]);
    let mut shown = expected;
    shown.as_object_mut().context("an event is an object")?.remove("deliveries");
    assert_eq!(listed[1], shown);
    for (query, found) in [
        ("event_type=custom.order.*", 1),
        ("event_type=custom.order", 0),
        ("source_type=platform", 2),
        ("source_type=task", 0),
        (&format!("bot_id={bot}"), 1),
        (&format!("since={}", text(&own["created_at"])), 1),
        (&format!("until={}", text(&event["created_at"])), 0),
    ] {
        let (status, list) = api.get(&format!("/api/events?{query}")).await?;
        assert_eq!((status, list["items"].as_array().map(Vec::len)), (200, Some(found)), "{query}: {list}");
    }
    // The change is in the audit, with the key that made it.
    let (_, changes) = world.api.get("/api/audit/changes?limit=1").await?;
    assert_eq!(changes["items"][0]["change"], "event.emit", "{changes}");
    Ok(())
}

#[tokio::test]
async fn events_are_exported_as_cloud_events() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let first = emit(api, "first", &json!({ "data": [1] })).await?;
    delivered(api, &first).await?;
    let second = emit(api, "second", &json!({ "bot_id": world.bot })).await?;
    let second = delivered(api, &second).await?;
    let (status, headers, body) = send(api.request(Method::GET, "/api/events?format=cloudevents&limit=1")).await?;
    assert_eq!((status, &headers["content-type"]), (200, &"application/jsonl".parse()?));
    let expected = json!({
        "specversion": "1.0",
        "id": second["id"],
        "source": format!("/platform/{}", text(&second["source_id"])),
        "type": "custom.second",
        "time": second["created_at"],
        "datacontenttype": "application/json",
        "data": {},
        "sequence": "2",
        "botid": world.bot,
    });
    assert_eq!(body, expected);
    let cursor = headers["monstrum-next-cursor"].to_str()?.to_owned();
    let path = format!("/api/events?format=cloudevents&limit=1&cursor={cursor}");
    let (_, headers, body) = send(api.request(Method::GET, &path)).await?;
    assert_eq!((&body["type"], headers.contains_key("monstrum-next-cursor")), (&json!("custom.first"), false));
    Ok(())
}

#[tokio::test]
async fn a_stream_goes_on_where_it_ended() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    for name in ["one", "two", "three"] {
        let id = emit(api, name, &json!({})).await?;
        delivered(api, &id).await?;
    }
    let request = api.request(Method::GET, "/api/events?event_type=custom.t*").header("accept", "text/event-stream");
    let response = request.header("last-event-id", "1").send().await?;
    assert_eq!(response.status(), 200);
    let mut stream = response.bytes_stream();
    let mut read = String::new();
    while read.matches("\n\n").count() < 2 {
        read.push_str(&String::from_utf8_lossy(&stream.next().await.context("the stream has ended")??));
    }
    // Events that do not match are passed over, and later ones follow.
    delivered(api, &emit(api, "other", &json!({})).await?).await?;
    emit(api, "ten", &json!({})).await?;
    while read.matches("\n\n").count() < 3 {
        read.push_str(&String::from_utf8_lossy(&stream.next().await.context("the stream has ended")??));
    }
    let ids: Vec<&str> = read.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    assert_eq!(ids, ["2", "3", "5"], "{read}");
    let data: Vec<Value> = read
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let types: Vec<&str> = data.iter().map(|event| text(&event["event_type"])).collect();
    assert_eq!(types, ["custom.two", "custom.three", "custom.ten"]);
    let bad = api.request(Method::GET, "/api/events").header("accept", "text/event-stream");
    let (status, _, answer) = send(bad.header("last-event-id", "x")).await?;
    assert_eq!((status, &answer["errors"][0]["path"]), (422, &json!("last-event-id")));
    Ok(())
}

#[tokio::test]
async fn invalid_events_are_refused_with_a_pointer() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let name =
        "the name of an event has 1 to 128 of the characters A-Z a-z 0-9 . _ : - and does not begin with `custom.`";
    for bad in ["", "custom.paid", "a b", "task/completed", &"x".repeat(129)] {
        let refused = faults(api.post("/api/events", &json!({ "name": bad })).await?);
        assert_eq!(refused, (422, json!([{ "path": "/name", "message": name }])), "{bad:?}");
    }
    let large = json!({ "name": "large", "data": "x".repeat(64 << 10) });
    let message = "must have at most 65536 bytes of JSON, but has 65538";
    assert_eq!(faults(api.post("/api/events", &large).await?), (422, json!([{ "path": "/data", "message": message }])));
    let fits = json!({ "name": "large", "data": "x".repeat((64 << 10) - 2) });
    assert_eq!(api.post("/api/events", &fits).await?.0, 201);
    let absent = json!({ "name": "n", "bot_id": "01939d2c-7f6a-7000-8000-000000000001" });
    let expected = json!([{ "path": "/bot_id", "message": "no such bot" }]);
    assert_eq!(faults(api.post("/api/events", &absent).await?), (422, expected));
    for query in ["bot_id=x", "since=x", "until=x", "format=xml", "cursor=x"] {
        assert_eq!(api.get(&format!("/api/events?{query}")).await?.0, 422, "{query}");
    }
    assert_eq!(api.get("/api/deliveries?status=x").await?.0, 422);
    assert_eq!(api.get("/api/events/01939d2c-7f6a-7000-8000-000000000001").await?.0, 404);
    let key = api.with_key(&api.new_key("bot", Some(&world.bot)).await?);
    for path in ["/api/events", "/api/deliveries", "/api/subscriptions"] {
        assert_eq!(key.get(path).await?.0, 403, "{path}");
    }
    Ok(())
}

#[tokio::test]
async fn a_bot_emits_six_hundred_events_in_a_minute() -> Result<()> {
    let world = World::with(&[]).await?;
    let (api, body) = (&world.api, json!({ "name": "n", "bot_id": world.bot }));
    let mut emitted = 0;
    let refused = loop {
        let sent = futures::future::try_join_all(
            (0..50).map(|_| async { send(api.request(Method::POST, "/api/events").json(&body)).await }),
        )
        .await?;
        emitted += sent.iter().filter(|(status, ..)| *status == 201).count();
        if let Some(refused) = sent.into_iter().find(|(status, ..)| *status != 201) {
            break refused;
        }
        ensure!(emitted <= 6_000, "no event was refused");
    };
    let (status, headers, answer) = refused;
    assert_eq!((status, headers.contains_key("retry-after")), (429, true), "{answer}");
    assert_eq!(answer["detail"], "the bot may emit at most 600 events in a minute");
    // The room of a minute fills again while the events are emitted.
    assert!(emitted >= 600, "{emitted}");
    assert_eq!(api.post("/api/events", &json!({ "name": "of the platform" })).await?.0, 422);
    assert_eq!(api.post("/api/events", &json!({ "name": "other" })).await?.0, 201, "the platform has its own room");
    Ok(())
}

#[tokio::test]
async fn deliveries_are_listed_and_dead_ones_are_retried() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = operator(&world).await?;
    let subscription = subscribe(&api, &world.bot, "custom.*", &json!({})).await?;
    let id = emit(&api, "n", &json!({})).await?;
    // The bot has no model.
    let event = delivered(&api, &id).await?;
    let delivery = event["deliveries"][0].clone();
    let expected = json!({
        "id": delivery["id"],
        "event_id": id,
        "target": { "kind": "subscription", "id": subscription },
        "status": "dead",
        "attempts": 0,
        "reason": "model",
        "created_at": delivery["created_at"],
        "ended_at": delivery["ended_at"],
    });
    assert_eq!(delivery, expected);
    let (_, dead) = api.get("/api/deliveries?status=dead").await?;
    assert_eq!(dead, json!({ "items": [delivery], "next_cursor": null }));
    let (_, done) = api.get("/api/deliveries?status=done").await?;
    assert_eq!(done["items"], json!([]));
    let path = format!("/api/deliveries/{}/retry", text(&delivery["id"]));
    let (status, retried) = api.post(&path, &Value::Null).await?;
    assert_eq!((status, &retried["id"]), (200, &delivery["id"]), "{retried}");
    let again = eventually("the delivery is dead again", async || {
        let (_, listed) = api.get("/api/deliveries?status=dead").await?;
        let again = listed["items"][0].clone();
        Ok((!again.is_null() && again["ended_at"] != delivery["ended_at"]).then_some(again))
    })
    .await?;
    assert_eq!(again["reason"], "model");
    let (status, absent) = api.post("/api/deliveries/01939d2c-7f6a-7000-8000-000000000001/retry", &Value::Null).await?;
    assert_eq!(status, 404, "{absent}");
    let (_, changes) = world.api.get("/api/audit/changes?limit=1").await?;
    assert_eq!(changes["items"][0]["change"], "delivery.retry", "{changes}");
    Ok(())
}
