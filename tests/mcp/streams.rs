//! Streams of changes.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use support::Server;

use super::calls::ended;
use super::{Client, Scene};
use crate::http::send;
use crate::world::text;

/// The time-out for an event.
const EVENT_MAX: Duration = Duration::from_secs(30);

/// An open stream of events.
pub(super) struct Events {
    response: Response,
    unread: String,
}

impl Events {
    pub(super) async fn open(request: reqwest::RequestBuilder) -> Result<Events> {
        let response = request.send().await?.error_for_status()?;
        assert_eq!(&response.headers()["content-type"], "text/event-stream");
        Ok(Events { response, unread: String::new() })
    }

    /// Returns the next event, or `None` at the end of the stream. Comments are skipped.
    pub(super) async fn next(&mut self) -> Result<Option<Value>> {
        let read = async {
            loop {
                while let Some((event, rest)) = self.unread.split_once("\n\n") {
                    let data = event.lines().find_map(|line| line.strip_prefix("data:")).map(str::trim);
                    let event = data.filter(|data| !data.is_empty()).map(serde_json::from_str::<Value>).transpose()?;
                    self.unread = rest.to_owned();
                    if event.is_some() {
                        return Ok(event);
                    }
                }
                match self.response.chunk().await? {
                    Some(chunk) => self.unread.push_str(&String::from_utf8_lossy(&chunk)),
                    None => return Ok(None),
                }
            }
        };
        match tokio::time::timeout(EVENT_MAX, read).await {
            Ok(event) => event,
            Err(_) => bail!("no event within {EVENT_MAX:?}"),
        }
    }

    pub(super) async fn method(&mut self) -> Result<String> {
        let event = self.next().await?.context("the stream has ended")?;
        Ok(text(&event["method"]).to_owned())
    }
}

pub(super) fn subscription(client: &Client) -> reqwest::RequestBuilder {
    client.stateless("subscriptions/listen", &json!({"notifications": {"toolsListChanged": true}}))
}

#[tokio::test]
async fn a_change_of_the_policy_that_changes_the_list_is_told_once() -> Result<()> {
    let scene = Scene::start().await?;
    let mut session = scene.client.clone();
    session.initialize("2025-11-25").await?;
    let mut streams =
        [Events::open(subscription(&scene.client)).await?, Events::open(session.bare(Method::GET)).await?];
    assert_eq!(streams[0].method().await?, "notifications/subscriptions/acknowledged");
    // The list of another bot, and changes that leave the list as it is, are not told.
    scene.world.api.bot("other").await?;
    scene.world.rebind(&scene.binding, &json!({"scope_constraints": {"kinds": ["bug", "task"]}})).await?;
    scene.change_list().await?;
    for stream in &mut streams {
        assert_eq!(stream.method().await?, "notifications/tools/list_changed");
    }
    assert_eq!(scene.world.tools().await?, ["test_echo_run"]);
    // The streams end with the bot. No further notification precedes the end.
    scene.world.api.delete(&format!("/api/bots/{}", scene.world.bot)).await?;
    let [mut stateless, mut legacy] = streams;
    let last = stateless.next().await?.context("the stream ends with a result")?;
    assert!(last["result"].is_object(), "{last}");
    assert_eq!((stateless.next().await?, legacy.next().await?), (None, None));
    Ok(())
}

/// A gate changes `monstrum/asks` of the tools in the list.
#[tokio::test]
async fn a_gate_that_asks_is_a_change_of_the_list() -> Result<()> {
    let scene = Scene::start().await?;
    let mut stream = Events::open(subscription(&scene.client)).await?;
    assert_eq!(stream.method().await?, "notifications/subscriptions/acknowledged");
    let path = format!("/api/bots/{}", scene.world.bot);
    let set_gates = async |gates: Value| {
        let (status, body) = scene.world.api.patch(&path, &json!({ "gates": gates })).await?;
        ensure!(status == 200, "{status} {body}");
        anyhow::Ok(())
    };
    set_gates(json!([{"action": "ask", "reason": "one"}])).await?;
    assert_eq!(stream.method().await?, "notifications/tools/list_changed");
    // Another reason leaves the list as it is.
    set_gates(json!([{"action": "ask", "reason": "another"}])).await?;
    set_gates(json!([])).await?;
    assert_eq!(stream.method().await?, "notifications/tools/list_changed");
    scene.world.api.delete(&path).await?;
    let last = stream.next().await?.context("the stream ends with a result")?;
    assert!(last["result"].is_object(), "{last}");
    Ok(())
}

#[tokio::test]
async fn a_stream_ends_with_its_key() -> Result<()> {
    let scene = Scene::start().await?;
    let mut stream = Events::open(subscription(&scene.client)).await?;
    assert_eq!(stream.method().await?, "notifications/subscriptions/acknowledged");
    let (_, keys) = scene.world.api.get("/api/keys").await?;
    let key = keys["items"].as_array().into_iter().flatten().find(|key| key["kind"] == "bot").cloned();
    scene.world.api.delete(&format!("/api/keys/{}", text(&key.unwrap_or_default()["id"]))).await?;
    assert!(stream.next().await?.is_some_and(|last| last["result"].is_object()));
    assert_eq!(stream.next().await?, None);
    Ok(())
}

#[tokio::test]
async fn a_key_has_64_streams() -> Result<()> {
    let scene = Scene::start().await?;
    let mut streams = Vec::new();
    for _ in 0..64 {
        streams.push(Events::open(subscription(&scene.client)).await?);
    }
    let (status, headers, body) = send(subscription(&scene.client)).await?;
    assert_eq!((status, &headers["retry-after"]), (429, &"1".parse()?), "{body}");
    assert_eq!(body["detail"], "this key has 64 open streams; close some of them");
    // Calls and other keys are not affected, and a closed stream makes room.
    scene.client.call("test_echo_run", &json!({"repo": "acme/site"})).await?;
    let root = Client::new(&scene.world.api, &scene.world.bot);
    streams.push(Events::open(subscription(&root)).await?);
    streams.remove(0);
    crate::world::eventually("a stream can be opened", async || {
        Ok((subscription(&scene.client).send().await?.status() == 200).then_some(()))
    })
    .await
}

/// A client that gets no byte for a minute gives up, so the answer begins before the result is there.
#[tokio::test]
async fn a_call_that_may_take_long_is_answered_as_events() -> Result<()> {
    let server = Server::prepare(&["test-echo"])?.argument("--max-timeout-s").argument("60");
    let manifest = server.plugins_dir().join("test-echo/monstrum.yaml");
    let limited =
        format!("{}\n\nexecutor:\n  limits: {{ timeout_s: 60 }}\n", std::fs::read_to_string(&manifest)?.trim_end());
    std::fs::write(&manifest, limited)?;
    let scene = Scene::on(server).await?;
    let fetch = |path: &str| {
        let params = json!({"name": "test_echo_fetch", "arguments": {"path": path}});
        scene.client.stateless("tools/call", &params)
    };
    // An answer that is there within a second is a document.
    let (status, headers, body) = send(fetch("/user")).await?;
    assert_eq!((status, &headers["content-type"]), (200, &"application/json".parse()?), "{body}");
    scene.world.github.hold();
    let mut events = Events::open(fetch("/user")).await?;
    scene.world.github.release();
    let answer = events.next().await?.context("the stream has an event")?;
    assert_eq!((&answer["id"], &answer["result"]["isError"]), (&json!(1), &json!(false)), "{answer}");
    assert_eq!(events.next().await?, None, "the stream ends with the answer");
    // A client that closes the stream ends its call.
    scene.world.github.hold();
    drop(Events::open(fetch("/user")).await?);
    let ended = crate::world::eventually("the call has ended", async || {
        let row = ended(&scene, "test_echo_fetch").await?;
        Ok(row.filter(|row| row["code"] == "cancelled"))
    });
    ended.await?;
    scene.world.github.release();
    Ok(())
}
