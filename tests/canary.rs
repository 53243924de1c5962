//! The canary test. A secret is stored as a credential and used in every kind of call. The secret must not exist
//! anywhere except sealed in the database. The test searches every answer of the API, all output of the server at log
//! level debug, every file of the data folder, and the memory of a plugin that searches its own memory.

pub(crate) mod encodings;
mod oauth;

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};
use support::{Canned, Server, TOKEN};

use crate::call::pattern;
use crate::world::{World, text};

use encodings::{Search, encodings};

const CALLS: [&str; 6] = ["github", "test-echo", "test-loop", "test-result", "test-steal", "test-trap"];

/// Records and searches all answers of the server.
struct Ear<'a> {
    world: &'a World,
    search: Search,
    /// The answers that contained the secret, each with its request and the form of the secret.
    leaks: Vec<String>,
    answers: usize,
}

impl Ear<'_> {
    /// Sends a request and searches the answer, including its headers. Returns the body if it is JSON.
    async fn ask(&mut self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let mut request = self.world.api.request(method.clone(), path);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await?;
        let mut heard = Vec::new();
        for (name, value) in response.headers() {
            heard.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\n"].concat());
        }
        let content = response.bytes().await?;
        heard.extend(&content);
        self.answers += 1;
        if let Some(form) = self.search.find(&heard) {
            self.leaks.push(format!("{method} {path}: {form} in {}", String::from_utf8_lossy(&heard)));
        }
        Ok(serde_json::from_slice(&content).unwrap_or_default())
    }

    /// Checks whether a tool may be called, and calls it.
    async fn call(&mut self, bot: &str, tool: &str, params: &Value) -> Result<Value> {
        let body = json!({ "params": params });
        self.ask(Method::POST, &format!("/api/bots/{bot}/tools/{tool}/check"), Some(&body)).await?;
        let answer = self.ask(Method::POST, &format!("/api/bots/{bot}/tools/{tool}/call"), Some(&body)).await?;
        if let Some(request) = answer["request_id"].as_str() {
            self.ask(Method::GET, &format!("/api/audit/{request}"), None).await?;
        }
        Ok(answer)
    }
}

#[tokio::test]
async fn the_secret_is_found_nowhere() -> Result<()> {
    let server = Server::prepare(&CALLS)?.argument("--log").argument("debug");
    let mut world = World::on(server).await?;
    let mut ear = Ear { world: &world, search: Search::of(TOKEN), leaks: Vec::new(), answers: 0 };
    let bots = store_it(&mut ear).await?;
    for bot in &bots {
        use_it(&mut ear, bot).await?;
    }
    misuse_it(&mut ear, &bots[0]).await?;
    search_for_it(&mut ear, &bots[0]).await?;
    read_everything(&mut ear, &bots).await?;
    let Ear { search, mut leaks, answers, .. } = ear;
    assert!(answers > 100, "only {answers} answers were searched");
    let used = world
        .github
        .requests()
        .iter()
        .filter(|request| request.header("authorization") == Some(&format!("Bearer {TOKEN}")))
        .count();
    assert!(used > 20, "the secret was sent only {used} times");

    world.server.stop().await?;
    let output = world.server.output();
    assert!(output.contains("DEBUG"), "the server did not log at level debug");
    leaks.extend(
        output.lines().filter_map(|line| Some(format!("the log: {} in {line}", search.find(line.as_bytes())?))),
    );
    leaks.extend(search.find(output.as_bytes()).map(|form| format!("the log: {form}")));
    leaks.extend(search.find_beneath(world.server.home())?);
    assert!(leaks.is_empty(), "{}", leaks.join("\n\n"));
    Ok(())
}

/// Stores the secret as the credential of several resources, by every auth method. Also sends the secret in fields that
/// are not meant for it.
async fn store_it(ear: &mut Ear<'_>) -> Result<Vec<String>> {
    let world = ear.world;
    for plugin in CALLS {
        world.grant_all(plugin).await?;
    }
    let mut bots = vec![world.bot.clone()];
    let role = world.api.role("keyed", &["*"]).await?;
    for (name, fields) in [
        ("api_key", json!({ "api_key": TOKEN })),
        ("basic", json!({ "username": "somebody", "password": TOKEN })),
        ("token", json!({ "access_token": TOKEN })),
    ] {
        let bot = world.api.bot(name).await?;
        // The last resource has an upstream that does not exist.
        let url = if name == "token" { "http://127.0.0.1:1".to_owned() } else { world.github.url() };
        let resource = world.api.resource("test-echo", name, &url).await?;
        world.api.bind(&bot, &resource, &role, &json!({})).await?;
        let path = format!("/api/resources/{resource}/credential");
        let saved = ear.ask(Method::PUT, &path, Some(&json!({ "auth_method": name, "fields": fields }))).await?;
        ensure!(saved["status"] == "ready", "{saved}");
        for misplaced in [
            json!(TOKEN),
            json!({ "auth_method": TOKEN, "fields": {} }),
            json!({ "auth_method": name, "fields": { TOKEN: TOKEN } }),
            json!({ "auth_method": name, "fields": { "api_key": [TOKEN] } }),
            json!({ "auth_method": name, "fields": fields, "extra": TOKEN }),
        ] {
            ear.ask(Method::PUT, &path, Some(&misplaced)).await?;
        }
        ear.ask(Method::GET, &format!("/api/resources/{resource}"), None).await?;
        bots.push(bot);
    }
    Ok(bots)
}

/// Makes calls that send the secret, to an upstream that echoes it in every way.
async fn use_it(ear: &mut Ear<'_>, bot: &str) -> Result<()> {
    let github = &ear.world.github;
    for (number, (_, form)) in encodings(TOKEN).into_iter().enumerate() {
        let path = format!("/leak/{number}");
        let status = if number % 2 == 0 { 200 } else { 500 };
        let mut leak = Canned::new(status, form.clone());
        // Not every form is valid in a header.
        if form.iter().all(|byte| (b' '..=b'~').contains(byte)) {
            let text = String::from_utf8(form)?;
            leak = leak.header("X-Leak", &text).header("Location", &text).header("Set-Cookie", &text);
        }
        github.answer(&path, leak);
        ear.call(bot, "test_echo_fetch", &json!({ "path": path })).await?;
    }
    github.answer("/away", Canned::new(302, TOKEN).header("Location", &format!("/echo?token={TOKEN}")));
    for path in ["/echo", "/echo-headers", "/away", "/nowhere", "https://elsewhere.example/"] {
        ear.call(bot, "test_echo_fetch", &json!({ "path": path, "method": "POST", "body": "{}" })).await?;
        ear.call(bot, "test_echo_fetch", &json!({ "path": path, "authenticate": false })).await?;
    }
    ear.call(bot, "test_echo_flood", &json!({ "logs": 3, "statuses": 2, "requests": 2, "path": "/echo" })).await?;
    Ok(())
}

/// Makes calls that end in every other way. In some calls, the caller knows the secret and sends it in parameters that
/// are not meant for it.
async fn misuse_it(ear: &mut Ear<'_>, bot: &str) -> Result<()> {
    let github = &ear.world.github;
    github.answer("/repos/acme/leak", Canned::json(404, &json!({ "message": format!("no {TOKEN} here") })));
    github.answer("/repos/acme/odd", Canned::new(200, format!("not JSON: {TOKEN}")));
    for repo in ["acme/site", "acme/leak", "acme/odd", "acme/none"] {
        ear.call(bot, "github_get_repo", &json!({ "repo": repo })).await?;
    }
    let issue = json!({ "repo": "acme/site", "title": "harmless" });
    ear.call(bot, "github_create_issue", &issue).await?;
    for mode in ["panic", "abort", "exit"] {
        ear.call(bot, "test_trap_run", &json!({ "mode": mode })).await?;
    }
    for mode in ["big", "deep", "invalid", "error", "scope_violation"] {
        ear.call(bot, "test_result_run", &json!({ "mode": mode })).await?;
    }
    ear.call(bot, "test_loop_run", &json!({})).await?;
    for params in [
        json!({ "repo": TOKEN }),
        json!({ "any": { TOKEN: [TOKEN] } }),
        json!({ "repo": { TOKEN: TOKEN } }),
        json!({ "labels": TOKEN }),
        json!({ TOKEN: 1 }),
        json!({ "any": TOKEN.repeat(1_000) }),
    ] {
        ear.call(bot, "test_echo_run", &params).await?;
        ear.call(bot, "test_echo_mismatch", &params).await?;
    }
    ear.call(bot, "github_get_repo", &json!({ "repo": format!("acme/{TOKEN}") })).await?;
    ear.call(bot, "github_create_issue", &json!({ "repo": "acme/site", "title": TOKEN })).await?;
    ear.call(bot, "test_echo_fetch", &json!({ "path": format!("/{TOKEN}") })).await?;
    ear.call(bot, "test_echo_fetch", &json!({ "path": "/echo", "headers": { "X-A": TOKEN } })).await?;
    ear.call(bot, "test_result_run", &json!({ "mode": TOKEN })).await?;
    let call = format!("/api/bots/{bot}/tools/test_echo_run/call");
    ear.ask(Method::POST, &call, Some(&json!({ "params": {}, "task_id": TOKEN }))).await?;
    constrain_it(ear, bot).await
}

/// Makes calls that are rejected by scope with a message that contains the value.
async fn constrain_it(ear: &mut Ear<'_>, bot: &str) -> Result<()> {
    let bindings = ear.ask(Method::GET, &format!("/api/bots/{bot}/resources"), None).await?;
    for binding in bindings["items"].as_array().context("the list has no items")? {
        let path = format!("/api/bots/{bot}/resources/{}", text(&binding["id"]));
        ear.ask(Method::PATCH, &path, Some(&json!({ "scope_constraints": { "repos": ["acme/*"] } }))).await?;
    }
    let refused = ear.call(bot, "test_echo_run", &json!({ "repo": TOKEN })).await?;
    ensure!(refused["status"] == "scope_violation", "{refused}");
    Ok(())
}

/// Calls a plugin that searches its own memory for the secret.
async fn search_for_it(ear: &mut Ear<'_>, bot: &str) -> Result<()> {
    let patterns: Vec<String> = encodings(TOKEN).iter().map(|(_, form)| pattern(form)).collect();
    let target = format!("{}/collect", ear.world.github.url().replace("127.0.0.1", "127.0.0.2"));
    let answer = ear.call(bot, "test_steal_run", &json!({ "target": target, "patterns": patterns })).await?;
    let hits = answer["data"]["memory"]["hits"]
        .as_array()
        .with_context(|| format!("the answer contains no search results: {answer}"))?;
    ensure!(
        hits.len() == patterns.len() && hits.iter().all(|hits| hits == 0),
        "the plugin found the secret in its memory: {hits:?}"
    );
    Ok(())
}

/// Reads everything that the API returns.
async fn read_everything(ear: &mut Ear<'_>, bots: &[String]) -> Result<()> {
    for path in [
        "/api/audit?limit=1000",
        "/api/audit/export",
        "/api/audit/export?format=ocsf",
        "/api/audit/verify",
        "/api/bots",
        "/api/export",
        "/api/keys",
        "/api/openapi.json",
        "/api/plugins",
        "/api/resource-types",
        "/api/resources",
        "/api/roles",
        "/api/workspaces",
        "/docs",
        "/healthz",
        "/metrics",
        "/readyz",
    ] {
        ear.ask(Method::GET, path, None).await?;
    }
    let role = json!({
        "kind": "role", "name": "imported", "allowed_operations": null, "allowed_tools": null, "scope_constraints": {},
        "gates": [],
    });
    ear.ask(Method::POST, "/api/import?dry_run", Some(&role)).await?;
    for bot in bots {
        for path in ["", "/resources", "/tools", "/tools?format=openai"] {
            ear.ask(Method::GET, &format!("/api/bots/{bot}{path}"), None).await?;
        }
    }
    for plugin in CALLS {
        ear.ask(Method::POST, &format!("/api/plugins/{plugin}/reload"), None).await?;
        ear.ask(Method::GET, &format!("/api/resource-types/{plugin}"), None).await?;
    }
    Ok(())
}
