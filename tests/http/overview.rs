//! `/api/me`, `/api/attention` and `/api/search`: what a key may do, what needs a person, and where things are.

use std::fs;

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::{Api, Server};

use crate::http::roles::faults;
use crate::http::{Answers, made, one, workspace};
use crate::world::{World, text};

const ECHO: &str = "test-echo";

/// Returns the items as `kind name: text`, or `kind name (parent)`.
async fn items(api: &Api, path: &str) -> Result<Vec<String>> {
    let (status, body) = api.get(path).await?;
    ensure!(status == 200, "GET {path}: {status} {body}");
    let items = body["items"].as_array().context("the answer has no items")?;
    let line = |item: &Value| {
        let rest = match (&item["text"], &item["parent"]["name"]) {
            (Value::String(text), _) => format!(": {text}"),
            (_, Value::String(parent)) => format!(" ({} {parent})", text(&item["parent"]["kind"])),
            _ => String::new(),
        };
        format!("{} {}{rest}", text(&item["kind"]), text(&item["name"]))
    };
    Ok(items.iter().map(line).collect())
}

/// The route works for every kind of key. The table of the access tests covers `may`.
#[tokio::test]
async fn a_key_learns_what_it_is() -> Result<()> {
    let world = World::with(&[ECHO]).await?;
    let root = &world.api;
    let lab = made(root, "/api/resources", &json!({ "resource_type": "agent", "name": "lab" })).await?;
    let mut answers = Answers::default();
    let of_kind =
        async |body: Value| -> Result<Api> { Ok(root.with_key(text(&root.post("/api/keys", &body).await?.1["key"]))) };
    let keys = [
        root.clone(),
        of_kind(json!({ "name": "ops", "kind": "operator" })).await?,
        of_kind(json!({ "name": "boss", "kind": "approver" })).await?,
        of_kind(json!({ "name": "self", "kind": "bot", "bot_id": world.bot })).await?,
        of_kind(json!({ "name": "arm", "kind": "agent", "resource_id": lab })).await?,
        workspace(root, "acme").await?,
    ];
    for api in keys {
        let (status, mut me) = api.get("/api/me").await?;
        let may = me["may"].as_array().context("it has operations")?;
        assert!(may.iter().any(|id| id == "keys_me"), "{may:?}");
        me["may"] = json!(may.len() > 5);
        answers.add(&me["kind"].to_string(), (status, me));
    }
    answers.add("unknown", faults(root.with_key("mk_unknown").get("/api/me").await?));
    assert_snapshot!(answers, @r#"
    "root": 200 {"key_id":"[id 1]","name":"admin","kind":"root","workspace":"default","workspace_id":"[id 2]","may":true}
    "operator": 200 {"key_id":"[id 3]","name":"ops","kind":"operator","workspace":"default","workspace_id":"[id 2]","may":true}
    "approver": 200 {"key_id":"[id 4]","name":"boss","kind":"approver","workspace":"default","workspace_id":"[id 2]","may":true}
    "bot": 200 {"key_id":"[id 5]","name":"self","kind":"bot","workspace":"default","workspace_id":"[id 2]","bot_id":"[id 6]","may":true}
    "agent": 200 {"key_id":"[id 7]","name":"arm","kind":"agent","workspace":"default","workspace_id":"[id 2]","resource_id":"[id 8]","may":true}
    "admin": 200 {"key_id":"[id 9]","name":"admin","kind":"admin","workspace":"acme","workspace_id":"[id 10]","may":true}
    unknown: 401 "unknown API key"
    "#);
    // A root key acts in the workspace that it names.
    let acme = root.request(reqwest::Method::GET, "/api/me").header("Monstrum-Workspace", "acme");
    assert_eq!(super::send(acme).await?.2["workspace"], "acme");
    Ok(())
}

/// With public documents, every key may read them.
#[tokio::test]
async fn public_documents_are_among_what_a_key_may_do() -> Result<()> {
    for (setting, expected) in [(false, false), (true, true)] {
        let server = Server::prepare(&[])?;
        let mut server = if setting { server.argument("--public-docs") } else { server };
        server.launch().await?;
        let api = server.api()?;
        let approver = api.with_key(&api.new_key("approver", None).await?);
        let may = approver.get("/api/me").await?.1["may"].clone();
        let metrics = may.as_array().context("a list")?.iter().any(|id| id == "health_metrics");
        assert_eq!(metrics, expected);
        assert_eq!(approver.get("/metrics").await?.0 == 200, expected);
    }
    Ok(())
}

/// A server without sandboxes, with one plugin that failed and one that waits.
async fn troubled() -> Result<World> {
    let server = Server::prepare(&[ECHO])?.argument("--sandbox").argument("off");
    let echo = fs::read_to_string(server.plugins_dir().join(ECHO).join("monstrum.yaml"))?;
    for (name, from, to) in
        [("broken", "tags: [test]", "tags: test"), ("test-zecho", "name: test-echo", "name: test-zecho")]
    {
        server.install_as(ECHO, name)?;
        fs::write(server.plugins_dir().join(name).join("monstrum.yaml"), echo.replace(from, to))?;
    }
    World::on(server).await
}

#[tokio::test]
async fn each_key_is_told_what_needs_it() -> Result<()> {
    let world = troubled().await?;
    let root = &world.api;
    let foreign = workspace(root, "acme").await?;
    assert!(
        items(root, "/api/attention").await?.iter().all(|item| item.starts_with("plugin ")),
        "no bot has a sandbox"
    );
    let bound = world.grant_all(ECHO).await?;
    let bot = format!("/api/bots/{}", world.bot);
    let call = async |tool: &str| world.call(tool, &json!({})).await;
    let set = async |body: Value| root.patch(&bot, &body).await;
    set(json!({ "monthly_token_budget": 50, "use_agent_sandbox": true })).await?;
    for _ in 0..4 {
        assert_eq!(call("test_echo_write").await?["status"], "success");
    }
    let budgets = async || -> Result<usize> {
        Ok(items(root, "/api/attention").await?.iter().filter(|item| item.starts_with("budget ")).count())
    };
    assert_eq!(budgets().await?, 0, "40 of 50");
    assert_eq!(call("test_echo_write").await?["status"], "success");
    assert_eq!(budgets().await?, 1, "50 of 50");
    set(json!({ "gates": [{ "action": "ask" }] })).await?;
    assert_eq!(call("test_echo_run").await?["status"], "approval_required");
    let other = json!({ "config": { "api_base": "https://evil.example.com" } });
    assert_eq!(root.patch(&format!("/api/resources/{}", bound.resource), &other).await?.0, 200);
    let mut table = Vec::new();
    for kind in ["root", "admin", "operator", "approver"] {
        let api = if kind == "root" { root.clone() } else { root.with_key(&root.new_key(kind, None).await?) };
        for item in items(&api, "/api/attention").await? {
            table.push(format!("{kind}: {}", item.replace(&world.bot, "[bot]")));
        }
    }
    let month = root.get("/api/audit?limit=1").await?.1["items"][0]["started_at"].clone();
    let table = table.join("\n").replace(text(&month).get(..7).context("a month")?, "[month]");
    let table = crate::stable::stable(&json!(table));
    assert_snapshot!(text(&table), @r#"
    root: approval test_echo_run: a call of the bot `tester` waits for approval
    root: sandbox sandbox: bots use sandboxes, but sandboxes are unavailable: sandboxes are off on this server (--sandbox off)
    root: plugin broken: monstrum.yaml:6:7: tags: expected a list, found string "test"
    root: plugin test-zecho: version 1.0.0 waits for approval
    root: credential test-echo-of-[bot]: the credential would be sent to other origins, and an admin must confirm this
    root: budget tester: 50 of 50 tokens of the budget for [month] are spent
    admin: approval test_echo_run: a call of the bot `tester` waits for approval
    admin: credential test-echo-of-[bot]: the credential would be sent to other origins, and an admin must confirm this
    admin: budget tester: 50 of 50 tokens of the budget for [month] are spent
    operator: approval test_echo_run: a call of the bot `tester` waits for approval
    operator: credential test-echo-of-[bot]: the credential would be sent to other origins, and an admin must confirm this
    operator: budget tester: 50 of 50 tokens of the budget for [month] are spent
    approver: approval test_echo_run: a call waits for approval
    "#);
    assert_eq!(items(&foreign, "/api/attention").await?, Vec::<String>::new(), "another workspace");
    let own = root.with_key(&root.new_key("bot", Some(&world.bot)).await?);
    assert_snapshot!(one(faults(own.get("/api/attention").await?)), @r#"403 "this operation requires an approver, operator, admin or root key""#);
    Ok(())
}

/// More items than the limit are cut, and no kind of item disappears.
#[tokio::test]
async fn at_most_a_hundred_items_are_listed() -> Result<()> {
    let world = World::with(&[ECHO]).await?;
    for number in 0..101 {
        let name = format!("r{number:03}");
        let resource = world.api.resource(ECHO, &name, &world.github.url()).await?;
        world.api.token(&resource, support::TOKEN).await?;
        let other = json!({ "config": { "api_base": "https://evil.example.com" } });
        assert_eq!(world.api.patch(&format!("/api/resources/{resource}"), &other).await?.0, 200);
    }
    world.grant_all(ECHO).await?;
    let gates = json!({ "gates": [{ "action": "ask" }] });
    world.api.patch(&format!("/api/bots/{}", world.bot), &gates).await?;
    assert_eq!(world.call("test_echo_run", &json!({})).await?["status"], "approval_required");
    let items = items(&world.api, "/api/attention").await?;
    let count = |kind: &str| items.iter().filter(|item| item.starts_with(kind)).count();
    assert_eq!((items.len(), count("approval "), count("credential r")), (100, 1, 99));
    Ok(())
}

#[tokio::test]
async fn objects_are_found_by_a_part_of_their_names() -> Result<()> {
    let world = World::with(&[ECHO]).await?;
    let api = &world.api;
    let resource = api.resource(ECHO, "Echo Chamber", &world.github.url()).await?;
    api.role("echoes", &["*"]).await?;
    api.bot("ÄCHO").await?;
    let foreign = workspace(api, "acme").await?;
    foreign.role("echo of acme", &["*"]).await?;
    let mut found = Vec::new();
    for query in ["echo", "%C3%A4cho", "TEST_ECHO_RU", "nothing%20of%20this"] {
        let items = items(api, &format!("/api/search?q={query}")).await?;
        found.push(format!("{query}: [{}]", items.join(", ")));
    }
    for query in ["chamber", "acme"] {
        let items = items(&foreign, &format!("/api/search?q={query}")).await?;
        found.push(format!("in acme, {query}: [{}]", items.join(", ")));
    }
    assert_snapshot!(found.join("\n"), @"
    echo: [resource Echo Chamber (resource_type test-echo), role echoes, plugin test-echo, tool test_echo_again (resource_type test-echo), tool test_echo_fetch (resource_type test-echo), tool test_echo_flood (resource_type test-echo), tool test_echo_mismatch (resource_type test-echo), tool test_echo_open (resource_type test-echo), tool test_echo_run (resource_type test-echo), tool test_echo_unhandled (resource_type test-echo), tool test_echo_write (resource_type test-echo)]
    %C3%A4cho: [bot ÄCHO]
    TEST_ECHO_RU: [tool test_echo_run (resource_type test-echo)]
    nothing%20of%20this: []
    in acme, chamber: []
    in acme, acme: [role echo of acme]
    ");
    // A resource is found even if no plugin serves its type.
    fs::remove_dir_all(world.server.plugins_dir().join(ECHO))?;
    api.post(&format!("/api/plugins/{ECHO}/reload"), &Value::Null).await?;
    let (_, body) = api.get("/api/search?q=chamber").await?;
    assert_eq!(body["items"][0]["id"], resource.as_str());
    Ok(())
}

/// A request is found by its id, in its own workspace and by keys that may read it.
#[tokio::test]
async fn a_request_is_found_by_its_id() -> Result<()> {
    let world = World::with(&[ECHO]).await?;
    let api = &world.api;
    let foreign = workspace(api, "acme").await?;
    let operator = api.with_key(&api.new_key("operator", None).await?);
    let call = world.call("test_echo_run", &json!({})).await?["request_id"].clone();
    let change = api.get("/api/audit/changes?limit=1").await?.1["items"][0]["request_id"].clone();
    let mut found = Vec::new();
    for (kind, api) in [("root", api), ("operator", &operator), ("foreign", &foreign)] {
        for (label, id) in [("call", &call), ("change", &change)] {
            ensure!(!text(id).is_empty(), "{label} has no id");
            let items = items(api, &format!("/api/search?q={}", text(id))).await?;
            found.push(format!("{kind}, {label}: [{}]", items.join(", ")));
        }
    }
    assert_snapshot!(found.join("\n"), @r"
    root, call: [call test_echo_run (bot tester)]
    root, change: [change key.create]
    operator, call: [call test_echo_run (bot tester)]
    operator, change: []
    foreign, call: []
    foreign, change: []
    ");
    Ok(())
}

#[tokio::test]
async fn a_search_has_limits() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    for number in 0..21 {
        api.role(&format!("many{number:02}"), &[]).await?;
    }
    assert_eq!(items(api, "/api/search?q=many").await?.len(), 20);
    assert_eq!(items(api, "/api/search?q=many20").await?, ["role many20"]);
    let mut answers = Answers::default();
    let (fitting, long) = ("%C3%A4".repeat(128), "%C3%A4".repeat(129));
    for (label, query) in [
        ("missing", ""),
        ("empty", "?q="),
        ("blank", "?q=%20%09"),
        ("as long as a name", &format!("?q={fitting}")),
        ("too long", &format!("?q={long}")),
    ] {
        answers.add(label, faults(api.get(&format!("/api/search{query}")).await?));
    }
    for kind in ["operator", "approver", "bot"] {
        let key = api.new_key(kind, (kind == "bot").then_some(world.bot.as_str())).await?;
        answers.add(kind, faults(api.with_key(&key).get("/api/search?q=tester").await?));
    }
    assert_snapshot!(answers, @r#"
    missing: 422 [{"path":"q","message":"required query parameter is missing"}]
    empty: 422 [{"path":"q","message":"must not be empty"}]
    blank: 422 [{"path":"q","message":"must not be empty"}]
    as long as a name: 200
    too long: 422 [{"path":"q","message":"must have at most 128 characters"}]
    operator: 200
    approver: 403 "an approver key only reads and decides approvals"
    bot: 403 "this operation requires an operator, admin or root key"
    "#);
    Ok(())
}
