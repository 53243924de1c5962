//! The progress of a call reaches an MCP client that asks for it, and nothing else.

use std::time::Duration;

use anyhow::{Context, Result};
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};

use super::{Scene, sum};
use crate::world::text;

/// The time after which the agent sends its message again, because messages in the same second are dropped.
const AGAIN: Duration = Duration::from_millis(200);

/// Prepares a call over the Model Context Protocol.
fn request(scene: &Scene, progress_token: Option<&str>) -> RequestBuilder {
    let mut meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    if let Some(token) = progress_token {
        meta["progressToken"] = json!(token);
    }
    let params = json!({"name": "lab__sum", "arguments": {"n": 5}, "_meta": meta});
    let request = scene.world.api.request(Method::POST, &format!("/mcp/{}", scene.world.bot));
    request
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "tools/call")
        .header("mcp-name", "lab__sum")
        .json(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}))
}

/// The events of an answer.
struct Events {
    response: Response,
    unread: String,
}

impl Events {
    /// Returns the next event, or `None` at the end. Comments are skipped.
    async fn next(&mut self) -> Result<Option<Value>> {
        loop {
            while let Some((event, rest)) = self.unread.split_once("\n\n") {
                let data = event.lines().find_map(|line| line.strip_prefix("data:")).map(str::to_owned);
                self.unread = rest.to_owned();
                if let Some(data) = data {
                    return Ok(Some(serde_json::from_str(&data)?));
                }
            }
            match self.response.chunk().await? {
                Some(chunk) => self.unread.push_str(std::str::from_utf8(&chunk)?),
                None => return Ok(None),
            }
        }
    }
}

#[tokio::test]
async fn a_client_with_a_token_sees_the_messages_of_the_agent() -> Result<()> {
    let scene = Scene::start().await?;
    let mut agent = scene.agent(&json!([sum()])).await?;
    scene.has(&["lab__sum"]).await?;
    let sent = tokio::spawn(request(&scene, Some("t")).send());
    let call = agent.next_of("call").await?;
    let progress = |message: &str| json!({"type": "progress", "id": call["id"], "message": message});
    agent.send(&progress("first")).await?;
    // A flood counts once. Messages for other calls, and messages that are too long, are dropped.
    agent.send(&json!({"type": "progress", "id": "foreign", "message": "foreign"})).await?;
    agent.send(&progress(&"long".repeat(500))).await?;
    for number in 0..20 {
        agent.send(&progress(&format!("flood {number}"))).await?;
    }
    let response = sent.await??.error_for_status()?;
    assert_eq!(&response.headers()["content-type"], "text/event-stream");
    let mut events = Events { response, unread: String::new() };
    let first = events.next().await?.context("the stream has ended")?;
    assert_eq!(text(&first["method"]), "notifications/progress");
    assert_eq!((&first["params"]["progressToken"], &first["params"]["message"]), (&json!("t"), &json!("first")));
    let second = loop {
        agent.send(&progress("second")).await?;
        if let Ok(event) = tokio::time::timeout(AGAIN, events.next()).await {
            let event = event?.context("the stream has ended")?;
            if event["params"]["message"] == "second" {
                break event;
            }
            // The frames of the flood may have arrived in the next second.
            assert!(text(&event["params"]["message"]).starts_with("flood"), "{event}");
        }
    };
    assert!(second["params"]["progress"].as_u64() > first["params"]["progress"].as_u64(), "{first} {second}");
    agent.succeed(&call, &json!({"total": 6})).await?;
    let last = loop {
        let event = events.next().await?.context("the stream has ended")?;
        if event["method"] != "notifications/progress" {
            break event;
        }
    };
    assert_eq!(last["result"]["structuredContent"], json!({"total": 6}));
    assert!(!last.to_string().contains("first") && !last.to_string().contains("second"), "{last}");
    assert_eq!(events.next().await?, None);

    // The audit records no progress.
    let (_, calls) = scene.world.api.get("/api/audit").await?;
    let row = scene.world.api.audit(text(&calls["items"][0]["request_id"])).await?;
    assert!(text(&row["tool"]) == "lab__sum" && !row.to_string().contains("first"), "{row}");
    Ok(())
}

#[tokio::test]
async fn a_client_without_a_token_sees_no_messages() -> Result<()> {
    let scene = Scene::start().await?;
    let mut agent = scene.agent(&json!([sum()])).await?;
    scene.has(&["lab__sum"]).await?;
    let sent = tokio::spawn(request(&scene, None).send());
    let call = agent.next_of("call").await?;
    agent.send(&json!({"type": "progress", "id": call["id"], "message": "half done"})).await?;
    // The answer becomes a stream after a second.
    let mut events = Events { response: sent.await??.error_for_status()?, unread: String::new() };
    assert_eq!(&events.response.headers()["content-type"], "text/event-stream");
    agent.succeed(&call, &json!(1)).await?;
    let only = events.next().await?.context("the stream has no event")?;
    assert!(only["result"].is_object(), "{only}");
    assert_eq!(events.next().await?, None);
    Ok(())
}
