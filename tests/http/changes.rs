//! `/api/audit/changes`: each change of permissions with the state before and after, and the key that made it. The row
//! is on disk before the change takes effect.

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::TOKEN;

use crate::http::{made, workspace};
use crate::stable::stable;
use crate::tamper::sqlite;
use crate::world::{World, text};

/// Returns all changes, oldest first.
async fn changes(world: &World) -> Result<Vec<Value>> {
    let (status, body) = world.api.get("/api/audit/changes?limit=1000").await?;
    ensure!(status == 200, "{body}");
    Ok(body["items"].as_array().context("the list has no items")?.iter().rev().cloned().collect())
}

fn lines(changes: &[Value]) -> String {
    let line = |change: &Value| {
        let (what, status) = (text(&change["change"]), text(&change["status"]));
        format!("{what} by {} ({status}): {} -> {}", text(&change["key_kind"]), change["before"], change["after"])
    };
    changes.iter().map(|change| line(&stable(change))).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_role_is_recorded_with_before_and_after() -> Result<()> {
    let world = World::with(&[]).await?;
    let admin = world.api.with_key(&world.api.new_key("admin", None).await?);
    let role = admin.role("reader", &["issue.read"]).await?;
    let path = format!("/api/roles/{role}");
    admin.patch(&path, &json!({ "allowed_operations": ["*"] })).await?;
    // The change is rejected and has no effect, but the attempt is recorded.
    let other = admin.role("writer", &["issue.write"]).await?;
    assert_eq!(admin.patch(&format!("/api/roles/{other}"), &json!({ "name": "reader" })).await?.0, 409);
    let code = "select json_extract(body, '$.code') from audit_rows where kind = 'finished' and status = 'error'";
    assert_eq!(sqlite(&world.server.data_dir(), &[code]).await?, json!([["invalid_params"]]));
    // The attempt of a caller that lacks the permission is not recorded.
    let operator = world.api.with_key(&world.api.new_key("operator", None).await?);
    assert_eq!(operator.patch(&path, &json!({ "allowed_operations": [] })).await?.0, 403);
    admin.delete(&path).await?;
    let recorded = changes(&world).await?;
    let roles: Vec<Value> = recorded.into_iter().filter(|change| text(&change["change"]).starts_with("role")).collect();
    assert_snapshot!(lines(&roles), @r#"
    role.create by admin (success): null -> {"id":"[id 3]","name":"reader","allowed_operations":["issue.read"],"allowed_tools":null,"scope_constraints":{},"gates":[],"created_at":"[time]","updated_at":"[time]"}
    role.update by admin (success): {"id":"[id 3]","name":"reader","allowed_operations":["issue.read"],"allowed_tools":null,"scope_constraints":{},"gates":[],"created_at":"[time]","updated_at":"[time]"} -> {"id":"[id 3]","name":"reader","allowed_operations":["*"],"allowed_tools":null,"scope_constraints":{},"gates":[],"created_at":"[time]","updated_at":"[time]"}
    role.create by admin (success): null -> {"id":"[id 3]","name":"writer","allowed_operations":["issue.write"],"allowed_tools":null,"scope_constraints":{},"gates":[],"created_at":"[time]","updated_at":"[time]"}
    role.update by admin (error): {"id":"[id 3]","name":"writer","allowed_operations":["issue.write"],"allowed_tools":null,"scope_constraints":{},"gates":[],"created_at":"[time]","updated_at":"[time]"} -> {"id":"[id 3]","name":"reader","allowed_operations":["issue.write"],"allowed_tools":null,"scope_constraints":{},"gates":[],"created_at":"[time]","updated_at":"[time]"}
    role.delete by admin (success): {"id":"[id 3]","name":"reader","allowed_operations":["*"],"allowed_tools":null,"scope_constraints":{},"gates":[],"created_at":"[time]","updated_at":"[time]"} -> null
    "#);
    Ok(())
}

/// An admin makes every change that is needed to set up a bot and to remove it again.
#[tokio::test]
async fn every_kind_of_change_is_recorded_and_none_holds_a_secret() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let api = &world.api;
    let bound = world.grant_all("test-echo").await?;
    world.rebind(&bound, &json!({ "enabled": false })).await?;
    let resource = format!("/api/resources/{}", bound.resource);
    api.patch(&resource, &json!({ "config": { "region": "us" } })).await?;
    api.post(&format!("{resource}/credential/confirm"), &Value::Null).await?;
    api.patch(&format!("/api/bots/{}", world.bot), &json!({ "use_agent_sandbox": true })).await?;
    let key = made(api, "/api/keys", &json!({ "name": "k", "kind": "bot", "bot_id": world.bot })).await?;
    api.post(&format!("/api/keys/{key}/rotate"), &Value::Null).await?;
    api.delete(&format!("/api/keys/{key}")).await?;
    api.delete(&format!("/api/bots/{}/resources/{}", world.bot, bound.binding)).await?;
    api.delete(&format!("{resource}/credential")).await?;
    api.delete(&resource).await?;
    api.delete(&format!("/api/bots/{}", world.bot)).await?;
    let signer = monstrum_package::SigningKey::generate()?.public().to_string();
    let trust = made(api, "/api/trust", &json!({ "public_key": signer, "name_glob": "a-*" })).await?;
    api.delete(&format!("/api/trust/{trust}")).await?;
    let secret = "a client secret of mine";
    let provider = json!({
        "resource_type": "test-echo", "client_id": "me", "client_secret": secret, "token_url": "https://id.example/token",
    });
    let provider = made(api, "/api/oauth/providers", &provider).await?;
    api.patch(&format!("/api/oauth/providers/{provider}"), &json!({ "scopes": ["repo"] })).await?;
    api.delete(&format!("/api/oauth/providers/{provider}")).await?;
    let other = made(api, "/api/workspaces", &json!({ "name": "other" })).await?;
    api.patch(&format!("/api/workspaces/{other}"), &json!({ "name": "another" })).await?;
    api.delete(&format!("/api/workspaces/{other}")).await?;
    api.delete("/api/plugins/test-echo").await?;

    let recorded = changes(&world).await?;
    let words: Vec<String> =
        recorded.iter().map(|change| format!("{} {}", text(&change["change"]), text(&change["status"]))).collect();
    assert_snapshot!(words.join("\n"), @r#"
    bot.create success
    resource.create success
    credential.save success
    role.create success
    binding.create success
    binding.update success
    resource.update success
    credential.confirm success
    bot.update success
    key.create success
    key.rotate success
    key.delete success
    binding.delete success
    credential.delete success
    resource.delete success
    bot.delete success
    trust.create success
    trust.delete success
    oauth_provider.create success
    oauth_provider.update success
    oauth_provider.delete success
    workspace.create success
    workspace.update success
    workspace.delete success
    plugin.uninstall success
    "#);
    let everything = json!(recorded).to_string();
    for secret in [TOKEN, secret, "mk_", "hash"] {
        assert!(!everything.replace("\"prefix\":\"mk_", "").contains(secret), "the changes contain {secret}");
    }
    assert!(recorded.iter().all(|change| change["key_id"].is_string()));
    // Changes are not calls, but they are part of the audit chain.
    let (_, calls) = api.get("/api/audit").await?;
    assert_eq!(calls["items"], json!([]));
    assert_eq!(api.verify_audit().await?["valid"], true);
    Ok(())
}

#[tokio::test]
async fn changes_stay_in_their_workspace_and_come_in_pages() -> Result<()> {
    let world = World::with(&[]).await?;
    let foreign = workspace(&world.api, "foreign").await?;
    for number in 0..3 {
        foreign.role(&format!("role {number}"), &["*"]).await?;
    }
    let here = changes(&world).await?;
    assert!(!here.iter().any(|change| change["change"] == "role.create"), "{here:?}");
    let (_, first) = foreign.get("/api/audit/changes?limit=2").await?;
    let (_, rest) = foreign.get(&format!("/api/audit/changes?limit=2&cursor={}", text(&first["next_cursor"]))).await?;
    let names = |page: &Value| -> Vec<String> {
        let items = page["items"].as_array().into_iter().flatten();
        items.map(|item| format!("{} {}", text(&item["change"]), text(&item["after"]["name"]))).collect()
    };
    assert_eq!(
        (names(&first), names(&rest)),
        (
            vec!["role.create role 2".to_owned(), "role.create role 1".to_owned()],
            vec!["role.create role 0".to_owned(), "key.create admin".to_owned()]
        )
    );
    assert_eq!(rest["next_cursor"], Value::Null);
    Ok(())
}
