//! Sessions: the tasks of one conversation.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{LlmReply, Server};

use super::{Tasks, ended};
use crate::tamper::sqlite;
use crate::world::{eventually, text};

#[tokio::test]
async fn the_second_message_of_a_session_sees_the_first() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([LlmReply::says(&["Hello, Ada."]), LlmReply::says(&["You are Ada."])]);
    let first = tasks.run("I am Ada.").await?;
    let session = format!("/api/sessions/{}", text(&first["session_id"]));
    let (status, second) = tasks.api().post(&format!("{session}/messages"), &json!({ "text": "Who am I?" })).await?;
    ensure!(status == 202, "{status} {second}");
    assert_eq!(second["session_id"], first["session_id"]);
    let second = ended(tasks.api(), text(&second["id"])).await?;
    assert_eq!(text(&second["result"]), "You are Ada.");
    let said: Vec<String> = tasks.messages(1)?[1..].iter().map(|said| text(&said["content"]).to_owned()).collect();
    assert_eq!(said, ["I am Ada.", "Hello, Ada.", "Who am I?"]);

    let (_, messages) = tasks.api().get(&format!("{session}/messages")).await?;
    let items = messages["items"].as_array().context("the list has no items")?;
    let listed: Vec<[&str; 2]> = items.iter().map(|item| [text(&item["text"]), text(&item["answer"])]).collect();
    assert_eq!(listed, [["Who am I?", "You are Ada."], ["I am Ada.", "Hello, Ada."]]);

    let (status, _) = tasks.api().delete(&session).await?;
    assert_eq!(status, 204);
    assert_eq!(tasks.api().get(&session).await?.0, 404);
    assert_eq!(tasks.api().get(&format!("/api/tasks/{}", text(&first["id"]))).await?.0, 404);
    Ok(())
}

#[tokio::test]
async fn a_conversation_belongs_to_one_user_and_runs_one_task() -> Result<()> {
    let tasks = Tasks::start().await?;
    let input = |user: &str| {
        let chat = json!({ "app_id": "app", "user_id": user, "chat_id": "one" });
        json!({ "instruction": "Talk.", "chat": chat })
    };
    tasks.llm.prepare([LlmReply::chunks(&[LlmReply::piece("I go on")]).silent()]);
    let id = tasks.begin(&input("ada")).await?;
    tasks.llm.is_answering().await;
    let path = format!("/api/bots/{}/tasks", tasks.world.bot);
    let (status, busy) = tasks.api().post(&path, &input("ada")).await?;
    assert_eq!(status, 409, "{busy}");
    let (status, taken) = tasks.api().post(&path, &input("eve")).await?;
    assert_eq!(status, 409, "{taken}");
    assert!(text(&taken["detail"]).contains("another user"), "{taken}");
    let (_, list) = tasks.api().get("/api/sessions?app_id=app&user_id=ada").await?;
    let session = text(&list["items"][0]["id"]).to_owned();
    for path in [format!("/api/sessions/{session}"), "/api/chats/one?app_id=app".to_owned(), "/api/apps/app".to_owned()]
    {
        let (status, busy) = tasks.api().delete(&path).await?;
        assert_eq!(status, 409, "a task runs: {path} {busy}");
    }
    assert_eq!(tasks.api().get(&format!("/api/sessions/{session}")).await?.0, 200);
    tasks.api().delete(&format!("/api/tasks/{id}")).await?;
    ended(tasks.api(), &id).await?;
    assert_eq!(tasks.api().delete(&format!("/api/sessions/{session}")).await?.0, 204);
    let (_, list) = tasks.api().get("/api/sessions?app_id=app").await?;
    assert_eq!(list["items"], Value::Array(Vec::new()));
    Ok(())
}

#[tokio::test]
async fn conversations_and_apps_are_deleted_with_their_sessions_and_recorded() -> Result<()> {
    let tasks = Tasks::start().await?;
    let talk = async |chat: &str| -> Result<Value> {
        tasks.llm.prepare([LlmReply::says(&["Yes."])]);
        let chat = json!({ "app_id": "app", "user_id": "ada", "chat_id": chat });
        let id = tasks.begin(&json!({ "instruction": "Is it so?", "chat": chat })).await?;
        ended(tasks.api(), &id).await
    };
    let session = |task: &Value| format!("/api/sessions/{}", text(&task["session_id"]));
    let (one, two, three) = (talk("one").await?, talk("two").await?, talk("three").await?);
    assert_eq!(tasks.api().delete(&session(&one)).await?.0, 204);
    assert_eq!(tasks.api().delete("/api/chats/two?app_id=app").await?.0, 202);
    assert_eq!(tasks.api().get(&session(&two)).await?.0, 404);
    assert_eq!(tasks.api().get(&format!("/api/tasks/{}", text(&two["id"]))).await?.0, 404);
    assert_eq!(tasks.api().get(&session(&three)).await?.0, 200);
    assert_eq!(tasks.api().delete("/api/apps/app").await?.0, 202);
    assert_eq!(tasks.api().get(&session(&three)).await?.0, 404);
    let (_, changes) = tasks.api().get("/api/audit/changes").await?;
    let recorded = |change: &Value| format!("{} {}", text(&change["change"]), text(&change["status"]));
    let recorded: Vec<String> = changes["items"].as_array().into_iter().flatten().map(recorded).take(3).collect();
    assert_eq!(recorded, ["app.delete success", "chat.delete success", "session.delete success"]);
    Ok(())
}

#[tokio::test]
async fn old_tasks_and_sessions_are_deleted_after_the_days_of_the_setting() -> Result<()> {
    let server = Server::prepare(&["github"])?.argument("--keep-tasks-days").argument("2");
    let mut tasks = Tasks::on(server).await?;
    tasks.llm.prepare([LlmReply::says(&["Old."]), LlmReply::says(&["New."])]);
    let (old, new) = (tasks.run("Be old.").await?, tasks.run("Be new.").await?);
    tasks.world.server.stop().await?;
    let folder = tasks.world.server.data_dir();
    let aged = |table: &str, column: &str, id: &Value, days: i64| {
        format!("update {table} set {column} = {column} - {days} * 86400000 where id = '{}'", text(id))
    };
    let edits = [
        aged("tasks", "ended_at", &old["id"], 3),
        aged("sessions", "used_at", &old["session_id"], 3),
        aged("tasks", "ended_at", &new["id"], 1),
        aged("sessions", "used_at", &new["session_id"], 1),
    ];
    sqlite(&folder, &edits.each_ref().map(String::as_str)).await?;
    tasks.world.server.launch().await?;
    tasks.world.api = tasks.world.server.api()?;
    let session = format!("/api/sessions/{}", text(&old["session_id"]));
    eventually("the session is deleted", async || Ok((tasks.api().get(&session).await?.0 == 404).then_some(())))
        .await?;
    assert_eq!(tasks.api().get(&format!("/api/tasks/{}", text(&old["id"]))).await?.0, 404);
    assert_eq!(tasks.api().get(&format!("/api/tasks/{}", text(&new["id"]))).await?.0, 200);
    assert_eq!(tasks.api().get(&format!("/api/sessions/{}", text(&new["session_id"]))).await?.0, 200);
    Ok(())
}
