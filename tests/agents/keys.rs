//! Agent keys.

use anyhow::Result;
use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{Scene, new_key, sum};
use crate::http::roles::faults;
use crate::http::{Answers, made};

#[tokio::test]
async fn a_key_is_for_one_resource_of_the_type() -> Result<()> {
    let scene = Scene::start().await?;
    let api = &scene.world.api;
    let of_bot = json!({ "resource_type": "bot", "name": "b", "config": {"bot": "tester"} });
    let other = made(api, "/api/resources", &of_bot).await?;
    let mut answers = Answers::default();
    for (label, body) in [
        ("no resource", json!({ "name": "x", "kind": "agent" })),
        ("a resource of another type", json!({ "name": "x", "kind": "agent", "resource_id": other })),
        ("a bot", json!({ "name": "x", "kind": "agent", "resource_id": scene.resource, "bot_id": scene.world.bot })),
        ("another kind", json!({ "name": "x", "kind": "admin", "resource_id": scene.resource })),
    ] {
        answers.add(label, faults(api.post("/api/keys", &body).await?));
    }
    let operator = api.with_key(&api.new_key("operator", None).await?);
    let body = json!({ "name": "x", "kind": "agent", "resource_id": scene.resource });
    answers.add("an operator", faults(operator.post("/api/keys", &body).await?));
    assert_snapshot!(answers, @r#"
    no resource: 422 [{"path":"/resource_id","message":"required when `kind` is `agent`"}]
    a resource of another type: 422 [{"path":"/resource_id","message":"no such resource of type `agent` in this workspace"}]
    a bot: 422 [{"path":"/bot_id","message":"allowed only when `kind` is `bot`"}]
    another kind: 422 [{"path":"/resource_id","message":"allowed only when `kind` is `agent`"}]
    an operator: 403 "an admin key is required"
    "#);
    Ok(())
}

/// An agent key opens the socket and nothing else.
#[tokio::test]
async fn a_key_only_opens_the_socket() -> Result<()> {
    let scene = Scene::start().await?;
    let api = scene.world.api.with_key(&scene.key);
    for path in ["/api/bots", "/api/approvals", "/api/keys", "/docs", "/api/openapi.json", "/api/audit"] {
        let (status, answer) = api.get(path).await?;
        assert_eq!((status, &answer["detail"]), (403, &json!("an agent key only connects agents")), "{path}");
    }
    let path = format!("/api/bots/{}/tools/lab__sum/call", scene.world.bot);
    assert_eq!(api.post(&path, &json!({ "params": {} })).await?.0, 403);
    assert_eq!(api.post(&format!("/mcp/{}", scene.world.bot), &json!({})).await?.0, 403);
    Ok(())
}

/// Deleting or rotating the key, and deleting the resource, closes the connection within a second.
#[tokio::test]
async fn a_revoked_key_closes_its_connections() -> Result<()> {
    let scene = Scene::start().await?;
    let api = &scene.world.api;
    let rotate = format!("/api/keys/{}/rotate", scene.key_id);

    let mut agent = scene.agent(&json!([sum()])).await?;
    scene.has(&["lab__sum"]).await?;
    let call = scene.call("lab__sum", &json!({}));
    agent.next_of("call").await?;
    let (status, rotated) = api.post(&rotate, &Value::Null).await?;
    assert_eq!(status, 200, "{rotated}");
    let began = std::time::Instant::now();
    assert_eq!(agent.closed().await?.0, 4401);
    assert!(began.elapsed().as_secs() < 1, "{:?}", began.elapsed());
    assert_eq!(call.await??["code"], "uncertain");
    assert!(scene.agent(&json!([sum()])).await.is_err(), "the old key");

    let (id, key) = new_key(&scene.world, &scene.resource, "second").await?;
    let connect = async |key: &str| support::Agent::connect(&scene.url()?, key, &json!([sum()]), &json!({})).await;
    let mut agent = connect(&key).await?;
    assert_eq!(api.delete(&format!("/api/keys/{id}")).await?.0, 204);
    assert_eq!(agent.closed().await?.0, 4401);
    scene.has(&[]).await?;

    let (_, key) = new_key(&scene.world, &scene.resource, "third").await?;
    let mut agent = connect(&key).await?;
    let bindings = format!("/api/bots/{}/resources", scene.world.bot);
    let (_, list) = api.get(&bindings).await?;
    let binding = list["items"][0]["id"].as_str().unwrap_or_default();
    assert_eq!(api.delete(&format!("{bindings}/{binding}")).await?.0, 204);
    assert_eq!(api.delete(&format!("/api/resources/{}", scene.resource)).await?.0, 204);
    assert_eq!(agent.closed().await?.0, 4401);
    assert_eq!(api.with_key(&key).get("/ws/agent").await?.0, 401, "the key is deleted with its resource");
    Ok(())
}
