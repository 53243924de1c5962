//! `/api/bots`.

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
    assert_snapshot!(answers, @"");
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
    assert_snapshot!(answers, @"");
    Ok(())
}

fn label(body: &serde_json::Value) -> String {
    body.to_string().replace(&"m".repeat(257), "m…")
}

/// Its bindings and keys go with it; its resources, its role and the record of its calls stay.
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
    assert_snapshot!(answers, @"");
    Ok(())
}
