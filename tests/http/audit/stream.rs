//! Tests of `/api/audit/stream`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};
use support::Api;
use tokio::time::timeout;

use crate::http::roles::faults;
use crate::http::{Answers, send, workspace};
use crate::world::{World, text};

/// A time-out that is far longer than any event needs.
const EVENT_MAX: Duration = Duration::from_secs(30);

/// Builds a request for a stream.
fn request(api: &Api, query: &str, last: Option<&str>) -> RequestBuilder {
    let request = api.request(Method::GET, &format!("/api/audit/stream{query}")).header("accept", "text/event-stream");
    match last {
        Some(last) => request.header("last-event-id", last),
        None => request,
    }
}

/// An open stream.
struct Stream {
    response: Response,
    text: String,
    /// The id of the first event.
    begin: String,
}

/// An event: its name, its id and its data.
type Event = (String, String, Value);

impl Stream {
    async fn open(api: &Api, query: &str, last: Option<&str>) -> Result<Stream> {
        let response = request(api, query, last).send().await?;
        ensure!(response.status() == 200, "{}", response.status());
        let mut stream = Stream { response, text: String::new(), begin: String::new() };
        let (name, id, _) = stream.next().await?.context("the stream has ended")?;
        ensure!(name.is_empty() && !id.is_empty(), "{name} {id}");
        stream.begin = id;
        Ok(stream)
    }

    /// Returns the next event, or `None` at the end of the stream.
    async fn next(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
                let (name, id, data) = (field("event: "), field("id: "), field("data: "));
                let data = if data.is_empty() { Value::Null } else { serde_json::from_str(data)? };
                // A comment keeps the connection open.
                let found = (!name.is_empty() || !id.is_empty()).then(|| (name.to_owned(), id.to_owned(), data));
                self.text = rest.to_owned();
                match found {
                    Some(event) => return Ok(Some(event)),
                    None => continue,
                }
            }
            let chunk = timeout(EVENT_MAX, self.response.chunk()).await.context("no event")??;
            let Some(chunk) = chunk else { return Ok(None) };
            self.text.push_str(std::str::from_utf8(&chunk)?);
        }
    }

    /// Returns the next event, which must be a call, as its id and the call.
    async fn call(&mut self) -> Result<(String, Value)> {
        let (name, id, call) = self.next().await?.context("the stream has ended")?;
        ensure!(name == "call", "{name}: {call}");
        Ok((id, call))
    }
}

async fn world() -> Result<World> {
    let world = World::with(&["test-echo"]).await?;
    world.grant("test-echo", &["echo.read"], &json!({ "repos": ["acme/*"] })).await?;
    Ok(world)
}

async fn called(world: &World, repo: &str) -> Result<String> {
    let answer = world.call("test_echo_run", &json!({ "repo": repo })).await?;
    Ok(text(&answer["request_id"]).to_owned())
}

#[tokio::test]
async fn each_call_is_an_event_at_its_end() -> Result<()> {
    let world = world().await?;
    called(&world, "acme/before").await?;
    let mut stream = Stream::open(&world.api, "", None).await?;
    let mut denied = Stream::open(&world.api, "?rule=scope.repos&tool=test_echo_run", None).await?;
    let first = called(&world, "acme/site").await?;
    // Changes are not calls.
    world.api.role("reader", &["*.read"]).await?;
    let second = called(&world, "other/site").await?;
    assert_eq!(stream.call().await?.1["request_id"], json!(first));
    let (_, call) = stream.call().await?;
    // The event has the item of the list.
    let (_, list) = world.api.get("/api/audit?limit=1").await?;
    assert_eq!((&call["request_id"], &call), (&json!(second), &list["items"][0]));
    assert_eq!(denied.call().await?.1, call);
    Ok(())
}

#[tokio::test]
async fn a_stream_resumes_after_the_last_event() -> Result<()> {
    let world = world().await?;
    let mut stream = Stream::open(&world.api, "", None).await?;
    let (begin, first) = (stream.begin.clone(), called(&world, "acme/1").await?);
    let (id, call) = stream.call().await?;
    assert_eq!(call["request_id"], json!(first));
    drop(stream);
    let (second, third) = (called(&world, "acme/2").await?, called(&world, "other/3").await?);
    let mut stream = Stream::open(&world.api, "", Some(&id)).await?;
    assert_eq!(stream.begin, id);
    let fourth = called(&world, "acme/4").await?;
    for expected in [&second, &third, &fourth] {
        assert_eq!(stream.call().await?.1["request_id"], json!(expected));
    }
    // The first id of a stream is a cursor too, and another filter may continue there.
    let mut denied = Stream::open(&world.api, "?status=scope_violation", Some(&begin)).await?;
    assert_eq!(denied.call().await?.1["request_id"], json!(third));
    Ok(())
}

#[tokio::test]
async fn a_workspace_sees_no_calls_of_another() -> Result<()> {
    let world = world().await?;
    let foreign = workspace(&world.api, "foreign").await?;
    let mut ours = Stream::open(&world.api, "", None).await?;
    let mut theirs = Stream::open(&foreign, "", None).await?;
    let mut filtered = Stream::open(&foreign, &format!("?bot_id={}", world.bot), None).await?;
    let call = called(&world, "acme/site").await?;
    assert_eq!(ours.call().await?.1["request_id"], json!(call));
    // The cursor of one workspace shows another workspace only its own calls.
    let mut stolen = Stream::open(&foreign, "", Some(&ours.begin)).await?;
    let bot = foreign.bot("theirs").await?;
    let answer = foreign.call(&bot, "nothing", &json!({})).await?;
    for stream in [&mut theirs, &mut stolen] {
        assert_eq!(stream.call().await?.1["request_id"], answer["request_id"]);
    }
    let next = timeout(Duration::from_secs(2), filtered.next()).await;
    ensure!(next.is_err(), "the filter of another workspace's bot found {next:?}");
    Ok(())
}

#[tokio::test]
async fn a_stream_ends_with_its_key() -> Result<()> {
    let world = world().await?;
    for ends_by in ["rotation", "deletion"] {
        let body = json!({ "name": ends_by, "kind": "operator" });
        let (_, key) = world.api.post("/api/keys", &body).await?;
        let mut stream = Stream::open(&world.api.with_key(text(&key["key"])), "", None).await?;
        called(&world, "acme/site").await?;
        stream.call().await?;
        let path = format!("/api/keys/{}", text(&key["id"]));
        let (status, body) = match ends_by {
            "rotation" => world.api.post(&format!("{path}/rotate"), &Value::Null).await?,
            _ => world.api.delete(&path).await?,
        };
        ensure!(matches!(status, 200 | 204), "{status} {body}");
        called(&world, "acme/later").await?;
        assert_eq!(stream.next().await?, None, "after its {ends_by}");
    }
    Ok(())
}

#[tokio::test]
async fn an_idle_stream_ends_with_its_key_too() -> Result<()> {
    let world = world().await?;
    let (_, key) = world.api.post("/api/keys", &json!({ "name": "reader", "kind": "operator" })).await?;
    let mut stream = Stream::open(&world.api.with_key(text(&key["key"])), "", None).await?;
    world.api.delete(&format!("/api/keys/{}", text(&key["id"]))).await?;
    assert_eq!(stream.next().await?, None);
    Ok(())
}

/// A stream does not delay the shutdown of the server.
#[tokio::test]
async fn a_stream_ends_with_the_server() -> Result<()> {
    let mut world = world().await?;
    let mut stream = Stream::open(&world.api, "", None).await?;
    let stopped = timeout(Duration::from_secs(4), world.server.stop()).await;
    ensure!(stopped.context("the server waits for the stream")??.success());
    assert_eq!(stream.next().await?, None);
    Ok(())
}

#[tokio::test]
async fn streams_are_limited_by_key_and_server() -> Result<()> {
    let world = world().await?;
    let mut streams = Vec::new();
    for n in 0..8 {
        let (_, key) = world.api.post("/api/keys", &json!({ "name": format!("k{n}"), "kind": "operator" })).await?;
        let api = world.api.with_key(text(&key["key"]));
        for _ in 0..8 {
            streams.push(Stream::open(&api, "", None).await?);
        }
        let (status, _, body) = send(request(&api, "", None)).await?;
        assert_eq!(status, 429, "the ninth stream of a key: {body}");
    }
    let (status, _, body) = send(request(&world.api, "", None)).await?;
    assert_eq!(
        (status, &body["detail"]),
        (429, &json!("the server has reached its limit of open streams; try again later"))
    );
    // A place is free again soon after its client has left.
    streams.truncate(63);
    crate::world::eventually("a place is free", async || {
        let response = request(&world.api, "", None).send().await?;
        Ok((response.status() == 200).then_some(()))
    })
    .await?;
    // All others go on.
    let call = called(&world, "acme/site").await?;
    for stream in &mut streams {
        assert_eq!(stream.call().await?.1["request_id"], json!(call));
    }
    Ok(())
}

#[tokio::test]
async fn invalid_requests_for_a_stream_are_rejected() -> Result<()> {
    let world = world().await?;
    let of_bot = world.api.with_key(&world.api.new_key("bot", Some(&world.bot)).await?);
    let mut answers = Answers::default();
    let plain = world.api.request(Method::GET, "/api/audit/stream");
    for (label, request) in [
        ("without Accept", plain),
        ("a bot", request(&of_bot, "", None)),
        ("an unknown id", request(&world.api, "", Some("x"))),
        ("a bad filter", request(&world.api, "?status=done", None)),
        ("a tree", request(&world.api, "?tree=x", None)),
    ] {
        let (status, _, body) = send(request).await?;
        let known = if label == "a tree" { Value::Null } else { body };
        answers.add(label, faults((status, known)));
    }
    assert_snapshot!(answers, @r#"
    without Accept: 422 [{"path":"accept","message":"expected text/event-stream"}]
    a bot: 403 "this operation requires an operator, admin or root key"
    an unknown id: 422 [{"path":"last-event-id","message":"expected the id of an event"}]
    a bad filter: 422 [{"path":"status","message":"expected success, error, scope_violation, permission_denied, approval_required, running or interrupted"}]
    a tree: 422
    "#);
    Ok(())
}
