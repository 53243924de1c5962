//! The query parameters `limit` and `cursor`, on every list.

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use monstrum_package::{Index, IndexEntry, SigningKey, digest, package_file, signature_file};
use monstrum_store::StoreOptions;
use monstrum_types::PluginName;
use serde_json::{Value, json};
use support::{Api, FakeLlm, LlmReply, Server};

use crate::http::roles::faults;
use crate::http::wakes::plant_wakes;
use crate::http::{Answers, made};
use crate::runs::{run_is, started};
use crate::sandbox::plant;
use crate::tasks::{ended, give_model};
use crate::workflows::{definition, definition_with};
use crate::world::{World, eventually, text};

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "the table has a line for each list")]
async fn pages_hold_every_item_once_and_in_order() -> Result<()> {
    let server = Server::prepare(&["test-echo", "test-loop", "test-trap"])?;
    std::fs::write(server.home().join("index.json"), index(&["first", "second", "third"])?)?;
    let registry = server.home().to_str().context("the name of the folder is not UTF-8")?.to_owned();
    let store = StoreOptions::sqlite(server.data_dir().join("monstrum.db"));
    let server = server.argument("--registry").argument(&registry).argument("--sandbox").argument("off");
    let world = World::on(server).await?;
    objects(&world, store).await?;
    providers(&world.api).await?;
    let of_users = credentials_of_users(&world.api).await?;
    world.grant_all("test-echo").await?;
    world.api.patch(&format!("/api/bots/{}", world.bot), &json!({ "gates": [{ "action": "ask" }] })).await?;
    for number in 0..3 {
        world.call("test_echo_run", &json!({ "repo": format!("acme/{number}") })).await?;
    }
    let session = session(&world).await?;
    let workflow = workflows(&world).await?;
    let run = runs(&world, &workflow).await?;
    let (_, document) = world.api.get("/api/openapi.json").await?;
    let mut lists = Vec::new();
    for (path, item) in document["paths"].as_object().context("the API description has no paths")? {
        let parameters = item["get"]["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
        // The commands of a sandbox need a provider: `sandbox::recorded` reads the pages of that list.
        let is_here = !path.starts_with("/api/sandboxes/");
        if is_here && parameters.iter().any(|parameter| parameter["name"] == "cursor") {
            let id = match path.split('/').nth(2) {
                Some("resources") => &of_users,
                Some("sessions") => &session,
                Some("workflows") => &workflow,
                Some("runs") => &run,
                _ => &world.bot,
            };
            lists.push(path.replace("{id}", id));
        }
    }
    let mut table = Vec::new();
    for path in &lists {
        let whole = list(&world, &format!("{path}?limit=1000")).await?;
        let items = whole["items"].as_array().context("the list has no items")?.clone();
        assert_eq!(whole["next_cursor"], Value::Null, "{path}");
        // The changes of this test fill more than one page of the audit.
        let first = list(&world, path).await?;
        assert_eq!(first["items"], json!(items[..items.len().min(50)]), "{path}");
        assert_eq!(first["next_cursor"].is_null(), items.len() <= 50, "{path}");
        for limit in [1, 2, items.len()] {
            assert_eq!(walk(&world, path, limit).await?, items, "{path} by {limit}");
        }
        for query in ["?limit=1000", "?limit=1001", "?limit=99999999999999999999"] {
            assert_eq!(list(&world, &format!("{path}{query}")).await?, whole, "{path}{query}");
        }
        let mut row = Vec::new();
        for query in [
            "?limit=0",
            "?limit=-1",
            "?limit=",
            "?limit=x",
            "?limit=1.5",
            "?limit=1&limit=2",
            "?cursor=x%00",
            "?limit=50&unknown=1",
        ] {
            row.push(world.api.get(&format!("{path}{query}")).await?.0.to_string());
        }
        table.push(format!(
            "{} has {}; {}",
            path.replace(&world.bot, "{id}")
                .replace(&of_users, "{id}")
                .replace(&session, "{id}")
                .replace(&workflow, "{id}")
                .replace(&run, "{id}"),
            items.len(),
            row.join(" ")
        ));
    }
    assert_snapshot!(table.join("\n"), @"
    /api/approvals has 3; 422 422 422 422 422 422 422 422
    /api/audit has 11; 422 422 422 422 422 422 422 422
    /api/audit/changes has 65; 422 422 422 422 422 422 422 422
    /api/bots has 4; 422 422 422 422 422 422 422 422
    /api/bots/{id}/resources has 6; 422 422 422 422 422 422 422 422
    /api/bots/{id}/tasks has 4; 422 422 422 422 422 422 422 422
    /api/budgets has 3; 422 422 422 422 422 422 200 422
    /api/deliveries has 2; 422 422 422 422 422 422 422 422
    /api/events has 10; 422 422 422 422 422 422 422 422
    /api/keys has 5; 422 422 422 422 422 422 422 422
    /api/oauth/providers has 3; 422 422 422 422 422 422 422 422
    /api/plugins has 3; 422 422 422 422 422 422 200 422
    /api/registry has 3; 422 422 422 422 422 422 200 422
    /api/resource-types has 7; 422 422 422 422 422 422 200 422
    /api/resources has 7; 422 422 422 422 422 422 422 422
    /api/resources/{id}/credentials has 3; 422 422 422 422 422 422 422 422
    /api/roles has 4; 422 422 422 422 422 422 422 422
    /api/runs has 3; 422 422 422 422 422 422 422 422
    /api/runs/{id}/steps has 3; 422 422 422 422 422 422 422 422
    /api/sandboxes has 4; 422 422 422 422 422 422 422 422
    /api/schedules has 2; 422 422 422 422 422 422 422 422
    /api/sessions has 2; 422 422 422 422 422 422 422 422
    /api/sessions/{id}/messages has 3; 422 422 422 422 422 422 422 422
    /api/subscriptions has 2; 422 422 422 422 422 422 422 422
    /api/tasks has 4; 422 422 422 422 422 422 422 422
    /api/trust has 2; 422 422 422 422 422 422 422 422
    /api/wakes has 7; 422 422 422 422 422 422 422 422
    /api/webhooks has 3; 422 422 422 422 422 422 422 422
    /api/workflows has 3; 422 422 422 422 422 422 422 422
    /api/workflows/{id}/runs has 3; 422 422 422 422 422 422 422 422
    /api/workflows/{id}/triggers has 3; 422 422 422 422 422 422 422 422
    /api/workflows/{id}/versions has 4; 422 422 422 422 422 422 422 422
    /api/workspaces has 4; 422 422 422 422 422 422 422 422
    ");
    let mut answers = Answers::default();
    for query in ["?limit=0", "?limit=x", "?cursor=x", "?limit=1&limit=2"] {
        answers.add(query, faults(world.api.get(&format!("/api/bots{query}")).await?));
    }
    assert_snapshot!(answers, @r#"
    ?limit=0: 422 [{"path":"limit","message":"expected a whole number of at least 1"}]
    ?limit=x: 422 [{"path":"limit","message":"expected a whole number of at least 1"}]
    ?cursor=x: 422 [{"path":"cursor","message":"expected a `next_cursor` of this list"}]
    ?limit=1&limit=2: 422 [{"path":"","message":"Failed to deserialize query string: duplicate field `limit`"}]
    "#);
    Ok(())
}

/// Runs three tasks in one conversation and one outside of it. Returns the session of the conversation.
async fn session(world: &World) -> Result<String> {
    let llm = FakeLlm::start().await?;
    give_model(&world.api, &world.bot, "models", &llm).await?;
    llm.prepare((0..4).map(|_| LlmReply::json(400, &json!({ "error": { "message": "no" } }))));
    let path = format!("/api/bots/{}/tasks", world.bot);
    let mut session = String::new();
    let chat = json!({ "app_id": "app", "user_id": "ada", "chat_id": "one" });
    for chat in [json!(null), chat.clone(), chat.clone(), chat] {
        let task = made(&world.api, &path, &json!({ "instruction": "x", "chat": chat })).await?;
        session = text(&ended(&world.api, &task).await?["session_id"]).to_owned();
    }
    Ok(session)
}

/// Creates three OAuth providers.
async fn providers(api: &Api) -> Result<()> {
    for resource_type in ["test-echo", "test-loop", "test-trap"] {
        let token_url = "https://id.example/token";
        let provider = json!({ "resource_type": resource_type, "client_id": "me", "token_url": token_url });
        made(api, "/api/oauth/providers", &provider).await?;
    }
    Ok(())
}

/// Creates a resource with the credentials of three users. Returns its id.
async fn credentials_of_users(api: &Api) -> Result<String> {
    let notes = json!({
        "resource_type": "mcp", "name": "notes", "config": { "url": "https://mcp.example/mcp", "credential": "user" },
    });
    let of_users = made(api, "/api/resources", &notes).await?;
    for number in 0..3 {
        let user = json!({ "app_id": "app", "user_id": number.to_string() });
        let body = json!({ "auth_method": "token", "fields": { "access_token": "a-token-of-a-user" }, "user": user });
        let (status, body) = api.put(&format!("/api/resources/{of_users}/credential"), &body).await?;
        ensure!(status == 200, "{status} {body}");
    }
    Ok(of_users)
}

/// Returns the index of a registry with these plugins.
fn index(names: &[&str]) -> Result<String> {
    let entries = names.iter().map(|name| {
        let (name, version): (PluginName, _) = (name.parse()?, "1.0.0".parse()?);
        Ok(IndexEntry {
            description: String::new(),
            author: String::new(),
            license: String::new(),
            tags: Vec::new(),
            file: package_file(&name, &version),
            size: 1,
            sha256: digest(b""),
            signature: signature_file(&name, &version),
            name,
            version,
        })
    });
    Ok(Index::new(entries.collect::<Result<_>>()?)?.to_text())
}

/// Creates several objects of most kinds.
async fn objects(world: &World, store: StoreOptions) -> Result<()> {
    let (_, workspaces) = world.api.get("/api/workspaces").await?;
    let workspace = workspaces["items"][0].clone();
    for number in 0..4 {
        let name = format!("n{number}");
        if number < 3 {
            for path in ["/api/workspaces", "/api/roles", "/api/bots"] {
                made(&world.api, path, &json!({ "name": name })).await?;
            }
            let times = json!({
                "name": name, "bot_id": world.bot, "instruction": "x", "every_s": 3600, "enabled": false,
            });
            let webhook = json!({ "name": name, "event": "e", "verify": { "kind": "token" } });
            made(&world.api, "/api/webhooks", &webhook).await?;
            if number < 2 {
                made(&world.api, "/api/schedules", &times).await?;
                let subscription = json!({ "bot_id": world.bot, "pattern": "custom.page", "instruction": "x" });
                made(&world.api, "/api/subscriptions", &subscription).await?;
                let key = SigningKey::generate()?.public().to_string();
                made(&world.api, "/api/trust", &json!({ "public_key": key, "name_glob": name })).await?;
            }
        }
        made(&world.api, "/api/keys", &json!({ "name": name, "kind": if number % 2 == 0 { "root" } else { "admin" } }))
            .await?;
        let resource = world.api.resource("test-echo", &name, &world.github.url()).await?;
        let body = json!({ "resource_id": resource, "permissions": {} });
        made(&world.api, &format!("/api/bots/{}/resources", world.bot), &body).await?;
        world.call("nothing", &json!({})).await?;
        plant(store.clone(), world.server.data_dir(), text(&workspace["id"]), &world.bot, "app", &name).await?;
    }
    for name in ["ada", "bob", "eve"] {
        let budget = json!({ "subject": "user", "id": { "app_id": "app", "user_id": name }, "monthly_tokens": 1000 });
        assert_eq!(world.api.put("/api/budgets", &budget).await?.0, 200);
    }
    // The bot has no model yet, so the event starts no tasks.
    let (status, emitted) = world.api.post("/api/events", &json!({ "name": "page" })).await?;
    ensure!(status == 201, "{status} {emitted}");
    eventually("the deliveries are dead", async || {
        let (_, dead) = world.api.get("/api/deliveries?status=dead").await?;
        Ok(dead["items"].as_array().is_some_and(|items| items.len() == 2).then_some(()))
    })
    .await?;
    plant_wakes(store, &world.server.data_dir(), text(&workspace["id"]), &["a", "b", "c", "d"], None).await?;
    Ok(())
}

/// Creates workflows. Returns one with three versions and three triggers.
async fn workflows(world: &World) -> Result<String> {
    for name in ["first", "second"] {
        made(&world.api, "/api/workflows", &json!({ "definition": definition(name, &world.bot) })).await?;
    }
    let body = json!({ "definition": definition_with("third", &world.bot, "{ id: a, emit: a }") });
    let workflow = made(&world.api, "/api/workflows", &body).await?;
    let path = format!("/api/workflows/{workflow}");
    for step in ["{ id: a, emit: b }", "{ id: a, emit: c }"] {
        let body = json!({ "definition": definition_with("third", &world.bot, step) });
        assert_eq!(world.api.patch(&path, &body).await?.0, 200);
    }
    for number in 0..3 {
        let body = json!({ "event_pattern": format!("custom.{number}") });
        made(&world.api, &format!("{path}/triggers"), &body).await?;
    }
    Ok(workflow)
}

/// Starts three runs that wait. Returns one, which has three steps.
async fn runs(world: &World, workflow: &str) -> Result<String> {
    let waits = ["a", "b", "c"].map(|id| format!("{{ id: {id}, wait: {{ event: custom.never }}, needs: [] }}"));
    let definition = definition_with("third", &world.bot, &waits.join("\n  - "));
    let path = format!("/api/workflows/{workflow}");
    assert_eq!(world.api.patch(&path, &json!({ "definition": definition })).await?.0, 200);
    let mut last = String::new();
    for _ in 0..3 {
        let run = started(&world.api, workflow, &json!({})).await?;
        text(&run["id"]).clone_into(&mut last);
        run_is(&world.api, &last, "waiting").await?;
    }
    Ok(last)
}

/// Returns a list without the discoveries of MCP servers, which are repeated in the background.
async fn list(world: &World, path: &str) -> Result<Value> {
    let (status, mut list) = world.api.get(path).await?;
    assert_eq!(status, 200, "{path}: {list}");
    for item in list["items"].as_array_mut().into_iter().flatten() {
        item.as_object_mut().context("an item is an object")?.remove("discovery");
    }
    Ok(list)
}

/// Returns all items, read in pages of `limit` items.
async fn walk(world: &World, path: &str, limit: usize) -> Result<Vec<Value>> {
    let mut items = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = list(world, &format!("{path}?limit={limit}{cursor}")).await?;
        let found = page["items"].as_array().with_context(|| format!("{path}: {page}"))?;
        assert!(!found.is_empty() && found.len() <= limit, "{path} by {limit}: {page}");
        items.extend(found.iter().cloned());
        match &page["next_cursor"] {
            Value::Null => return Ok(items),
            next => cursor = format!("&cursor={}", text(next)),
        }
    }
}
