//! Gates of the bot hold for the calls of its runs.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::status_of;

use super::flows::{Flows, READ, WRITE, call, decide, told, with};
use crate::tamper::sqlite;
use crate::world::{eventually, text};

/// A bot whose writes need an approval, and a run with one. Returns its id and that of the approval.
async fn asked(flows: &Flows) -> Result<(String, String)> {
    let steps = json!([call("look", READ), with(call("w", WRITE), &json!({ "retry": { "attempts": 3 } }))]);
    let id = flows.begin(&json!({ "steps": steps }), &json!({})).await?;
    let wait = flows.waits(&id, "gate").await?;
    ensure!(wait["step"] == "w", "{wait}");
    flows.is(&id, "waiting").await?;
    Ok((id, text(&wait["id"]).to_owned()))
}

async fn gated() -> Result<Flows> {
    let flows = Flows::start().await?;
    flows.set_gates(&json!([{ "tools": [WRITE], "action": "ask" }])).await?;
    Ok(flows)
}

#[tokio::test]
async fn a_step_waits_for_the_approval_of_its_call() -> Result<()> {
    let mut flows = gated().await?;
    let (id, approval) = asked(&flows).await?;
    let (_, approver) = flows.key("admin", None).await?;
    let (_, shown) = approver.get(&format!("/api/approvals/{approval}")).await?;
    assert_eq!((text(&shown["kind"]), text(&shown["tool"])), ("call", WRITE), "{shown}");
    assert_eq!((&shown["params"], &shown["asked_by"]["task_id"]), (&json!({ "marker": "w" }), &json!(id)), "{shown}");
    // The question is the same after a crash, and only then is it answered.
    flows.killed().await?;
    let (_, approver) = flows.key("admin", None).await?;
    assert_eq!(text(&flows.waits(&id, "gate").await?["id"]), approval);
    assert_eq!(flows.seen(), ["GET look"]);
    assert_eq!(decide(&approver, &approval, "approve", "").await?.0, 200);
    let run = flows.ended(&id).await?;
    assert_eq!((told(&run)[0], &run["waiting_for"]), ("completed", &Value::Null), "{run}");
    assert_eq!(flows.seen(), ["GET look", "POST w"]);
    assert_eq!(status_of(&flows.steps(&run).await?), ["look succeeded", "w succeeded"], "one attempt");
    let (_, used) = approver.get(&format!("/api/approvals/{approval}")).await?;
    assert_eq!(text(&used["status"]), "used", "{used}");
    Ok(())
}

#[tokio::test]
async fn a_denied_call_fails_its_step_and_is_not_repeated() -> Result<()> {
    let flows = gated().await?;
    let (id, approval) = asked(&flows).await?;
    let (_, approver) = flows.key("admin", None).await?;
    assert_eq!(decide(&approver, &approval, "deny", "not today").await?.0, 200);
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run), ["failed", "denied", "w"], "{run}");
    assert!(text(&run["error"]["message"]).contains("not today"), "{run}");
    let steps = flows.steps(&run).await?;
    assert_eq!(status_of(&steps), ["look succeeded", "w failed"]);
    let row = flows.api().audit(text(&steps[1]["request_id"])).await?;
    assert_eq!(text(&row["rule"]), "approval.denied", "{row}");
    assert_eq!(flows.seen(), ["GET look"]);
    Ok(())
}

/// The step looks again, and its run is cancelled, before anybody has decided.
#[tokio::test]
async fn nothing_but_the_decision_opens_a_gate() -> Result<()> {
    let flows = Flows::start().await?;
    flows.set_gates(&json!([{ "tools": [WRITE], "action": "ask", "expires_s": 600 }])).await?;
    let (id, approval) = asked(&flows).await?;
    let folder = flows.world.server.data_dir();
    let turn = format!("update wakes set due_at = 0, version = version + 1 where key like 'step/{id}/%'");
    eventually("the step waits without a turn", async || {
        let parked = format!("select count(*) from wakes where key like 'step/{id}/%' and claim_id is null");
        Ok((sqlite(&folder, &[&parked]).await?[0][0] == 1).then_some(()))
    })
    .await?;
    // A turn before the decision changes nothing.
    sqlite(&folder, &[&turn]).await?;
    eventually("the step has looked again", async || {
        let due =
            format!("select count(*) from wakes where key like 'step/{id}/%' and due_at > 0 and claim_id is null");
        Ok((sqlite(&folder, &[&due]).await?[0][0] == 1).then_some(()))
    })
    .await?;
    let wait = flows.waits(&id, "gate").await?;
    assert_eq!((text(&wait["id"]), flows.seen()), (approval.as_str(), vec!["GET look".to_owned()]), "{wait}");
    flows.ask(&id, "cancel", &json!({})).await?;
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run)[0], "cancelled", "{run}");
    assert_eq!(
        status_of(&flows.steps(&run).await?),
        ["look succeeded", "w cancelled"],
        "it never began, so it is certain"
    );
    let (_, admin) = flows.key("admin", None).await?;
    let (_, decided) = decide(&admin, &approval, "approve", "").await?;
    assert_eq!((flows.seen(), flows.runs().await?.len()), (vec!["GET look".to_owned()], 1), "{decided}");
    Ok(())
}

/// An approve step does not answer a gate.
#[tokio::test]
async fn the_answer_to_a_question_of_the_workflow_does_not_open_a_gate() -> Result<()> {
    let flows = gated().await?;
    let steps = json!([{ "id": "ok", "approve": { "text": "Write?", "for": ["w"] } }, call("w", WRITE)]);
    let id = flows.begin(&json!({ "steps": steps }), &json!({})).await?;
    let (_, admin) = flows.key("admin", None).await?;
    let question = flows.waits(&id, "approval").await?;
    assert_eq!(decide(&admin, text(&question["id"]), "approve", "").await?.0, 200);
    let gate = flows.waits(&id, "gate").await?;
    assert_ne!(gate["id"], question["id"]);
    assert!(flows.seen().is_empty());
    assert_eq!(decide(&admin, text(&gate["id"]), "approve", "").await?.0, 200);
    assert_eq!(told(&flows.ended(&id).await?)[0], "completed");
    assert_eq!(flows.seen(), ["POST w"]);
    Ok(())
}

#[tokio::test]
async fn a_gate_that_denies_fails_the_step() -> Result<()> {
    let flows = Flows::start().await?;
    flows.set_gates(&json!([{ "tools": [WRITE], "action": "deny" }])).await?;
    let steps = json!([call("look", READ), with(call("w", WRITE), &json!({ "retry": { "attempts": 3 } }))]);
    let run = flows.run(&json!({ "steps": steps })).await?;
    assert_eq!(told(&run), ["failed", "denied", "w"], "{run}");
    assert_eq!(status_of(&flows.steps(&run).await?), ["look succeeded", "w failed"]);
    assert_eq!(flows.seen(), ["GET look"]);
    Ok(())
}

/// The calls that undo steps are gated like any other one.
#[tokio::test]
async fn a_call_that_undoes_a_step_waits_too() -> Result<()> {
    let flows = Flows::start().await?;
    let undo = json!({ "undo": { "tool": WRITE, "params": { "marker": "undo" } } });
    flows.set_gates(&json!([{ "tools": [WRITE], "action": "ask" }])).await?;
    let steps = json!([with(call("look", READ), &undo), { "id": "end", "stop": "failed" }]);
    let id = flows.begin(&json!({ "steps": steps }), &json!({})).await?;
    let gate = flows.waits(&id, "gate").await?;
    assert_eq!((text(&gate["step"]), flows.seen()), ("look", vec!["GET look".to_owned()]), "{gate}");
    let (_, admin) = flows.key("admin", None).await?;
    assert_eq!(decide(&admin, text(&gate["id"]), "approve", "").await?.0, 200);
    let run = flows.ended(&id).await?;
    assert_eq!(
        (told(&run), flows.seen()),
        (["failed", "stopped", "end"], vec!["GET look".to_owned(), "POST undo".to_owned()]),
        "{run}"
    );
    Ok(())
}
