//! `monstrum workflow` with a server.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{definition, definition_with};
use crate::world::{World, text};

#[tokio::test]
async fn workflows_are_managed_by_name() -> Result<()> {
    let world = World::with(&[]).await?;
    let server = &world.server;
    let file = server.home().join("release.yaml");
    let path = file.to_str().unwrap_or_default();
    let run = async |arguments: &[&str]| -> Result<String> {
        let output = server.command(&[&["workflow"], arguments].concat()).await?;
        ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    let first = definition("release", "tester");
    std::fs::write(&file, &first)?;
    let id = run(&["apply", path]).await?.trim().to_owned();
    run(&["apply", path]).await?;
    std::fs::write(&file, definition_with("release", "tester", "{ id: run, tool: absent_tool }"))?;
    let applied = server.command(&["workflow", "apply", path, "--json"]).await?;
    let changed: Value = serde_json::from_slice(&applied.stdout)?;
    assert_eq!((text(&changed["id"]), &changed["version"]), (id.as_str(), &json!(2)), "the same text made no version");
    let warned = String::from_utf8(applied.stderr)?;
    assert!(warned.contains("release.yaml:4:") && warned.contains("absent_tool"), "{warned}");
    let listed = run(&["list", "--bot", "tester"]).await?;
    assert!(listed.contains("release") && listed.contains(&id), "{listed}");
    assert_eq!(run(&["show", "release", "--version", "1"]).await?, first, "the output can be applied again");
    assert!(run(&["show", &id]).await?.contains("absent_tool"));
    assert_eq!(run(&["versions", "release"]).await?.lines().count(), 3, "a header and two versions");
    run(&["disable", "release"]).await?;
    let shown: Value = serde_json::from_str(&run(&["show", "release", "--json"]).await?)?;
    assert_eq!(shown["enabled"], json!(false));
    run(&["enable", "release"]).await?;

    let trigger = run(&["trigger", "add", "release", "custom.*", "--from", "tester", "--from", "platform"]).await?;
    let listed: Value = serde_json::from_str(&run(&["trigger", "list", "release", "--json"]).await?)?;
    let item = &listed["items"][0];
    assert_eq!((text(&item["id"]), &item["from"]), (trigger.trim(), &json!([world.bot, "platform"])));
    run(&["trigger", "disable", "release", trigger.trim()]).await?;
    assert!(run(&["trigger", "list", "release"]).await?.contains("false"));
    run(&["trigger", "enable", "release", trigger.trim()]).await?;
    run(&["trigger", "delete", "release", trigger.trim()]).await?;
    run(&["delete", "release"]).await?;
    let left: Value = serde_json::from_str(&run(&["list", "--json"]).await?)?;
    assert_eq!(left["items"], json!([]));

    std::fs::write(&file, definition("release", "nobody"))?;
    let refused = server.command(&["workflow", "apply", path]).await?;
    let told = String::from_utf8(refused.stderr)?;
    assert!(!refused.status.success() && told.contains("release.yaml") && told.contains("nobody"), "{told}");
    Ok(())
}
