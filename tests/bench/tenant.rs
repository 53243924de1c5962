//! A hostile tenant: the most expensive patterns that can be saved, values that match no pattern, and changes of the
//! rules.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::Api;

use crate::scene::{self, Bot, NO_UPSTREAM, PLUGIN, TOOL};

/// The maximum number of patterns in a list, and the maximum size of a value in bytes.
const PATTERNS: usize = 200;
const VALUE_BYTES: usize = 4096;
/// The number of patterns in the lists that are changed. Both lists together fit into the limit of a workspace.
const CHANGED_PATTERNS: usize = 20;
/// The number of connections for each kind of request.
const CALLS: usize = 8;
const CHECKS: usize = 8;
const CHANGES: usize = 2;

/// Returns the requests of the tenant's connections.
pub async fn requests(root: &Api) -> Result<Vec<Vec<u8>>> {
    let api = workspace(root, "hostile").await?;
    let patterns: Vec<String> = (0..PATTERNS).map(pattern).collect();
    let grant = scene::Grant { plugin: PLUGIN, operations: &["*"], scope: json!({ "repos": patterns }) };
    let bot = scene::bot(&api, "hostile", NO_UPSTREAM, &[grant]).await?;
    let changed = &patterns[..CHANGED_PATTERNS];
    let role =
        made(&api, "/api/roles", &json!({ "name": "hostile", "scope_constraints": { "repos": changed } })).await?;
    let role = role["id"].as_str().context("the answer has no role id")?.to_owned();
    let mut requests = Vec::new();
    for _ in 0..CALLS {
        requests.push(call(&bot)?);
    }
    for _ in 0..CHECKS {
        requests.push(check(&api, &bot)?);
    }
    for number in 0..CHANGES {
        let lists = json!({ "scope_constraints": { "repos": changed[number..] } });
        requests.push(scene::text("PATCH", &format!("/api/roles/{role}"), api.key(), &lists)?);
    }
    Ok(requests)
}

/// Creates a pattern of a thousand sets. The matcher must search the whole value for these sets.
fn pattern(number: usize) -> String {
    let letter = |at: usize| char::from(b'a' + u8::try_from(at % 26).unwrap_or_default());
    format!("*{}*", format!("[{}{}]", letter(number), letter(number / 26)).repeat(1_000))
}

fn call(bot: &Bot) -> Result<Vec<u8>> {
    scene::call(bot, TOOL, &params())
}

fn check(api: &Api, bot: &Bot) -> Result<Vec<u8>> {
    scene::text("POST", &format!("/api/bots/{}/tools/{TOOL}/check", bot.id), api.key(), &json!({ "params": params() }))
}

fn params() -> Value {
    json!({ "repo": "0".repeat(VALUE_BYTES) })
}

/// Creates a workspace and returns the API of its admin.
async fn workspace(root: &Api, name: &str) -> Result<Api> {
    made(root, "/api/workspaces", &json!({ "name": name })).await?;
    let request = root.request(reqwest::Method::POST, "/api/keys").header("Monstrum-Workspace", name);
    let key: Value = request.json(&json!({ "name": "admin", "kind": "admin" })).send().await?.json().await?;
    Ok(root.with_key(key["key"].as_str().with_context(|| format!("the answer has no key: {key}"))?))
}

async fn made(api: &Api, path: &str, body: &Value) -> Result<Value> {
    let (status, made) = api.post(path, body).await?;
    ensure!(status == 201, "POST {path}: {status} {made}");
    Ok(made)
}
