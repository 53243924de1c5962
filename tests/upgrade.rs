//! Data folders of earlier revisions: the current server opens them, serves with their data, and verifies their audit.

use std::fs;

use anyhow::{Context, Result, ensure};
use regex::Regex;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use support::{Api, Server};

use crate::cli::{parsed, run};
use crate::tamper::sqlite;
use crate::world::text;

/// The facts about a fixture that a test needs and cannot read from the fixture.
#[derive(Deserialize)]
struct Facts {
    audit_rows: u64,
    bot: String,
    keys: Keys,
}

/// The texts of keys. A database contains only their hashes.
#[derive(Deserialize)]
struct Keys {
    admin: String,
    operator: String,
    /// The admin key of the second workspace.
    second: String,
    bot: String,
}

/// Prepares a server on the fixture. Takes the steps that an operator of that revision must take before the first
/// start.
async fn prepared() -> Result<Server> {
    let server = Server::prepare_on_fixture("7ca6635")?;
    sealed(&server).await?;
    Ok(server)
}

async fn sealed(server: &Server) -> Result<()> {
    // The rows of the fixture are not authenticated, and a start never authenticates rows automatically.
    let refused = run(server, &["serve", "--listen", "127.0.0.1:0"]).await?;
    let told = String::from_utf8(refused.stderr)?;
    ensure!(refused.status.code() == Some(1) && told.contains("monstrum vault seal"), "{told}");
    let sealed = run(server, &["vault", "seal", "--yes"]).await?;
    ensure!(sealed.status.success(), "{}", String::from_utf8_lossy(&sealed.stderr));
    Ok(())
}

async fn items(api: &Api, path: &str, member: &str) -> Result<Vec<String>> {
    let (status, list) = api.get(path).await?;
    ensure!(status == 200, "GET {path} answered {status}: {list}");
    let items = list["items"].as_array().with_context(|| format!("{path} did not return a list: {list}"))?;
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

    // A rotation opens every sealed record.
    let rotated = run(&server, &["vault", "rotate"]).await?;
    ensure!(rotated.status.success(), "{}", String::from_utf8_lossy(&rotated.stderr));
    let folder = server.data_dir();
    let folder = folder.to_str().context("the name of the temporary folder is not UTF-8")?;
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
    assert_eq!(status, 403, "the key of a bot can list bots");
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
    assert_eq!(spent, 20, "the usage must be two calls, one in the fixture and one in this test: {usage}");
    Ok(())
}

/// Changes the manifest of `tracker` in its folder: another version, and a pattern that exceeds the current limit.
fn manifest_over_the_limits(server: &Server, version: &str) -> Result<String> {
    let file = server.plugins_dir().join("tracker/monstrum.yaml");
    let before = fs::read_to_string(&file)?;
    let version = format!("version: {version}\n");
    let text = Regex::new(r"version: [0-9.]+\n")?.replace(&before, version);
    let text = Regex::new(r"id: \{ type: string.*\}\n")?
        .replace(&text, r#"id: { type: string, maxLength: 100000, pattern: "^[0-9a-z]{1,1000}$" }"#.to_owned() + "\n");
    fs::write(file, &*text)?;
    Ok(text.into_owned())
}

#[tokio::test]
async fn a_version_from_before_the_limits_of_schemas_serves_on() -> Result<()> {
    let facts: Facts = serde_json::from_str(include_str!("fixtures/7ca6635/facts.json"))?;
    let mut server = Server::prepare_on_fixture("7ca6635")?;
    let manifest = manifest_over_the_limits(&server, "1.2.0")?;
    let digest = format!("sha256:{}", hex::encode(Sha256::digest(&manifest)));
    let insert = format!(
        "insert into plugin_versions select plugin, '1.2.0', '{digest}', component_digest, '{}', component, locales, \
         created_at + 1 from plugin_versions where plugin = 'tracker' and version = '1.1.0'",
        manifest.replace('\'', "''")
    );
    let serve = format!("update plugins set version = '1.2.0', manifest_digest = '{digest}' where name = 'tracker'");
    sqlite(&server.data_dir(), &[&insert, &serve]).await?;
    sealed(&server).await?;

    server.launch().await?;
    let (_, plugin) = server.api()?.get("/api/plugins/tracker").await?;
    assert_eq!((&plugin["status"], &plugin["version"]), (&json!("loaded"), &json!("1.2.0")), "{plugin}");
    let warnings = plugin["warnings"].to_string();
    for excess in ["id/pattern`: the pattern has more than 10240 bytes", "id/maxLength`: next to a `pattern`"] {
        assert!(
            warnings.contains("exceeds a limit for new versions: input_schema of tool `tracker_get_item`, at"),
            "{plugin}"
        );
        assert!(warnings.contains(excess), "{plugin}");
    }
    serves(&server, &facts).await?;
    server.stop().await?;
    let (_, report) = parsed(&server, &["doctor"]).await?;
    let findings = report["findings"].as_array().context("a list")?;
    let finding = findings.iter().find(|finding| finding["about"] == "plugin tracker").context("a finding")?;
    assert_eq!(finding["severity"], "weak", "{finding}");
    assert!(
        text(&finding["what"])
            .starts_with("version 1.2.0 is in force, but a new version with these properties would be rejected: ")
    );

    // The next version must respect the limits. Until then, the stored version stays in force.
    manifest_over_the_limits(&server, "1.3.0")?;
    server.launch().await?;
    let (_, plugin) = server.api()?.get("/api/plugins/tracker").await?;
    assert_eq!((&plugin["status"], &plugin["version"]), (&json!("failed"), &json!("1.2.0")), "{plugin}");
    assert!(text(&plugin["error"]).contains("the pattern has more than 10240 bytes after compilation"), "{plugin}");
    serves(&server, &facts).await
}

/// Checks that a call of the plugin's tool succeeds, and that an error names a parameter that its pattern rejects.
async fn serves(server: &Server, facts: &Facts) -> Result<()> {
    let bot = server.api()?.with_key(&facts.keys.bot);
    for (id, expected) in [("abc", "success"), ("ABC", "error")] {
        let params = json!({ "repo": "acme/site", "id": id });
        let answer = bot.call(&facts.bot, "tracker_get_item", &params).await?;
        assert_eq!(answer["status"], expected, "{answer}");
    }
    Ok(())
}
