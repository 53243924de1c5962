//! Tests of `/api/resources`.

use anyhow::{Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::Server;

use crate::http::roles::faults;
use crate::http::{Answers, made};
use crate::world::{World, text};

#[tokio::test]
async fn a_resource_is_made_shown_changed_and_deleted() -> Result<()> {
    let server = Server::start(&["test-echo"]).await?;
    let api = server.api()?;
    let mut answers = Answers::default();
    let body = json!({
        "resource_type": "test-echo", "name": "eu", "config": { "api_base": "https://api.example.com/v1", "retries": 3 },
        "network": { "allow_addresses": ["10.0.0.0/8", "fd00::/8"], "allow_http": true },
    });
    let created = api.post("/api/resources", &body).await?;
    let resource = format!("/api/resources/{}", text(&created.1["id"]));
    answers.add("create", created);
    let body = json!({ "resource_type": "test-echo", "name": "bare" });
    answers.add("create with as little as can be", api.post("/api/resources", &body).await?);
    answers.add("show", api.get(&resource).await?);
    let body = json!({ "config": { "region": "us" }, "network": { "allow_http": false } });
    answers.add("replace whole fields", api.patch(&resource, &body).await?);
    answers.add("clear", api.patch(&resource, &json!({ "config": null, "network": null })).await?);
    answers.add("name nothing", api.patch(&resource, &json!({})).await?);
    answers.add("list", api.get("/api/resources").await?);
    answers.add("delete", api.delete(&resource).await?);
    for answer in [api.delete(&resource).await?, api.get(&resource).await?, api.patch(&resource, &json!({})).await?] {
        answers.add("afterwards", answer);
    }
    assert_snapshot!(answers, @r#"
    create: 201 {"id":"[id 1]","resource_type":"test-echo","name":"eu","config":{"api_base":"https://api.example.com/v1","retries":3},"network":{"allow_addresses":["10.0.0.0/8","fd00::/8"],"allow_http":true},"labels":[],"credential":null,"created_at":"[time]","updated_at":"[time]"}
    create with as little as can be: 201 {"id":"[id 2]","resource_type":"test-echo","name":"bare","config":{},"network":{"allow_addresses":[],"allow_http":false},"labels":[],"credential":null,"created_at":"[time]","updated_at":"[time]"}
    show: 200 {"id":"[id 1]","resource_type":"test-echo","name":"eu","config":{"api_base":"https://api.example.com/v1","retries":3},"network":{"allow_addresses":["10.0.0.0/8","fd00::/8"],"allow_http":true},"labels":[],"credential":null,"created_at":"[time]","updated_at":"[time]"}
    replace whole fields: 200 {"id":"[id 1]","resource_type":"test-echo","name":"eu","config":{"region":"us"},"network":{"allow_addresses":[],"allow_http":false},"labels":[],"credential":null,"created_at":"[time]","updated_at":"[time]"}
    clear: 200 {"id":"[id 1]","resource_type":"test-echo","name":"eu","config":{},"network":{"allow_addresses":[],"allow_http":false},"labels":[],"credential":null,"created_at":"[time]","updated_at":"[time]"}
    name nothing: 200 {"id":"[id 1]","resource_type":"test-echo","name":"eu","config":{},"network":{"allow_addresses":[],"allow_http":false},"labels":[],"credential":null,"created_at":"[time]","updated_at":"[time]"}
    list: 200 {"items":[{"id":"[id 1]","resource_type":"test-echo","name":"eu","config":{},"network":{"allow_addresses":[],"allow_http":false},"labels":[],"credential":null,"created_at":"[time]","updated_at":"[time]"},{"id":"[id 2]","resource_type":"test-echo","name":"bare","config":{},"network":{"allow_addresses":[],"allow_http":false},"labels":[],"credential":null,"created_at":"[time]","updated_at":"[time]"}],"next_cursor":null}
    delete: 204
    afterwards: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such resource","request_id":"[id 3]"}
    afterwards: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such resource","request_id":"[id 4]"}
    afterwards: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such resource","request_id":"[id 5]"}
    "#);
    Ok(())
}

/// The health counts the calls that ran, and not those that were refused or used another resource.
#[tokio::test]
async fn the_health_of_a_resource_is_that_of_its_own_calls() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let bound = world.grant_all("github").await?;
    let path = format!("/api/resources/{}/health", bound.resource);
    let (status, fresh) = world.api.get(&path).await?;
    ensure!(status == 200 && fresh["credential"]["status"] == "ready", "{fresh}");
    assert_eq!(fresh["last_hour"], json!({ "calls": 0, "succeeded": 0, "p50_ms": null }));
    assert!(fresh.get("last_failure").is_none(), "{fresh}");

    for _ in 0..2 {
        let answer = world.call("github_get_repo", &json!({ "repo": "acme/site" })).await?;
        assert_eq!(answer["status"], "success", "{answer}");
    }
    ensure!(world.api.delete(&format!("/api/resources/{}/credential", bound.resource)).await?.0 == 204);
    let failed = world.call("github_get_repo", &json!({ "repo": "acme/site" })).await?;
    assert_eq!(failed["status"], "error", "{failed}");
    world.call("github_get_repo", &json!({ "unknown": 1 })).await?;

    let (_, health) = world.api.get(&path).await?;
    ensure!(health["credential"].is_null(), "{health}");
    let hour = &health["last_hour"];
    assert_eq!((&hour["calls"], &hour["succeeded"]), (&json!(3), &json!(2)), "{health}");
    assert!(hour["p50_ms"].is_i64() || hour["p50_ms"].is_u64(), "{health}");
    let last = &health["last_failure"];
    assert!(last["at"].is_string(), "{health}");
    for field in ["request_id", "code", "message"] {
        assert_eq!(last[field], failed[field], "{field}: {health}");
    }

    let body = json!({ "resource_type": "github", "name": "other" });
    let other = made(&world.api, "/api/resources", &body).await?;
    let (_, health) = world.api.get(&format!("/api/resources/{other}/health")).await?;
    assert_eq!(health["last_hour"]["calls"], 0, "{health}");
    assert!(health.get("last_failure").is_none(), "{health}");
    let absent = world.api.get("/api/resources/0198c0de-0000-7000-8000-000000000000/health").await?;
    assert_eq!(absent.0, 404);
    Ok(())
}

#[tokio::test]
async fn faults_of_a_resource_are_named() -> Result<()> {
    let server = Server::start(&["test-echo"]).await?;
    let api = server.api()?;
    let of_type = |field: &str, value: Value| json!({ "resource_type": "test-echo", "name": "x", field: value });
    made(&api, "/api/resources", &json!({ "resource_type": "test-echo", "name": "taken" })).await?;
    let mine = made(&api, "/api/resources", &json!({ "resource_type": "test-echo", "name": "mine" })).await?;
    let mut answers = Answers::default();
    for body in [
        json!({}),
        json!({ "resource_type": "absent", "name": "" }),
        json!({ "resource_type": "No Type", "name": "x" }),
        of_type("name", json!("taken")),
        of_type("credential", json!({})),
        of_type("config", json!({ "api_base": "ftp://x", "region": "moon", "retries": "3", "colour": 1 })),
        of_type("config", json!({ "api_base": "https://user:secret@example.com" })),
        of_type("config", json!([])),
        of_type("network", json!({ "allow_addresses": ["10.0.0.0/8", "10.0.0.1", "x"] })),
        of_type("network", json!({ "allow_addresses": "10.0.0.0/8" })),
        of_type("network", json!({ "allow_all": true })),
        of_type("network", Value::Null),
    ] {
        answers.add(&format!("POST {body}"), faults(api.post("/api/resources", &body).await?));
    }
    let mine = format!("/api/resources/{mine}");
    for body in [
        json!({ "name": null }),
        json!({ "name": "taken" }),
        json!({ "resource_type": "test-echo" }),
        json!({ "config": { "region": 5 } }),
        json!({ "network": { "allow_addresses": ["0.0.0.0"] } }),
    ] {
        answers.add(&format!("PATCH {body}"), faults(api.patch(&mine, &body).await?));
    }
    let many = vec!["10.0.0.0/8"; 257];
    answers.add("too many ranges", faults(api.patch(&mine, &json!({ "network": { "allow_addresses": many } })).await?));
    assert_snapshot!(answers, @r#"
    POST {}: 422 [{"path":"/resource_type","message":"required field is missing"}]
    POST {"resource_type":"absent","name":""}: 422 [{"path":"/name","message":"must not be empty"},{"path":"/resource_type","message":"no loaded plugin has this resource type"}]
    POST {"resource_type":"No Type","name":"x"}: 422 [{"path":"/resource_type","message":"`No Type` is not a valid resource type id: expected 1 to 64 lower-case letters, digits, hyphens and underscores, starting with a letter"}]
    POST {"resource_type":"test-echo","name":"taken"}: 409 "the name is already used in this workspace"
    POST {"resource_type":"test-echo","name":"x","credential":{}}: 422 [{"path":"/credential","message":"unknown field `credential`, expected one of `resource_type`, `name`, `config`, `network`, `labels`"}]
    POST {"resource_type":"test-echo","name":"x","config":{"api_base":"ftp://x","region":"moon","retries":"3","colour":1}}: 422 [{"path":"/config/colour","message":"unknown field"},{"path":"/config/api_base","message":"expected an http or https URL"},{"path":"/config/region","message":"expected one of `eu`, `us`"},{"path":"/config/retries","message":"expected an integer"}]
    POST {"resource_type":"test-echo","name":"x","config":{"api_base":"https://user:secret@example.com"}}: 422 [{"path":"/config/api_base","message":"a URL must not contain a user name or password"}]
    POST {"resource_type":"test-echo","name":"x","config":[]}: 422 [{"path":"/config","message":"invalid type: sequence, expected a map"}]
    POST {"resource_type":"test-echo","name":"x","network":{"allow_addresses":["10.0.0.0/8","10.0.0.1","x"]}}: 422 [{"path":"/network/allow_addresses/1","message":"expected an address range; write a single address with /32"},{"path":"/network/allow_addresses/2","message":"expected an address range such as 10.1.0.0/16"}]
    POST {"resource_type":"test-echo","name":"x","network":{"allow_addresses":"10.0.0.0/8"}}: 422 [{"path":"/network/allow_addresses","message":"invalid type: string \"10.0.0.0/8\", expected a sequence"}]
    POST {"resource_type":"test-echo","name":"x","network":{"allow_all":true}}: 422 [{"path":"/network/allow_all","message":"unknown field `allow_all`, expected `allow_addresses` or `allow_http`"}]
    POST {"resource_type":"test-echo","name":"x","network":null}: 422 [{"path":"/network","message":"invalid type: null, expected struct Network"}]
    PATCH {"name":null}: 422 [{"path":"/name","message":"invalid type: null, expected a string"}]
    PATCH {"name":"taken"}: 409 "the name is already used in this workspace"
    PATCH {"resource_type":"test-echo"}: 422 [{"path":"/resource_type","message":"unknown field `resource_type`, expected one of `name`, `config`, `network`, `labels`"}]
    PATCH {"config":{"region":5}}: 422 [{"path":"/config/region","message":"expected a string"}]
    PATCH {"network":{"allow_addresses":["0.0.0.0"]}}: 422 [{"path":"/network/allow_addresses/0","message":"expected an address range; write a single address with /32"}]
    too many ranges: 422 [{"path":"/network/allow_addresses","message":"must have at most 256 entries"}]
    "#);
    Ok(())
}
