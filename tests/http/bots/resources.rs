//! Tests of `/api/bots/{id}/resources`.

use anyhow::Result;
use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::http::roles::faults;
use crate::http::{Answers, made, workspace};
use crate::world::{World, text};

async fn resource(world: &World, name: &str) -> Result<String> {
    world.api.resource("test-echo", name, &world.github.url()).await
}

#[tokio::test]
async fn a_binding_is_made_shown_changed_and_deleted() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let (one, two) = (resource(&world, "one").await?, resource(&world, "two").await?);
    let role = world.api.role("all", &["*"]).await?;
    let bindings = format!("/api/bots/{}/resources", world.bot);
    let mut answers = Answers::default();
    let body = json!({
        "resource_id": one, "role_id": role, "permissions": { "allowed_tools": ["test_*"] },
        "scope_constraints": { "repos": ["acme/*"], "kinds": [] },
        "delegate": { "allowed_tools": ["x"], "scope_constraints": { "repos": ["y"] } }, "allow_calls": ["jira_*"],
        "allow_subscribe": true, "limits": { "fuel": 5, "memory_mib": 6, "timeout_s": 7, "concurrent": 8 },
        "calls_per_minute": 9, "enabled": false, "expires_at": "2100-01-01T01:00:00+01:00",
    });
    let created = world.api.post(&bindings, &body).await?;
    let binding = format!("{bindings}/{}", text(&created.1["id"]));
    answers.add("create", created);
    answers.add(
        "create with as little as can be",
        world.api.post(&bindings, &json!({ "resource_id": two, "role_id": role })).await?,
    );
    let body = json!({ "limits": { "fuel": 1 }, "scope_constraints": { "labels": ["bug"] }, "enabled": true });
    answers.add("replace whole fields", world.api.patch(&binding, &body).await?);
    let body = json!({
        "role_id": null, "scope_constraints": null, "delegate": null, "allow_calls": null, "allow_subscribe": null,
        "limits": null, "calls_per_minute": null, "expires_at": null,
    });
    answers.add("clear", world.api.patch(&binding, &body).await?);
    answers.add("name nothing", world.api.patch(&binding, &json!({})).await?);
    answers.add("list", world.api.get(&bindings).await?);
    answers.add("delete a bound resource", world.api.delete(&format!("/api/resources/{one}")).await?);
    answers.add("delete", world.api.delete(&binding).await?);
    answers.add("delete again", world.api.delete(&binding).await?);
    answers.add("change", world.api.patch(&binding, &json!({})).await?);
    answers.add("delete a free resource", world.api.delete(&format!("/api/resources/{one}")).await?);
    assert_snapshot!(answers, @r#"
    create: 201 {"id":"[id 1]","bot_id":"[id 2]","resource_id":"[id 3]","role_id":"[id 4]","permissions":{"allowed_tools":["test_*"]},"scope_constraints":{"kinds":[],"repos":["acme/*"]},"delegate":{"allowed_tools":["x"],"scope_constraints":{"repos":["y"]}},"gates":[],"allow_calls":["jira_*"],"allow_subscribe":true,"limits":{"fuel":5,"memory_mib":6,"timeout_s":7,"concurrent":8},"calls_per_minute":9,"enabled":false,"expires_at":"[time]","created_at":"[time]","updated_at":"[time]"}
    create with as little as can be: 201 {"id":"[id 5]","bot_id":"[id 2]","resource_id":"[id 6]","role_id":"[id 4]","permissions":null,"scope_constraints":{},"delegate":null,"gates":[],"allow_calls":[],"allow_subscribe":false,"limits":null,"calls_per_minute":null,"enabled":true,"expires_at":null,"created_at":"[time]","updated_at":"[time]"}
    replace whole fields: 200 {"id":"[id 1]","bot_id":"[id 2]","resource_id":"[id 3]","role_id":"[id 4]","permissions":{"allowed_tools":["test_*"]},"scope_constraints":{"labels":["bug"]},"delegate":{"allowed_tools":["x"],"scope_constraints":{"repos":["y"]}},"gates":[],"allow_calls":["jira_*"],"allow_subscribe":true,"limits":{"fuel":1},"calls_per_minute":9,"enabled":true,"expires_at":"[time]","created_at":"[time]","updated_at":"[time]"}
    clear: 200 {"id":"[id 1]","bot_id":"[id 2]","resource_id":"[id 3]","role_id":null,"permissions":{"allowed_tools":["test_*"]},"scope_constraints":{},"delegate":null,"gates":[],"allow_calls":[],"allow_subscribe":false,"limits":null,"calls_per_minute":null,"enabled":true,"expires_at":null,"created_at":"[time]","updated_at":"[time]"}
    name nothing: 200 {"id":"[id 1]","bot_id":"[id 2]","resource_id":"[id 3]","role_id":null,"permissions":{"allowed_tools":["test_*"]},"scope_constraints":{},"delegate":null,"gates":[],"allow_calls":[],"allow_subscribe":false,"limits":null,"calls_per_minute":null,"enabled":true,"expires_at":null,"created_at":"[time]","updated_at":"[time]"}
    list: 200 {"items":[{"id":"[id 1]","bot_id":"[id 2]","resource_id":"[id 3]","role_id":null,"permissions":{"allowed_tools":["test_*"]},"scope_constraints":{},"delegate":null,"gates":[],"allow_calls":[],"allow_subscribe":false,"limits":null,"calls_per_minute":null,"enabled":true,"expires_at":null,"created_at":"[time]","updated_at":"[time]"},{"id":"[id 5]","bot_id":"[id 2]","resource_id":"[id 6]","role_id":"[id 4]","permissions":null,"scope_constraints":{},"delegate":null,"gates":[],"allow_calls":[],"allow_subscribe":false,"limits":null,"calls_per_minute":null,"enabled":true,"expires_at":null,"created_at":"[time]","updated_at":"[time]"}],"next_cursor":null}
    delete a bound resource: 409 {"type":"urn:monstrum:error:conflict","title":"Conflict","status":409,"detail":"the object is still in use; delete the objects that use it first","request_id":"[id 7]"}
    delete: 204
    delete again: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such binding","request_id":"[id 8]"}
    change: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such binding","request_id":"[id 9]"}
    delete a free resource: 204
    "#);
    Ok(())
}

#[tokio::test]
async fn faults_of_a_binding_are_named() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let foreign = workspace(&world.api, "foreign").await?;
    let theirs = foreign.resource("test-echo", "theirs", &world.github.url()).await?;
    let their_role = foreign.role("theirs", &["*"]).await?;
    let (mine, role) = (resource(&world, "mine").await?, world.api.role("mine", &["*"]).await?);
    let bindings = format!("/api/bots/{}/resources", world.bot);
    let with = |extra: Value| {
        let mut body = json!({ "resource_id": mine, "permissions": { "allowed_tools": ["*"] } });
        let fields = body.as_object_mut().into_iter().zip(extra.as_object());
        fields.for_each(|(body, extra)| body.extend(extra.clone()));
        body
    };
    let mut answers = Answers::default();
    for (label, body) in [
        ("nothing", json!({})),
        ("neither role nor permissions", json!({ "resource_id": mine })),
        ("unknown field", with(json!({ "priority": 1 }))),
        ("no id", with(json!({ "resource_id": "mine" }))),
        ("resource of another workspace", with(json!({ "resource_id": theirs }))),
        ("role of another workspace", with(json!({ "role_id": their_role }))),
        ("unknown scopes", with(json!({ "scope_constraints": { "orgs": ["x"], "a/b~": [], "repos": ["x"] } }))),
        ("scopes that are no list", with(json!({ "scope_constraints": { "repos": "acme/*" } }))),
        ("unknown permission", with(json!({ "permissions": { "allowed_roles": [] } }))),
        ("unknown limit", with(json!({ "limits": { "cpu": 1 } }))),
        ("limits of nothing", with(json!({ "limits": { "fuel": 0, "concurrent": 0 }, "calls_per_minute": 0 }))),
        ("negative rate", with(json!({ "calls_per_minute": -1 }))),
        ("no time", with(json!({ "expires_at": "tomorrow" }))),
        ("unknown part of delegate", with(json!({ "delegate": { "depth": 1 } }))),
        ("enabled by a text", with(json!({ "enabled": "true" }))),
    ] {
        answers.add(label, faults(world.api.post(&bindings, &body).await?));
    }
    let binding = format!("{bindings}/{}", made(&world.api, &bindings, &with(json!({}))).await?);
    answers.add("bound twice", faults(world.api.post(&bindings, &with(json!({ "role_id": role }))).await?));
    for body in [
        json!({ "permissions": null }),
        json!({ "enabled": null }),
        json!({ "resource_id": mine }),
        json!({ "scope_constraints": { "orgs": [] } }),
        json!({ "limits": { "timeout_s": 0 } }),
    ] {
        let label = format!("PATCH {body}").replace(&mine, "MINE");
        answers.add(&label, faults(world.api.patch(&binding, &body).await?));
    }
    let other = world.api.bot("other").await?;
    let elsewhere = binding.replace(&world.bot, &other);
    answers.add("of another bot", faults(world.api.patch(&elsewhere, &json!({ "enabled": false })).await?));
    answers.add("of another bot", faults(world.api.delete(&elsewhere).await?));
    assert_snapshot!(answers, @r#"
    nothing: 422 [{"path":"/resource_id","message":"required field is missing"}]
    neither role nor permissions: 422 [{"path":"","message":"`role_id` or `permissions` is required, because a binding with neither allows nothing"}]
    unknown field: 422 [{"path":"/priority","message":"unknown field `priority`, expected one of `resource_id`, `role_id`, `permissions`, `scope_constraints`, `delegate`, `gates`, `allow_calls`, `allow_subscribe`, `limits`, `calls_per_minute`, `enabled`, `expires_at`"}]
    no id: 422 [{"path":"/resource_id","message":"`mine` is not a valid resource id: expected a UUID in lower case with hyphens"}]
    resource of another workspace: 422 [{"path":"/resource_id","message":"no such resource in this workspace"}]
    role of another workspace: 422 [{"path":"/role_id","message":"no such role in this workspace"}]
    unknown scopes: 422 [{"path":"/scope_constraints/a~1b~0","message":"unknown scope dimension (known dimensions: repos, paths, labels, kinds)"},{"path":"/scope_constraints/orgs","message":"unknown scope dimension (known dimensions: repos, paths, labels, kinds)"}]
    scopes that are no list: 422 [{"path":"/scope_constraints/repos","message":"invalid type: string \"acme/*\", expected a sequence"}]
    unknown permission: 422 [{"path":"/permissions/allowed_roles","message":"unknown field `allowed_roles`, expected `allowed_operations` or `allowed_tools`"}]
    unknown limit: 422 [{"path":"/limits/cpu","message":"unknown field `cpu`, expected one of `fuel`, `memory_mib`, `timeout_s`, `concurrent`"}]
    limits of nothing: 422 [{"path":"/limits/fuel","message":"must be at least 1"},{"path":"/limits/concurrent","message":"must be at least 1"},{"path":"/calls_per_minute","message":"must be at least 1"}]
    negative rate: 422 [{"path":"/calls_per_minute","message":"invalid value: integer `-1`, expected u32"}]
    no time: 422 [{"path":"/expires_at","message":"`tomorrow` is not an RFC 3339 time such as [time]"}]
    unknown part of delegate: 422 [{"path":"/delegate/depth","message":"unknown field `depth`, expected one of `allowed_tools`, `scope_constraints`, `gates`"}]
    enabled by a text: 422 [{"path":"/enabled","message":"invalid type: string \"true\", expected a boolean"}]
    bound twice: 409 "this resource is already bound to this bot"
    PATCH {"permissions":null}: 422 [{"path":"","message":"`role_id` or `permissions` is required, because a binding with neither allows nothing"}]
    PATCH {"enabled":null}: 422 [{"path":"/enabled","message":"invalid type: null, expected a boolean"}]
    PATCH {"resource_id":"MINE"}: 422 [{"path":"/resource_id","message":"unknown field `resource_id`, expected one of `role_id`, `permissions`, `scope_constraints`, `delegate`, `gates`, `allow_calls`, `allow_subscribe`, `limits`, `calls_per_minute`, `enabled`, `expires_at`"}]
    PATCH {"scope_constraints":{"orgs":[]}}: 422 [{"path":"/scope_constraints/orgs","message":"unknown scope dimension (known dimensions: repos, paths, labels, kinds)"}]
    PATCH {"limits":{"timeout_s":0}}: 422 [{"path":"/limits/timeout_s","message":"must be at least 1"}]
    of another bot: 404 "no such binding"
    of another bot: 404 "no such binding"
    "#);
    Ok(())
}

/// A binding grants access while it is enabled and has not expired. Each change takes effect with the next call.
#[tokio::test]
async fn a_binding_grants_while_it_is_in_force() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bound = world.grant_all("test-echo").await?;
    let mut seen = Vec::new();
    for change in [
        json!({}),
        json!({ "enabled": false }),
        json!({ "enabled": true, "expires_at": "2020-01-01T00:00:00Z" }),
        json!({ "expires_at": null }),
        json!({ "permissions": { "allowed_tools": ["test_echo_run", "test_echo_w*"], "allowed_operations": ["echo.read"] } }),
        json!({ "permissions": { "allowed_tools": [] } }),
        json!({ "permissions": {} }),
        json!({ "permissions": null, "scope_constraints": { "kinds": [] } }),
    ] {
        world.rebind(&bound, &change).await?;
        seen.push(format!("{change}: {}", world.tools().await?.join(" ").replace("test_echo_", "")));
    }
    assert_snapshot!(seen.join("\n"), @r#"
    {}: again fetch flood mismatch open run unhandled write
    {"enabled":false}: 
    {"enabled":true,"expires_at":"2020-01-01T00:00:00Z"}: 
    {"expires_at":null}: again fetch flood mismatch open run unhandled write
    {"permissions":{"allowed_tools":["test_echo_run","test_echo_w*"],"allowed_operations":["echo.read"]}}: run
    {"permissions":{"allowed_tools":[]}}: 
    {"permissions":{}}: again fetch flood mismatch open run unhandled write
    {"permissions":null,"scope_constraints":{"kinds":[]}}:
    "#);
    Ok(())
}
