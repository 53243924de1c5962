//! `/api/workspaces`: managing workspaces, and the isolation of tenants.

use anyhow::{Context, Result};
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::{Value, json};
use support::Server;

use crate::http::roles::faults;
use crate::http::{Answers, made, send, workspace};
use crate::world::{World, text};

#[tokio::test]
async fn a_workspace_is_made_renamed_and_deleted_when_it_is_empty() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let mut answers = Answers::default();
    let created = api.post("/api/workspaces", &json!({ "name": "acme" })).await?;
    let acme = text(&created.1["id"]).to_owned();
    let path = format!("/api/workspaces/{acme}");
    answers.add("create", created);
    answers.add("show", api.get(&path).await?);
    answers.add("rename", api.patch(&path, &json!({ "name": "Acme Ltd" })).await?);
    answers.add("name nothing", api.patch(&path, &json!({})).await?);
    answers.add("list", api.get("/api/workspaces").await?);
    for body in [
        json!({}),
        json!({ "name": "" }),
        json!({ "name": "default" }),
        json!({ "name": acme }),
        json!({ "name": "x", "owner": "y" }),
    ] {
        let label = format!("POST {body}").replace(&acme, "ID");
        answers.add(&label, faults(api.post("/api/workspaces", &body).await?));
    }
    answers.add("null for a name", faults(api.patch(&path, &json!({ "name": null })).await?));
    let inside = async |method: Method, path: &str, body: Value, named: &str| {
        send(api.request(method, path).header("Monstrum-Workspace", named).json(&body)).await
    };
    let (_, _, bot) = inside(Method::POST, "/api/bots", json!({ "name": "inside" }), "Acme Ltd").await?;
    let bot = format!("/api/bots/{}", text(&bot["id"]));
    for (label, named) in [("by name", "Acme Ltd"), ("by id", &acme), ("by its old name", "acme"), ("by no name", "")] {
        let (status, _, body) = inside(Method::GET, &bot, Value::Null, named).await?;
        answers.add(&format!("a bot in it, {label}"), (status, body.get("name").unwrap_or(&body["detail"]).clone()));
    }
    answers.add("delete while it holds a bot", faults(api.delete(&path).await?));
    inside(Method::DELETE, &bot, Value::Null, &acme).await?;
    answers.add("delete", api.delete(&path).await?);
    answers.add("delete again", faults(api.delete(&path).await?));
    let (_, list) = api.get("/api/workspaces").await?;
    let default = format!("/api/workspaces/{}", text(&list["items"][0]["id"]));
    answers.add("delete the first", faults(api.delete(&default).await?));
    answers.add("rename the first", faults(api.patch(&default, &json!({ "name": "x" })).await?));
    assert_snapshot!(answers, @r#"
    create: 201 {"id":"[id 1]","name":"acme","sandbox":null,"created_at":"[time]","updated_at":"[time]"}
    show: 200 {"id":"[id 1]","name":"acme","sandbox":null,"created_at":"[time]","updated_at":"[time]"}
    rename: 200 {"id":"[id 1]","name":"Acme Ltd","sandbox":null,"created_at":"[time]","updated_at":"[time]"}
    name nothing: 200 {"id":"[id 1]","name":"Acme Ltd","sandbox":null,"created_at":"[time]","updated_at":"[time]"}
    list: 200 {"items":[{"id":"[id 2]","name":"default","sandbox":null,"created_at":"[time]","updated_at":"[time]"},{"id":"[id 1]","name":"Acme Ltd","sandbox":null,"created_at":"[time]","updated_at":"[time]"}],"next_cursor":null}
    POST {}: 422 [{"path":"/name","message":"required field is missing"}]
    POST {"name":""}: 422 [{"path":"/name","message":"must not be empty"}]
    POST {"name":"default"}: 409 "another workspace has this name"
    POST {"name":"ID"}: 422 [{"path":"/name","message":"must not look like an id"}]
    POST {"name":"x","owner":"y"}: 422 [{"path":"/owner","message":"unknown field `owner`, expected `name`"}]
    null for a name: 422 [{"path":"/name","message":"invalid type: null, expected a string"}]
    a bot in it, by name: 200 "inside"
    a bot in it, by id: 200 "inside"
    a bot in it, by its old name: 404 "no such workspace"
    a bot in it, by no name: 404 "no such workspace"
    delete while it holds a bot: 409 "the workspace is not empty: delete its bots, resources, roles and OAuth providers first"
    delete: 204
    delete again: 404 "no such workspace"
    delete the first: 409 "the workspace `default` cannot be deleted"
    rename the first: 409 "the workspace `default` cannot be renamed, because root keys act in it"
    "#);
    Ok(())
}

/// Only root keys can change the sandbox settings of a workspace. Validation errors name the invalid setting.
#[tokio::test]
async fn root_keys_say_what_the_sandboxes_of_a_workspace_may_be() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let mut answers = Answers::default();
    let admin = workspace(&api, "acme").await?;
    let (_, list) = api.get("/api/workspaces").await?;
    let acme = list["items"].as_array().and_then(|items| items.iter().find(|item| item["name"] == "acme"));
    let path = format!("/api/workspaces/{}", text(&acme.context("the workspace was not created")?["id"]));
    let full = json!({ "sandbox": { "network": "full", "limits": { "memory_mib": 512 }, "idle_s": 60 } });
    answers.add("by an admin of it", faults(admin.patch(&path, &full).await?));
    let shown = |(status, body): (u16, Value)| (status, body["sandbox"].clone());
    answers.add("by a root key", shown(api.patch(&path, &full).await?));
    answers.add("shown", shown(api.get(&path).await?));
    answers.add("name only", shown(api.patch(&path, &json!({ "name": "Acme" })).await?));
    for sandbox in [
        json!({ "idle_s": 4, "limits": { "cpu_millis": 1, "memory_mib": 0, "disk_mib": 1, "processes": 1 } }),
        json!({ "idle_s": 86_401, "limits": { "tmp_mib": 0, "processes_per_exec": 70_000 } }),
        json!({ "idle_s": -1 }),
        json!({ "network": "host" }),
        json!({ "limits": { "gpu": 1 } }),
        json!({ "netwrok": "none" }),
        json!([]),
    ] {
        let answer = api.patch(&path, &json!({ "sandbox": sandbox })).await?;
        answers.add(&sandbox.to_string(), faults(answer));
    }
    answers.add("unchanged", shown(api.get(&path).await?));
    answers.add("replaced whole", shown(api.patch(&path, &json!({ "sandbox": { "network": "none" } })).await?));
    answers.add("null", shown(api.patch(&path, &json!({ "sandbox": null })).await?));
    answers.add("when it is made", faults(api.post("/api/workspaces", &json!({ "name": "b", "sandbox": {} })).await?));
    let (_, default) = api.get("/api/workspaces").await?;
    let default = format!("/api/workspaces/{}", text(&default["items"][0]["id"]));
    answers.add("of the first", shown(api.patch(&default, &json!({ "sandbox": { "idle_s": 5 } })).await?));
    let audited = api.request(Method::GET, "/api/audit/changes?limit=1").send().await?.json::<Value>().await?;
    let change = &audited["items"][0];
    answers.add("audited", (200, json!([change["change"], change["before"]["sandbox"], change["after"]["sandbox"]])));
    assert_snapshot!(answers, @r#"
    by an admin of it: 403 "a root key is required"
    by a root key: 200 {"network":"full","limits":{"memory_mib":512},"idle_s":60}
    shown: 200 {"network":"full","limits":{"memory_mib":512},"idle_s":60}
    name only: 200 {"network":"full","limits":{"memory_mib":512},"idle_s":60}
    {"idle_s":4,"limits":{"cpu_millis":1,"memory_mib":0,"disk_mib":1,"processes":1}}: 422 [{"path":"/sandbox/idle_s","message":"must be from 5 to 86400"},{"path":"/sandbox/limits/cpu_millis","message":"must be from 50 to 1024000"},{"path":"/sandbox/limits/memory_mib","message":"must be from 32 to 1048576"},{"path":"/sandbox/limits/disk_mib","message":"must be from 32 to 4194304"},{"path":"/sandbox/limits/processes","message":"must be from 16 to 65536"}]
    {"idle_s":86401,"limits":{"tmp_mib":0,"processes_per_exec":70000}}: 422 [{"path":"/sandbox/idle_s","message":"must be from 5 to 86400"},{"path":"/sandbox/limits/tmp_mib","message":"must be from 1 to 1048576"},{"path":"/sandbox/limits/processes_per_exec","message":"must be from 16 to 65536"}]
    {"idle_s":-1}: 422 [{"path":"/sandbox/idle_s","message":"invalid value: integer `-1`, expected u32"}]
    {"network":"host"}: 422 [{"path":"/sandbox/network","message":"unknown variant `host`, expected `none` or `full`"}]
    {"limits":{"gpu":1}}: 422 [{"path":"/sandbox/limits/gpu","message":"unknown field `gpu`, expected one of `cpu_millis`, `memory_mib`, `disk_mib`, `tmp_mib`, `processes`, `processes_per_exec`"}]
    {"netwrok":"none"}: 422 [{"path":"/sandbox/netwrok","message":"unknown field `netwrok`, expected one of `network`, `limits`, `idle_s`"}]
    []: 422 [{"path":"/sandbox","message":"invalid length 0, expected struct WorkspaceSandbox with 3 elements"}]
    unchanged: 200 {"network":"full","limits":{"memory_mib":512},"idle_s":60}
    replaced whole: 200 {"network":"none"}
    null: 200
    when it is made: 422 [{"path":"/sandbox","message":"unknown field `sandbox`, expected `name`"}]
    of the first: 200 {"idle_s":5}
    audited: 200 ["workspace.update",null,{"idle_s":5}]
    "#);
    Ok(())
}

/// The objects of a workspace are invisible to other tenants. They are not found by id, do not appear in lists, and
/// cause no name conflicts.
#[tokio::test]
async fn nothing_is_seen_across_workspaces() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bound = world.grant_all("test-echo").await?;
    let role = world.api.role("same", &["*"]).await?;
    let call = world.call("test_echo_run", &json!({})).await?;
    let key = made(&world.api, "/api/keys", &json!({ "name": "same", "kind": "bot", "bot_id": world.bot })).await?;
    let foreign = workspace(&world.api, "foreign").await?;
    let bot = format!("/api/bots/{}", world.bot);
    let binding = format!("{bot}/resources/{}", bound.binding);
    let resource = format!("/api/resources/{}", bound.resource);
    let mut answers = Answers::default();
    for (method, path, body) in [
        (Method::GET, bot.clone(), Value::Null),
        (Method::PATCH, bot.clone(), json!({ "name": "mine" })),
        (Method::DELETE, bot.clone(), Value::Null),
        (Method::GET, format!("{bot}/resources"), Value::Null),
        (Method::POST, format!("{bot}/resources"), json!({ "resource_id": bound.resource, "role_id": role })),
        (Method::PATCH, binding.clone(), json!({ "enabled": true })),
        (Method::DELETE, binding, Value::Null),
        (Method::GET, format!("{bot}/tools"), Value::Null),
        (Method::POST, format!("{bot}/tools/test_echo_run/call"), json!({})),
        (Method::POST, format!("{bot}/tools/test_echo_run/check"), json!({})),
        (Method::GET, resource.clone(), Value::Null),
        (Method::PATCH, resource.clone(), json!({ "config": {} })),
        (Method::DELETE, resource.clone(), Value::Null),
        (Method::PUT, format!("{resource}/credential"), json!({ "auth_method": "token", "fields": {} })),
        (Method::DELETE, format!("{resource}/credential"), Value::Null),
        (Method::GET, format!("/api/roles/{role}"), Value::Null),
        (Method::PATCH, format!("/api/roles/{role}"), json!({ "allowed_tools": ["*"] })),
        (Method::DELETE, format!("/api/roles/{role}"), Value::Null),
        (Method::POST, format!("/api/keys/{key}/rotate"), Value::Null),
        (Method::DELETE, format!("/api/keys/{key}"), Value::Null),
        (Method::GET, format!("/api/audit/{}", text(&call["request_id"])), Value::Null),
    ] {
        let template = path.split('/').map(|part| if part.len() == 36 { "{id}" } else { part }).collect::<Vec<_>>();
        let (status, _, answer) = send(foreign.request(method.clone(), &path).json(&body)).await?;
        answers.add(&format!("{method} {}", template.join("/")), faults((status, answer)));
    }
    for path in ["/api/bots", "/api/resources", "/api/roles", "/api/audit", "/api/audit/export"] {
        answers.add(path, foreign.get(path).await?);
    }
    let request = foreign.request(Method::GET, "/api/bots").header("Monstrum-Workspace", "default");
    let (status, _, answer) = send(request).await?;
    answers.add("an admin names another workspace", faults((status, answer)));
    let request = foreign.request(Method::GET, "/api/bots").header("Monstrum-Workspace", "foreign");
    answers.add("an admin names its own", (send(request).await?.0, Value::Null));
    assert_snapshot!(answers, @r#"
    GET /api/bots/{id}: 404 "no such bot"
    PATCH /api/bots/{id}: 404 "no such bot"
    DELETE /api/bots/{id}: 404 "no such bot"
    GET /api/bots/{id}/resources: 404 "no such bot"
    POST /api/bots/{id}/resources: 404 "no such bot"
    PATCH /api/bots/{id}/resources/{id}: 404 "no such binding"
    DELETE /api/bots/{id}/resources/{id}: 404 "no such binding"
    GET /api/bots/{id}/tools: 404 "no such bot"
    POST /api/bots/{id}/tools/test_echo_run/call: 404 "no such bot"
    POST /api/bots/{id}/tools/test_echo_run/check: 404 "no such bot"
    GET /api/resources/{id}: 404 "no such resource"
    PATCH /api/resources/{id}: 404 "no such resource"
    DELETE /api/resources/{id}: 404 "no such resource"
    PUT /api/resources/{id}/credential: 404 "no such resource"
    DELETE /api/resources/{id}/credential: 404 "no such resource"
    GET /api/roles/{id}: 404 "no such role"
    PATCH /api/roles/{id}: 404 "no such role"
    DELETE /api/roles/{id}: 404 "no such role"
    POST /api/keys/{id}/rotate: 404 "no such key"
    DELETE /api/keys/{id}: 404 "no such key"
    GET /api/audit/{id}: 404 "no such call"
    /api/bots: 200 {"items":[],"next_cursor":null}
    /api/resources: 200 {"items":[],"next_cursor":null}
    /api/roles: 200 {"items":[],"next_cursor":null}
    /api/audit: 200 {"items":[],"next_cursor":null}
    /api/audit/export: 200
    an admin names another workspace: 404 "no such workspace"
    an admin names its own: 200
    "#);
    for (path, body) in [
        ("/api/bots", json!({ "name": "tester" })),
        ("/api/roles", json!({ "name": "same" })),
        ("/api/resources", json!({ "name": format!("test-echo-of-{}", world.bot), "resource_type": "test-echo" })),
        ("/api/keys", json!({ "name": "same", "kind": "admin" })),
    ] {
        assert_eq!(foreign.post(path, &body).await?.0, 201, "a name is taken in another workspace: {path}");
    }
    Ok(())
}
