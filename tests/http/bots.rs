//! Tests of `/api/bots`.

mod resources;
mod tools;

use anyhow::Result;
use insta::assert_snapshot;
use serde_json::json;
use support::Server;

use crate::http::roles::faults;
use crate::http::{Answers, made};
use crate::world::{World, text};

#[tokio::test]
async fn a_bot_is_made_shown_changed_and_deleted() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let mut answers = Answers::default();
    let body = json!({
        "name": "triage", "description": "sorts issues", "system_prompt": "You sort issues.", "model": "small",
        "use_agent_sandbox": true, "monthly_token_budget": 1000,
    });
    let created = api.post("/api/bots", &body).await?;
    let bot = format!("/api/bots/{}", text(&created.1["id"]));
    answers.add("create", created);
    answers.add("create with a name only", api.post("/api/bots", &json!({ "name": "bare" })).await?);
    answers.add("show", api.get(&bot).await?);
    answers.add("replace", api.patch(&bot, &json!({ "name": "Ümlaut", "monthly_token_budget": 0 })).await?);
    let body = json!({
        "description": null, "system_prompt": null, "model": null, "use_agent_sandbox": null, "monthly_token_budget": null,
    });
    answers.add("clear", api.patch(&bot, &body).await?);
    answers.add("name nothing", api.patch(&bot, &json!({})).await?);
    answers.add("list", api.get("/api/bots").await?);
    answers.add("delete", api.delete(&bot).await?);
    for answer in [api.delete(&bot).await?, api.get(&bot).await?, api.patch(&bot, &json!({})).await?] {
        answers.add("afterwards", answer);
    }
    assert_snapshot!(answers, @r#"
    create: 201 {"id":"[id 1]","name":"triage","description":"sorts issues","system_prompt":"You sort issues.","model":"small","use_agent_sandbox":true,"monthly_token_budget":1000,"gates":[],"mcp_subjects":[],"model_fallbacks":[],"task_limits":null,"session_idle_s":null,"client_tools":false,"created_at":"[time]","updated_at":"[time]"}
    create with a name only: 201 {"id":"[id 2]","name":"bare","description":"","system_prompt":"","model":null,"use_agent_sandbox":false,"monthly_token_budget":null,"gates":[],"mcp_subjects":[],"model_fallbacks":[],"task_limits":null,"session_idle_s":null,"client_tools":false,"created_at":"[time]","updated_at":"[time]"}
    show: 200 {"id":"[id 1]","name":"triage","description":"sorts issues","system_prompt":"You sort issues.","model":"small","use_agent_sandbox":true,"monthly_token_budget":1000,"gates":[],"mcp_subjects":[],"model_fallbacks":[],"task_limits":null,"session_idle_s":null,"client_tools":false,"created_at":"[time]","updated_at":"[time]"}
    replace: 200 {"id":"[id 1]","name":"Ümlaut","description":"sorts issues","system_prompt":"You sort issues.","model":"small","use_agent_sandbox":true,"monthly_token_budget":0,"gates":[],"mcp_subjects":[],"model_fallbacks":[],"task_limits":null,"session_idle_s":null,"client_tools":false,"created_at":"[time]","updated_at":"[time]"}
    clear: 200 {"id":"[id 1]","name":"Ümlaut","description":"","system_prompt":"","model":null,"use_agent_sandbox":false,"monthly_token_budget":null,"gates":[],"mcp_subjects":[],"model_fallbacks":[],"task_limits":null,"session_idle_s":null,"client_tools":false,"created_at":"[time]","updated_at":"[time]"}
    name nothing: 200 {"id":"[id 1]","name":"Ümlaut","description":"","system_prompt":"","model":null,"use_agent_sandbox":false,"monthly_token_budget":null,"gates":[],"mcp_subjects":[],"model_fallbacks":[],"task_limits":null,"session_idle_s":null,"client_tools":false,"created_at":"[time]","updated_at":"[time]"}
    list: 200 {"items":[{"id":"[id 1]","name":"Ümlaut","description":"","system_prompt":"","model":null,"use_agent_sandbox":false,"monthly_token_budget":null,"gates":[],"mcp_subjects":[],"model_fallbacks":[],"task_limits":null,"session_idle_s":null,"client_tools":false,"created_at":"[time]","updated_at":"[time]"},{"id":"[id 2]","name":"bare","description":"","system_prompt":"","model":null,"use_agent_sandbox":false,"monthly_token_budget":null,"gates":[],"mcp_subjects":[],"model_fallbacks":[],"task_limits":null,"session_idle_s":null,"client_tools":false,"created_at":"[time]","updated_at":"[time]"}],"next_cursor":null}
    delete: 204
    afterwards: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such bot","request_id":"[id 3]"}
    afterwards: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such bot","request_id":"[id 4]"}
    afterwards: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such bot","request_id":"[id 5]"}
    "#);
    Ok(())
}

#[tokio::test]
async fn faults_of_a_bot_are_named() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    made(&api, "/api/bots", &json!({ "name": "taken" })).await?;
    let bot = format!("/api/bots/{}", made(&api, "/api/bots", &json!({ "name": "mine" })).await?);
    let mut answers = Answers::default();
    for body in [
        json!({}),
        json!({ "name": 5 }),
        json!({ "name": "", "monthly_token_budget": -1, "model": "m".repeat(257) }),
        json!({ "name": "x", "monthly_token_budget": 1.5 }),
        json!({ "name": "x", "use_agent_sandbox": "yes" }),
        json!({ "name": "x", "description": null }),
        json!({ "name": "x", "resources": [] }),
        json!({ "name": "taken" }),
        json!([]),
        json!("x"),
    ] {
        answers.add(&format!("POST {}", label(&body)), faults(api.post("/api/bots", &body).await?));
    }
    for body in [json!({ "name": null }), json!({ "name": "taken" }), json!({ "created_at": null }), json!(null)] {
        answers.add(&format!("PATCH {body}"), faults(api.patch(&bot, &body).await?));
    }
    answers.add("exactly the longest name", faults(api.patch(&bot, &json!({ "name": "é".repeat(128) })).await?));
    answers.add("one more", faults(api.patch(&bot, &json!({ "name": "é".repeat(129) })).await?));
    assert_snapshot!(answers, @r#"
    POST {}: 422 [{"path":"/name","message":"required field is missing"}]
    POST {"name":5}: 422 [{"path":"/name","message":"invalid type: integer `5`, expected a string"}]
    POST {"name":"","monthly_token_budget":-1,"model":"m…"}: 422 [{"path":"/name","message":"must not be empty"},{"path":"/model","message":"must have at most 256 characters"},{"path":"/monthly_token_budget","message":"must be at least 0"}]
    POST {"name":"x","monthly_token_budget":1.5}: 422 [{"path":"/monthly_token_budget","message":"invalid type: floating point `1.5`, expected i64"}]
    POST {"name":"x","use_agent_sandbox":"yes"}: 422 [{"path":"/use_agent_sandbox","message":"invalid type: string \"yes\", expected a boolean"}]
    POST {"name":"x","description":null}: 422 [{"path":"/description","message":"invalid type: null, expected a string"}]
    POST {"name":"x","resources":[]}: 422 [{"path":"/resources","message":"unknown field `resources`, expected one of `name`, `description`, `system_prompt`, `model`, `use_agent_sandbox`, `monthly_token_budget`, `gates`, `mcp_subjects`, `model_fallbacks`, `task_limits`, `session_idle_s`, `client_tools`"}]
    POST {"name":"taken"}: 409 "the name is already used in this workspace"
    POST []: 422 [{"path":"","message":"expected a JSON object"}]
    POST "x": 422 [{"path":"","message":"expected a JSON object"}]
    PATCH {"name":null}: 422 [{"path":"/name","message":"invalid type: null, expected a string"}]
    PATCH {"name":"taken"}: 409 "the name is already used in this workspace"
    PATCH {"created_at":null}: 422 [{"path":"/created_at","message":"unknown field `created_at`, expected one of `name`, `description`, `system_prompt`, `model`, `use_agent_sandbox`, `monthly_token_budget`, `gates`, `mcp_subjects`, `model_fallbacks`, `task_limits`, `session_idle_s`, `client_tools`"}]
    PATCH null: 422 [{"path":"","message":"expected a JSON object"}]
    exactly the longest name: 200
    one more: 422 [{"path":"/name","message":"must have at most 128 characters"}]
    "#);
    Ok(())
}

fn label(body: &serde_json::Value) -> String {
    body.to_string().replace(&"m".repeat(257), "m…")
}

/// Deleting a bot also deletes its bindings and keys. Its resources, its role and the audit rows of its calls remain.
#[tokio::test]
async fn a_deleted_bot_takes_its_bindings_and_keys_with_it() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bound = world.grant_all("test-echo").await?;
    let key = world.api.new_key("bot", Some(&world.bot)).await?;
    let call = world.call("test_echo_run", &json!({ "repo": "a/b" })).await?;
    let bot = format!("/api/bots/{}", world.bot);
    let mut answers = Answers::default();
    answers.add("delete", world.api.delete(&bot).await?);
    answers.add("its key", world.api.with_key(&key).get(&format!("{bot}/tools")).await?);
    answers.add("its tools", world.api.get(&format!("{bot}/tools")).await?);
    answers.add("its bindings", world.api.get(&format!("{bot}/resources")).await?);
    let path = format!("{bot}/tools/test_echo_run/call");
    answers.add("a call", world.api.post(&path, &json!({})).await?);
    answers.add("the resource", world.api.delete(&format!("/api/resources/{}", bound.resource)).await?);
    let audit = world.audit_of(&call).await?;
    answers.add("the record", (0, json!({ "bot_id": audit["bot_id"], "status": audit["status"] })));
    answers.add("the name is free", world.api.post("/api/bots", &json!({ "name": "tester" })).await?);
    assert_snapshot!(answers, @r#"
    delete: 204
    its key: 401 {"type":"urn:monstrum:error:unauthenticated","title":"A valid API key is required","status":401,"detail":"unknown API key","request_id":"[id 1]"}
    its tools: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such bot","request_id":"[id 2]"}
    its bindings: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such bot","request_id":"[id 3]"}
    a call: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such bot","request_id":"[id 4]"}
    the resource: 204
    the record: 0 {"bot_id":"[id 5]","status":"success"}
    the name is free: 201 {"id":"[id 6]","name":"tester","description":"","system_prompt":"","model":null,"use_agent_sandbox":false,"monthly_token_budget":null,"gates":[],"mcp_subjects":[],"model_fallbacks":[],"task_limits":null,"session_idle_s":null,"client_tools":false,"created_at":"[time]","updated_at":"[time]"}
    "#);
    Ok(())
}
