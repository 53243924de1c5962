//! `monstrum key`.

use anyhow::Result;
use insta::{assert_json_snapshot, assert_snapshot};
use serde_json::json;
use support::Server;

use crate::cli::{json, run, told};
use crate::http::workspace;

#[tokio::test]
async fn a_key_is_made_and_only_it_goes_to_standard_output() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let bot = api.bot("triage").await?;
    assert_snapshot!(told(&server, &["key", "create", "--name", "ci", "--kind", "operator"]).await?, @"");
    let output = run(&server, &["key", "create", "--name", "t", "--kind", "bot", "--bot-id", &bot]).await?;
    let key = String::from_utf8(output.stdout)?;
    assert_eq!(api.with_key(key.trim()).get(&format!("/api/bots/{bot}/tools")).await?, (200, json!({ "items": [] })));
    let (code, mut made) = json(&server, &["key", "create", "--name", "backup", "--kind", "admin"]).await?;
    assert_eq!(code, Some(0));
    let key = made["key"].take();
    assert_eq!(api.with_key(key.as_str().unwrap_or_default()).get("/api/keys").await?.0, 200);
    made["prefix"].take();
    assert_json_snapshot!(crate::stable::stable(&made), @"");

    workspace(&api, "acme").await?;
    let arguments = ["key", "create", "--name", "there", "--kind", "admin", "--workspace", "acme", "--json"];
    let made: serde_json::Value = serde_json::from_slice(&run(&server, &arguments).await?.stdout)?;
    let there = api.with_key(made["key"].as_str().unwrap_or_default());
    assert_eq!(there.get("/api/keys").await?.1["items"].as_array().map(Vec::len), Some(2), "it is a key of that workspace");
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_a_key_is_explained() -> Result<()> {
    let server = Server::start(&[]).await?;
    let operator = server.api()?.new_key("operator", None).await?;
    let mut answers = Vec::new();
    for arguments in [
        &["--name", "x"][..],
        &["--name", "x", "--kind", "god"],
        &["--name", "x", "--kind", "bot"],
        &["--name", "", "--kind", "admin"],
        &["--name", "x", "--kind", "bot", "--bot-id", "triage"],
        &["--name", "x", "--kind", "admin", "--bot-id", "019a0000-0000-7000-8000-000000000001"],
        &["--name", "x", "--kind", "admin", "--key", &operator],
    ] {
        answers.push(told(&server, &[&["key", "create"], arguments].concat()).await?);
    }
    assert_snapshot!(answers.join("\n"), @"");
    Ok(())
}
