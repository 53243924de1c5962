//! An approval permits exactly one call: every other call asks anew.

use std::fs;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use monstrum_core::policy::row_seals;
use monstrum_store::{DEFAULT_WORKSPACE, Scope, StoreOptions, UsedApproval};
use monstrum_types::{Clock, Digest, RequestId, SystemClock};
use serde_json::{Value, json};
use support::Server;

use super::{FETCH, Gated, TOOL, asked, succeeded};
use crate::console::Browser;
use crate::http::made;
use crate::world::{eventually, text};

#[tokio::test]
async fn an_approved_call_runs_once_and_is_recorded() -> Result<()> {
    let gated = Gated::start().await?;
    let params = json!({ "repo": "acme/site" });
    let first = gated.call(&params).await?;
    let id = asked(&first)?;
    assert_eq!(first["message"], "a person must approve this call");
    assert_eq!(first["approval"].get("url"), None, "the server has no URL for approvals");
    assert_eq!(gated.ask(&params).await?, id, "the same call waits for the same approval");
    let pending = gated.approval(&id).await?;
    assert_eq!((&pending["status"], &pending["params"]), (&json!("pending"), &params));
    gated.approve(&id).await?;
    let ran = gated.call(&params).await?;
    ensure!(succeeded(&ran), "{ran}");
    let used = gated.approval(&id).await?;
    assert_eq!((&used["status"], &used["request_id"]), (&json!("used"), &ran["request_id"]));
    assert_ne!(gated.ask(&params).await?, id, "the next call asks anew");
    let changes = gated.changes().await?;
    let expected = ["approval.ask", "approval.approve", "approval.use", "approval.ask"];
    assert_eq!(changes, expected.map(|change| format!("{change} success")));
    assert_eq!(gated.world.api.verify_audit().await?["valid"], true);
    Ok(())
}

#[tokio::test]
async fn other_parameters_ask_anew() -> Result<()> {
    let gated = Gated::start().await?;
    let id = gated.approved(&json!({ "any": 9_007_199_254_740_993_u64 })).await?;
    for other in [
        json!({ "any": 9_007_199_254_740_992_u64 }),
        json!({ "any": 9_007_199_254_740_994_u64 }),
        json!({ "any": "9007199254740993" }),
        json!({ "any": 9_007_199_254_740_993_u64, "repo": "acme/site" }),
        json!({}),
    ] {
        assert_ne!(gated.ask(&other).await?, id, "{other}");
    }
    ensure!(succeeded(&gated.call(&json!({ "any": 9_007_199_254_740_993_u64 })).await?));
    // Another notation of the same parameters is the same call.
    gated.approved(&json!({ "repo": "a", "any": 1 })).await?;
    ensure!(succeeded(&gated.call(&json!({ "any": 1.0, "repo": "a" })).await?));
    Ok(())
}

#[tokio::test]
async fn another_user_or_app_asks_anew() -> Result<()> {
    let gated = Gated::start().await?;
    let of = |app: &str, user: &str, chat: &str| json!({ "params": {}, "chat": { "app_id": app, "user_id": user, "chat_id": chat } });
    let api = &gated.world.api;
    let id = asked(&gated.call_with(api, TOOL, &of("one", "7", "c")).await?)?;
    assert_eq!(gated.approval(&id).await?["user"], json!({ "app_id": "one", "user_id": "7" }));
    gated.approve(&id).await?;
    for other in [of("one", "8", "c"), of("two", "7", "c"), json!({ "params": {} })] {
        assert_ne!(asked(&gated.call_with(api, TOOL, &other).await?)?, id, "{other}");
    }
    ensure!(succeeded(&gated.call_with(api, TOOL, &of("one", "7", "another conversation")).await?));
    Ok(())
}

#[tokio::test]
async fn another_bot_or_resource_asks_anew() -> Result<()> {
    let gated = Gated::start().await?;
    let world = &gated.world;
    let id = gated.approved(&json!({})).await?;
    // Another bot with the same resource, role and gates.
    let other = world.api.bot("other").await?;
    let role = text(&world.api.get("/api/roles").await?.1["items"][0]["id"]).to_owned();
    world.api.bind(&other, &gated.bound.resource, &role, &json!({})).await?;
    let gates = json!({ "gates": [{ "action": "ask" }] });
    ensure!(world.api.patch(&format!("/api/bots/{other}"), &gates).await?.0 == 200);
    assert_ne!(asked(&world.api.call(&other, TOOL, &json!({})).await?)?, id);
    // Another resource of the same bot.
    let second = world.api.resource("test-echo", "second", &world.github.url()).await?;
    world.api.bind(&world.bot, &second, &role, &json!({})).await?;
    let through = async |resource: &str| {
        gated.call_with(&world.api, TOOL, &json!({ "params": {}, "resource_id": resource })).await
    };
    assert_ne!(asked(&through(&second).await?)?, id);
    ensure!(succeeded(&through(&gated.bound.resource).await?));
    Ok(())
}

#[tokio::test]
async fn another_configuration_asks_anew() -> Result<()> {
    let gated = Gated::start().await?;
    let path = format!("/api/resources/{}", gated.bound.resource);
    let (_, resource) = gated.world.api.get(&path).await?;
    let id = gated.approved(&json!({})).await?;
    let change = async |field: &str, value: &Value| {
        let (status, answer) = gated.world.api.patch(&path, &json!({ field: value })).await?;
        ensure!(status == 200, "{answer}");
        anyhow::Ok(())
    };
    let mut config = resource["config"].clone();
    config["region"] = json!("us");
    change("config", &config).await?;
    let of_config = gated.ask(&json!({})).await?;
    change("config", &resource["config"]).await?;
    let mut network = resource["network"].clone();
    network["allow_addresses"] = json!(["127.0.0.0/8", "10.0.0.0/8"]);
    change("network", &network).await?;
    let of_network = gated.ask(&json!({})).await?;
    ensure!(of_config != id && of_network != id && of_network != of_config);
    // The first configuration is the approved one again.
    change("network", &resource["network"]).await?;
    ensure!(succeeded(&gated.call(&json!({})).await?));
    Ok(())
}

#[tokio::test]
async fn another_version_of_the_plugin_asks_anew() -> Result<()> {
    let gated = Gated::start().await?;
    let id = gated.approved(&json!({})).await?;
    let manifest = gated.world.server.plugins_dir().join("test-echo/monstrum.yaml");
    let text = fs::read_to_string(&manifest)?;
    fs::write(&manifest, text.replace("\"Returns its parameters.\"", "\"Returns all parameters.\""))?;
    eventually("the new version serves", async || {
        let (_, tools) = gated.world.api.get(&format!("/api/bots/{}/tools", gated.world.bot)).await?;
        let listed = tools["items"].as_array().into_iter().flatten();
        let is_new = |tool: &Value| tool["name"] == TOOL && tool["description"] == "Returns all parameters.";
        Ok(listed.into_iter().any(is_new).then_some(()))
    })
    .await?;
    assert_ne!(gated.ask(&json!({})).await?, id);
    Ok(())
}

/// The component changes, and the manifest stays the same.
#[tokio::test]
async fn another_component_of_the_plugin_asks_anew() -> Result<()> {
    let gated = Gated::start().await?;
    let id = gated.approved(&json!({})).await?;
    let path = gated.world.server.plugins_dir().join("test-echo/plugin.wasm");
    let original = fs::read(&path)?;
    let load = async |component: &[u8]| {
        fs::write(&path, component)?;
        let (status, entry) = gated.world.api.post("/api/plugins/test-echo/reload", &Value::Null).await?;
        ensure!(status == 200 && entry["status"] == "loaded", "{status} {entry}");
        anyhow::Ok(entry["digest"].clone())
    };
    let digest = load(original.as_slice()).await?;
    // A custom section without content changes only the digest.
    let changed = [original.as_slice(), b"\x00\x05\x04note".as_slice()].concat();
    assert_ne!(load(changed.as_slice()).await?, digest);
    assert_ne!(gated.ask(&json!({})).await?, id);
    assert_eq!(gated.approval(&id).await?["status"], "approved");
    assert_eq!(load(original.as_slice()).await?, digest);
    ensure!(succeeded(&gated.call(&json!({})).await?), "the first component is the approved one again");
    Ok(())
}

/// A call through a delegation is another call than the same call without it.
#[tokio::test]
async fn another_chain_of_bots_asks_anew() -> Result<()> {
    let gated = Gated::start().await?;
    let (world, caller) = (&gated.world, gated.world.api.bot("caller").await?);
    let resource = json!({ "resource_type": "bot", "name": "colleague", "config": { "bot": world.bot } });
    let resource = made(&world.api, "/api/resources", &resource).await?;
    let binding = json!({ "resource_id": resource, "permissions": { "allowed_tools": ["*"] } });
    made(&world.api, &format!("/api/bots/{caller}/resources"), &binding).await?;
    let through =
        async || world.api.call(&caller, "bot_call_tool", &json!({ "tool": TOOL, "params": { "repo": "a" } })).await;
    let direct = gated.approved(&json!({ "repo": "a" })).await?;
    let delegated = asked(&through().await?)?;
    assert_ne!(delegated, direct);
    let approval = gated.approval(&delegated).await?;
    assert_eq!((&approval["links"][0]["from"], &approval["links"][0]["to"]), (&json!(caller), &json!(world.bot)));
    gated.approve(&delegated).await?;
    ensure!(succeeded(&through().await?));
    asked(&through().await?)?;
    ensure!(succeeded(&gated.call(&json!({ "repo": "a" })).await?));
    Ok(())
}

#[tokio::test]
async fn of_fifty_calls_at_once_one_runs() -> Result<()> {
    let gated = Gated::start().await?;
    let params = json!({ "path": "/echo" });
    let id = asked(&gated.world.call(FETCH, &params).await?)?;
    gated.approve(&id).await?;
    let before = gated.world.github.requests().len();
    let answers = try_join_all((0..50).map(|_| gated.world.call(FETCH, &params))).await?;
    let ran = answers.iter().filter(|answer| succeeded(answer)).count();
    assert_eq!((ran, gated.world.github.requests().len() - before), (1, 1));
    for answer in answers.iter().filter(|answer| !succeeded(answer)) {
        assert_ne!(asked(answer)?, id);
    }
    Ok(())
}

/// A call that finds no room leaves its approval to the next attempt.
#[tokio::test]
async fn an_approval_is_kept_while_the_lane_is_busy() -> Result<()> {
    let gated = Gated::start().await?;
    let world = &gated.world;
    gated.set_gates(&json!([{ "action": "ask", "tools": [TOOL] }])).await?;
    world.rebind(&gated.bound, &json!({ "limits": { "concurrent": 1 } })).await?;
    let id = gated.approved(&json!({})).await?;
    world.github.hold();
    let (api, bot) = (world.api.clone(), world.bot.clone());
    let running = tokio::spawn(async move { api.call(&bot, FETCH, &json!({ "path": "/slow" })).await });
    world.reached(1).await?;
    let busy = gated.call(&json!({})).await?;
    assert_eq!((&busy["status"], &busy["code"]), (&json!("error"), &json!("busy")), "{busy}");
    assert_eq!(gated.approval(&id).await?["status"], "approved");
    world.github.release();
    ensure!(succeeded(&running.await??));
    ensure!(succeeded(&gated.call(&json!({})).await?));
    Ok(())
}

/// A call over the budget of its bot leaves its approval to the next attempt.
#[tokio::test]
async fn an_approval_is_kept_while_the_budget_is_spent() -> Result<()> {
    let gated = Gated::start().await?;
    let world = &gated.world;
    let bot = format!("/api/bots/{}", world.bot);
    ensure!(world.api.patch(&bot, &json!({ "monthly_token_budget": 1 })).await?.0 == 200);
    let id = asked(&world.call("test_echo_write", &json!({})).await?)?;
    gated.approve(&id).await?;
    let refused = world.call("test_echo_write", &json!({})).await?;
    assert_eq!(refused["code"], "budget", "{refused}");
    assert_eq!(gated.approval(&id).await?["status"], "approved");
    ensure!(world.api.patch(&bot, &json!({ "monthly_token_budget": 1000 })).await?.0 == 200);
    ensure!(succeeded(&world.call("test_echo_write", &json!({})).await?));
    Ok(())
}

/// An approval overrides no rule: the call is judged again.
#[tokio::test]
async fn an_approval_overrides_no_denial() -> Result<()> {
    let gated = Gated::start().await?;
    let id = gated.approved(&json!({ "repo": "acme/site" })).await?;
    let call = async || gated.call(&json!({ "repo": "acme/site" })).await;
    gated.set_gates(&json!([{ "action": "ask" }, { "action": "deny", "when": { "repos": ["acme/*"] } }])).await?;
    assert_eq!(call().await?["status"], "permission_denied");
    gated.set_gates(&json!([{ "action": "ask" }])).await?;
    gated.world.rebind(&gated.bound, &json!({ "scope_constraints": { "repos": ["other/*"] } })).await?;
    assert_eq!(call().await?["status"], "scope_violation");
    gated.world.rebind(&gated.bound, &json!({ "scope_constraints": {} })).await?;
    assert_eq!(gated.approval(&id).await?["status"], "approved");
    ensure!(succeeded(&call().await?));
    Ok(())
}

/// The host ends after a call has used its approval and before the call begins. The caller must ask again.
#[tokio::test]
async fn a_crash_between_the_use_and_the_start_of_a_call_asks_again() -> Result<()> {
    let mut gated = Gated::start().await?;
    let params = json!({ "path": "/echo" });
    let id = asked(&gated.world.call(FETCH, &params).await?)?;
    gated.approve(&id).await?;
    let approval = gated.approval(&id).await?;
    gated.world.server.kill().await?;
    let data = gated.world.server.data_dir();
    let options = StoreOptions::sqlite(data.join("monstrum.db"));
    let store = row_seals::open_with_key_file(options, &data.join("master.key")).await?;
    let workspace = store.workspace_named(DEFAULT_WORKSPACE).await?.context("the default workspace does not exist")?.id;
    let generation = store.snapshot().await?.scope_generations[&Scope::Workspace(workspace)];
    let digest: Digest = text(&approval["digest"]).parse()?;
    let call = (id.parse()?, &digest);
    let used = store.use_approval(workspace, call, RequestId::new(), generation, SystemClock.now()).await?;
    assert_eq!(used, UsedApproval::Used);
    store.close().await;
    gated.world.server.launch().await?;
    gated.world.api = gated.world.server.api()?;
    gated.admin = gated.world.api.with_key(gated.admin.key());
    assert_ne!(asked(&gated.world.call(FETCH, &params).await?)?, id);
    assert_eq!((&gated.approval(&id).await?["status"], gated.world.github.requests().len()), (&json!("used"), 0));
    Ok(())
}

#[tokio::test]
async fn an_approval_survives_a_restart() -> Result<()> {
    let mut gated = Gated::start().await?;
    let id = gated.approved(&json!({})).await?;
    gated.world.server.restart().await?;
    gated.world.api = gated.world.server.api()?;
    gated.admin = gated.world.api.with_key(gated.admin.key());
    assert_eq!(gated.approval(&id).await?["status"], "approved");
    ensure!(succeeded(&gated.call(&json!({})).await?));
    asked(&gated.call(&json!({})).await?)?;
    Ok(())
}

#[tokio::test]
async fn the_answer_names_the_page_for_approvals() -> Result<()> {
    let url = "https://console.example/{workspace}/approvals?id={id}";
    let server = Server::prepare(&["test-echo"])?.argument("--approval-url").argument(url);
    let gated = Gated::on(server, &json!({ "action": "ask" })).await?;
    let answer = gated.call(&json!({})).await?;
    let id = asked(&answer)?;
    let shown = text(&answer["approval"]["url"]);
    ensure!(
        shown.starts_with("https://console.example/") && shown.ends_with(&format!("/approvals?id={id}")),
        "{shown}"
    );
    ensure!(!shown.contains('{'), "{shown}");
    assert_eq!(gated.approval(&id).await?["url"], shown);
    Ok(())
}

/// Without a setting, the page is that of the console at the public URL.
#[tokio::test]
async fn people_decide_in_the_console_of_a_server_with_a_public_url() -> Result<()> {
    const PUBLIC: &str = "https://monstrum.example/base";
    for (console, is_linked) in [("on", true), ("off", false)] {
        let server = Server::prepare(&["test-echo"])?.argument("--public-url").argument(PUBLIC);
        let gated = Gated::on(server.argument("--console").argument(console), &json!({ "action": "ask" })).await?;
        let answer = gated.call(&json!({})).await?;
        let id = asked(&answer)?;
        assert_eq!(answer["approval"].get("url").is_some(), is_linked, "{answer}");
        if is_linked {
            let path = text(&answer["approval"]["url"]).strip_prefix(PUBLIC).context("the public URL")?;
            let browser = Browser::log_in(&gated.world, gated.admin.key()).await?;
            let page = browser.page(path).await?;
            ensure!(page.contains(TOOL) && page.contains(&id), "{page}");
        }
    }
    Ok(())
}

/// A bot that repeats itself with other parameters cannot fill the list of approvals.
#[tokio::test]
async fn pending_approvals_of_a_bot_are_limited() -> Result<()> {
    let gated = Gated::start().await?;
    for number in 0..100 {
        gated.ask(&json!({ "any": number })).await?;
    }
    let refused = gated.call(&json!({ "any": 100 })).await?;
    assert_eq!((&refused["status"], &refused["code"]), (&json!("error"), &json!("limit")), "{refused}");
    let first = gated.ask(&json!({ "any": 0 })).await?;
    ensure!(gated.decide_as(&gated.admin, &first, "deny").await?.0 == 200);
    gated.ask(&json!({ "any": 100 })).await?;
    Ok(())
}

/// Secrets of the resource do not reach the approver.
#[tokio::test]
async fn the_parameters_of_an_approval_are_redacted() -> Result<()> {
    let gated = Gated::start().await?;
    let params = json!({ "any": format!("Bearer {}", gated.world.github.token()), "repo": "a\u{202e}b" });
    let id = gated.ask(&params).await?;
    let shown = gated.approval(&id).await?["params"].clone();
    assert_eq!(shown, json!({ "any": "[redacted]", "repo": "a\\u{202e}b" }));
    Ok(())
}
