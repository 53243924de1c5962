//! `/api/roles`.

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
    assert_snapshot!(answers, @"");
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
    assert_snapshot!(answers, @"");
    Ok(())
}

/// What a refusal says about the input.
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
    assert_snapshot!(answers, @"");
    Ok(())
}
