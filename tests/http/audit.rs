//! `/api/audit`.

use anyhow::Result;
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::{Value, json};

use crate::http::roles::faults;
use crate::http::{Answers, one, send};
use crate::world::{World, text};

/// A bot whose calls have ended in every way that a plugin is not needed for, and one that it was.
async fn told() -> Result<World> {
    let world = World::with(&["test-echo"]).await?;
    world.grant("test-echo", &["echo.read"], &json!({ "repos": ["acme/*"] })).await?;
    let path = format!("/api/bots/{}/tools/test_echo_run/call", world.bot);
    world.api.post(&path, &json!({ "params": { "repo": "acme/site" }, "task_id": "t1" })).await?;
    for (tool, params) in [
        ("test_echo_run", json!({ "repo": "other/site" })),
        ("test_echo_run", json!({ "colour": "red" })),
        ("test_echo_write", json!({})),
    ] {
        world.call(tool, &params).await?;
    }
    Ok(world)
}

#[tokio::test]
async fn one_item_a_call_newest_first() -> Result<()> {
    let world = told().await?;
    let (status, mut list) = world.api.get("/api/audit").await?;
    let mut answers = Answers::default();
    for item in list["items"].as_array_mut().into_iter().flatten() {
        answers.add("item", (status, item.take()));
    }
    assert_snapshot!(answers, @"");
    let other = world.api.bot("other").await?;
    let mut answers = Answers::default();
    let everything = format!("?bot_id={}&tool=test_echo_run&status=error&since=2020-01-01T00:00:00Z", world.bot);
    for query in [
        "",
        "?status=success",
        "?status=permission_denied",
        "?status=running",
        "?tool=test_echo_write",
        "?tool=test_echo_*",
        &format!("?bot_id={other}"),
        &everything,
        "?until=2020-01-01T00:00:00.000Z",
        "?since=2099-01-01T01:00:00%2B01:00",
    ] {
        let (status, list) = world.api.get(&format!("/api/audit{query}")).await?;
        let statuses: Value = list["items"].as_array().into_iter().flatten().map(|item| &item["status"]).cloned().collect();
        let label = query.replace(&world.bot, "BOT").replace(&other, "OTHER");
        answers.add(&label, (status, statuses));
    }
    for query in ["?status=done", "?bot_id=tester", "?since=yesterday", "?until=2026-11-21", "?since=1&until=2&limit=x"] {
        answers.add(query, faults(world.api.get(&format!("/api/audit{query}")).await?));
    }
    assert_snapshot!(answers, @"");
    Ok(())
}

#[tokio::test]
async fn a_call_is_shown_with_its_events_exported_and_verified() -> Result<()> {
    let world = told().await?;
    let (_, list) = world.api.get("/api/audit").await?;
    let items = list["items"].as_array().cloned().unwrap_or_default();
    for (item, mut expected) in items.iter().zip(items.clone()) {
        let (_, mut shown) = world.api.get(&format!("/api/audit/{}", text(&item["request_id"]))).await?;
        shown["events"].take();
        expected["events"] = Value::Null;
        assert_eq!(shown, expected, "a call is the same alone and in the list");
    }
    let last = format!("/api/audit/{}", text(&items[items.len() - 1]["request_id"]));
    let (status, mut shown) = world.api.get(&last).await?;
    assert_snapshot!(one((status, shown["events"].take())), @"");

    let (status, headers, export) = send(world.api.request(Method::GET, "/api/audit/export")).await?;
    assert_eq!((status, &headers["content-type"]), (200, &"application/jsonl".parse()?));
    let lines: Vec<Value> = text(&export).lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    assert_eq!(lines, items);
    let (_, _, export) = send(world.api.request(Method::GET, "/api/audit/export?status=success")).await?;
    assert_eq!(export, items[items.len() - 1], "one line is one JSON value");

    let mut answers = Answers::default();
    answers.add("verify", world.api.get("/api/audit/verify").await?);
    for path in ["/api/audit/x", "/api/audit/019a0000-0000-7000-8000-000000000001", "/api/audit/export?status=done"] {
        answers.add(path, faults(world.api.get(path).await?));
    }
    assert_snapshot!(answers, @"");
    Ok(())
}
