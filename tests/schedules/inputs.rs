//! New and changed schedules, and previews of their times.

use anyhow::Result;
use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{change, schedule, show};
use crate::http::Answers;
use crate::http::roles::faults;
use crate::world::{World, text};

#[tokio::test]
async fn a_schedule_is_created_changed_and_deleted() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let id = schedule(api, &world.bot, "nightly", &json!({ "cron": "30 2 * * *", "timezone": "Asia/Tokyo" })).await?;
    let created = show(api, &id).await?;
    let (next_at, made_by) = (text(&created["next_at"]).to_owned(), &created["made_by"]);
    assert!(next_at.ends_with("T17:30:00.000Z"), "{created}");
    assert_eq!(made_by["kind"], "key");
    let kept = ["overlap", "missed", "jitter_s", "enabled", "failures", "last"].map(|field| created[field].clone());
    assert_eq!(kept, [json!("skip"), json!("once"), json!(0), json!(true), json!(0), Value::Null]);

    let renamed = change(api, &id, &json!({ "name": "every-night", "overlap": "queue" })).await?;
    assert_eq!((&renamed["name"], text(&renamed["next_at"])), (&json!("every-night"), next_at.as_str()));
    let hourly = change(api, &id, &json!({ "every_s": 3600, "timezone": null })).await?;
    assert_eq!((&hourly["every_s"], &hourly["cron"], &hourly["timezone"]), (&json!(3600), &Value::Null, &json!("UTC")));
    let disabled = change(api, &id, &json!({ "enabled": false })).await?;
    assert_eq!((&disabled["enabled"], &disabled["next_at"]), (&json!(false), &Value::Null));
    let enabled = change(api, &id, &json!({ "enabled": true })).await?;
    assert!(enabled["next_at"].is_string(), "{enabled}");

    let (_, listed) = api.get("/api/schedules").await?;
    assert_eq!(listed["items"], json!([enabled]));
    let path = format!("/api/schedules/{id}");
    assert_eq!(api.delete(&path).await?.0, 204);
    assert_eq!((api.get(&path).await?.0, api.delete(&path).await?.0), (404, 404));
    let (_, changes) = api.get("/api/audit/changes").await?;
    let operations: Vec<&str> =
        changes["items"].as_array().into_iter().flatten().map(|change| text(&change["change"])).collect();
    for operation in ["schedule.create", "schedule.update", "schedule.delete"] {
        assert!(operations.contains(&operation), "{operations:?}");
    }
    Ok(())
}

#[tokio::test]
async fn invalid_schedules_are_refused() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let mut answers = Answers::default();
    let body = |fields: Value| {
        let mut body = json!({ "name": "n", "bot_id": world.bot, "instruction": "x" });
        if let (Value::Object(body), Value::Object(fields)) = (&mut body, fields) {
            body.extend(fields);
        }
        body
    };
    for (name, fields) in [
        ("no time", json!({})),
        ("two times", json!({ "cron": "0 0 * * *", "every_s": 60 })),
        ("six fields", json!({ "cron": "0 0 0 * * *" })),
        ("never", json!({ "cron": "0 0 31 2 *" })),
        ("too often", json!({ "every_s": 59 })),
        ("the past", json!({ "at": "2020-01-01T00:00:00Z" })),
        ("no zone", json!({ "cron": "0 0 * * *", "timezone": "Mars" })),
        ("no instruction", json!({ "every_s": 60, "instruction": "" })),
        ("no name", json!({ "every_s": 60, "name": "" })),
        ("overlap", json!({ "every_s": 60, "overlap": "never" })),
        ("jitter", json!({ "every_s": 60, "jitter_s": 60 })),
        ("narrow", json!({ "every_s": 60, "narrow": { "allowed_tools": ["x".repeat(4097)] } })),
        ("workflow", json!({ "every_s": 60, "workflow_id": world.bot })),
        ("no bot", json!({ "every_s": 60, "bot_id": "01939d2c-7f6a-7000-8000-000000000001" })),
    ] {
        let (status, answer) = faults(api.post("/api/schedules", &body(fields)).await?);
        answers.add(name, (status, answer[0]["path"].clone()));
    }
    assert_snapshot!(answers, @r#"
    no time: 422 ""
    two times: 422 "/every_s"
    six fields: 422 "/cron"
    never: 422 "/cron"
    too often: 422 "/every_s"
    the past: 422 "/at"
    no zone: 422 "/timezone"
    no instruction: 422 "/instruction"
    no name: 422 "/name"
    overlap: 422 "/overlap"
    jitter: 422 "/jitter_s"
    narrow: 422 "/narrow/allowed_tools/0"
    workflow: 422 "/bot_id"
    no bot: 422 "/bot_id"
    "#);
    schedule(api, &world.bot, "n", &json!({ "every_s": 60, "enabled": false })).await?;
    assert_eq!(api.post("/api/schedules", &body(json!({ "every_s": 60 }))).await?.0, 409, "the name is taken");
    Ok(())
}

#[tokio::test]
async fn times_are_previewed() -> Result<()> {
    let world = World::with(&[]).await?;
    let preview = async |body: Value| world.api.post("/api/schedules/preview", &body).await;
    let (status, times) = preview(json!({ "cron": "0 12 29 2 *", "timezone": "Europe/Berlin" })).await?;
    assert_eq!(status, 200, "{times}");
    assert_eq!(
        times["next"],
        json!([
            "2028-02-29T11:00:00.000Z",
            "2032-02-29T11:00:00.000Z",
            "2036-02-29T11:00:00.000Z",
            "2040-02-29T11:00:00.000Z",
            "2044-02-29T11:00:00.000Z",
        ])
    );
    assert_eq!(preview(json!({ "every_s": 60 })).await?.1["next"].as_array().map(Vec::len), Some(5));
    for (body, path) in [
        (json!({}), ""),
        (json!({ "every_s": 1 }), "/every_s"),
        (json!({ "cron": "x" }), "/cron"),
        (json!({ "cron": "0 0 * * *", "timezone": "x" }), "/timezone"),
    ] {
        let (status, answer) = preview(body.clone()).await?;
        assert_eq!((status, &answer["errors"][0]["path"]), (422, &json!(path)), "{body}");
    }
    Ok(())
}
