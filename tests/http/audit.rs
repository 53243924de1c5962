//! Tests of `/api/audit`.

mod ocsf;
mod stream;
mod tree;

use anyhow::Result;
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::{Value, json};

use crate::http::roles::faults;
use crate::http::{Answers, one, send};
use crate::world::{World, text};

/// Starts a world in which the bot made four calls: one call that succeeded, and three calls that ended before the
/// plugin ran, because of the scope, the parameters and the role.
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
    assert_snapshot!(answers, @r#"
    item: 200 {"request_id":"[id 1]","bot_id":"[id 2]","task_id":"[id 1]","resource_id":"[id 3]","tool":"test_echo_write","operation":"echo.write","plugin":"test-echo","plugin_digest":"[digest]","status":"permission_denied","code":"denied","message":"Permission denied: tool 'test_echo_write' is not available to this bot","rule":"role.allowed_operations","params":{},"duration_ms":"[ms]","started_at":"[time]","finished_at":"[time]","parent_request_id":null,"delegation":null}
    item: 200 {"request_id":"[id 4]","bot_id":"[id 2]","task_id":"[id 4]","resource_id":"[id 3]","tool":"test_echo_run","operation":"echo.read","plugin":"test-echo","plugin_digest":"[digest]","status":"error","code":"invalid_params","message":"Invalid parameters: /colour: undeclared parameter","rule":"input","params":{"colour":"red"},"duration_ms":"[ms]","started_at":"[time]","finished_at":"[time]","parent_request_id":null,"delegation":null}
    item: 200 {"request_id":"[id 5]","bot_id":"[id 2]","task_id":"[id 5]","resource_id":"[id 3]","tool":"test_echo_run","operation":"echo.read","plugin":"test-echo","plugin_digest":"[digest]","status":"scope_violation","code":"scope","message":"Scope violation: Repository other/site is not authorized","rule":"scope.repos","params":{"repo":"other/site"},"duration_ms":"[ms]","started_at":"[time]","finished_at":"[time]","parent_request_id":null,"delegation":null}
    item: 200 {"request_id":"[id 6]","bot_id":"[id 2]","task_id":"t1","resource_id":"[id 3]","tool":"test_echo_run","operation":"echo.read","plugin":"test-echo","plugin_digest":"[digest]","status":"success","code":null,"message":null,"rule":null,"params":{"repo":"acme/site"},"duration_ms":"[ms]","started_at":"[time]","finished_at":"[time]","parent_request_id":null,"delegation":null}
    "#);
    let other = world.api.bot("other").await?;
    let (_, resources) = world.api.get("/api/resources").await?;
    let resource = text(&resources["items"][0]["id"]).to_owned();
    let mut answers = Answers::default();
    let everything = format!("?bot_id={}&tool=test_echo_run&status=error&since=2020-01-01T00:00:00Z", world.bot);
    for query in [
        "",
        "?status=success",
        "?status=permission_denied",
        "?status=running",
        "?tool=test_echo_write",
        "?tool=test_echo_*",
        "?rule=scope.repos",
        "?rule=scope",
        "?rule=input&status=error",
        &format!("?resource_id={resource}"),
        &format!("?resource_id={resource}&rule=role.allowed_operations"),
        &format!("?resource_id={other}"),
        &format!("?bot_id={other}"),
        &everything,
        "?until=2020-01-01T00:00:00.000Z",
        "?since=2099-01-01T01:00:00%2B01:00",
    ] {
        let (status, list) = world.api.get(&format!("/api/audit{query}")).await?;
        let statuses: Value =
            list["items"].as_array().into_iter().flatten().map(|item| &item["status"]).cloned().collect();
        let label = query.replace(&world.bot, "BOT").replace(&other, "OTHER").replace(&resource, "RESOURCE");
        answers.add(&label, (status, statuses));
    }
    for query in [
        "?status=done",
        "?bot_id=tester",
        "?resource_id=github",
        "?since=yesterday",
        "?until=2026-11-21",
        "?since=1&until=2&limit=x",
    ] {
        answers.add(query, faults(world.api.get(&format!("/api/audit{query}")).await?));
    }
    assert_snapshot!(answers, @r#"
    200 ["permission_denied","error","scope_violation","success"]
    ?status=success: 200 ["success"]
    ?status=permission_denied: 200 ["permission_denied"]
    ?status=running: 200 []
    ?tool=test_echo_write: 200 ["permission_denied"]
    ?tool=test_echo_*: 200 []
    ?rule=scope.repos: 200 ["scope_violation"]
    ?rule=scope: 200 []
    ?rule=input&status=error: 200 ["error"]
    ?resource_id=RESOURCE: 200 ["permission_denied","error","scope_violation","success"]
    ?resource_id=RESOURCE&rule=role.allowed_operations: 200 ["permission_denied"]
    ?resource_id=OTHER: 200 []
    ?bot_id=OTHER: 200 []
    ?bot_id=BOT&tool=test_echo_run&status=error&since=2020-01-01T00:00:00Z: 200 ["error"]
    ?until=2020-01-01T00:00:00.000Z: 200 []
    ?since=2099-01-01T01:00:00%2B01:00: 200 []
    ?status=done: 422 [{"path":"status","message":"expected success, error, scope_violation, permission_denied, approval_required, running or interrupted"}]
    ?bot_id=tester: 422 [{"path":"bot_id","message":"expected the id of a bot"}]
    ?resource_id=github: 422 [{"path":"resource_id","message":"expected the id of a resource"}]
    ?since=yesterday: 422 [{"path":"since","message":"expected an RFC 3339 time such as [time] (in a URL, `+` is written %2B)"}]
    ?until=2026-11-21: 422 [{"path":"until","message":"expected an RFC 3339 time such as [time] (in a URL, `+` is written %2B)"}]
    ?since=1&until=2&limit=x: 422 [{"path":"since","message":"expected an RFC 3339 time such as [time] (in a URL, `+` is written %2B)"},{"path":"until","message":"expected an RFC 3339 time such as [time] (in a URL, `+` is written %2B)"}]
    "#);
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
        assert_eq!(shown, expected, "the call differs from its entry in the list");
    }
    let last = format!("/api/audit/{}", text(&items[items.len() - 1]["request_id"]));
    let (status, mut shown) = world.api.get(&last).await?;
    assert_snapshot!(one((status, shown["events"].take())), @r#"200 [{"sequence":11,"writer":"[id 1]","kind":"finished","at":"[time]","status":"success","code":null,"flags":null,"key_version":1,"previous_hash":"[hash]","hash":"[hash]"}]"#);

    let (status, headers, export) = send(world.api.request(Method::GET, "/api/audit/export")).await?;
    assert_eq!((status, &headers["content-type"]), (200, &"application/jsonl".parse()?));
    let lines: Vec<Value> = text(&export).lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    assert_eq!(lines, items);
    let (_, _, export) = send(world.api.request(Method::GET, "/api/audit/export?status=success")).await?;
    assert_eq!(export, items[items.len() - 1], "the exported line differs from the call in the list");
    let denied = format!("/api/audit/export?rule=scope.repos&resource_id={}", text(&items[2]["resource_id"]));
    let (_, _, export) = send(world.api.request(Method::GET, &denied)).await?;
    assert_eq!(export, items[2], "the export is filtered like the list");

    let mut answers = Answers::default();
    answers.add("verify", world.api.get("/api/audit/verify").await?);
    for path in ["/api/audit/x", "/api/audit/019a0000-0000-7000-8000-000000000001", "/api/audit/export?status=done"] {
        answers.add(path, faults(world.api.get(path).await?));
    }
    assert_snapshot!(answers, @r#"
    verify: 200 {"valid":true,"rows":14,"problems":[]}
    /api/audit/x: 404 "no such object with this id"
    /api/audit/019a0000-0000-7000-8000-000000000001: 404 "no such call"
    /api/audit/export?status=done: 422 [{"path":"status","message":"expected success, error, scope_violation, permission_denied, approval_required, running or interrupted"}]
    "#);
    Ok(())
}
