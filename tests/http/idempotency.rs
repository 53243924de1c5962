//! The header `Idempotency-Key`, on every route that creates an object.

use anyhow::{Context, Result};
use insta::assert_snapshot;
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use support::Api;

use crate::http::roles::faults;
use crate::http::{Answers, send, workspace};
use crate::world::World;

async fn create(api: &Api, path: &str, key: &str, body: &Value) -> Result<(u16, HeaderMap, Value)> {
    send(api.request(Method::POST, path).header("Idempotency-Key", key).json(body)).await
}

#[tokio::test]
async fn the_same_request_creates_once() -> Result<()> {
    let mut world = World::with(&["test-echo"]).await?;
    let resource = world.api.resource("test-echo", "r", &world.github.url()).await?;
    let bindings = format!("/api/bots/{}/resources", world.bot);
    let mut answers = Answers::default();
    let cases = [
        ("/api/workspaces", json!({ "name": "w" })),
        ("/api/resources", json!({ "name": "w", "resource_type": "test-echo" })),
        ("/api/roles", json!({ "name": "w" })),
        ("/api/bots", json!({ "name": "w" })),
        (bindings.as_str(), json!({ "resource_id": resource, "permissions": {} })),
    ];
    let mut first = Vec::new();
    for (path, body) in &cases {
        let (status, headers, made) = create(&world.api, path, "k-1", body).await?;
        assert_eq!((status, headers.get("idempotent-replayed")), (201, None), "{path}: {made}");
        first.push(made);
    }
    world.server.restart().await?;
    let api = world.server.api()?;
    for ((path, body), made) in cases.iter().zip(&first) {
        let (status, headers, again) = create(&api, path, "k-1", body).await?;
        assert_eq!((status, &again), (201, made), "{path}: the answer differs after a restart");
        assert_eq!(headers["idempotent-replayed"], "true");
        let mut other = body.clone();
        other["name"] = json!("other");
        let (status, _, refused) = create(&api, path, "k-1", &other).await?;
        answers.add(&path.replace(&world.bot, "{id}"), faults((status, refused)));
    }
    assert_snapshot!(answers, @r#"
    /api/workspaces: 409 "this Idempotency-Key was already used with a different body; use a new key"
    /api/resources: 409 "this Idempotency-Key was already used with a different body; use a new key"
    /api/roles: 409 "this Idempotency-Key was already used with a different body; use a new key"
    /api/bots: 409 "this Idempotency-Key was already used with a different body; use a new key"
    /api/bots/{id}/resources: 409 "this Idempotency-Key was already used with a different body; use a new key"
    "#);
    Ok(())
}

#[tokio::test]
async fn a_key_belongs_to_one_caller_and_one_route() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let admin = api.with_key(&api.new_key("admin", None).await?);
    let foreign = workspace(api, "foreign").await?;
    let mut answers = Answers::default();
    let mut add = |label: &str, (status, headers, body): (u16, HeaderMap, Value)| {
        let told =
            if status < 300 { body["name"].clone() } else { body.get("errors").unwrap_or(&body["detail"]).clone() };
        let replayed = if headers.contains_key("idempotent-replayed") { ", again" } else { "" };
        answers.add(&format!("{label}{replayed}"), (status, told));
    };
    let body = json!({ "name": "a" });
    add("bots", create(api, "/api/bots", "k", &body).await?);
    add("roles", create(api, "/api/roles", "k", &body).await?);
    add("another key", create(&admin, "/api/bots", "k", &json!({ "name": "b" })).await?);
    add("another workspace", create(&foreign, "/api/bots", "k", &json!({ "name": "c" })).await?);
    let inside = api.request(Method::POST, "/api/bots").header("Idempotency-Key", "k");
    let inside = inside.header("Monstrum-Workspace", "foreign").json(&json!({ "name": "d" }));
    add("the same key in another workspace", send(inside).await?);
    add("a parameter that the route does not have", create(api, "/api/bots?x=1", "k", &body).await?);
    add("refused", create(api, "/api/bots", "k2", &body).await?);
    add("refused", create(api, "/api/bots", "k2", &body).await?);
    add("bad input", create(api, "/api/bots", "k3", &json!({})).await?);
    add("bad input", create(api, "/api/bots", "k3", &json!({})).await?);
    add("no key", create(&api.with_key(""), "/api/bots", "k", &body).await?);
    add("unknown key", create(&api.with_key("mk_x"), "/api/bots", "k", &body).await?);
    for (label, bad) in [("empty", ""), ("blank", "a b"), ("too long", &"k".repeat(256))] {
        add(label, create(api, "/api/bots", bad, &json!({ "name": "e" })).await?);
    }
    add("as long as can be", create(api, "/api/bots", &"k".repeat(255), &json!({ "name": "e" })).await?);
    assert_snapshot!(answers, @r#"
    bots: 201 "a"
    roles: 201 "a"
    another key: 201 "b"
    another workspace: 201 "c"
    the same key in another workspace: 201 "d"
    a parameter that the route does not have: 422 [{"path":"x","message":"unknown query parameter (this route supports no query parameters)"}]
    refused: 409 "the name is already used in this workspace"
    refused, again: 409 "the name is already used in this workspace"
    bad input: 422 [{"path":"/name","message":"required field is missing"}]
    bad input, again: 422 [{"path":"/name","message":"required field is missing"}]
    no key: 401 "send exactly one header `Authorization: Bearer mk_…`"
    unknown key: 401 "unknown API key"
    empty: 422 [{"path":"Idempotency-Key","message":"send exactly one value of 1 to 255 visible ASCII characters"}]
    blank: 422 [{"path":"Idempotency-Key","message":"send exactly one value of 1 to 255 visible ASCII characters"}]
    too long: 422 [{"path":"Idempotency-Key","message":"send exactly one value of 1 to 255 visible ASCII characters"}]
    as long as can be: 201 "e"
    "#);

    // A key is shown only once, so its response is not stored, and a repeated request is rejected.
    let body = json!({ "name": "ci", "kind": "operator" });
    assert_eq!(create(api, "/api/keys", "k", &body).await?.0, 201);
    let (status, headers, refused) = create(api, "/api/keys", "k", &body).await?;
    assert_eq!((status, headers.get("idempotent-replayed"), refused.get("key")), (409, None, None), "{refused}");
    Ok(())
}

/// Of several concurrent requests, one creates the object. The other requests receive the same response, or an error
/// that says that the first request is still running.
#[tokio::test]
async fn of_many_at_once_one_creates() -> Result<()> {
    let world = World::with(&[]).await?;
    let body = json!({ "name": "only one" });
    let requests = (0..20).map(|_| create(&world.api, "/api/roles", "k", &body));
    let answers = futures::future::try_join_all(requests).await?;
    let mut made = None;
    for (status, _, body) in answers {
        if status == 201 {
            let id = body["id"].as_str().context("the role has no id")?.to_owned();
            assert_eq!(*made.get_or_insert_with(|| id.clone()), id);
        } else {
            assert_eq!(
                (status, &body["detail"]),
                (409, &json!("a request with this Idempotency-Key is still running; try again later"))
            );
        }
    }
    assert!(made.is_some());
    let (_, list) = world.api.get("/api/roles").await?;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
    Ok(())
}
