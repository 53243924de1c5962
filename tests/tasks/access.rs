//! Who may start, see and cancel tasks.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::{Api, LlmReply};

use super::{Tasks, ended, list};
use crate::http::workspace;
use crate::world::text;

#[tokio::test]
async fn tasks_are_seen_in_their_workspace_and_by_the_keys_of_their_bot() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([LlmReply::says(&["Yes."])]);
    let task = tasks.run("Is it so?").await?;
    let paths = ["", "/steps", "/events"].map(|rest| format!("/api/tasks/{}{rest}", text(&task["id"])));
    let session = format!("/api/sessions/{}", text(&task["session_id"]));
    let key_of = async |name: &str, bot: &str| -> Result<Api> {
        let body = json!({ "name": name, "kind": "bot", "bot_id": bot });
        let (status, key) = tasks.api().post("/api/keys", &body).await?;
        ensure!(status == 201, "{key}");
        Ok(tasks.api().with_key(text(&key["key"])))
    };
    let own = key_of("own", &tasks.world.bot).await?;
    let other_bot = tasks.api().bot("other").await?;
    let other = key_of("other", &other_bot).await?;
    let foreign = workspace(tasks.api(), "foreign").await?;
    for path in paths.iter().chain([&session]) {
        let status = own.request(reqwest::Method::GET, path).send().await?.status();
        assert_eq!(status, 200, "{path} with the key of the bot");
        for stranger in [&other, &foreign] {
            assert_eq!(stranger.get(path).await?.0, 404, "{path}");
        }
    }
    for stranger in [&other, &foreign] {
        assert_eq!(stranger.delete(&paths[0]).await?.0, 404);
        assert_eq!(stranger.delete(&session).await?.0, 404);
        assert_eq!(stranger.post(&format!("{session}/messages"), &json!({ "text": "x" })).await?.0, 404);
        let path = format!("/api/bots/{}/tasks", tasks.world.bot);
        assert_eq!(stranger.post(&path, &json!({ "instruction": "x" })).await?.0, 404);
        for list in ["/api/tasks", "/api/sessions"] {
            assert_eq!(stranger.get(list).await?.1["items"], Value::Array(Vec::new()), "{list}");
        }
    }
    assert_eq!(own.get("/api/tasks").await?.1["items"][0]["id"], task["id"]);
    let of_other = own.get(&format!("/api/tasks?bot_id={other_bot}")).await?;
    assert_eq!(of_other.1["items"], Value::Array(Vec::new()));
    Ok(())
}

#[tokio::test]
async fn only_the_server_makes_calls_of_its_tasks() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([LlmReply::says(&["Yes."])]);
    let task = tasks.run("Is it so?").await?;
    let path = format!("/api/bots/{}/tools/github_list_issues/call", tasks.world.bot);
    let (status, refused) = tasks.api().post(&path, &json!({ "params": list(), "task_id": task["id"] })).await?;
    assert_eq!((status, &refused["errors"][0]["path"]), (422, &json!("/task_id")), "{refused}");
    let other = monstrum_types::TaskId::new();
    let (status, called) = tasks.api().post(&path, &json!({ "params": list(), "task_id": other })).await?;
    assert_eq!((status, &called["status"]), (200, &json!("success")), "{called}");
    Ok(())
}

#[tokio::test]
async fn a_bot_without_a_model_has_no_tasks() -> Result<()> {
    let tasks = Tasks::start().await?;
    let bot = tasks.api().bot("other").await?;
    let (status, refused) = tasks.api().post(&format!("/api/bots/{bot}/tasks"), &json!({ "instruction": "x" })).await?;
    assert_eq!(status, 409, "{refused}");
    assert!(text(&refused["detail"]).contains("model"), "{refused}");
    Ok(())
}

#[tokio::test]
async fn a_repeated_request_starts_one_task() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([LlmReply::says(&["Yes."])]);
    let mut ids = Vec::new();
    for _ in 0..2 {
        let path = format!("/api/bots/{}/tasks", tasks.world.bot);
        let request = tasks.api().request(reqwest::Method::POST, &path).header("idempotency-key", "one");
        let answer = request.json(&json!({ "instruction": "Is it so?" })).send().await?;
        ensure!(answer.status() == 202, "{answer:?}");
        ids.push(text(&answer.json::<Value>().await?["id"]).to_owned());
    }
    assert_eq!(ids[0], ids[1]);
    ended(tasks.api(), &ids[0]).await?;
    assert_eq!(tasks.llm.requests().len(), 1);
    Ok(())
}
