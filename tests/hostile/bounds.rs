//! Rules and parameters written by a tenant. Their size is limited before they are matched, and expensive matches run
//! outside of the threads that serve all tenants.

use anyhow::{Context, Result, ensure};
use futures::future::join_all;
use serde_json::{Value, json};
use support::{Api, Server};

use crate::http::workspace;
use crate::world::{World, text};

/// Maximum length of a compared value in bytes, which is also the maximum length of a pattern.
const VALUE_BYTES_MAX: usize = 4096;
const LIST_PATTERNS_MAX: usize = 200;

/// Returns a glob of about 4 KiB that compares every character of a value with hundreds of sets.
fn heavy(number: usize) -> String {
    let (first, second) = (char::from(b'a' + (number % 26) as u8), char::from(b'a' + (number / 26) as u8));
    format!("*{}*", format!("[{first}{second}]").repeat(1_000))
}

/// Returns a value that matches none of the heavy globs.
fn unmatched() -> String {
    "0".repeat(VALUE_BYTES_MAX)
}

/// Creates a bot in the workspace. Its use of GitHub is constrained by as many heavy patterns as a list may contain.
async fn constrained(world: &World, api: &Api, name: &str) -> Result<String> {
    let bot = api.bot(name).await?;
    let patterns: Vec<String> = (0..LIST_PATTERNS_MAX).map(heavy).collect();
    let upstream = (world.github.url(), world.github.token());
    let upstream = (upstream.0.as_str(), upstream.1.as_str());
    api.grant(&bot, "github", upstream, &["*"], &json!({ "repos": patterns })).await?;
    Ok(bot)
}

#[tokio::test]
async fn a_value_over_the_limit_is_refused_whatever_the_patterns() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let bot = constrained(&world, &world.api, "constrained").await?;
    let params = json!({ "repo": "x".repeat(900_000) });
    let message = "Scope violation: repos has a value of 900000 bytes; at most 4096 bytes are compared with the patterns \
                   of a scope";
    let checked = world.api.check(&bot, "github_get_repo", &params).await?;
    assert_eq!(checked["decision"], "deny");
    assert_eq!(checked["message"], message);
    let called = world.api.call(&bot, "github_get_repo", &params).await?;
    assert_eq!([&called["status"], &called["code"], &called["message"]], ["scope_violation", "scope", message]);
    let audit = world.audit_of(&called).await?;
    assert_eq!(audit["rule"], "scope.repos", "{audit}");
    Ok(())
}

#[tokio::test]
async fn a_lone_star_matches_any_length() -> Result<()> {
    let world = World::with(&["github"]).await?;
    world.grant("github", &["*"], &json!({ "repos": ["*"] })).await?;
    let checked = world.check("github_get_repo", &json!({ "repo": "x".repeat(100_000) })).await?;
    assert_eq!(checked["decision"], "allow", "{checked}");
    Ok(())
}

/// Sends checks and calls that match heavy patterns, as fast as possible, until the future is dropped.
async fn hammer(api: &Api, bot: &str) -> Result<()> {
    let params = json!({ "repo": unmatched() });
    loop {
        let checks = join_all((0..8).map(|_| api.check(bot, "github_get_repo", &params)));
        let calls = join_all((0..8).map(|_| api.call(bot, "github_get_repo", &params)));
        let (_checked, called) = tokio::join!(checks, calls);
        for answer in called {
            let answer = answer?;
            ensure!(answer["status"] != "success", "{answer}");
        }
    }
}

#[tokio::test]
async fn heavy_patterns_of_one_workspace_hold_up_no_other() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let (hostile, calm) = (workspace(&world.api, "hostile").await?, workspace(&world.api, "calm").await?);
    let attacker = constrained(&world, &hostile, "attacker").await?;
    let victim = calm.bot("victim").await?;
    let upstream = (world.github.url(), world.github.token());
    calm.grant(&victim, "github", (&upstream.0, &upstream.1), &["*"], &json!({ "repos": ["acme/*"] })).await?;
    let calm_calls = async {
        for _ in 0..20 {
            let answer = calm.call(&victim, "github_get_repo", &json!({ "repo": "acme/site" })).await?;
            ensure!(answer["status"] == "success", "{answer}");
            // Parameters that are too large to check on the serving thread are checked on other threads. These checks
            // take turns with the checks of the attacker's parameters.
            let large = json!({ "repo": "acme/site", "unknown": "x".repeat(50_000) });
            let answer = calm.call(&victim, "github_get_repo", &large).await?;
            ensure!(answer["code"] == "invalid_params", "{answer}");
            let (status, _) = world.api.get("/healthz").await?;
            ensure!(status == 200, "/healthz: {status}");
        }
        Ok(())
    };
    tokio::select! {
        ended = hammer(&hostile, &attacker) => ended.context("the calls of the attacker ended"),
        done = calm_calls => done,
    }
}

#[tokio::test]
async fn a_change_does_not_wait_for_the_patterns_of_another_workspace() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let hostile = workspace(&world.api, "hostile").await?;
    let attacker = constrained(&world, &hostile, "attacker").await?;
    let key = world.api.new_key("operator", None).await?;
    let changes = async {
        for number in 0..10 {
            world.api.bot(&format!("bot {number}")).await?;
        }
        // A deleted key is rejected immediately.
        let (status, keys) = world.api.get("/api/keys").await?;
        ensure!(status == 200, "{keys}");
        let operator = keys["items"].as_array().into_iter().flatten().find(|key| key["kind"] == "operator");
        let id = text(&operator.context("the key is not in the list")?["id"]).to_owned();
        let (status, _) = world.api.delete(&format!("/api/keys/{id}")).await?;
        ensure!(status == 204, "{status}");
        let (status, _) = world.api.with_key(&key).get("/api/bots").await?;
        ensure!(status == 401, "the deleted key was not rejected: {status}");
        Ok(())
    };
    tokio::select! {
        ended = hammer(&hostile, &attacker) => ended.context("the calls of the attacker ended"),
        done = changes => done,
    }
}

#[tokio::test]
async fn lists_and_patterns_have_limits() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let fault = async |body: &Value| -> Result<String> {
        let (status, problem) = world.api.post("/api/roles", body).await?;
        ensure!(status == 422, "{status} {problem}");
        Ok(text(&problem["errors"][0]["path"]).to_owned())
    };
    let many = vec!["x"; LIST_PATTERNS_MAX + 1];
    assert_eq!(fault(&json!({ "name": "r", "allowed_tools": many })).await?, "/allowed_tools");
    assert_eq!(fault(&json!({ "name": "r", "scope_constraints": { "a/b": many } })).await?, "/scope_constraints/a~1b");
    let long = ["x".to_owned(), "x".repeat(VALUE_BYTES_MAX + 1)];
    assert_eq!(fault(&json!({ "name": "r", "allowed_operations": long })).await?, "/allowed_operations/1");
    let (status, _) = world.api.post("/api/roles", &json!({ "name": "r", "allowed_tools": vec!["x"; 200] })).await?;
    assert_eq!(status, 201);
    Ok(())
}

#[tokio::test]
async fn scopes_have_a_limit_of_keys() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let keys = |number: usize| (0..number).map(|key| (format!("{key}"), json!([]))).collect::<serde_json::Map<_, _>>();
    let role = |number: usize| json!({ "name": "r", "allowed_tools": ["*"], "scope_constraints": keys(number) });
    let (status, problem) = world.api.post("/api/roles", &role(201)).await?;
    assert_eq!((status, text(&problem["errors"][0]["path"])), (422, "/scope_constraints"));
    assert_eq!(text(&problem["errors"][0]["message"]), "the object has 201 scope dimensions; at most 200 are allowed");
    let (status, saved) = world.api.post("/api/roles", &role(200)).await?;
    assert_eq!(status, 201, "{saved}");
    let path = format!("/api/roles/{}", text(&saved["id"]));
    let (status, _) = world.api.patch(&path, &json!({ "scope_constraints": keys(201) })).await?;
    assert_eq!(status, 422);
    let bound = world.grant_all("github").await?;
    let path = format!("/api/bots/{}/resources/{}", world.bot, bound.binding);
    for (change, at) in [
        (json!({ "scope_constraints": keys(201) }), "/scope_constraints"),
        (json!({ "delegate": { "scope_constraints": keys(201) } }), "/delegate/scope_constraints"),
    ] {
        let (status, problem) = world.api.patch(&path, &change).await?;
        assert_eq!((status, text(&problem["errors"][0]["path"])), (422, at));
    }
    Ok(())
}

#[tokio::test]
async fn the_compiled_patterns_of_a_workspace_have_a_limit() -> Result<()> {
    let server = Server::prepare(&["github"])?.argument("--workspace-patterns-mib=1");
    let world = World::on(server).await?;
    // The pattern needs a table of 2 001 classes with 16 words each.
    let sets = |from: u32| -> String {
        let one = |at: u32| char::from_u32(from + at).map(|one| format!("[{one}x]")).unwrap_or_default();
        format!("*{}*", (0..680).map(one).collect::<String>())
    };
    let role = |name: &str, patterns: Vec<String>| json!({ "name": name, "allowed_tools": patterns });
    let (status, body) = world.api.post("/api/roles", &role("small", vec![sets(0x4e00)])).await?;
    assert_eq!(status, 201, "{body}");
    let id = text(&body["id"]).to_owned();
    let large: Vec<String> = (0..5).map(|number| sets(0x4e00 + number)).collect();
    let (status, problem) = world.api.post("/api/roles", &role("large", large.clone())).await?;
    assert_eq!(status, 422, "{problem}");
    let detail = text(&problem["detail"]);
    assert!(
        detail.starts_with("the compiled patterns of this workspace would need up to ")
            && detail.contains("at most 1 MiB are allowed")
            && detail.ends_with("ask the operator to raise --workspace-patterns-mib"),
        "{detail}"
    );
    // When a change is checked against the limit, the patterns that it replaces do not count. Each workspace has its
    // own limit.
    let (status, problem) = world.api.patch(&format!("/api/roles/{id}"), &json!({ "allowed_tools": large })).await?;
    assert_eq!(status, 422, "{problem}");
    let (status, body) =
        world.api.patch(&format!("/api/roles/{id}"), &json!({ "allowed_tools": [sets(0x5000)] })).await?;
    assert_eq!(status, 200, "{body}");
    let other = workspace(&world.api, "other").await?;
    let (status, body) = other.post("/api/roles", &role("small", vec![sets(0x4e00)])).await?;
    assert_eq!(status, 201, "{body}");
    // Concurrent requests cannot exceed the limit together.
    let at_once = join_all((0..8).map(|number| {
        let (api, role) = (&other, role(&format!("{number}"), vec![sets(0x4e00)]));
        async move { api.post("/api/roles", &role).await }
    }));
    let made = at_once.await.into_iter().map(|answer| Ok(answer?.0)).collect::<Result<Vec<u16>>>()?;
    let (status, body) = other.get("/api/roles").await?;
    ensure!(status == 200, "{body}");
    let stored = body["items"].as_array().map_or(0, Vec::len);
    assert_eq!(stored, 1 + made.iter().filter(|status| **status == 201).count());
    assert!(made.contains(&422) && stored < 5, "{made:?}");
    Ok(())
}
