//! `monstrum doctor`: every weakness or fault of an installation, with its name and its remedy.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use monstrum_store::StoreOptions;
use serde_json::{Value, json};
use support::Server;

use crate::cli::{parsed, told};
use crate::sandbox::plant;
use crate::world::{World, text};

/// Returns the exit code of `doctor`, run with these additional flags, and its findings about the server.
async fn examined(server: &Server, flags: &[&str]) -> Result<(Option<i32>, Vec<Value>)> {
    let arguments = [&["doctor"], flags].concat();
    let (code, report) = parsed(server, &arguments).await?;
    let findings = report["findings"].as_array().context("the report has no findings")?.clone();
    assert_eq!(report["healthy"], json!(findings.is_empty()));
    assert_eq!(code, Some(i32::from(!findings.is_empty())), "{report}");
    Ok((code, findings))
}

/// Returns the only finding about `what`.
fn about<'a>(findings: &'a [Value], what: &str) -> Result<&'a Value> {
    let mut found = findings.iter().filter(|finding| text(&finding["about"]) == what);
    let finding = found.next().with_context(|| format!("no finding is about {what}: {findings:?}"))?;
    ensure!(found.next().is_none(), "more than one finding is about {what}: {findings:?}");
    ensure!(!text(&finding["remedy"]).is_empty(), "the finding has no remedy: {finding}");
    Ok(finding)
}

#[tokio::test]
async fn a_healthy_server_has_nothing_to_mend() -> Result<()> {
    let mut world = World::with(&["github"]).await?;
    world.grant_all("github").await?;
    assert_eq!(examined(&world.server, &[]).await?, (Some(0), vec![]));
    world.server.stop().await?;
    let database = world.server.data_dir().join("monstrum.db");
    let before = fs::read(&database)?;
    let told = told(&world.server, &["doctor"]).await?;
    assert!(told.starts_with("no findings in ") && told.ends_with("[exit 0]"), "{told}");
    assert_eq!(fs::read(&database)?, before, "`doctor` changed the data folder");
    Ok(())
}

#[tokio::test]
async fn weak_settings_and_open_files_are_named() -> Result<()> {
    let server = Server::start(&[]).await?;
    let flags = [
        "--listen=0.0.0.0:8080",
        "--public-docs",
        "--public-url=http://monstrum.example",
        "--otlp-endpoint=http://collector.example:4318",
    ];
    fs::set_permissions(server.key_file(), Permissions::from_mode(0o644))?;
    let (_, findings) = examined(&server, &flags).await?;
    for what in ["listen", "public_docs", "otlp_endpoint", &server.key_file().display().to_string()] {
        assert_eq!(about(&findings, what)?["severity"], "weak");
    }
    assert_eq!(findings.len(), 4, "{findings:?}");
    let flags =
        ["--public-url=https://monstrum.example", "--listen=0.0.0.0:8080", "--otlp-endpoint=http://localhost:4318/"];
    let (_, findings) = examined(&server, &flags).await?;
    assert_eq!(findings.len(), 1, "a proxy with TLS is enough: {findings:?}");
    Ok(())
}

#[tokio::test]
async fn plugins_and_credentials_that_fail_are_named() -> Result<()> {
    let server = Server::prepare(&["github", "test-echo", "test-wrong-world"])?.argument("--watch-plugins=false");
    let world = World::on(server).await?;
    let bound = world.grant_all("github").await?;
    world.grant_all("test-echo").await?;
    let manifest = world.server.plugins_dir().join("github/monstrum.yaml");
    let grown = fs::read_to_string(&manifest)?
        .replace("capabilities: [http]", "capabilities: [http]\n  egress: [\"https://evil.example\"]");
    fs::write(&manifest, grown)?;
    fs::remove_file(world.server.plugins_dir().join("test-echo/plugin.wasm"))?;
    let path = format!("/api/resources/{}", bound.resource);
    let elsewhere = json!({"config": {"api_base": "https://other.example"}});
    ensure!(world.api.patch(&path, &elsewhere).await?.0 == 200);

    let (_, findings) = examined(&world.server, &[]).await?;
    let grown = about(&findings, "plugin github")?;
    assert_eq!(grown["severity"], "weak");
    assert!(text(&grown["what"]).contains("https://evil.example"), "{grown}");
    assert!(text(&grown["remedy"]).contains("monstrum plugin approve github --digest sha256:"), "{grown}");
    for (plugin, why) in [("test-wrong-world", "a different WIT world"), ("test-echo", "plugin.wasm does not exist")] {
        let failed = about(&findings, &format!("plugin {plugin}"))?;
        assert!(failed["severity"] == "broken" && text(&failed["what"]).contains(why), "{failed}");
    }
    let moved = about(&findings, &format!("resource github-of-{}", world.bot))?;
    assert!(text(&moved["what"]).contains("needs authorization"), "{moved}");

    // `doctor` has not put any of the changes in force.
    let (_, entry) = world.api.get("/api/plugins/github").await?;
    assert_eq!(entry["status"], "loaded", "{entry}");
    Ok(())
}

#[tokio::test]
async fn a_database_out_of_reach_and_a_wrong_key_are_named() -> Result<()> {
    let mut server = Server::start(&[]).await?;
    server.stop().await?;
    let (_, findings) = examined(&server, &["--database-url=postgres://nobody@127.0.0.1:1/none"]).await?;
    assert_eq!(about(&findings, "database")?["severity"], "broken");

    let key = server.data_dir().join("master.key");
    let right = fs::read(&key)?;
    let other = Server::start(&[]).await?;
    fs::write(&key, fs::read(other.data_dir().join("master.key"))?)?;
    let (_, findings) = examined(&server, &[]).await?;
    assert_eq!(about(&findings, "master key")?["severity"], "broken");
    fs::remove_file(&key)?;
    let (_, findings) = examined(&server, &[]).await?;
    assert!(text(&about(&findings, "master key")?["what"]).contains("is missing"), "{findings:?}");
    fs::write(&key, right)?;
    fs::set_permissions(&key, Permissions::from_mode(0o600))?;
    assert_eq!(examined(&server, &[]).await?.0, Some(0));

    let nowhere = server.home().join("nowhere").display().to_string();
    let (code, report) = parsed(&server, &["doctor", "--data-dir", &nowhere]).await?;
    assert_eq!(code, Some(1));
    assert!(text(&report["findings"][0]["remedy"]).contains("monstrum serve"), "{report}");
    assert!(!std::path::Path::new(&nowhere).exists(), "`doctor` created the data folder");
    Ok(())
}

#[tokio::test]
async fn a_workspace_that_keeps_as_many_sandboxes_as_it_may_is_named() -> Result<()> {
    let mut server = Server::start(&[]).await?;
    let api = server.api()?;
    let bot = api.bot("keeper").await?;
    let (_, workspaces) = api.get("/api/workspaces").await?;
    let workspace = text(&workspaces["items"][0]["id"]).to_owned();
    server.stop().await?;
    for chat in ["1", "2"] {
        let store = StoreOptions::sqlite(server.data_dir().join("monstrum.db"));
        plant(store, server.data_dir(), &workspace, &bot, "app", chat).await?;
    }
    assert_eq!(examined(&server, &["--sandbox-kept-max=3"]).await?.0, Some(0));
    let (_, findings) = examined(&server, &["--sandbox-kept-max=2"]).await?;
    let finding = about(&findings, "workspace default")?;
    assert_eq!(finding["severity"], "weak");
    assert!(
        text(&finding["what"]).starts_with(
            "no new sandboxes can be created: this workspace has reached a sandbox limit: it keeps 2 of 2"
        ),
        "{finding}"
    );
    assert_eq!(findings.len(), 1, "{findings:?}");
    Ok(())
}

/// A key that was trusted before types had owners is trusted for every type, like a key that is explicitly trusted for
/// every type.
#[tokio::test]
async fn a_key_that_is_trusted_for_every_type_is_named() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let mut ids = Vec::new();
    for (name, types) in [("acme-*", "*"), ("github", "github")] {
        let key = monstrum_package::SigningKey::generate()?.public().to_string();
        let body = json!({ "public_key": key, "name_glob": name, "type_glob": types });
        let (status, row) = api.post("/api/trust", &body).await?;
        ensure!(status == 201, "{row}");
        ids.push(text(&row["id"]).to_owned());
    }
    let (_, findings) = examined(&server, &[]).await?;
    let finding = about(&findings, &format!("trust {}", ids[0]))?;
    assert_eq!(finding["severity"], "weak");
    assert!(
        text(&finding["what"]).ends_with("may sign plugins that match `acme-*` for any resource type"),
        "{finding}"
    );
    let remedy = text(&finding["remedy"]);
    assert!(remedy.contains(&format!("monstrum trust remove {}", ids[0])) && remedy.contains("--type"), "{remedy}");
    assert_eq!(findings.len(), 1, "{findings:?}");
    Ok(())
}
