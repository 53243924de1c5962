//! The stream of changes of approvals.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use support::Api;
use tokio::time::timeout;

use super::Gated;
use crate::world::text;

/// An open stream.
struct Stream {
    response: Response,
    text: String,
}

impl Stream {
    async fn open(api: &Api, query: &str, last: Option<&str>) -> Result<Stream> {
        let mut request = api.request(Method::GET, &format!("/api/approvals{query}"));
        request = request.header("accept", "text/event-stream");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = request.send().await?;
        ensure!(response.status() == 200, "{}", response.status());
        Ok(Stream { response, text: String::new() })
    }

    /// Returns the id and the data of the next event, or `None` at the end of the stream.
    async fn next(&mut self) -> Result<Option<(String, Value)>> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
                let (name, id, data) = (field("event: "), field("id: "), field("data: "));
                let event = (name == "approval").then(|| anyhow::Ok((id.to_owned(), serde_json::from_str(data)?)));
                self.text = rest.to_owned();
                match event {
                    Some(event) => return event.map(Some),
                    // A comment keeps the connection open.
                    None => continue,
                }
            }
            let chunk = timeout(Duration::from_secs(30), self.response.chunk()).await.context("no event")??;
            let Some(chunk) = chunk else { return Ok(None) };
            self.text.push_str(std::str::from_utf8(&chunk)?);
        }
    }

    async fn expect(&mut self, id: &str, status: &str) -> Result<String> {
        let (event, approval) = self.next().await?.context("the stream has ended")?;
        ensure!(approval["id"] == id && approval["status"] == status, "{approval}");
        ensure!(approval["params"].is_object(), "{approval}");
        Ok(event)
    }
}

#[tokio::test]
async fn a_stream_shows_changes_and_resumes() -> Result<()> {
    let gated = Gated::start().await?;
    gated.ask(&json!({ "any": "before the stream" })).await?;
    let mut stream = Stream::open(&gated.admin, "", None).await?;
    let id = gated.ask(&json!({})).await?;
    let asked = stream.expect(&id, "pending").await?;
    gated.approve(&id).await?;
    stream.expect(&id, "approved").await?;
    gated.call(&json!({})).await?;
    let used = stream.expect(&id, "used").await?;
    drop(stream);

    // The stream resumes with the newest state of everything that has changed since.
    let other = gated.ask(&json!({ "any": 1 })).await?;
    let mut stream = Stream::open(&gated.admin, "", Some(&asked)).await?;
    assert_eq!(stream.expect(&id, "used").await?, used);
    stream.expect(&other, "pending").await?;
    let mut stream = Stream::open(&gated.admin, "?status=pending", Some(&used)).await?;
    stream.expect(&other, "pending").await?;
    Ok(())
}

#[tokio::test]
async fn a_stream_ends_with_its_key() -> Result<()> {
    let gated = Gated::start().await?;
    let root = &gated.world.api;
    let (_, key) = root.post("/api/keys", &json!({ "name": "reader", "kind": "approver" })).await?;
    let mut stream = Stream::open(&root.with_key(text(&key["key"])), "", None).await?;
    let id = gated.ask(&json!({})).await?;
    stream.expect(&id, "pending").await?;
    ensure!(root.delete(&format!("/api/keys/{}", text(&key["id"]))).await?.0 == 204);
    assert_eq!(stream.next().await?, None);
    Ok(())
}

#[tokio::test]
async fn a_bot_sees_the_changes_of_its_own_approvals() -> Result<()> {
    let gated = Gated::start().await?;
    let root = &gated.world.api;
    let own = root.with_key(&root.new_key("bot", Some(&gated.world.bot)).await?);
    let mut stream = Stream::open(&own, "", None).await?;
    let id = gated.ask(&json!({})).await?;
    let (_, approval) = stream.next().await?.context("the stream has ended")?;
    assert_eq!((&approval["id"], approval.get("digest")), (&json!(id), None));
    let request = gated.admin.request(Method::GET, "/api/approvals").header("accept", "text/event-stream");
    assert_eq!(request.header("last-event-id", "x").send().await?.status(), 422);
    Ok(())
}

/// A stream does not delay the shutdown of the server.
#[tokio::test]
async fn a_stream_ends_with_the_server() -> Result<()> {
    let mut gated = Gated::start().await?;
    let mut stream = Stream::open(&gated.admin, "", None).await?;
    let stopped = timeout(Duration::from_secs(4), gated.world.server.stop()).await;
    ensure!(stopped.context("the server waits for the stream")??.success());
    assert_eq!(stream.next().await?, None);
    Ok(())
}

#[tokio::test]
async fn one_key_does_not_use_up_the_streams_of_others() -> Result<()> {
    let gated = Gated::start().await?;
    let open = |api: &Api| api.request(Method::GET, "/api/approvals").header("accept", "text/event-stream").send();
    let mut streams = Vec::new();
    for _ in 0..16 {
        streams.push(open(&gated.admin).await?);
    }
    assert!(streams.iter().all(|stream| stream.status() == 200));
    assert_eq!(open(&gated.admin).await?.status(), 429);
    assert_eq!(open(&gated.world.api).await?.status(), 200, "another key");
    Ok(())
}
