//! Calls that the server holds until a person decides.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::Api;
use tokio::task::JoinHandle;

use super::{FETCH, Gated, TOOL, asked, succeeded};
use crate::world::{eventually, text};

/// Begins a call that waits for approval.
fn waiting(gated: &Gated, api: &Api, seconds: u32) -> JoinHandle<Result<Value>> {
    let (api, bot) = (api.clone(), gated.world.bot.clone());
    tokio::spawn(async move {
        let body = json!({ "params": { "repo": "acme/site" }, "wait_for_approval_s": seconds });
        Ok(api.post(&format!("/api/bots/{bot}/tools/{TOOL}/call"), &body).await?.1)
    })
}

/// Returns the id of the only pending approval.
async fn pending(gated: &Gated) -> Result<String> {
    eventually("a call asks", async || {
        let (_, list) = gated.admin.get("/api/approvals?status=pending").await?;
        Ok(list["items"][0]["id"].as_str().map(str::to_owned))
    })
    .await
}

#[tokio::test]
async fn a_call_waits_for_its_approval() -> Result<()> {
    let gated = Gated::start().await?;
    let call = waiting(&gated, &gated.world.api, 60);
    let id = pending(&gated).await?;
    ensure!(!call.is_finished(), "the call waits");
    gated.approve(&id).await?;
    let began = Instant::now();
    let answer = call.await??;
    ensure!(succeeded(&answer), "{answer}");
    ensure!(began.elapsed() < Duration::from_secs(1), "the call continues at once");
    assert_eq!(gated.approval(&id).await?["request_id"], answer["request_id"]);
    Ok(())
}

#[tokio::test]
async fn a_waiting_call_ends_with_a_denial_or_its_time_limit() -> Result<()> {
    let gated = Gated::start().await?;
    let call = waiting(&gated, &gated.world.api, 60);
    let id = pending(&gated).await?;
    ensure!(gated.decide_as(&gated.admin, &id, "deny").await?.0 == 200);
    assert_eq!(call.await??["status"], "permission_denied");

    let began = Instant::now();
    let body = json!({ "params": { "any": "slow" }, "wait_for_approval_s": 1 });
    asked(&gated.call_with(&gated.world.api, TOOL, &body).await?)?;
    ensure!((1_000..5_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    let path = format!("/api/bots/{}/tools/{TOOL}/call", gated.world.bot);
    let (status, answer) = gated.world.api.post(&path, &json!({ "wait_for_approval_s": 301 })).await?;
    assert_eq!((status, &answer["errors"][0]["path"]), (422, &json!("/wait_for_approval_s")));
    Ok(())
}

#[tokio::test]
async fn a_revoked_key_ends_the_wait() -> Result<()> {
    let gated = Gated::start().await?;
    let root = &gated.world.api;
    let body = json!({ "name": "short-lived", "kind": "bot", "bot_id": gated.world.bot });
    let (_, key) = root.post("/api/keys", &body).await?;
    let call = waiting(&gated, &root.with_key(text(&key["key"])), 60);
    let id = pending(&gated).await?;
    ensure!(root.delete(&format!("/api/keys/{}", text(&key["id"]))).await?.0 == 204);
    let answer = call.await??;
    assert_eq!(answer["status"], "permission_denied", "{answer}");
    assert_eq!(gated.world.audit_of(&answer).await?["rule"], "revoked.key");
    assert_eq!(gated.approval(&id).await?["status"], "pending");
    Ok(())
}

/// A client that is gone does not wait any more, so its call does not use the approval.
#[tokio::test]
async fn a_client_that_is_gone_does_not_wait() -> Result<()> {
    let gated = Gated::start().await?;
    let call = waiting(&gated, &gated.world.api, 60);
    let id = pending(&gated).await?;
    call.abort();
    ensure!(call.await.is_err());
    eventually("the call has ended", async || {
        let (_, rows) = gated.world.api.get("/api/audit?status=error").await?;
        Ok((rows["items"][0]["code"] == "cancelled").then_some(()))
    })
    .await?;
    gated.approve(&id).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(gated.approval(&id).await?["status"], "approved");
    Ok(())
}

/// A deny gate ends every running call, and a new gate that asks ends only calls without an approval.
#[tokio::test]
async fn gates_end_running_calls_unless_a_person_has_approved_them() -> Result<()> {
    let gated = Gated::start().await?;
    let world = &gated.world;
    let fetch = |path: &str| {
        let (api, bot, params) = (world.api.clone(), world.bot.clone(), json!({ "path": path }));
        tokio::spawn(async move { api.call(&bot, FETCH, &params).await })
    };
    let id = asked(&world.call(FETCH, &json!({ "path": "/approved" })).await?)?;
    gated.approve(&id).await?;
    world.github.hold();
    let approved = fetch("/approved");
    world.reached(1).await?;
    gated.set_gates(&json!([])).await?;
    let free = fetch("/free");
    world.reached(2).await?;
    gated.set_gates(&json!([{ "action": "ask", "reason": "new" }])).await?;
    let free = free.await??;
    assert_eq!(free["status"], "permission_denied", "{free}");
    assert_eq!(world.audit_of(&free).await?["rule"], "revoked.gate");
    ensure!(!approved.is_finished(), "the approved call continues");
    world.github.release();
    let approved = approved.await??;
    ensure!(succeeded(&approved), "{approved}");

    let id = asked(&world.call(FETCH, &json!({ "path": "/approved" })).await?)?;
    gated.approve(&id).await?;
    world.github.hold();
    let before = world.github.requests().len();
    let approved = fetch("/approved");
    world.reached(before + 1).await?;
    gated.set_gates(&json!([{ "action": "deny" }])).await?;
    assert_eq!(approved.await??["status"], "permission_denied");
    world.github.release();
    Ok(())
}
