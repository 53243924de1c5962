//! Tests of `/api/roles`.

use anyhow::Result;
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::Server;

use crate::http::{Answers, made};
use crate::world::World;

#[tokio::test]
async fn a_role_is_made_shown_changed_and_deleted() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let mut answers = Answers::default();
    let body = json!({
        "name": "triage", "allowed_operations": ["issue.*"], "allowed_tools": ["github_*"],
        "scope_constraints": { "repos": ["acme/*"] },
    });
    let created = api.post("/api/roles", &body).await?;
    let role = format!("/api/roles/{}", crate::world::text(&created.1["id"]));
    answers.add("create", created);
    answers.add("create with a name only", api.post("/api/roles", &json!({ "name": "bare" })).await?);
    answers.add("show", api.get(&role).await?);
    answers.add("replace a list", api.patch(&role, &json!({ "allowed_operations": [] })).await?);
    let body = json!({ "name": "T", "allowed_tools": null, "scope_constraints": null });
    answers.add("clear", api.patch(&role, &body).await?);
    answers.add("name nothing", api.patch(&role, &json!({})).await?);
    answers.add("list", api.get("/api/roles").await?);
    answers.add("delete", api.delete(&role).await?);
    answers.add("delete again", api.delete(&role).await?);
    answers.add("show", api.get(&role).await?);
    answers.add("change", api.patch(&role, &json!({ "name": "T" })).await?);
    assert_snapshot!(answers, @r#"
    create: 201 {"id":"[id 1]","name":"triage","allowed_operations":["issue.*"],"allowed_tools":["github_*"],"scope_constraints":{"repos":["acme/*"]},"gates":[],"created_at":"[time]","updated_at":"[time]","warnings":["no loaded resource type has the scope dimension `repos`: bindings with this role deny every tool"]}
    create with a name only: 201 {"id":"[id 2]","name":"bare","allowed_operations":null,"allowed_tools":null,"scope_constraints":{},"gates":[],"created_at":"[time]","updated_at":"[time]"}
    show: 200 {"id":"[id 1]","name":"triage","allowed_operations":["issue.*"],"allowed_tools":["github_*"],"scope_constraints":{"repos":["acme/*"]},"gates":[],"created_at":"[time]","updated_at":"[time]"}
    replace a list: 200 {"id":"[id 1]","name":"triage","allowed_operations":[],"allowed_tools":["github_*"],"scope_constraints":{"repos":["acme/*"]},"gates":[],"created_at":"[time]","updated_at":"[time]","warnings":["no loaded resource type has the scope dimension `repos`: bindings with this role deny every tool"]}
    clear: 200 {"id":"[id 1]","name":"T","allowed_operations":[],"allowed_tools":null,"scope_constraints":{},"gates":[],"created_at":"[time]","updated_at":"[time]"}
    name nothing: 200 {"id":"[id 1]","name":"T","allowed_operations":[],"allowed_tools":null,"scope_constraints":{},"gates":[],"created_at":"[time]","updated_at":"[time]"}
    list: 200 {"items":[{"id":"[id 1]","name":"T","allowed_operations":[],"allowed_tools":null,"scope_constraints":{},"gates":[],"created_at":"[time]","updated_at":"[time]"},{"id":"[id 2]","name":"bare","allowed_operations":null,"allowed_tools":null,"scope_constraints":{},"gates":[],"created_at":"[time]","updated_at":"[time]"}],"next_cursor":null}
    delete: 204
    delete again: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such role","request_id":"[id 3]"}
    show: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such role","request_id":"[id 4]"}
    change: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such role","request_id":"[id 5]"}
    "#);
    Ok(())
}

/// A binding denies every tool if its resource type lacks a scope dimension that its role constrains. Saving the role
/// or the binding returns a warning.
#[tokio::test]
async fn scopes_that_a_type_does_not_have_are_warned_of_at_save() -> Result<()> {
    let world = World::with(&["github", "test-echo"]).await?;
    let api = &world.api;
    let of = |(_, answer): &(u16, Value)| answer["warnings"].clone();
    let create = async |name: &str, scopes: Value| {
        let body = json!({ "name": name, "allowed_tools": ["*"], "scope_constraints": scopes });
        api.post("/api/roles", &body).await
    };
    let fitting = create("fitting", json!({ "paths": ["src/*"] })).await?;
    assert_eq!((fitting.0, of(&fitting)), (201, Value::Null), "{}", fitting.1);
    let unknown = create("unknown", json!({ "nobody-has-it": ["x"] })).await?;
    assert_eq!(unknown.0, 201);
    assert_snapshot!(of(&unknown), @r#"["no loaded resource type has the scope dimension `nobody-has-it`: bindings with this role deny every tool"]"#);
    let role = crate::world::text(&fitting.1["id"]);
    let bind = async |resource_type: &str, role: &str| {
        let resource = api.resource(resource_type, resource_type, &world.github.url()).await?;
        let body = json!({ "resource_id": resource, "role_id": role });
        api.post(&format!("/api/bots/{}/resources", world.bot), &body).await
    };
    let bound = bind("test-echo", role).await?;
    assert_eq!((bound.0, of(&bound)), (201, Value::Null), "{}", bound.1);
    let bound = bind("github", role).await?;
    assert_eq!(bound.0, 201, "the role was not saved: {}", bound.1);
    assert_snapshot!(of(&bound), @r#"["role `fitting` constrains `paths`, which is not a scope dimension of type `github` (known dimensions: repos): this binding denies every tool"]"#);
    let path = format!("/api/bots/{}/resources/{}", world.bot, crate::world::text(&bound.1["id"]));
    assert_eq!(of(&api.patch(&path, &json!({ "calls_per_minute": 5 })).await?), of(&bound), "the change was not saved");
    let changed = api.patch(&format!("/api/roles/{role}"), &json!({ "scope_constraints": { "paths": ["x"] } })).await?;
    assert_snapshot!(of(&changed), @r#"["the role is bound to resources of type `github`, which has no scope dimension `paths`: these bindings deny every tool"]"#);
    let changed = api.patch(&format!("/api/roles/{role}"), &json!({ "scope_constraints": {} })).await?;
    assert_eq!(of(&changed), Value::Null);
    Ok(())
}

#[tokio::test]
async fn faults_of_a_role_are_named() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    made(&api, "/api/roles", &json!({ "name": "taken" })).await?;
    let role = format!("/api/roles/{}", made(&api, "/api/roles", &json!({ "name": "mine" })).await?);
    let mut answers = Answers::default();
    for body in [
        json!({}),
        json!({ "name": null }),
        json!({ "name": " " }),
        json!({ "name": "a\nb" }),
        json!({ "name": "x", "colour": "red" }),
        json!({ "name": "x", "allowed_operations": "issue.*" }),
        json!({ "name": "x", "allowed_tools": ["a", 5] }),
        json!({ "name": "x", "scope_constraints": { "a/b": ["x", null] } }),
        json!({ "name": "x", "scope_constraints": [] }),
        json!({ "name": "taken" }),
    ] {
        answers.add(&format!("POST {body}"), faults(api.post("/api/roles", &body).await?));
    }
    for body in [
        json!({ "name": null }),
        json!({ "name": "" }),
        json!({ "name": "taken" }),
        json!({ "id": "x" }),
        json!({ "scope_constraints": { "repos": null } }),
    ] {
        answers.add(&format!("PATCH {body}"), faults(api.patch(&role, &body).await?));
    }
    assert_snapshot!(answers, @r#"
    POST {}: 422 [{"path":"/name","message":"required field is missing"}]
    POST {"name":null}: 422 [{"path":"/name","message":"invalid type: null, expected a string"}]
    POST {"name":" "}: 422 [{"path":"/name","message":"must not be empty"}]
    POST {"name":"a\nb"}: 422 [{"path":"/name","message":"must not contain control characters"}]
    POST {"name":"x","colour":"red"}: 422 [{"path":"/colour","message":"unknown field `colour`, expected one of `name`, `allowed_operations`, `allowed_tools`, `scope_constraints`, `gates`"}]
    POST {"name":"x","allowed_operations":"issue.*"}: 422 [{"path":"/allowed_operations","message":"invalid type: string \"issue.*\", expected a sequence"}]
    POST {"name":"x","allowed_tools":["a",5]}: 422 [{"path":"/allowed_tools/1","message":"invalid type: integer `5`, expected a string"}]
    POST {"name":"x","scope_constraints":{"a/b":["x",null]}}: 422 [{"path":"/scope_constraints/a~1b/1","message":"invalid type: null, expected a string"}]
    POST {"name":"x","scope_constraints":[]}: 422 [{"path":"/scope_constraints","message":"invalid type: sequence, expected a map"}]
    POST {"name":"taken"}: 409 "the name is already used in this workspace"
    PATCH {"name":null}: 422 [{"path":"/name","message":"invalid type: null, expected a string"}]
    PATCH {"name":""}: 422 [{"path":"/name","message":"must not be empty"}]
    PATCH {"name":"taken"}: 409 "the name is already used in this workspace"
    PATCH {"id":"x"}: 422 [{"path":"/id","message":"unknown field `id`, expected one of `name`, `allowed_operations`, `allowed_tools`, `scope_constraints`, `gates`"}]
    PATCH {"scope_constraints":{"repos":null}}: 422 [{"path":"/scope_constraints/repos","message":"invalid type: null, expected a sequence"}]
    "#);
    Ok(())
}

/// Returns the validation errors of a response, or its detail.
pub(crate) fn faults((status, body): (u16, Value)) -> (u16, Value) {
    let told = if body["errors"].is_null() { body["detail"].clone() } else { body["errors"].clone() };
    (status, told)
}

#[tokio::test]
async fn a_role_in_use_stays_and_its_changes_count_at_once() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let role = world.api.role("reader", &["echo.read"]).await?;
    let resource = world.api.resource("test-echo", "echo", &world.github.url()).await?;
    let binding = world.api.bind(&world.bot, &resource, &role, &json!({})).await?;
    let role = format!("/api/roles/{role}");
    let mut answers = Answers::default();
    answers.add("delete", world.api.delete(&role).await?);
    answers.add("check", (0, world.check("test_echo_write", &json!({})).await?));
    world.api.patch(&role, &json!({ "allowed_operations": ["echo.*"] })).await?;
    answers.add("check", (0, world.check("test_echo_write", &json!({})).await?));
    world.api.delete(&format!("/api/bots/{}/resources/{binding}", world.bot)).await?;
    answers.add("delete", world.api.delete(&role).await?);
    assert_snapshot!(answers, @r#"
    delete: 409 {"type":"urn:monstrum:error:conflict","title":"Conflict","status":409,"detail":"the object is still in use; delete the objects that use it first","request_id":"[id 1]"}
    check: 0 {"decision":"deny","message":"Permission denied: tool 'test_echo_write' is not available to this bot","rule":"role.allowed_operations","reason":"operation `echo.write` does not match any entry in allowed_operations of the role","smallest_change":"add `echo.write` to allowed_operations of the role","changes":[{"action":"add","holder":{"kind":"role","id":"[id 2]","bots":[{"id":"[id 3]","name":"tester"}]},"field":"allowed_operations","entry":"echo.write"}]}
    check: 0 {"decision":"allow","message":null,"rule":null,"reason":null,"smallest_change":null}
    delete: 204
    "#);
    Ok(())
}
