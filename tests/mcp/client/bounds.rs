//! Servers and requests that try to use up what all share: memory, and places for discoveries.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use support::{FakeMcp, Generation, McpReply};
use tokio::task::JoinSet;

use super::{Behind, tool};
use crate::http::{made, send, workspace};
use crate::world::text;

/// Eight requests of a workspace run or wait. A server that hangs holds each of them for 20 s.
#[tokio::test]
async fn a_workspace_whose_server_hangs_delays_no_discoveries_of_others() -> Result<()> {
    let behind = Behind::undecided(Generation::Stateless, &[tool("note", "Adds")], &json!({})).await?;
    behind.discovered().await?;
    let other = FakeMcp::start(Generation::Stateless, &[tool("other", "Adds")]).await?;
    let foreign = workspace(&behind.world.api, "foreign").await?;
    let network = json!({ "allow_addresses": ["127.0.0.0/8"], "allow_http": true });
    let body = json!({ "resource_type": "mcp", "name": "theirs", "config": {"url": other.url()}, "network": network });
    let theirs = made(&foreign, "/api/resources", &body).await?;

    behind.mcp.reply("tools/list", McpReply::events(&[]).silent());
    let path = format!("/api/resources/{}/tools/discover", behind.resource);
    let mut requests = JoinSet::new();
    for _ in 0..12 {
        let request = behind.world.api.request(reqwest::Method::POST, &path);
        requests.spawn(async move { send(request).await });
    }
    for _ in 0..4 {
        let (status, headers, body) = requests.join_next().await.context("a request has ended")???;
        assert_eq!(status, 429, "{body}");
        assert!(headers.contains_key("retry-after"), "{body}");
    }
    let began = Instant::now();
    let path = format!("/api/resources/{theirs}/tools/discover");
    let (status, _, body) = send(foreign.request(reqwest::Method::POST, &path)).await?;
    assert_eq!((status, text(&body["discovery"]["status"])), (200, "ok"), "{body}");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    Ok(())
}

/// A parsed value takes many times more memory than its text.
#[tokio::test]
async fn an_answer_with_very_many_values_is_refused() -> Result<()> {
    let behind = Behind::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
    let many: Vec<Value> = vec![json!({}); 1 << 20];
    let block = json!({"type": "text", "text": "hi"});
    let result = json!({"resultType": "complete", "content": [block], "structuredContent": {"many": many}});
    behind.mcp.set_result("note", &result);
    let answer = behind.call("notes__note", &json!({})).await?;
    assert_eq!((text(&answer["status"]), text(&answer["code"])), ("error", "upstream"), "{answer}");
    assert!(text(&answer["message"]).contains("values"), "{answer}");
    // The body of an HTTP error is not parsed if it is large.
    let error =
        json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": "no", "data": "x".repeat(1 << 20)}});
    behind.mcp.reply("tools/call", McpReply::json(500, &error));
    let answer = behind.call("notes__note", &json!({})).await?;
    assert_eq!(text(&answer["message"]), "the MCP server answered with HTTP status 500", "{answer}");
    Ok(())
}
