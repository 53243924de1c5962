//! Schedules that fire: their tasks, earlier tasks, failures and keys.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::LlmReply;

use super::{change, fired, schedule, show, soon, tasks};
use crate::tamper::sqlite;
use crate::tasks::{Tasks, ended};
use crate::world::text;

#[tokio::test]
async fn a_schedule_fires_once_and_its_task_completes() -> Result<()> {
    let world = Tasks::start().await?;
    let (api, bot) = (world.api(), &world.world.bot);
    world.llm.prepare([LlmReply::says(&["Yes."])]);
    let at = soon();
    let id = schedule(api, bot, "once", &json!({ "at": at })).await?;
    assert_eq!(show(api, &id).await?["next_at"], json!(at));
    let schedule = fired(api, &id, "completed").await?;
    assert_eq!((&schedule["last"]["planned_at"], &schedule["next_at"]), (&json!(at), &Value::Null));
    let task = ended(api, text(&schedule["last"]["task_id"])).await?;
    assert_eq!((text(&task["status"]), text(&task["result"])), ("completed", "Yes."), "{task}");
    assert_eq!((&task["started_by"], text(&task["instruction"])), (&Value::Null, "Is it so?"));
    let (_, session) = api.get(&format!("/api/sessions/{}", text(&task["session_id"]))).await?;
    assert_eq!((text(&session["chat"]["app_id"]), text(&session["chat"]["user_id"])), ("task", id.as_str()));
    assert_eq!(tasks(api).await?.len(), 1);
    let events = "select event_type from events where source_type = 'schedule'";
    let events = sqlite(&world.world.server.data_dir(), &[events]).await?;
    assert_eq!(events, json!([["schedule.fired"]]));
    Ok(())
}

#[tokio::test]
async fn a_person_fires_a_schedule_that_is_disabled() -> Result<()> {
    let world = Tasks::start().await?;
    let (api, bot) = (world.api(), &world.world.bot);
    world.llm.prepare([LlmReply::says(&["Yes."])]);
    let id = schedule(api, bot, "hourly", &json!({ "every_s": 3600, "enabled": false })).await?;
    let (status, task) = api.post(&format!("/api/schedules/{id}/fire"), &Value::Null).await?;
    ensure!(status == 202, "{status} {task}");
    let task = ended(api, text(&task["id"])).await?;
    assert_eq!(text(&task["status"]), "completed", "{task}");
    let schedule = fired(api, &id, "completed").await?;
    assert_eq!((&schedule["enabled"], &schedule["next_at"]), (&json!(false), &Value::Null));
    assert_eq!(schedule["last"]["task_id"], task["id"]);
    Ok(())
}

#[tokio::test]
async fn an_earlier_task_skips_or_holds_back_a_firing() -> Result<()> {
    let world = Tasks::start().await?;
    let (api, bot) = (world.api(), &world.world.bot);
    world.llm.prepare([LlmReply::chunks(&[LlmReply::piece("I go on")]).silent(), LlmReply::says(&["Yes."])]);
    let id = schedule(api, bot, "busy", &json!({ "every_s": 3600 })).await?;
    let (_, first) = api.post(&format!("/api/schedules/{id}/fire"), &Value::Null).await?;
    world.llm.is_answering().await;
    change(api, &id, &json!({ "at": soon() })).await?;
    let skipped = fired(api, &id, "skipped").await?;
    assert_eq!(skipped["last"]["task_id"], Value::Null);
    assert_eq!(tasks(api).await?.len(), 1);
    change(api, &id, &json!({ "at": soon(), "overlap": "queue" })).await?;
    let queued = fired(api, &id, "queued").await?;
    assert_eq!(tasks(api).await?.len(), 1);
    // The end of the first task starts the one that waits.
    api.delete(&format!("/api/tasks/{}", text(&first["id"]))).await?;
    let completed = fired(api, &id, "completed").await?;
    assert_eq!(completed["last"]["planned_at"], queued["last"]["planned_at"]);
    assert_eq!(tasks(api).await?.len(), 2);
    Ok(())
}

#[tokio::test]
async fn five_failures_pause_a_schedule() -> Result<()> {
    let world = Tasks::start().await?;
    let api = world.api();
    let bot = api.bot("without-a-model").await?;
    let id = schedule(api, &bot, "failing", &json!({ "at": soon() })).await?;
    let failed = fired(api, &id, "failed").await?;
    assert_eq!((&failed["failures"], &failed["enabled"]), (&json!(1), &json!(true)), "{failed}");
    assert_eq!(failed["last"]["task_id"], Value::Null);
    sqlite(&world.world.server.data_dir(), &["update schedules set failures = 4, last_status = null"]).await?;
    change(api, &id, &json!({ "at": soon() })).await?;
    let paused = fired(api, &id, "failed").await?;
    assert_eq!((&paused["failures"], &paused["enabled"]), (&json!(5), &json!(false)), "{paused}");
    let resumed = change(api, &id, &json!({ "every_s": 3600, "enabled": true })).await?;
    assert_eq!((&resumed["failures"], &resumed["enabled"]), (&json!(0), &json!(true)), "{resumed}");
    assert!(resumed["next_at"].is_string(), "{resumed}");
    Ok(())
}

#[tokio::test]
async fn a_failed_task_is_a_failure_of_its_schedule() -> Result<()> {
    let world = Tasks::start().await?;
    let (api, bot) = (world.api(), &world.world.bot);
    world.llm.prepare([LlmReply::json(400, &json!({ "error": { "message": "no" } }))]);
    let id = schedule(api, bot, "failing", &json!({ "at": soon() })).await?;
    let failed = fired(api, &id, "failed").await?;
    assert_eq!(failed["failures"], 1);
    assert_eq!(text(&ended(api, text(&failed["last"]["task_id"])).await?["status"]), "failed");
    // A firing that a person asks for does not count.
    world.llm.prepare([LlmReply::json(400, &json!({ "error": { "message": "no" } }))]);
    let (_, task) = api.post(&format!("/api/schedules/{id}/fire"), &Value::Null).await?;
    ended(api, text(&task["id"])).await?;
    assert_eq!(show(api, &id).await?["failures"], 1);
    Ok(())
}

#[tokio::test]
async fn a_schedule_goes_on_without_the_key_that_made_it() -> Result<()> {
    let world = Tasks::start().await?;
    world.llm.prepare([LlmReply::says(&["Yes."])]);
    let (_, key) = world.api().post("/api/keys", &json!({ "name": "ada", "kind": "operator" })).await?;
    let operator = world.api().with_key(text(&key["key"]));
    let id = schedule(&operator, &world.world.bot, "kept", &json!({ "at": soon() })).await?;
    assert_eq!(world.api().delete(&format!("/api/keys/{}", text(&key["id"]))).await?.0, 204);
    let schedule = fired(world.api(), &id, "completed").await?;
    assert_eq!(schedule["made_by"], json!({ "kind": "key", "id": key["id"] }));
    Ok(())
}

#[tokio::test]
async fn a_schedule_is_deleted_with_its_bot() -> Result<()> {
    let world = Tasks::start().await?;
    let api = world.api();
    let bot = api.bot("other").await?;
    let id = schedule(api, &bot, "gone", &json!({ "every_s": 3600 })).await?;
    assert_eq!(api.delete(&format!("/api/bots/{bot}")).await?.0, 204);
    assert_eq!(api.get(&format!("/api/schedules/{id}")).await?.0, 404);
    Ok(())
}
