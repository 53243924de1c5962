//! Data folders of earlier revisions: a server of today opens them, serves by what is in them, and finds their audit whole.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use support::{Api, Server};

use crate::cli::{parsed, run};
use crate::world::text;

/// What a test needs to know of a fixture and cannot read in it.
#[derive(Deserialize)]
struct Facts {
    audit_rows: u64,
    bot: String,
    keys: Keys,
}

/// The texts of keys, of which a database has hashes only.
#[derive(Deserialize)]
struct Keys {
    admin: String,
    operator: String,
    /// The admin of the second workspace.
    second: String,
    bot: String,
}

/// A server on the fixture, and what an operator of that revision does before its first start.
async fn prepared() -> Result<Server> {
    let server = Server::prepare_on_fixture("7ca6635")?;
    // Its rows are not authenticated, and a start never authenticates rows on its own.
    let refused = run(&server, &["serve", "--listen", "127.0.0.1:0"]).await?;
    let told = String::from_utf8(refused.stderr)?;
    ensure!(refused.status.code() == Some(1) && told.contains("monstrum vault seal"), "{told}");
    let sealed = run(&server, &["vault", "seal", "--yes"]).await?;
    ensure!(sealed.status.success(), "{}", String::from_utf8_lossy(&sealed.stderr));
    Ok(server)
}

async fn items(api: &Api, path: &str, member: &str) -> Result<Vec<String>> {
    let (status, list) = api.get(path).await?;
    ensure!(status == 200, "GET {path} answered {status}: {list}");
    let items = list["items"].as_array().with_context(|| format!("{path} is a list: {list}"))?;
    let mut found: Vec<String> = items.iter().map(|item| text(&item[member]).to_owned()).collect();
    found.sort();
    Ok(found)
}

#[tokio::test]
async fn a_data_folder_of_7ca6635_opens_with_all_that_is_in_it() -> Result<()> {
    let facts: Facts = serde_json::from_str(include_str!("fixtures/7ca6635/facts.json"))?;
    let mut server = prepared().await?;
    server.launch().await?;
    let root = server.api()?;

    for (path, member, expected) in [
        ("/api/workspaces", "name", &["default", "second"][..]),
        ("/api/keys", "name", &["admin", "the admin", "the operator", "triage's own"]),
        ("/api/roles", "name", &["leader", "reader", "writer"]),
        ("/api/bots", "name", &["lead", "triage"]),
        ("/api/resources", "name", &["a spare tracker", "our tracker", "the helper"]),
        ("/api/oauth/providers", "client_id", &["fixture"]),
        ("/api/trust", "name_glob", &["track*"]),
        ("/api/plugins", "name", &["tracker"]),
        ("/api/sandboxes", "chat_id", &["42"]),
    ] {
        assert_eq!(items(&root, path, member).await?, expected, "{path}");
    }
    let (_, resources) = root.get("/api/resources").await?;
    for resource in resources["items"].as_array().context("a list")? {
        let expected = if resource["resource_type"] == "bot" { Value::Null } else { json!("ready") };
        assert_eq!(resource["credential"]["status"], expected, "{resource}");
    }

    keys_are_known(&root, &facts).await?;
    calls_are_judged_as_before(&root, &facts).await?;

    let report = root.verify_audit().await?;
    assert_eq!(report["valid"], true, "{report}");
    assert!(report["rows"].as_u64() > Some(facts.audit_rows), "{report}");
    server.stop().await?;

    // It opens every record that is sealed.
    let rotated = run(&server, &["vault", "rotate"]).await?;
    ensure!(rotated.status.success(), "{}", String::from_utf8_lossy(&rotated.stderr));
    let folder = server.data_dir();
    let folder = folder.to_str().context("a temporary folder has a plain name")?;
    let (code, report) = parsed(&server, &["audit", "verify", "--data-dir", folder]).await?;
    assert_eq!((code, &report["valid"]), (Some(0), &json!(true)), "{report}");
    Ok(())
}

async fn keys_are_known(root: &Api, facts: &Facts) -> Result<()> {
    let keys = &facts.keys;
    for (key, bots) in
        [(&keys.admin, &["lead", "triage"][..]), (&keys.operator, &["lead", "triage"]), (&keys.second, &["far"])]
    {
        assert_eq!(items(&root.with_key(key), "/api/bots", "name").await?, bots);
    }
    let (status, _) = root.with_key(&facts.keys.bot).get("/api/bots").await?;
    assert_eq!(status, 403, "a key of a bot lists no bots");
    Ok(())
}

async fn calls_are_judged_as_before(root: &Api, facts: &Facts) -> Result<()> {
    let bot = root.with_key(&facts.keys.bot);
    let tools = items(&bot, &format!("/api/bots/{}/tools", facts.bot), "name").await?;
    assert_eq!(tools, ["sandbox_shell", "tracker_get_item", "tracker_set_item"]);
    for (tool, repo, expected) in [
        ("tracker_get_item", "acme/site", "success"),
        ("tracker_set_item", "acme/site", "success"),
        ("tracker_get_item", "acme/other", "scope_violation"),
        ("tracker_delete_item", "acme/site", "permission_denied"),
    ] {
        let answer = bot.call(&facts.bot, tool, &json!({ "repo": repo })).await?;
        assert_eq!(answer["status"], expected, "{answer}");
    }
    let (_, usage) = root.get(&format!("/api/bots/{}/usage", facts.bot)).await?;
    let months = usage["items"].as_array().context("a list")?;
    let spent: u64 = months.iter().filter_map(|month| month["tokens"].as_u64()).sum();
    assert_eq!(spent, 20, "once in the fixture, once here: {usage}");
    Ok(())
}
