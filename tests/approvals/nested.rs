//! Calls that plugins make, and for which gates ask.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::Server;

use super::{ECHO, Gated, TOOL, asked, succeeded};

const CALLER: &str = "test-caller";

/// Starts a world in which a plugin calls a tool that must be approved.
async fn nested() -> Result<Gated> {
    let gate = json!({ "action": "ask", "tools": [TOOL, "test_echo_fetch"] });
    let gated = Gated::on(Server::prepare(&[CALLER, ECHO])?, &gate).await?;
    let caller = gated.world.grant_all(CALLER).await?;
    gated.world.rebind(&caller, &json!({ "allow_calls": ["*"] })).await?;
    Ok(gated)
}

/// A plugin that reports the failure of a child call succeeds itself, and learns the reason.
#[tokio::test]
async fn a_plugin_learns_that_its_call_needs_an_approval() -> Result<()> {
    let gated = nested().await?;
    let params = json!({ "tool": TOOL, "params": { "repo": "a" } });
    let answer = gated.world.call("test_caller_call", &params).await?;
    ensure!(succeeded(&answer) && answer.get("approval").is_none(), "{answer}");
    let last = &answer["data"]["last"];
    assert_eq!((&last["status"], &last["code"]), (&json!("approval_required"), &json!("approval")));
    Ok(())
}

/// A plugin that fails with the failure of its child call hands on the approval.
#[tokio::test]
async fn the_answer_of_the_root_call_carries_the_approval() -> Result<()> {
    let gated = nested().await?;
    let params = json!({ "tool": "test_echo_fetch", "each": [{ "path": "/echo" }] });
    let id = asked(&gated.world.call("test_caller_join", &params).await?)?;
    let approval = gated.approval(&id).await?;
    assert_eq!((&approval["tool"], &approval["status"]), (&Value::from("test_echo_fetch"), &Value::from("pending")));
    gated.approve(&id).await?;
    let answer = gated.world.call("test_caller_join", &params).await?;
    ensure!(succeeded(&answer), "{answer}");
    assert_eq!(gated.approval(&id).await?["status"], "used");
    asked(&gated.world.call("test_caller_join", &params).await?)?;
    Ok(())
}

/// The wait is for the root call only, because a child call has the deadline of its parent.
#[tokio::test]
async fn a_child_call_does_not_wait() -> Result<()> {
    let gated = nested().await?;
    let body = json!({
        "params": { "tool": "test_echo_fetch", "each": [{ "path": "/echo" }] }, "wait_for_approval_s": 60,
    });
    asked(&gated.call_with(&gated.world.api, "test_caller_join", &body).await?)?;
    Ok(())
}
