//! An attacker with write access to the database only. The attacker cannot make a tool serve that no admin has approved.

use anyhow::Result;
use monstrum_core::pins::Definitions;
use rstest::rstest;

use super::{Outside, tool};
use crate::tamper::sqlite;

/// Announces a change, so that the host reads the rows again.
const BELL: &str = "update settings set generation = generation + 1";

async fn attack(outside: &Outside, statements: &[&str]) -> Result<()> {
    let statements = [&["begin immediate"], statements, &[BELL, "commit"]].concat();
    sqlite(&outside.host.folders.data_dir(), &statements).await?;
    outside.host.running.app.policy.renew_if_behind().await?;
    Ok(())
}

#[rstest]
#[case::status(&["update resource_tools set status = 'approved', approved_digest = digest"])]
#[case::row(&[
    "insert into resource_tools select '01939d2c-7f6a-7000-8000-000000000001', workspace_id, resource_id, 'b', 'b', \
     'approved', reason, digest, definition, hint, effect, digest, rejected_digest, null, null, null, created_at, \
     updated_at, mac from resource_tools",
])]
#[tokio::test]
async fn a_row_that_was_approved_with_sql_serves_nothing(#[case] statements: &[&str]) -> Result<()> {
    let outside = Outside::start(Definitions::Review).await?;
    outside.declare(&[tool("a", "1")]).await?;
    attack(&outside, statements).await?;
    // The list is empty, or refused because the rows of the workspace do not match their seal.
    let (_, body) = outside.api.get(&format!("/api/bots/{}/tools", outside.bot)).await?;
    assert!(body["items"].as_array().is_none_or(Vec::is_empty), "{body}");
    assert!(!outside.host.running.app.policy.load().verification.refused.is_empty());
    outside.host.stop().await;
    Ok(())
}

#[rstest]
#[case::effect("update resource_tools set effect = 'read'")]
#[case::original_name("update resource_tools set original_name = 'drop'")]
#[case::slug("update resource_tools set slug = 'other'")]
#[case::definition("update resource_tools set definition = replace(definition, 'Reads', 'Writes')")]
#[case::digests(
    "update resource_tools set digest = 'sha256:' || printf('%064d', 0), approved_digest = 'sha256:' || printf('%064d', 0)"
)]
#[case::resource("update resource_tools set resource_id = (select id from resources where name = 'other')")]
#[tokio::test]
async fn an_approved_row_that_was_edited_serves_nothing(#[case] statement: &str) -> Result<()> {
    let outside = Outside::start(Definitions::First).await?;
    let other =
        serde_json::json!({ "resource_type": "mcp", "name": "other", "config": { "url": "https://b.example" } });
    crate::http::made(&outside.api, "/api/resources", &other).await?;
    outside.declare(&[tool("a", "Reads")]).await?;
    assert_eq!(outside.seen().await?, ["tracker__a mcp.write"]);
    attack(&outside, &[statement]).await?;
    let (_, body) = outside.api.get(&format!("/api/bots/{}/tools", outside.bot)).await?;
    assert!(body["items"].as_array().is_none_or(Vec::is_empty), "{body}");
    let path = format!("/api/bots/{}/tools/tracker__a/call", outside.bot);
    let (status, answer) = outside.api.post(&path, &serde_json::json!({})).await?;
    assert!(status != 200 || answer["status"] == "permission_denied", "{status} {answer}");
    outside.host.stop().await;
    Ok(())
}

/// An older row of a tool has a valid MAC, but the seal of the workspace does not count it.
#[tokio::test]
async fn a_restored_approval_serves_nothing() -> Result<()> {
    let outside = Outside::start(Definitions::First).await?;
    outside.declare(&[tool("a", "1")]).await?;
    sqlite(&outside.host.folders.data_dir(), &["create table kept as select * from resource_tools"]).await?;
    let (status, body) = outside.decide(&outside.api, "reject", &["a"], "write").await?;
    assert_eq!(status, 200, "{body}");
    attack(&outside, &["delete from resource_tools", "insert into resource_tools select * from kept"]).await?;
    let (status, body) = outside.api.get(&format!("/api/bots/{}/tools", outside.bot)).await?;
    assert!(status != 200 || body["items"] == serde_json::json!([]), "{status} {body}");
    outside.host.stop().await;
    Ok(())
}
