//! `/api/sandboxes`, `/api/chats` and `/api/apps`: listing and deleting sandboxes.

use anyhow::{Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::http::one;
use crate::sandbox::Doors;
use crate::world::{eventually, text};

async fn listed(doors: &Doors, query: &str) -> Result<Vec<String>> {
    let (status, list) = doors.api.get(&format!("/api/sandboxes{query}")).await?;
    ensure!(status == 200, "{list}");
    Ok(list["items"].as_array().into_iter().flatten().map(|item| text(&item["chat_id"]).to_owned()).collect())
}

async fn in_chat(doors: &Doors, app: &str, chat: &str) -> Result<Value> {
    let chat = json!({ "app_id": app, "user_id": "u", "chat_id": chat });
    doors.call_as(&doors.bot, "sandbox_shell", &json!({ "command": "echo x" }), Some(chat), "en").await
}

#[tokio::test]
async fn sandboxes_are_listed_by_page_and_by_filter() -> Result<()> {
    let doors = Doors::open().await?;
    assert_eq!(listed(&doors, "").await?, Vec::<String>::new());
    for (app, chat) in [("a", "c"), ("a", "d"), ("b", "c")] {
        in_chat(&doors, app, chat).await?;
    }
    let mut first = doors.api.get("/api/sandboxes?app_id=a&chat_id=c").await?;
    for time in ["last_active_at", "created_at"] {
        first.1["items"][0].as_object_mut().and_then(|item| item.remove(time));
    }
    assert_snapshot!(one(first), @r#"200 {"items":[{"id":"[id 1]","sandbox_id":"43330bb4d49c2ff8","provider":"machines","bot_id":"[id 2]","app_id":"a","user_id":"u","chat_id":"c","status":"running","limit":{"cpuCount":1,"memoryMiB":1024,"diskGiB":2,"tmpMiB":256,"processes":1024,"processesPerExec":256}}],"next_cursor":null}"#);
    assert_eq!(listed(&doors, "?app_id=a").await?, ["c", "d"]);
    assert_eq!(listed(&doors, "?chat_id=c&status=running").await?, ["c", "c"]);
    assert_eq!(listed(&doors, "?status=stopped").await?, Vec::<String>::new());
    let (_, page) = doors.api.get("/api/sandboxes?limit=2").await?;
    let cursor = text(&page["next_cursor"]);
    assert_eq!(listed(&doors, &format!("?limit=2&cursor={cursor}")).await?, ["c"]);
    assert_snapshot!(one(doors.api.get("/api/sandboxes?status=odd").await?), @r#"422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"status: expected creating, running, stopping, stopped, deleting, error or lost","request_id":"[id 1]","errors":[{"path":"status","message":"expected creating, running, stopping, stopped, deleting, error or lost"}]}"#);

    let id = text(&page["items"][0]["id"]).to_owned();
    assert_eq!(doors.api.get(&format!("/api/sandboxes/{id}")).await?.1["chat_id"], "c");
    assert_eq!(doors.api.get("/api/sandboxes/none").await?.0, 404);
    Ok(())
}

#[tokio::test]
async fn what_is_deleted_goes_in_the_background_and_leaves_a_record() -> Result<()> {
    let doors = Doors::open().await?;
    for (app, chat) in [("a", "c"), ("a", "d/1"), ("a", "e"), ("b", "c")] {
        in_chat(&doors, app, chat).await?;
    }
    let gone = async |left: usize| {
        eventually("the sandboxes are deleted", async || {
            Ok((doors.machines.count() == left && listed(&doors, "").await?.len() == left).then_some(()))
        })
        .await
    };
    assert_snapshot!(one(doors.api.delete("/api/chats/c").await?), @r#"422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"app_id: required query parameter is missing","request_id":"[id 1]","errors":[{"path":"app_id","message":"required query parameter is missing"}]}"#);
    let delete = async |path: &str| -> Result<u16> { Ok(doors.api.delete(path).await?.0) };
    assert_eq!(delete("/api/chats/d%2F1?app_id=a").await?, 202);
    gone(3).await?;
    assert_eq!(delete("/api/chats/d%2F1?app_id=a").await?, 202, "deleting when no sandbox is left is an error");
    assert_eq!(delete("/api/apps/a").await?, 202);
    gone(1).await?;
    assert_eq!(delete("/api/apps/nothing").await?, 202);
    let (_, list) = doors.api.get("/api/sandboxes").await?;
    let last = format!("/api/sandboxes/{}", text(&list["items"][0]["id"]));
    assert_eq!(delete(&last).await?, 202);
    gone(0).await?;
    assert_eq!(delete(&last).await?, 404);

    let (_, changes) = doors.api.get("/api/audit/changes").await?;
    let told = |change: &Value| format!("{} {}", text(&change["change"]), text(&change["status"]));
    let told: Vec<String> = changes["items"].as_array().into_iter().flatten().map(told).take(6).collect();
    assert_snapshot!(told.join("\n"), @"
    sandbox.delete success
    app.delete success
    app.delete success
    chat.delete success
    chat.delete success
    bot.update success
    ");
    Ok(())
}

#[tokio::test]
async fn a_bot_key_reaches_its_own_sandboxes_only() -> Result<()> {
    let doors = Doors::open().await?;
    in_chat(&doors, "a", "c").await?;
    let id = text(&doors.sandbox().await?["id"]).to_owned();
    let other = doors.api.bot("other").await?;
    doors.switch(&other, true).await?;
    let (own, foreign) = (doors.key_of(&doors.bot).await?, doors.key_of(&other).await?);
    let path = format!("/api/sandboxes/{id}");
    assert_eq!(own.get(&path).await?.0, 200);
    assert_eq!(foreign.get(&path).await?.0, 404);
    assert_eq!(foreign.get("/api/sandboxes").await?.1["items"], json!([]));
    assert_eq!(foreign.delete(&path).await?.0, 404);
    assert_eq!(foreign.post(&format!("{path}/exec"), &json!({ "command": "echo x" })).await?.0, 404);
    assert_eq!(doors.file(&foreign, &json!({ "action": "list", "path": "." })).await?.0, 404);
    // The requests are accepted for any name, but they delete no sandbox of another bot.
    assert_eq!(foreign.delete("/api/chats/c?app_id=a").await?.0, 202);
    assert_eq!(foreign.delete("/api/apps/a").await?.0, 202);
    assert_eq!(text(&doors.sandbox().await?["status"]), "running");
    // With its sandboxes switched off, the bot's key cannot use files, but it can still delete the sandbox.
    let list = json!({ "action": "list", "path": "." });
    assert_eq!(doors.file(&own, &list).await?.0, 200);
    doors.switch(&doors.bot, false).await?;
    assert_eq!(doors.file(&own, &list).await?.0, 403);
    assert_eq!(doors.file(&doors.api, &list).await?.0, 200);
    assert_eq!(own.delete(&path).await?.0, 202);
    Ok(())
}
