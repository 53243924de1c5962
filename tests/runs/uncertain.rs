//! Writes whose effect is unknown: what the definition says about them, and what people say.

use anyhow::Result;
use serde_json::{Value, json};
use support::status_of;

use super::flows::{Flows, READ, WRITE, call, told, with};
use crate::world::{eventually, text};

/// A run whose write has reached the upstream without an answer, and about which a person is asked.
async fn asked(flows: &Flows) -> Result<String> {
    flows.world.github.hang_up_next("/effects/w");
    let definition = json!({
        "steps": [
            with(call("w", WRITE), &json!({ "on_uncertain": "ask" })),
            with(call("after", READ), &json!({ "params": { "marker": "after", "any": "${{ steps.w.data }}" } })),
        ],
        "output": "${{ steps.after.data.any }}",
    });
    let id = flows.begin(&definition, &json!({})).await?;
    let wait = flows.waits(&id, "resolve").await?;
    assert_eq!(text(&wait["step"]), "w", "{wait}");
    let run = flows.is(&id, "waiting").await?;
    assert_eq!(status_of(&flows.steps(&run).await?), ["w uncertain"]);
    Ok(id)
}

async fn resolve(flows: &Flows, id: &str, body: &Value) -> Result<(u16, Value)> {
    flows.api().post(&format!("/api/runs/{id}/steps/w/resolve"), body).await
}

#[tokio::test]
async fn a_person_says_that_it_happened() -> Result<()> {
    let flows = Flows::start().await?;
    let id = asked(&flows).await?;
    let event = eventually("the question is an event", async || {
        Ok(flows.events("approval.requested").await?.into_iter().next())
    })
    .await?;
    assert_eq!((text(&event["data"]["kind"]), text(&event["source_type"])), ("uncertain", "workflow"), "{event}");
    assert_eq!(event["metadata"]["run_id"], json!(id), "{event}");
    let (status, answer) = resolve(&flows, &id, &json!({ "as": "succeeded", "data": { "number": 7 } })).await?;
    assert!(matches!(status, 200 | 202), "{status} {answer}");
    let run = flows.ended(&id).await?;
    assert_eq!((text(&run["status"]), &run["output"]), ("completed", &json!({ "number": 7 })), "{run}");
    assert_eq!(run["uncertain"], Value::Null, "{run}");
    assert_eq!(flows.seen(), ["POST w", "GET after"]);
    // A step is resolved once.
    assert_eq!(resolve(&flows, &id, &json!({ "as": "failed" })).await?.0, 409);
    let (_, changes) = flows.api().get("/api/audit/changes?limit=1000").await?;
    let resolved = changes["items"].as_array().into_iter().flatten().filter(|change| change["change"] == "run.resolve");
    assert_eq!(resolved.filter(|change| change["status"] == "success").count(), 1, "{changes}");
    Ok(())
}

#[tokio::test]
async fn a_person_says_that_it_did_not_happen() -> Result<()> {
    let flows = Flows::start().await?;
    let id = asked(&flows).await?;
    let (status, answer) = resolve(&flows, &id, &json!({ "as": "failed" })).await?;
    assert!(matches!(status, 200 | 202), "{status} {answer}");
    let run = flows.ended(&id).await?;
    assert_eq!((told(&run)[0], told(&run)[2]), ("failed", "w"), "{run}");
    assert_eq!((&run["uncertain"], flows.seen()), (&Value::Null, vec!["POST w".to_owned()]), "{run}");
    Ok(())
}

#[tokio::test]
async fn a_person_lets_it_run_again_under_its_id() -> Result<()> {
    let flows = Flows::start().await?;
    let id = asked(&flows).await?;
    let (status, answer) = resolve(&flows, &id, &json!({ "as": "retry" })).await?;
    assert!(matches!(status, 200 | 202), "{status} {answer}");
    let run = flows.ended(&id).await?;
    assert_eq!(told(&run)[0], "completed", "{run}");
    let steps = flows.steps(&run).await?;
    assert_eq!(status_of(&steps), ["w uncertain", "w succeeded", "after succeeded"]);
    let keys = flows.keys("w");
    assert_eq!(keys, [text(&steps[0]["request_id"]), text(&steps[1]["request_id"])]);
    assert_eq!(keys[0], keys[1]);
    Ok(())
}

#[tokio::test]
async fn only_operators_say_what_became_of_an_uncertain_step() -> Result<()> {
    let flows = Flows::start().await?;
    let id = asked(&flows).await?;
    let path = |step: &str| format!("/api/runs/{id}/steps/{step}/resolve");
    let body = json!({ "as": "succeeded" });
    for body in [json!({ "as": "skipped" }), json!({})] {
        let (status, refused) = flows.api().post(&path("w"), &body).await?;
        assert_eq!(status, 422, "{body}: {refused}");
    }
    // A step that is absent, has no such item, or has not begun.
    for (step, body) in
        [("w", json!({ "as": "failed", "item": "0" })), ("absent", body.clone()), ("after", body.clone())]
    {
        let (status, refused) = flows.api().post(&path(step), &body).await?;
        assert!(matches!(status, 404 | 409), "{step} {body}: {status} {refused}");
    }
    let (_, bot) = flows.key("bot", Some(&flows.world.bot)).await?;
    let (_, approver) = flows.key("approver", None).await?;
    for api in [&bot, &approver] {
        let (status, refused) = api.post(&path("w"), &body).await?;
        assert!(matches!(status, 403 | 404), "{status} {refused}");
    }
    assert_eq!(text(&flows.api().run(&id).await?["status"]), "waiting");
    let (_, operator) = flows.key("operator", None).await?;
    let (status, answer) = operator.post(&path("w"), &body).await?;
    assert!(matches!(status, 200 | 202), "{status} {answer}");
    assert_eq!(told(&flows.ended(&id).await?)[0], "completed");
    Ok(())
}

/// The author of the definition says that two calls are harmless.
#[tokio::test]
async fn an_uncertain_write_is_repeated_under_its_id_if_the_author_says_so() -> Result<()> {
    let flows = Flows::start().await?;
    flows.world.github.hang_up_next("/effects/w");
    let run = flows.run(&json!({ "steps": [with(call("w", WRITE), &json!({ "on_uncertain": "retry" }))] })).await?;
    assert_eq!((told(&run)[0], &run["uncertain"]), ("completed", &Value::Null), "{run}");
    let steps = flows.steps(&run).await?;
    assert_eq!(status_of(&steps), ["w uncertain", "w succeeded"]);
    let keys = flows.keys("w");
    assert!(keys.len() == 2 && keys[0] == keys[1], "{keys:?}");
    Ok(())
}

/// A failed run is not retried while it is unknown what has happened.
#[tokio::test]
async fn a_run_with_an_uncertain_step_is_retried_after_somebody_has_said_what_became_of_it() -> Result<()> {
    let flows = Flows::start().await?;
    flows.world.github.hang_up_next("/effects/w");
    let run = flows.run(&json!({ "steps": [call("before", READ), call("w", WRITE)] })).await?;
    assert_eq!(told(&run), ["failed", "uncertain", "w"], "{run}");
    let id = text(&run["id"]);
    let (status, refused) = flows.api().post(&format!("/api/runs/{id}/retry"), &json!({})).await?;
    assert_eq!(status, 409, "{refused}");
    let (status, answer) = resolve(&flows, id, &json!({ "as": "failed" })).await?;
    assert!(matches!(status, 200 | 202), "{status} {answer}");
    flows.ask(id, "retry", &json!({})).await?;
    let run = flows.ended(id).await?;
    assert_eq!((told(&run)[0], &run["attempt"]), ("completed", &json!(2)), "{run}");
    assert_eq!(flows.seen(), ["GET before", "POST w", "POST w"], "what has succeeded does not run again");
    let keys = flows.keys("w");
    assert_ne!(keys[0], keys[1], "a person has said that the first call did not happen");
    Ok(())
}

/// A person has said that the write happened, so a retry of the run keeps its result.
#[tokio::test]
async fn a_retry_keeps_the_result_that_a_person_has_given() -> Result<()> {
    let flows = Flows::start().await?;
    flows.world.github.hang_up_next("/effects/w");
    let definition = json!({ "steps": [call("w", WRITE)], "output": "${{ steps.w.data }}" });
    let run = flows.run(&definition).await?;
    let id = text(&run["id"]);
    let (status, answer) = resolve(&flows, id, &json!({ "as": "succeeded", "data": [1, 2] })).await?;
    assert!(matches!(status, 200 | 202), "{status} {answer}");
    flows.ask(id, "retry", &json!({})).await?;
    let run = flows.ended(id).await?;
    assert_eq!((text(&run["status"]), &run["output"]), ("completed", &json!([1, 2])), "{run}");
    assert_eq!(flows.seen(), ["POST w"]);
    Ok(())
}

/// A repetition that is refused says nothing about the call before it.
#[tokio::test]
async fn a_refused_repetition_leaves_the_step_uncertain() -> Result<()> {
    let flows = Flows::start().await?;
    let id = asked(&flows).await?;
    let questions = async |count: usize| {
        eventually("the questions are events", async || {
            Ok((flows.events("approval.requested").await?.len() == count).then_some(()))
        })
        .await
    };
    questions(1).await?;
    flows.world.rebind(&flows.bound, &json!({ "enabled": false })).await?;
    let (status, answer) = resolve(&flows, &id, &json!({ "as": "retry" })).await?;
    assert!(matches!(status, 200 | 202), "{status} {answer}");
    // A person is asked once more.
    questions(2).await?;
    assert_eq!(text(&flows.waits(&id, "resolve").await?["step"]), "w");
    let steps = flows.api().run_steps(&id).await?;
    assert_eq!(status_of(&steps), ["w uncertain", "w uncertain"]);
    assert_eq!(steps[0]["request_id"], steps[1]["request_id"]);
    assert_eq!(flows.seen(), ["POST w"]);
    flows.world.rebind(&flows.bound, &json!({ "enabled": true })).await?;
    let (status, answer) = resolve(&flows, &id, &json!({ "as": "retry" })).await?;
    assert!(matches!(status, 200 | 202), "{status} {answer}");
    assert_eq!(told(&flows.ended(&id).await?)[0], "completed");
    let keys = flows.keys("w");
    assert!(keys.len() == 2 && keys[0] == keys[1], "{keys:?}");
    questions(2).await
}

/// The author says that two calls are harmless, but the bot loses the tool while the first one runs.
#[tokio::test]
async fn a_run_whose_repetition_was_refused_is_not_retried_before_somebody_has_said_what_became_of_it() -> Result<()> {
    let flows = Flows::start().await?;
    flows.world.github.hold();
    let definition = json!({ "steps": [with(call("w", WRITE), &json!({ "on_uncertain": "retry" }))] });
    let id = flows.begin(&definition, &json!({})).await?;
    flows.reached(1).await?;
    flows.world.rebind(&flows.bound, &json!({ "enabled": false })).await?;
    let run = flows.ended(&id).await?;
    assert_eq!((told(&run), &run["uncertain"]), (["failed", "uncertain", "w"], &json!([{ "step": "w" }])), "{run}");
    assert_eq!(status_of(&flows.steps(&run).await?), ["w uncertain", "w uncertain"], "a refusal is not repeated");
    flows.world.github.release();
    flows.world.rebind(&flows.bound, &json!({ "enabled": true })).await?;
    let (status, refused) = flows.api().post(&format!("/api/runs/{id}/retry"), &json!({})).await?;
    assert_eq!(status, 409, "{refused}");
    assert_eq!(flows.seen(), ["POST w"]);
    Ok(())
}
