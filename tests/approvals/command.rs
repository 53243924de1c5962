//! `monstrum approval`.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{Gated, succeeded};

/// Runs the command with the key of the approver. Returns the exit code and both outputs.
async fn run(gated: &Gated, key: &str, arguments: &[&str]) -> Result<(Option<i32>, String, String)> {
    let arguments = [&["approval"], arguments, &["--key", key]].concat();
    let output = gated.world.server.command(&arguments).await?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
}

#[tokio::test]
async fn an_approver_decides_on_the_command_line() -> Result<()> {
    let gated = Gated::start().await?;
    gated.set_gates(&json!([{ "action": "ask", "approvers": ["approver"], "reason": "writes" }])).await?;
    let root = &gated.world.api;
    let created = gated.world.server.command(&["key", "create", "--name", "on-call", "--kind", "approver"]).await?;
    ensure!(created.status.success());
    let key = String::from_utf8(created.stdout)?.trim().to_owned();
    let id = gated.ask(&json!({ "repo": "acme/\u{202e}site" })).await?;

    let (code, listed, _) = run(&gated, &key, &["list"]).await?;
    ensure!(code == Some(0) && listed.contains(&id) && listed.contains("test_echo_run"), "{listed}");
    let (_, json, _) = run(&gated, &key, &["list", "--status", "all", "--json"]).await?;
    assert_eq!(serde_json::from_str::<Value>(&json)?["items"][0]["id"], id.as_str());
    let (_, shown, _) = run(&gated, &key, &["show", &id]).await?;
    ensure!(shown.contains("acme/\\\\u{202e}site") && shown.contains("bot: writes"), "{shown}");

    let (code, shown, error) = run(&gated, &key, &["approve", &id]).await?;
    ensure!(code == Some(1) && shown.contains(&id) && error.contains("--yes"), "{code:?} {error}");
    assert_eq!(gated.approval(&id).await?["status"], "pending");
    let (code, _, error) = run(&gated, &key, &["approve", &id, "--yes", "--note", "as agreed"]).await?;
    ensure!(code == Some(0), "{error}");
    let approval = gated.approval(&id).await?;
    assert_eq!((&approval["status"], &approval["note"]), (&json!("approved"), &json!("as agreed")));
    ensure!(succeeded(&gated.call(&json!({ "repo": "acme/\u{202e}site" })).await?));

    let id = gated.ask(&json!({})).await?;
    let (code, json, error) = run(&gated, &key, &["deny", &id, "--yes", "--json"]).await?;
    ensure!(code == Some(0), "{error}");
    assert_eq!(serde_json::from_str::<Value>(&json)?["status"], "denied");
    // The key does nothing else.
    assert_eq!(root.with_key(&key).get("/api/bots").await?.0, 403);
    Ok(())
}
