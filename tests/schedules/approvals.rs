//! Who may decide about the calls of a schedule's tasks.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::{Api, LlmReply};

use super::{change, schedule};
use crate::tasks::{Tasks, calls, create, ended};
use crate::world::{eventually, text};

const CREATE: &str = "github_create_issue";

async fn operator(root: &Api, name: &str) -> Result<Api> {
    let (status, key) = root.post("/api/keys", &json!({ "name": name, "kind": "operator" })).await?;
    ensure!(status == 201, "{status} {key}");
    Ok(root.with_key(text(&key["key"])))
}

#[tokio::test]
async fn the_keys_behind_a_schedule_do_not_approve_its_calls() -> Result<()> {
    let world = Tasks::start().await?;
    let (root, bot) = (world.api(), &world.world.bot);
    let gate = json!({ "tools": [CREATE], "action": "ask", "approvers": ["operator"] });
    let (status, body) = root.patch(&format!("/api/bots/{bot}"), &json!({ "gates": [gate] })).await?;
    ensure!(status == 200, "{status} {body}");
    let (maker, changer) = (operator(root, "maker").await?, operator(root, "changer").await?);
    let (firer, other) = (operator(root, "firer").await?, operator(root, "other").await?);
    world.llm.prepare([calls(&[(CREATE, create("Asked"))]), LlmReply::says(&["Created."])]);
    let id = schedule(&maker, bot, "made", &json!({ "every_s": 3600 })).await?;
    change(&changer, &id, &json!({ "instruction": "Create an issue." })).await?;
    let (status, task) = firer.post(&format!("/api/schedules/{id}/fire"), &Value::Null).await?;
    ensure!(status == 202, "{status} {task}");
    let approval = eventually("the call asks", async || {
        let (_, list) = root.get("/api/approvals?status=pending").await?;
        Ok((!list["items"][0].is_null()).then(|| list["items"][0].clone()))
    })
    .await?;
    let path = format!("/api/approvals/{}", text(&approval["id"]));
    let approve = json!({ "decision": "approve", "digest": approval["digest"] });
    for api in [&maker, &changer, &firer] {
        let (status, refused) = api.post(&path, &approve).await?;
        assert_eq!(status, 403, "{refused}");
        assert!(text(&refused["detail"]).contains("made or changed what starts the task"), "{refused}");
    }
    let (status, approved) = other.post(&path, &approve).await?;
    ensure!(status == 200, "{status} {approved}");
    assert_eq!(text(&ended(root, text(&task["id"])).await?["result"]), "Created.");
    Ok(())
}
