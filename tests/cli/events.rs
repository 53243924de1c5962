//! Tests of the commands `monstrum event`, `subscription` and `delivery`.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::timeout;

use crate::cli::{parsed, run, succeed, told};
use crate::world::{World, text};

const UNKNOWN: &str = "019a0000-0000-7000-8000-000000000001";
/// The time after which another event is made, in case the command was not listening yet.
const NEXT: Duration = Duration::from_millis(500);
const TRIES_MAX: usize = 120;

#[tokio::test]
async fn events_are_made_listed_and_shown() -> Result<()> {
    let world = World::with(&[]).await?;
    let server = &world.server;
    std::fs::write(server.home().join("order.json"), r#"{"order": 17}"#)?;
    let file = format!("@{}", server.home().join("order.json").display());
    let id = succeed(server, &["event", "emit", "order.paid", "--data", &file, "--bot", "tester"]).await?;
    let (code, shown) = parsed(server, &["event", "show", &id]).await?;
    assert_eq!(code, Some(0), "{shown}");
    assert_eq!((&shown["id"], &shown["event_type"]), (&json!(id), &json!("custom.order.paid")));
    assert_eq!((&shown["bot_id"], &shown["data"]), (&json!(world.bot), &json!({ "order": 17 })));
    assert_eq!(shown["deliveries"], json!([]));
    let fields = succeed(server, &["event", "show", &id]).await?;
    assert!(fields.contains("custom.order.paid") && fields.contains(r#"{"order":17}"#), "{fields}");

    let (code, made) = parsed(server, &["event", "emit", "other"]).await?;
    assert_eq!((code, &made["event_type"]), (Some(0), &json!("custom.other")));
    for (flags, expected) in [
        (&["--type", "custom.order.*"][..], vec![id.as_str()]),
        (&["--type", "custom.*"], vec![text(&made["event_id"]), id.as_str()]),
        (&["--type", "custom.*", "--bot", "tester"], vec![id.as_str()]),
        (&["--type", "custom.*", "--since", "2999-01-01T00:00:00Z"], vec![]),
        (&["--type", "custom.*", "--limit", "1"], vec![text(&made["event_id"])]),
    ] {
        let (_, list) = parsed(server, &[&["event", "list"], flags].concat()).await?;
        let ids: Vec<&str> = list["items"].as_array().into_iter().flatten().map(|item| text(&item["id"])).collect();
        assert_eq!(ids, expected, "{flags:?}");
    }
    let table = succeed(server, &["event", "list", "--type", "custom.order.*"]).await?;
    assert!(table.contains("custom.order.paid") && table.contains(&id), "{table}");
    let invalid = told(server, &["event", "emit", "custom.x"]).await?;
    assert!(invalid.contains("/name: ") && invalid.ends_with("[exit 1]"), "{invalid}");
    let no_json = told(server, &["event", "emit", "x", "--data", "{"]).await?;
    assert!(no_json.contains("the data is not JSON") && no_json.contains("hint: set --data to JSON"), "{no_json}");
    assert!(told(server, &["event", "show", UNKNOWN]).await?.contains("Not found (404)"));
    Ok(())
}

#[tokio::test]
async fn events_are_followed() -> Result<()> {
    let world = World::with(&[]).await?;
    let mut command = world.server.prepared_command(&["event", "tail", "--type", "custom.order.*", "--json"])?;
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("the command has no standard output")?).lines();
    let mut made = Vec::new();
    let line = loop {
        ensure!(made.len() < TRIES_MAX, "the command prints no event");
        succeed(&world.server, &["event", "emit", "other"]).await?;
        made.push(succeed(&world.server, &["event", "emit", "order.paid", "--data", r#"{"n": 1}"#]).await?);
        if let Ok(line) = timeout(NEXT, lines.next_line()).await {
            break line?.context("the command has ended")?;
        }
    };
    let event: Value = serde_json::from_str(&line)?;
    assert_eq!((&event["event_type"], &event["data"]), (&json!("custom.order.paid"), &json!({ "n": 1 })));
    assert!(made.iter().any(|id| id == text(&event["id"])), "{event}");
    Ok(())
}

#[tokio::test]
async fn subscriptions_are_managed() -> Result<()> {
    let world = World::with(&[]).await?;
    let server = &world.server;
    let create = [
        "subscription",
        "create",
        "tester",
        "custom.order.*",
        "An order: {data}",
        "--from",
        "own",
        "--from",
        "tester",
        "--allow-tool",
        "github_*",
    ];
    let id = succeed(server, &create).await?;
    let (code, shown) = parsed(server, &["subscription", "show", &id]).await?;
    assert_eq!(code, Some(0), "{shown}");
    assert_eq!((&shown["bot_id"], &shown["pattern"]), (&json!(world.bot), &json!("custom.order.*")));
    assert_eq!((&shown["from"], &shown["active"]), (&json!(["own", world.bot]), &json!(true)));
    assert_eq!(shown["narrow"]["allowed_tools"], json!(["github_*"]));
    let edit = ["subscription", "edit", &id, "--pattern", "custom.*", "--inactive", "--clear", "narrow"];
    succeed(server, &edit).await?;
    let (_, edited) = parsed(server, &["subscription", "show", &id]).await?;
    assert_eq!((&edited["pattern"], &edited["active"]), (&json!("custom.*"), &json!(false)));
    assert!(edited["narrow"].is_null(), "{edited}");
    succeed(server, &["subscription", "edit", &id, "--active"]).await?;
    let fields = succeed(server, &["subscription", "show", &id]).await?;
    assert!(fields.contains("An order: {data}") && fields.contains("true"), "{fields}");
    let (_, list) = parsed(server, &["subscription", "list", "--bot", "tester"]).await?;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
    assert!(succeed(server, &["subscription", "list"]).await?.contains("custom.*"));
    let invalid = run(server, &["subscription", "create", "tester", "x", "{unknown}"]).await?;
    assert_eq!(invalid.status.code(), Some(1));
    assert!(told(server, &["subscription", "confirm", UNKNOWN]).await?.contains("Not found (404)"));
    succeed(server, &["subscription", "delete", &id]).await?;
    let none = told(server, &["subscription", "list"]).await?;
    assert!(none.contains("there are no subscriptions; `monstrum subscription create` creates one"), "{none}");
    Ok(())
}

/// A bot without a model gets no task, so the delivery to it is listed with its event.
#[tokio::test]
async fn deliveries_are_listed_and_repeated() -> Result<()> {
    let world = World::with(&[]).await?;
    let server = &world.server;
    let none = told(server, &["delivery", "list"]).await?;
    assert_eq!(none, "[stderr]\nthere are no such deliveries\n[exit 0]");
    assert!(told(server, &["delivery", "retry", UNKNOWN]).await?.contains("Not found (404)"));
    assert_eq!(run(server, &["delivery", "list", "--status", "lost"]).await?.status.code(), Some(2));
    succeed(server, &["subscription", "create", "tester", "custom.order.*", "An order: {data}"]).await?;
    let event = succeed(server, &["event", "emit", "order.paid"]).await?;
    let listed = crate::world::eventually("the delivery is listed", async || {
        let (_, list) = parsed(server, &["delivery", "list"]).await?;
        Ok(list["items"].as_array().and_then(|items| items.first().cloned()))
    })
    .await?;
    assert_eq!(listed["event_id"], json!(event));
    assert!(succeed(server, &["delivery", "list"]).await?.contains(text(&listed["id"])));
    assert!(succeed(server, &["event", "show", &event]).await?.contains(text(&listed["id"])));
    Ok(())
}
