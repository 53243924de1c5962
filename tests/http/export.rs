//! Tests of `GET /api/export`.

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::{Value, json};
use support::{Api, TOKEN};

use crate::http::{Answers, made, send, workspace};
use crate::world::World;

/// Returns the text of an export, which must be JSON Lines.
pub(super) async fn exported(api: &Api) -> Result<String> {
    whole(api.request(Method::GET, "/api/export")).await
}

/// Returns the export of a workspace that a root key names.
pub(super) async fn exported_of(root: &Api, workspace: &str) -> Result<String> {
    whole(root.request(Method::GET, "/api/export").header("Monstrum-Workspace", workspace)).await
}

async fn whole(request: reqwest::RequestBuilder) -> Result<String> {
    let response = request.send().await?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await?;
    ensure!(status == 200, "{status} {text}");
    ensure!(headers["content-type"] == "application/jsonl", "{headers:?}");
    Ok(text)
}

fn lines(text: &str) -> Result<Vec<Value>> {
    text.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

/// Creates one object of each kind, with values in every field, and an OAuth provider. `api_base` is an upstream.
pub(super) async fn furnish(api: &Api, api_base: &str) -> Result<()> {
    let role = json!({
        "name": "reader", "allowed_operations": ["echo.*"], "allowed_tools": ["test_*"],
        "scope_constraints": { "repos": ["acme/*"] },
    });
    let role = made(api, "/api/roles", &role).await?;
    let bot = json!({
        "name": "triage", "description": "sorts", "system_prompt": "Be brief.\nBe kind.", "model": "m-1",
        "use_agent_sandbox": true, "monthly_token_budget": 5000,
    });
    let bot = made(api, "/api/bots", &bot).await?;
    made(api, "/api/bots", &json!({ "name": "helper" })).await?;
    let resource = api.resource("test-echo", "site", api_base).await?;
    api.token(&resource, TOKEN).await?;
    let other_bot = json!({ "resource_type": "bot", "name": "colleague", "config": { "bot": "helper" } });
    let other_bot = made(api, "/api/resources", &other_bot).await?;
    let provider = json!({
        "resource_type": "test-echo", "client_id": "a-client", "client_secret": "the-client-secret",
        "token_url": "https://id.example/token",
    });
    made(api, "/api/oauth/providers", &provider).await?;
    let bindings = format!("/api/bots/{bot}/resources");
    let full = json!({
        "resource_id": resource, "role_id": role, "permissions": { "allowed_tools": ["test_echo_*"] },
        "scope_constraints": { "repos": ["acme/site"] }, "allow_calls": ["other_*"], "allow_subscribe": true,
        "limits": { "fuel": 1000, "timeout_s": 5 }, "calls_per_minute": 60, "enabled": false,
        "expires_at": "2040-01-02T03:04:05.678Z",
    });
    made(api, &bindings, &full).await?;
    let link = json!({
        "resource_id": other_bot, "permissions": { "allowed_operations": ["*"] },
        "delegate": { "allowed_tools": ["test_*"], "scope_constraints": { "repos": ["acme/*"] } },
    });
    made(api, &bindings, &link).await?;
    Ok(())
}

#[tokio::test]
async fn an_export_has_every_object_with_the_names_of_what_it_refers_to() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let admin = workspace(&world.api, "acme").await?;
    furnish(&admin, "https://upstream.example").await?;
    assert_snapshot!(exported(&admin).await?, @r#"
    {"kind":"role","name":"reader","allowed_operations":["echo.*"],"allowed_tools":["test_*"],"scope_constraints":{"repos":["acme/*"]},"gates":[]}
    {"kind":"bot","name":"triage","description":"sorts","system_prompt":"Be brief.\nBe kind.","model":"m-1","use_agent_sandbox":true,"monthly_token_budget":5000,"gates":[]}
    {"kind":"bot","name":"helper","description":"","system_prompt":"","model":null,"use_agent_sandbox":false,"monthly_token_budget":null,"gates":[]}
    {"kind":"resource","resource_type":"test-echo","name":"site","config":{"api_base":"https://upstream.example"},"network":{"allow_addresses":["127.0.0.0/8"],"allow_http":true},"labels":[]}
    {"kind":"resource","resource_type":"bot","name":"colleague","config":{"bot":"helper"},"network":{"allow_addresses":[],"allow_http":false},"labels":[]}
    {"kind":"binding","bot":"triage","resource":"site","role":"reader","permissions":{"allowed_tools":["test_echo_*"]},"scope_constraints":{"repos":["acme/site"]},"delegate":null,"gates":[],"allow_calls":["other_*"],"allow_subscribe":true,"limits":{"fuel":1000,"timeout_s":5},"calls_per_minute":60,"enabled":false,"expires_at":"2040-01-02T03:04:05.678Z"}
    {"kind":"binding","bot":"triage","resource":"colleague","role":null,"permissions":{"allowed_operations":["*"]},"scope_constraints":{},"delegate":{"allowed_tools":["test_*"],"scope_constraints":{"repos":["acme/*"]}},"gates":[],"allow_calls":[],"allow_subscribe":false,"limits":null,"calls_per_minute":null,"enabled":true,"expires_at":null}
    "#);
    Ok(())
}

#[tokio::test]
async fn a_root_key_exports_all_workspaces_or_the_one_that_it_names() -> Result<()> {
    let world = World::with(&[]).await?;
    for name in ["acme", "globex"] {
        let admin = workspace(&world.api, name).await?;
        admin.role("reader", &["*"]).await?;
    }
    let (_, list) = world.api.get("/api/workspaces").await?;
    let globex = list["items"].as_array().into_iter().flatten().find(|item| item["name"] == "globex");
    let path = format!("/api/workspaces/{}", crate::world::text(&globex.context("the object is missing")?["id"]));
    let (status, answer) = world.api.patch(&path, &json!({ "sandbox": { "network": "none", "idle_s": 60 } })).await?;
    ensure!(status == 200, "{answer}");
    assert_snapshot!(exported(&world.api).await?, @r#"
    {"kind":"workspace","name":"default","sandbox":null}
    {"kind":"workspace","name":"acme","sandbox":null}
    {"kind":"workspace","name":"globex","sandbox":{"network":"none","idle_s":60}}
    {"kind":"bot","workspace":"default","name":"tester","description":"","system_prompt":"","model":null,"use_agent_sandbox":false,"monthly_token_budget":null,"gates":[]}
    {"kind":"role","workspace":"acme","name":"reader","allowed_operations":["*"],"allowed_tools":null,"scope_constraints":{},"gates":[]}
    {"kind":"role","workspace":"globex","name":"reader","allowed_operations":["*"],"allowed_tools":null,"scope_constraints":{},"gates":[]}
    "#);
    assert_snapshot!(exported_of(&world.api, "acme").await?, @r#"{"kind":"role","name":"reader","allowed_operations":["*"],"allowed_tools":null,"scope_constraints":{},"gates":[]}"#);
    Ok(())
}

/// The workspace has the secrets of a credential, of an OAuth provider and of keys.
#[tokio::test]
async fn no_export_has_a_secret() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    furnish(&world.api, "https://upstream.example").await?;
    let admin = world.api.new_key("admin", None).await?;
    let admin = world.api.with_key(&admin);
    for api in [&world.api, &admin] {
        let text = exported(api).await?;
        ensure!(text.contains("\"site\""), "{text}");
        for secret in [TOKEN, "the-client-secret", "a-client", "mk_", "credential", "sealed", "hash", admin.key()] {
            assert!(!text.contains(secret), "the export contains {secret}: {text}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn only_admins_export() -> Result<()> {
    let world = World::with(&[]).await?;
    let operator = world.api.with_key(&world.api.new_key("operator", None).await?);
    let bot = world.api.with_key(&world.api.new_key("bot", Some(&world.bot)).await?);
    let admin = workspace(&world.api, "acme").await?;
    let mut answers = Answers::default();
    answers.add("operator", operator.get("/api/export").await?);
    answers.add("bot", bot.get("/api/export").await?);
    let foreign = admin.request(Method::GET, "/api/export").header("Monstrum-Workspace", "default");
    let (status, _, answer) = send(foreign).await?;
    answers.add("admin of another workspace", (status, answer));
    assert_snapshot!(answers, @r#"
    operator: 403 {"type":"urn:monstrum:error:forbidden","title":"This key has no permission for this action","status":403,"detail":"an admin key is required","request_id":"[id 1]"}
    bot: 403 {"type":"urn:monstrum:error:forbidden","title":"This key has no permission for this action","status":403,"detail":"an admin key is required","request_id":"[id 2]"}
    admin of another workspace: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such workspace","request_id":"[id 3]"}
    "#);
    assert_eq!(exported(&admin).await?, "", "the export of an empty workspace is not empty");
    Ok(())
}

/// An export reads the database in pages of 100 rows.
#[tokio::test]
async fn an_export_has_every_page_once() -> Result<()> {
    let world = World::with(&[]).await?;
    for number in 0..250 {
        world.api.role(&format!("role {number}"), &["*"]).await?;
    }
    let names: Vec<Value> = lines(&exported_of(&world.api, "default").await?)?
        .into_iter()
        .filter(|line| line["kind"] == "role")
        .map(|line| line["name"].clone())
        .collect();
    let expected: Vec<Value> = (0..250).map(|number| json!(format!("role {number}"))).collect();
    assert_eq!(names, expected);
    Ok(())
}
