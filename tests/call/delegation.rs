//! Bots that act through other bots: the permissions of a link and of a chain of links, and the delay of a revocation.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use monstrum_types::{Clock as _, SystemClock};
use serde_json::{Value, json};

use crate::http::Answers;
use crate::world::{World, eventually, text};

const ECHO: &str = "test-echo";

/// Starts a world with a bot `helper`. The helper has an echo resource for repositories of acme, and no other bot may
/// act through the helper yet.
async fn world() -> Result<(World, Helper)> {
    let world = World::with(&[ECHO]).await?;
    let bot = world.api.bot("helper").await?;
    let (url, token) = (world.github.url(), world.github.token());
    let resource = world.api.resource(ECHO, "echo", &url).await?;
    world.api.token(&resource, &token).await?;
    let role = world.api.role("echo all", &["echo.*", "fetch.run"]).await?;
    let binding = world.api.bind(&bot, &resource, &role, &json!({})).await?;
    Ok((world, Helper { bot, role, binding }))
}

struct Helper {
    bot: String,
    role: String,
    binding: String,
}

async fn made(world: &World, path: &str, body: &Value) -> Result<String> {
    let (status, made) = world.api.post(path, body).await?;
    ensure!(status == 201, "POST {path}: {status} {made}");
    Ok(text(&made["id"]).to_owned())
}

/// Allows the bot `from` to act through the bot `to`. `more` is merged into the binding. Returns the id of the binding.
async fn link(world: &World, from: &str, to: &str, more: &Value) -> Result<String> {
    let name = format!("{to} for {from}");
    let resource = json!({"resource_type": "bot", "name": name, "config": {"bot": to}});
    let resource = made(world, "/api/resources", &resource).await?;
    let mut binding = json!({"resource_id": resource, "permissions": {"allowed_operations": ["bot.*"]}});
    let fields = binding.as_object_mut().context("an object")?;
    fields.extend(more.as_object().cloned().unwrap_or_default());
    made(world, &format!("/api/bots/{from}/resources"), &binding).await
}

fn through(tool: &str, params: &Value) -> Value {
    json!({"tool": tool, "params": params})
}

fn told(answer: &Value) -> String {
    format!("{} {} {}", text(&answer["status"]), text(&answer["code"]), text(&answer["message"]))
}

/// Returns the tools of the other bot that this bot may call.
async fn listed(world: &World) -> Result<Vec<String>> {
    let answer = world.call("bot_list_tools", &json!({})).await?;
    let tools = answer["data"]["tools"].as_array().with_context(|| answer.to_string())?;
    Ok(tools.iter().map(|tool| text(&tool["name"]).to_owned()).collect())
}

#[tokio::test]
async fn a_bot_acts_on_behalf_of_another() -> Result<()> {
    let (world, helper) = world().await?;
    assert!(world.tools().await?.is_empty());
    let delegate =
        json!({"allowed_tools": ["test_echo_a*", "test_echo_o*"], "scope_constraints": {"repos": ["acme/*"]}});
    let binding = link(&world, &world.bot, "helper", &json!({"delegate": delegate})).await?;
    let tools = ["bot_call_tool", "bot_execute_task", "bot_list_tools", "bot_query", "bot_task_status"];
    assert_eq!(world.tools().await?, tools);
    assert_eq!(listed(&world).await?, ["test_echo_again", "test_echo_open"]);

    let answer = world.call("bot_call_tool", &through("test_echo_again", &json!({"repo": "acme/site"}))).await?;
    let seen = &answer["data"];
    assert_eq!(seen["bot_id"], json!(helper.bot), "{answer}");
    assert_eq!(seen["delegate"], delegate);
    assert_eq!(seen["scope"], json!([{"repos": ["acme/*"]}]));
    assert_eq!(seen["task_id"], answer["request_id"]);

    let asked = world.audit_of(&answer).await?;
    let fields =
        ["bot_id", "tool", "operation", "plugin", "plugin_digest", "status", "parent_request_id", "delegation"];
    let of_row = |row: &Value| fields.map(|field| row[field].clone());
    let expected = [
        json!(world.bot),
        json!("bot_call_tool"),
        json!("bot.call"),
        json!("bot"),
        Value::Null,
        json!("success"),
        Value::Null,
        Value::Null,
    ];
    assert_eq!(of_row(&asked), expected);
    let did = world.api.audit(text(&seen["request_id"])).await?;
    let chain = json!([{"binding_id": binding, "from": world.bot, "to": helper.bot, "delegate": delegate}]);
    assert_eq!(
        (&did["bot_id"], &did["parent_request_id"], &did["delegation"]),
        (&json!(helper.bot), &answer["request_id"], &chain)
    );
    assert_eq!(world.api.verify_audit().await?["valid"], true);

    let (status, contract) = world.api.get("/api/resource-types/bot").await?;
    assert_eq!((status, &contract["mode"], &contract["plugin"]["digest"]), (200, &json!("system"), &Value::Null));
    Ok(())
}

#[tokio::test]
async fn what_any_link_or_role_refuses_is_refused() -> Result<()> {
    let (world, helper) = world().await?;
    let delegate = json!({"allowed_tools": ["test_echo_*"], "scope_constraints": {"repos": ["acme/*"]}});
    let scopes = json!({"tools": ["test_echo_a*", "test_echo_f*", "test_echo_n*"]});
    let binding =
        link(&world, &world.bot, &helper.bot, &json!({"delegate": delegate, "scope_constraints": scopes})).await?;
    let mut lines = Vec::new();
    for (tool, params) in [
        ("test_echo_again", json!({"repo": "acme/site"})),
        ("test_echo_again", json!({"repo": "other/secret"})),
        ("test_echo_again", json!({"absent": 1})),
        ("test_echo_open", json!({"repo": "acme/site"})),
        ("test_echo_flood", json!({})),
        ("test_echo_nothing", json!({})),
    ] {
        let answer = world.call("bot_call_tool", &through(tool, &params)).await?;
        lines.push(format!("{tool} {params}: {}", told(&answer)));
    }
    let path = format!("/api/bots/{}/resources/{binding}", world.bot);
    for (what, change) in [
        ("no tool of the link", json!({"delegate": {"allowed_tools": []}})),
        ("a key that the tool does not have", json!({"delegate": {"scope_constraints": {"projects": ["X"]}}})),
        ("an empty list", json!({"delegate": {"scope_constraints": {"repos": []}}})),
        ("nothing delegated", json!({"delegate": null})),
        ("only to look", json!({"permissions": {"allowed_operations": ["bot.status"]}})),
    ] {
        let (status, body) = world.api.patch(&path, &change).await?;
        ensure!(status == 200, "{body}");
        let answer = world.call("bot_call_tool", &through("test_echo_again", &json!({"repo": "x/y"}))).await?;
        lines.push(format!("{what}: {} {:?}", told(&answer), listed(&world).await?));
    }
    assert_snapshot!(lines.join("\n"), @r#"
    test_echo_again {"repo":"acme/site"}: success  
    test_echo_again {"repo":"other/secret"}: scope_violation scope Scope violation: Repository other/secret is not authorized
    test_echo_again {"absent":1}: error invalid_params Invalid parameters: /absent: undeclared parameter
    test_echo_open {"repo":"acme/site"}: scope_violation scope Scope violation: Tool test_echo_open of the other bot is not authorized
    test_echo_flood {}: permission_denied denied Permission denied: tool 'test_echo_flood' is not available to this bot
    test_echo_nothing {}: permission_denied denied Permission denied: tool 'test_echo_nothing' is not available to this bot
    no tool of the link: permission_denied denied Permission denied: tool 'test_echo_again' is not available to this bot []
    a key that the tool does not have: scope_violation scope Scope violation: this tool has no scope projects []
    an empty list: scope_violation scope Scope violation: Repository x/y is not authorized []
    nothing delegated: success   ["test_echo_again", "test_echo_fetch"]
    only to look: permission_denied denied Permission denied: tool 'bot_call_tool' is not available to this bot []
    "#);
    Ok(())
}

#[tokio::test]
async fn links_add_up_along_a_chain() -> Result<()> {
    let (world, helper) = world().await?;
    let middle = world.api.bot("middle").await?;
    let outer = json!({"delegate": {"scope_constraints": {"repos": ["acme/*"]}}});
    let first = link(&world, &world.bot, &middle, &outer).await?;
    let inner = json!({"delegate": {"scope_constraints": {"repos": ["*/site"]}}});
    let second = link(&world, &middle, &helper.bot, &inner).await?;
    let deep = |repo: &str| through("bot_call_tool", &through("test_echo_again", &json!({"repo": repo})));
    let answer = world.call("bot_call_tool", &deep("acme/site")).await?;
    assert_eq!(answer["data"]["scope"], json!([{"repos": ["acme/*"]}, {"repos": ["*/site"]}]), "{answer}");
    assert_eq!(answer["data"]["delegate"]["scope_constraints"], json!({"repos": ["*/site"]}));
    let row = world.api.audit(text(&answer["data"]["request_id"])).await?;
    let links: Vec<&str> =
        row["delegation"].as_array().context("a chain")?.iter().map(|link| text(&link["binding_id"])).collect();
    assert_eq!(links, [first.as_str(), second.as_str()]);
    let mut lines = Vec::new();
    for repo in ["acme/api", "other/site", "acme/site"] {
        lines.push(format!("{repo}: {}", told(&world.call("bot_call_tool", &deep(repo)).await?)));
    }
    // The tools of a link limit all tools of the called bot, including its tools for further delegation.
    let path = format!("/api/bots/{}/resources/{first}", world.bot);
    let (status, _) = world.api.patch(&path, &json!({"delegate": {"allowed_tools": ["test_echo_*"]}})).await?;
    assert_eq!(status, 200);
    lines.push(format!("no way on: {}", told(&world.call("bot_call_tool", &deep("acme/site")).await?)));
    assert_snapshot!(lines.join("\n"), @r#"
    acme/api: scope_violation scope Scope violation: Repository acme/api is not authorized
    other/site: scope_violation scope Scope violation: Repository other/site is not authorized
    acme/site: success  
    no way on: permission_denied denied Permission denied: tool 'bot_call_tool' is not available to this bot
    "#);
    Ok(())
}

#[tokio::test]
async fn bots_that_call_each_other_come_to_an_end() -> Result<()> {
    let (world, helper) = world().await?;
    link(&world, &world.bot, &helper.bot, &json!({})).await?;
    link(&world, &helper.bot, "tester", &json!({})).await?;
    let mut params = through("test_echo_open", &json!({"repo": "a/b"}));
    let mut lines = Vec::new();
    for depth in 1..=9 {
        let answer = world.call("bot_call_tool", &params).await?;
        lines.push(format!("{depth}: {}", told(&answer)));
        params = through("bot_call_tool", &params);
    }
    // Only the helper has the echo resource. At every second depth, the chain therefore ends at a bot without the
    // resource.
    assert_snapshot!(lines.join("\n"), @r#"
    1: success  
    2: permission_denied denied Permission denied: tool 'test_echo_open' is not available to this bot
    3: success  
    4: permission_denied denied Permission denied: tool 'test_echo_open' is not available to this bot
    5: success  
    6: permission_denied denied Permission denied: tool 'test_echo_open' is not available to this bot
    7: success  
    8: permission_denied denied Permission denied: tool 'test_echo_open' is not available to this bot
    9: error limit the call is nested more than 8 levels deep
    "#);
    Ok(())
}

#[tokio::test]
async fn a_resource_names_a_bot_of_its_own_workspace() -> Result<()> {
    let (world, helper) = world().await?;
    let mut answers = Answers::default();
    let resource = |bot: &str| json!({"resource_type": "bot", "name": "another", "config": {"bot": bot}});
    let (_, workspace) = world.api.post("/api/workspaces", &json!({"name": "elsewhere"})).await?;
    ensure!(!workspace["id"].is_null(), "{workspace}");
    let elsewhere = world.api.request(reqwest::Method::POST, "/api/bots").header("Monstrum-Workspace", "elsewhere");
    let stranger: Value = elsewhere.json(&json!({"name": "stranger"})).send().await?.json().await?;
    answers.add("none", world.api.post("/api/resources", &resource("nobody")).await?);
    answers.add("elsewhere", world.api.post("/api/resources", &resource("stranger")).await?);
    answers.add("by id", world.api.post("/api/resources", &resource(text(&stranger["id"]))).await?);
    assert_snapshot!(answers, @r#"
    none: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/config/bot: no such bot in this workspace","request_id":"[id 1]","errors":[{"path":"/config/bot","message":"no such bot in this workspace"}]}
    elsewhere: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/config/bot: no such bot in this workspace","request_id":"[id 2]","errors":[{"path":"/config/bot","message":"no such bot in this workspace"}]}
    by id: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/config/bot: no such bot in this workspace","request_id":"[id 3]","errors":[{"path":"/config/bot","message":"no such bot in this workspace"}]}
    "#);

    // The name is resolved to a bot when the resource is created. A later bot with the same name is not affected.
    link(&world, &world.bot, "helper", &json!({})).await?;
    let path = format!("/api/bots/{}", helper.bot);
    assert_eq!(world.api.patch(&path, &json!({"name": "first"})).await?.0, 200);
    world.api.bot("helper").await?;
    assert_eq!(world.call("bot_list_tools", &json!({})).await?["data"]["bot"]["name"], "first");
    let second = world.api.bot("second").await?;
    link(&world, &world.bot, "second", &json!({})).await?;
    let answer = world.call("bot_list_tools", &json!({})).await?;
    let names = format!("`helper for {0}`, `second for {0}`", world.bot);
    assert!(text(&answer["message"]).contains(&names), "{answer}");
    let chosen = json!({"_resource": format!("second for {}", world.bot)});
    assert_eq!(world.call("bot_list_tools", &chosen).await?["data"]["bot"]["name"], "second");
    let (status, _) = world.api.delete(&format!("/api/bots/{second}")).await?;
    assert_eq!(status, 204);
    assert_snapshot!(told(&world.call("bot_list_tools", &chosen).await?), @r#"error unavailable the bot of this resource no longer exists"#);
    Ok(())
}

/// Revokes a permission of a call that waits for its upstream, and restores the permission afterwards. Returns the
/// result of the call, and the time from the revocation to the end of the call.
async fn taken_back(world: &World, helper: &Helper, what: &str) -> Result<(String, Duration)> {
    let delegate = json!({"scope_constraints": {}});
    let binding = link(world, &world.bot, &helper.bot, &json!({"delegate": delegate})).await?;
    let name = format!("{what} {binding}");
    let (_, key) = world.api.post("/api/keys", &json!({"name": name, "kind": "bot", "bot_id": world.bot})).await?;
    world.github.hold();
    let before = world.github.requests().len();
    let api = world.api.with_key(text(&key["key"]));
    let (bot, began) = (world.bot.clone(), Instant::now());
    let resource = format!("{} for {}", helper.bot, world.bot);
    let mut params = through("test_echo_fetch", &json!({"path": "/slow"}));
    params["_resource"] = json!(resource);
    let call = tokio::spawn(async move { api.call(&bot, "bot_call_tool", &params).await });
    eventually("the upstream has received the request", async || {
        Ok((world.github.requests().len() > before).then_some(()))
    })
    .await?;
    ensure!(!call.is_finished(), "{what}: ended after {:?}", began.elapsed());
    let of_link = format!("/api/bots/{}/resources/{binding}", world.bot);
    let of_helper = format!("/api/bots/{}/resources/{}", helper.bot, helper.binding);
    let of_key = format!("/api/keys/{}", text(&key["id"]));
    let soon = SystemClock.now().plus_ms(300).to_string();
    let (status, body) = match what {
        "link gone" => world.api.delete(&of_link).await?,
        "link disabled" => world.api.patch(&of_link, &json!({"enabled": false})).await?,
        "link narrowed" => {
            world.api.patch(&of_link, &json!({"delegate": {"allowed_tools": ["test_echo_open"]}})).await?
        }
        "link expired" => world.api.patch(&of_link, &json!({"expires_at": soon})).await?,
        "role" => {
            world.api.patch(&format!("/api/roles/{}", helper.role), &json!({"allowed_operations": ["echo.*"]})).await?
        }
        "scopes" => world.api.patch(&of_helper, &json!({"scope_constraints": {"repos": ["acme/*"]}})).await?,
        "binding" => world.api.patch(&of_helper, &json!({"enabled": false})).await?,
        "bot" => world.api.patch(&of_link, &json!({"permissions": {"allowed_operations": ["bot.status"]}})).await?,
        "key" => world.api.delete(&of_key).await?,
        "rotated" => world.api.post(&format!("{of_key}/rotate"), &Value::Null).await?,
        _ => world.api.patch(&format!("/api/bots/{}", helper.bot), &json!({"description": what})).await?,
    };
    ensure!(status < 300, "{what}: {status} {body}");
    let taken_back = Instant::now();
    if what == "unrelated" {
        world.github.release();
    }
    let answer = call.await??;
    let took = taken_back.elapsed();
    let child = world.audit_of(&answer).await?;
    let line = match what {
        // Both calls end with the key, and the answer is that of the first one to notice it.
        "key" | "rotated" => format!("{what}: {} {}", text(&answer["status"]), text(&answer["code"])),
        _ => format!("{what}: {} [{}]", told(&answer), text(&child["rule"])),
    };
    world.github.release();
    // Restores the original permissions.
    world
        .api
        .patch(&format!("/api/roles/{}", helper.role), &json!({"allowed_operations": ["echo.*", "fetch.run"]}))
        .await?;
    world.api.patch(&of_helper, &json!({"scope_constraints": {}, "enabled": true})).await?;
    world.api.delete(&of_link).await?;
    let (_, listed) = world.api.get("/api/resources?limit=100").await?;
    for resource in listed["items"].as_array().into_iter().flatten().filter(|one| one["resource_type"] == "bot") {
        world.api.delete(&format!("/api/resources/{}", text(&resource["id"]))).await?;
    }
    Ok((line, took))
}

/// The permission of a call is revoked while the call waits for its upstream.
#[tokio::test]
async fn what_is_taken_back_ends_what_runs_within_a_second() -> Result<()> {
    const SECOND: Duration = Duration::from_secs(1);
    const ROUNDS: usize = 12;
    let (world, helper) = world().await?;
    let mut lines = Vec::new();
    for what in [
        "link gone",
        "link disabled",
        "link narrowed",
        "link expired",
        "role",
        "scopes",
        "binding",
        "bot",
        "key",
        "rotated",
        "unrelated",
    ] {
        let (mut line, mut took) = taken_back(&world, &helper, what).await?;
        // The machine may be busy in one round, but is unlikely to be busy in all rounds.
        for _ in 1..ROUNDS {
            if took >= SECOND {
                (line, took) = taken_back(&world, &helper, what).await?;
            }
        }
        ensure!(took < SECOND, "{what}: {took:?}");
        lines.push(line);
    }
    assert_snapshot!(lines.join("\n"), @r#"
    link gone: permission_denied denied Permission denied: tool 'bot_call_tool' is not available to this bot [revoked.binding]
    link disabled: permission_denied denied Permission denied: tool 'bot_call_tool' is not available to this bot [revoked.binding]
    link narrowed: permission_denied denied Permission denied: tool 'test_echo_fetch' is not available to this bot []
    link expired: permission_denied denied Permission denied: tool 'bot_call_tool' is not available to this bot [revoked.binding]
    role: permission_denied denied Permission denied: tool 'test_echo_fetch' is not available to this bot []
    scopes: scope_violation scope Scope violation: Repository (missing) is not authorized []
    binding: permission_denied denied Permission denied: tool 'test_echo_fetch' is not available to this bot []
    bot: permission_denied denied Permission denied: tool 'bot_call_tool' is not available to this bot [permissions.allowed_operations]
    key: permission_denied denied
    rotated: permission_denied denied
    unrelated: success   []
    "#);
    Ok(())
}
