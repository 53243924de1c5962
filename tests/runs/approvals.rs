//! Steps that ask a person.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{Api, status_of};

use super::flows::{Flows, READ, WRITE, call, decide, told, with};
use crate::tamper::sqlite;
use crate::world::{eventually, text};

/// A workflow that asks before its write.
fn asking(fields: &Value) -> Value {
    json!({
        "steps": [
            call("look", READ),
            { "id": "ok", "approve": with(json!({ "text": "Write ${{ input.what }}?", "for": ["w"] }), fields) },
            with(call("w", WRITE), &json!({ "params": { "marker": "w", "any": "${{ input.what }}" } })),
        ],
        "output": "${{ steps.ok.data }}",
    })
}

/// Starts a run that asks. Returns its id and that of the approval.
async fn asked(flows: &Flows, api: &Api, fields: &Value) -> Result<(String, String)> {
    let workflow = flows.save("flow", &asking(fields)).await?;
    let id = api.start_run(&workflow, &json!({ "what": "it" })).await?;
    let wait = flows.waits(&id, "approval").await?;
    ensure!(wait["step"] == "ok" && wait["until"].is_string(), "{wait}");
    Ok((id, text(&wait["id"]).to_owned()))
}

#[tokio::test]
async fn a_person_reads_the_calls_and_approves_them() -> Result<()> {
    let flows = Flows::start().await?;
    let (id, approval) = asked(&flows, flows.api(), &json!({})).await?;
    let (_, approver) = flows.key("approver", None).await?;
    let (status, shown) = approver.get(&format!("/api/approvals/{approval}")).await?;
    ensure!(status == 200, "{status} {shown}");
    assert_eq!((text(&shown["kind"]), text(&shown["status"])), ("step", "pending"), "{shown}");
    assert_eq!((text(&shown["run_id"]), text(&shown["step"])), (id.as_str(), "ok"), "{shown}");
    assert_eq!(text(&shown["text"]), "Write it?", "{shown}");
    let target = &shown["for"][0];
    assert_eq!(
        (text(&target["step"]), text(&target["tool"]), text(&target["effect"])),
        ("w", WRITE, "write"),
        "{shown}"
    );
    assert_eq!(target["params"], json!({ "marker": "w", "any": "it" }), "{shown}");
    assert_eq!(target["resource_id"], json!(flows.bound.resource), "{shown}");
    let event = eventually("the question is an event", async || {
        Ok(flows.events("approval.requested").await?.into_iter().next())
    })
    .await?;
    assert_eq!(
        (text(&event["data"]["kind"]), text(&event["data"]["approval_id"])),
        ("step", approval.as_str()),
        "{event}"
    );

    assert_eq!(flows.seen(), ["GET look"]);
    let (status, decided) = decide(&approver, &approval, "approve", "go ahead").await?;
    ensure!(status == 200 && decided["status"] == "approved", "{status} {decided}");
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run)[0], "completed", "{run}");
    assert_eq!((text(&run["output"]["note"]), run["output"]["at"].is_string()), ("go ahead", true), "{run}");
    assert_eq!(flows.seen(), ["GET look", "POST w"]);
    // It is decided once.
    assert_eq!(decide(&approver, &approval, "deny", "").await?.0, 409);
    Ok(())
}

#[tokio::test]
async fn a_denied_question_fails_its_step() -> Result<()> {
    let flows = Flows::start().await?;
    let (id, approval) = asked(&flows, flows.api(), &json!({})).await?;
    let (_, approver) = flows.key("approver", None).await?;
    let (status, denied) = decide(&approver, &approval, "deny", "not today").await?;
    ensure!(status == 200 && denied["status"] == "denied", "{status} {denied}");
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run), ["failed", "denied", "ok"], "{run}");
    assert!(text(&run["error"]["message"]).contains("not today"), "{run}");
    assert_eq!(flows.seen(), ["GET look"]);
    // A retry asks again.
    flows.ask(&id, "retry", &json!({})).await?;
    let again = flows.waits(&id, "approval").await?;
    assert_ne!(text(&again["id"]), approval);
    decide(&approver, text(&again["id"]), "approve", "").await?;
    assert_eq!(told(&flows.ended(&id).await?)[0], "completed");
    assert_eq!(flows.seen(), ["GET look", "POST w"]);
    Ok(())
}

#[tokio::test]
async fn an_unanswered_question_expires() -> Result<()> {
    let flows = Flows::start().await?;
    let (id, approval) = asked(&flows, flows.api(), &json!({ "expires": "1s" })).await?;
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run), ["failed", "timeout", "ok"], "{run}");
    eventually("the question has ended", async || {
        let (_, shown) = flows.api().get(&format!("/api/approvals/{approval}")).await?;
        Ok(matches!(text(&shown["status"]), "expired" | "void").then_some(()))
    })
    .await?;
    let (_, admin) = flows.key("admin", None).await?;
    assert_eq!(decide(&admin, &approval, "approve", "").await?.0, 409);
    assert_eq!(flows.seen(), ["GET look"]);
    Ok(())
}

#[tokio::test]
async fn only_the_roles_of_the_question_decide_and_never_a_bot() -> Result<()> {
    let flows = Flows::start().await?;
    let (id, approval) = asked(&flows, flows.api(), &json!({ "by": ["approver"] })).await?;
    for kind in ["admin", "operator"] {
        let (_, key) = flows.key(kind, None).await?;
        assert_eq!(decide(&key, &approval, "approve", "").await?.0, 403, "{kind}");
    }
    let (_, bot) = flows.key("bot", Some(&flows.world.bot)).await?;
    let (_, shown) = flows.api().get(&format!("/api/approvals/{approval}")).await?;
    let body = json!({ "decision": "approve", "digest": shown["digest"] });
    let (status, refused) = bot.post(&format!("/api/approvals/{approval}"), &body).await?;
    assert!(matches!(status, 403 | 404), "{status} {refused}");
    let (_, approver) = flows.key("approver", None).await?;
    let forged = json!({ "decision": "approve", "digest": format!("sha256:{}", "0".repeat(64)) });
    assert_eq!(approver.post(&format!("/api/approvals/{approval}"), &forged).await?.0, 409, "another digest");
    assert!(flows.seen() == ["GET look"] && text(&flows.api().run(&id).await?["status"]) == "waiting");
    assert_eq!(decide(&approver, &approval, "approve", "").await?.0, 200);
    assert_eq!(told(&flows.ended(&id).await?)[0], "completed");
    Ok(())
}

#[tokio::test]
async fn the_key_that_started_the_run_decides_only_if_the_question_allows_it() -> Result<()> {
    let flows = Flows::start().await?;
    let (_, starter) = flows.key("operator", None).await?;
    let (id, approval) = asked(&flows, &starter, &json!({ "allow_starter": false })).await?;
    assert_eq!(decide(&starter, &approval, "approve", "").await?.0, 403);
    let (_, other) = flows.key("admin", None).await?;
    assert_eq!(decide(&other, &approval, "approve", "").await?.0, 200);
    assert_eq!(told(&flows.ended(&id).await?)[0], "completed");

    let (id, approval) = asked(&flows, &starter, &json!({})).await?;
    assert_eq!(decide(&starter, &approval, "approve", "").await?.0, 200);
    assert_eq!(told(&flows.ended(&id).await?)[0], "completed");
    Ok(())
}

/// The key that made the trigger counts as the starter.
#[tokio::test]
async fn the_key_that_made_the_trigger_counts_as_the_starter() -> Result<()> {
    let flows = Flows::start().await?;
    let (_, maker) = flows.key("operator", None).await?;
    let workflow = flows.save("flow", &asking(&json!({ "allow_starter": false }))).await?;
    let path = format!("/api/workflows/{workflow}/triggers");
    let (status, trigger) = maker.post(&path, &json!({ "event_pattern": "custom.go" })).await?;
    ensure!(status == 201, "{status} {trigger}");
    let event = flows.emit("go", &json!({ "data": { "what": "it" } })).await?;
    let event = flows.delivered(&event).await?;
    let id = text(&event["deliveries"][0]["run_id"]).to_owned();
    let wait = flows.waits(&id, "approval").await?;
    assert_eq!(decide(&maker, text(&wait["id"]), "approve", "").await?.0, 403);
    let (_, other) = flows.key("admin", None).await?;
    assert_eq!(decide(&other, text(&wait["id"]), "approve", "").await?.0, 200);
    assert_eq!(told(&flows.ended(&id).await?)[0], "completed");
    Ok(())
}

/// The key that emitted the event counts as the starter.
#[tokio::test]
async fn the_key_that_emitted_the_event_counts_as_the_starter() -> Result<()> {
    let flows = Flows::start().await?;
    let workflow = flows.save("flow", &asking(&json!({ "allow_starter": false }))).await?;
    let path = format!("/api/workflows/{workflow}/triggers");
    let (status, trigger) = flows.api().post(&path, &json!({ "event_pattern": "custom.go" })).await?;
    ensure!(status == 201, "{status} {trigger}");
    let (_, emitter) = flows.key("operator", None).await?;
    let (status, emitted) = emitter.post("/api/events", &json!({ "name": "go", "data": { "what": "it" } })).await?;
    ensure!(status == 201, "{status} {emitted}");
    let event = flows.delivered(text(&emitted["event_id"])).await?;
    let id = text(&event["deliveries"][0]["run_id"]).to_owned();
    let wait = flows.waits(&id, "approval").await?;
    let (status, refused) = decide(&emitter, text(&wait["id"]), "approve", "").await?;
    assert_eq!(status, 403, "{refused}");
    let (_, other) = flows.key("operator", None).await?;
    assert_eq!(decide(&other, text(&wait["id"]), "approve", "").await?.0, 200);
    assert_eq!(told(&flows.ended(&id).await?)[0], "completed");
    Ok(())
}

#[tokio::test]
async fn the_key_that_retries_a_run_counts_as_its_starter() -> Result<()> {
    let flows = Flows::start().await?;
    let (id, approval) = asked(&flows, flows.api(), &json!({ "allow_starter": false })).await?;
    let (_, retrier) = flows.key("operator", None).await?;
    let (_, other) = flows.key("operator", None).await?;
    assert_eq!(decide(&retrier, &approval, "deny", "").await?.0, 200, "it has not retried the run yet");
    assert_eq!(told(&flows.ended(&id).await?), ["failed", "denied", "ok"]);
    let (status, again) = retrier.post(&format!("/api/runs/{id}/retry"), &json!({})).await?;
    ensure!(matches!(status, 200 | 202), "{status} {again}");
    let second = text(&flows.waits(&id, "approval").await?["id"]).to_owned();
    for key in [&retrier, flows.api()] {
        let (status, refused) = decide(key, &second, "approve", "").await?;
        assert_eq!(status, 403, "{refused}");
    }
    assert_eq!(decide(&other, &second, "approve", "").await?.0, 200);
    assert_eq!(told(&flows.ended(&id).await?)[0], "completed");
    Ok(())
}

#[tokio::test]
async fn the_key_that_lets_a_step_run_again_counts_as_the_starter() -> Result<()> {
    let flows = Flows::start().await?;
    flows.world.github.hang_up_next("/effects/first");
    let steps = json!([
        with(call("first", WRITE), &json!({ "on_uncertain": "ask" })),
        { "id": "ok", "approve": { "text": "Go on?", "for": ["w"], "allow_starter": false } },
        call("w", WRITE),
    ]);
    let id = flows.begin(&json!({ "steps": steps }), &json!({})).await?;
    flows.waits(&id, "resolve").await?;
    let (_, resolver) = flows.key("operator", None).await?;
    let path = format!("/api/runs/{id}/steps/first/resolve");
    let (status, answer) = resolver.post(&path, &json!({ "as": "retry" })).await?;
    ensure!(matches!(status, 200 | 202), "{status} {answer}");
    let approval = text(&flows.waits(&id, "approval").await?["id"]).to_owned();
    let (status, refused) = decide(&resolver, &approval, "approve", "").await?;
    assert_eq!(status, 403, "{refused}");
    let (_, other) = flows.key("operator", None).await?;
    assert_eq!(decide(&other, &approval, "approve", "").await?.0, 200);
    assert_eq!(told(&flows.ended(&id).await?)[0], "completed");
    Ok(())
}

/// The binding that the person has seen is replaced by one of another resource.
#[tokio::test]
async fn an_approval_of_other_calls_is_void_and_asked_anew() -> Result<()> {
    let flows = Flows::start().await?;
    let steps = json!([
        { "id": "ok", "approve": { "text": "Write?", "for": ["w"] } },
        { "id": "go", "wait": { "event": "custom.go" } },
        call("w", WRITE),
    ]);
    let id = flows.begin(&json!({ "steps": steps }), &json!({})).await?;
    let first = text(&flows.waits(&id, "approval").await?["id"]).to_owned();
    let (_, admin) = flows.key("admin", None).await?;
    assert_eq!(decide(&admin, &first, "approve", "").await?.0, 200);
    flows.waits(&id, "event").await?;
    let (url, token) = (flows.world.github.url(), flows.world.github.token());
    let other = flows.api().resource(super::flows::PLUGIN, "other", &url).await?;
    flows.api().token(&other, &token).await?;
    let role = flows.api().role("all again", &["*"]).await?;
    flows.api().bind(&flows.world.bot, &other, &role, &json!({})).await?;
    let path = format!("/api/bots/{}/resources/{}", flows.world.bot, flows.bound.binding);
    assert_eq!(flows.api().delete(&path).await?.0, 204);
    flows.emit("go", &json!({})).await?;
    // Now the call waits, for the answer to the same question about it.
    let asks = |run: &Value| {
        let mut waits = run["waiting_for"].as_array().into_iter().flatten();
        waits.find(|wait| matches!(text(&wait["kind"]), "approval" | "gate") && text(&wait["id"]) != first).cloned()
    };
    let run = flows.api().run_that("asks nobody", &id, |run| asks(run).is_some()).await?;
    let second = asks(&run).context("the run asks")?;
    assert!(flows.seen().is_empty());
    let (_, shown) = admin.get(&format!("/api/approvals/{}", text(&second["id"]))).await?;
    assert_eq!(shown["for"][0]["resource_id"], json!(other), "{shown}");
    let (_, void) = admin.get(&format!("/api/approvals/{first}")).await?;
    assert_eq!(text(&void["status"]), "void", "{void}");
    assert_eq!(decide(&admin, text(&second["id"]), "approve", "").await?.0, 200);
    let run = flows.ended(&id).await?;
    assert_eq!((told(&run)[0], flows.seen()), ("completed", vec!["POST w".to_owned()]), "{run}");
    Ok(())
}

/// A row that another program has marked as approved approves nothing.
#[tokio::test]
async fn a_question_is_not_answered_with_sql() -> Result<()> {
    let mut flows = Flows::start().await?;
    let (id, approval) = asked(&flows, flows.api(), &json!({})).await?;
    flows.world.server.kill().await?;
    let folder = flows.world.server.data_dir();
    let keys = "(select id from api_keys limit 1)";
    let edit = format!(
        "update approvals set status = 'approved', decided_by = {keys}, decided_at = created_at + 1 where id = '{approval}'"
    );
    let wake = format!(
        "insert into wakes (key, workspace_id, due_at, version) select 'run/{id}', workspace_id, 0, 1 from runs \
         where id = '{id}' on conflict do update set due_at = 0"
    );
    sqlite(&folder, &[&edit, &wake]).await?;
    flows.launched().await?;
    // The turn of the run either fails or leaves the run waiting.
    eventually("the turn has ended", async || {
        let due = format!("select count(*) from wakes where key = 'run/{id}' and due_at <= 1 and claim_id is null");
        let failed = format!("select count(*) from wakes where key = 'run/{id}' and failures > 0");
        let rows = sqlite(&folder, &[&due]).await?;
        let failures = sqlite(&folder, &[&failed]).await?;
        Ok((rows[0][0] == 0 || failures[0][0] == 1).then_some(()))
    })
    .await?;
    let steps = flows.api().run_steps(&id).await?;
    let of_write = status_of(&steps).into_iter().find(|step| step.starts_with("w "));
    assert_eq!(of_write, None, "{steps:?}");
    assert_eq!(flows.seen(), ["GET look"]);
    Ok(())
}

/// A run that is cancelled while it asks withdraws the question.
#[tokio::test]
async fn the_question_of_a_cancelled_run_is_closed() -> Result<()> {
    let flows = Flows::start().await?;
    let (id, approval) = asked(&flows, flows.api(), &json!({})).await?;
    flows.ask(&id, "cancel", &json!({})).await?;
    assert_eq!(told(&flows.ended(&id).await?)[0], "cancelled");
    let (_, pending) = flows.api().get("/api/approvals?status=pending").await?;
    assert_eq!(pending["items"], json!([]));
    let (_, admin) = flows.key("admin", None).await?;
    let (status, refused) = decide(&admin, &approval, "approve", "").await.context("the approval is gone")?;
    assert_eq!(status, 409, "{refused}");
    assert_eq!(flows.seen(), ["GET look"]);
    Ok(())
}
