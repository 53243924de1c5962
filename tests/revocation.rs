//! A revocation is in force within a second, regardless of the number of bindings. `cargo xtask test --long` tests it
//! with 500 000 bindings.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;
use support::InProcess;

const PLUGIN: &str = "test-echo";
const TOOL: &str = "test_echo_run";
const RESOURCES: usize = 50;
const IN_FORCE_MAX: Duration = Duration::from_secs(1);
/// The time-out for a host to read the bindings.
const READ_MAX: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread")]
async fn among_20_000_bindings() -> Result<()> {
    within_a_second(400).await
}

/// Fills a workspace. Revokes one binding through the API, and another directly in the database, as another host would.
pub(crate) async fn within_a_second(bots: usize) -> Result<()> {
    let host = InProcess::start(&[PLUGIN]).await?;
    let (api, app) = (host.api()?, &host.running.app);
    let binding = host.fill(PLUGIN, bots, RESOURCES).await?;
    let (workspace, bot, id, resource) = (binding.workspace_id, binding.bot_id, binding.id, binding.resource_id);
    let began = Instant::now();
    while app.policy.load().bot(workspace, bot).is_none_or(|bot| bot.bindings.len() < RESOURCES) {
        ensure!(began.elapsed() < READ_MAX, "the bindings are not in force after {READ_MAX:?}");
        tokio::time::sleep(POLL).await;
    }
    let check = format!("/api/bots/{bot}/tools/{TOOL}/check");
    let question = json!({ "params": { "repo": "acme/site" }, "resource_id": resource });
    let decision = async || anyhow::Ok(api.post(&check, &question).await?.1["decision"].clone());
    ensure!(decision().await? == "allow", "the binding is in force");

    let began = Instant::now();
    let (status, body) = api.patch(&format!("/api/bots/{bot}/resources/{id}"), &json!({ "enabled": false })).await?;
    ensure!(status == 200, "{status} {body}");
    ensure!(decision().await? == "deny", "the change is in force when it is answered");
    ensure!(began.elapsed() < IN_FORCE_MAX, "a revocation by the API took {:?}", began.elapsed());

    let (status, body) = api.patch(&format!("/api/bots/{bot}/resources/{id}"), &json!({ "enabled": true })).await?;
    ensure!(status == 200 && decision().await? == "allow", "{status} {body}");
    let began = Instant::now();
    ensure!(app.store.delete_binding(workspace, bot, id).await?, "the binding is there");
    while decision().await? == "allow" {
        ensure!(began.elapsed() < IN_FORCE_MAX, "a revocation by another host is not in force after {IN_FORCE_MAX:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    host.stop().await;
    Ok(())
}
