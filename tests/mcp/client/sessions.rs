//! Sessions and streams of servers of earlier revisions: broken streams are resumed, and unused sessions are ended.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::{FakeMcp, Generation, InProcess, McpReply, Recorded};

use super::{Behind, Here, advance, tool};
use crate::world::{eventually, text};

const SESSIONS: Generation = Generation::Sessions("2025-11-25");
/// The answer to the last call, as an event.
const ANSWER: &str = "id: e3\ndata: {\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"done\"}]}}\n\n";

/// Returns the requests that continue a stream.
fn resumptions(mcp: &FakeMcp) -> Vec<Recorded> {
    mcp.requests().into_iter().filter(|request| request.header("last-event-id").is_some()).collect()
}

/// A write whose stream breaks reaches the server once, and its result arrives.
#[tokio::test]
async fn a_broken_write_is_continued_and_not_repeated() -> Result<()> {
    let behind = Behind::start(SESSIONS, &[tool("note", "Adds")]).await?;
    behind.mcp.reply("tools/call", McpReply::events(&["id: e1\nretry: 100\ndata: \n\n"]).breaking());
    behind.mcp.reply("RESUME", McpReply::events(&[ANSWER]));
    let answer = behind.call("notes__note", &json!({})).await?;
    assert_eq!(answer["data"]["content"][0]["text"], "done", "{answer}");
    assert_eq!(behind.mcp.params_of("tools/call").len(), 1);
    let resumed = resumptions(&behind.mcp);
    assert_eq!(resumed.len(), 1);
    assert_eq!(
        (resumed[0].header("last-event-id"), resumed[0].header("mcp-session-id"), resumed[0].method.as_str()),
        (Some("e1"), Some("s1"), "GET")
    );
    Ok(())
}

/// If the server does not continue the stream, a call that may change something is not repeated.
#[tokio::test]
async fn a_stream_that_is_not_continued_is_repeated_only_for_reading_tools() -> Result<()> {
    for (effect, attempts) in [("write", 1), ("read", 2)] {
        let behind = Behind::undecided(SESSIONS, &[tool("note", "Adds")], &json!({})).await?;
        behind.discovered().await?;
        behind.approve_all(effect).await?;
        behind.mcp.reply("tools/call", McpReply::events(&["id: e1\nretry: 100\ndata: \n\n"]).breaking());
        behind.mcp.reply("RESUME", McpReply::text(405, "text/plain", ""));
        let answer = behind.call("notes__note", &json!({})).await?;
        assert_eq!(answer["code"], "upstream", "{answer}");
        assert_eq!(text(&answer["message"]).ends_with("; the call may have been carried out"), effect == "write");
        assert_eq!(behind.mcp.params_of("tools/call").len(), attempts, "{effect}");
    }
    Ok(())
}

/// A server that closes each connection cannot hold a call longer than its time limit.
#[tokio::test]
async fn resumptions_end_at_the_time_limit_of_the_call() -> Result<()> {
    let config = json!({"timeout_s": 1});
    let behind = Behind::start_with(SESSIONS, &[tool("note", "Adds")], &config).await?;
    for method in ["tools/call", "RESUME"] {
        behind.mcp.reply(method, McpReply::events(&["id: e1\nretry: 0\ndata: \n\n"]));
    }
    let answer = behind.call("notes__note", &json!({})).await?;
    assert_eq!(answer["code"], "timeout", "{answer}");
    // The shortest delay is 100 ms.
    assert!(resumptions(&behind.mcp).len() <= 12);
    Ok(())
}

#[tokio::test]
async fn a_server_without_sessions_is_never_asked_to_resume() -> Result<()> {
    let behind = Behind::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
    behind.mcp.reply("tools/call", McpReply::events(&["id: e1\ndata: \n\n"]).breaking());
    behind.mcp.reply("RESUME", McpReply::events(&[ANSWER]));
    assert_eq!(behind.call("notes__note", &json!({})).await?["code"], "upstream");
    assert_eq!((resumptions(&behind.mcp).len(), behind.mcp.params_of("tools/call").len()), (0, 1));
    Ok(())
}

/// A session without requests is ended after five minutes. An open stream of notifications is a use.
#[tokio::test]
async fn an_idle_session_is_ended_and_a_used_one_is_not() -> Result<()> {
    for notifies in [false, true] {
        let mcp = FakeMcp::start(SESSIONS, &[tool("note", "Adds")]).await?;
        if !notifies {
            mcp.reply("GET", McpReply::text(405, "text/plain", ""));
        }
        let here = Here::start(InProcess::start(&[]).await?, &mcp.url(), &json!({})).await?;
        eventually("the host has opened its stream", async || {
            let requests = mcp.requests();
            Ok(requests.iter().any(|request| request.method == "GET").then_some(()))
        })
        .await?;
        advance(Duration::from_secs(310)).await;
        if !notifies {
            eventually("the session is ended", async || Ok((mcp.ended_sessions() == ["s1"]).then_some(()))).await?;
        }
        assert_eq!(here.call().await?["status"], "success");
        let sessions = mcp.params_of("initialize").len();
        assert_eq!((sessions, mcp.ended_sessions().len()), if notifies { (1, 0) } else { (2, 1) });
        here.host.stop().await;
    }
    Ok(())
}

/// The session with the server of the old URL is ended there, with the right that was in force.
#[tokio::test]
async fn the_session_of_a_replaced_url_is_ended() -> Result<()> {
    let behind = Behind::start(SESSIONS, &[tool("note", "Adds")]).await?;
    behind.mcp.hold();
    let (api, bot) = (behind.world.api.clone(), behind.world.bot.clone());
    let call = tokio::spawn(async move { api.call(&bot, "notes__note", &json!({})).await });
    eventually("the call runs", async || Ok((behind.mcp.params_of("tools/call").len() == 1).then_some(()))).await?;
    let other = FakeMcp::start(SESSIONS, &[tool("note", "Adds")]).await?;
    change(&behind, &json!({"config": {"url": other.url()}})).await?;
    behind.mcp.release();
    call.await??;
    let ended = eventually("the session is ended", async || {
        Ok(Some(behind.mcp.ended_sessions()).filter(|ended| !ended.is_empty()))
    })
    .await?;
    assert_eq!((ended, other.ended_sessions()), (vec!["s1".to_owned()], Vec::new()));
    Ok(())
}

/// With other network rules, a session is ended only if they permit it. A deleted resource sends nothing more.
#[tokio::test]
async fn a_right_that_was_taken_away_ends_no_session() -> Result<()> {
    let behind = Behind::start(SESSIONS, &[tool("note", "Adds")]).await?;
    let barrier = Barrier::start(&behind).await?;
    change(&behind, &network(&["127.0.0.0/8", "10.0.0.0/8"])).await?;
    eventually("the session is ended", async || Ok((behind.mcp.ended_sessions().len() == 1).then_some(()))).await?;

    behind.discovered().await?;
    change(&behind, &network(&["10.0.0.0/8"])).await?;
    let requests = behind.mcp.requests().len();
    barrier.pass(&behind).await?;
    assert_eq!(behind.mcp.requests().len(), requests, "{:?}", behind.mcp.requests().last());

    change(&behind, &network(&["127.0.0.0/8"])).await?;
    behind.discovered().await?;
    let binding = format!("/api/bots/{}/resources/{}", behind.world.bot, behind.binding.binding);
    for path in [binding, format!("/api/resources/{}", behind.resource)] {
        let (status, body) = behind.world.api.delete(&path).await?;
        ensure!(status == 204, "{status} {body}");
    }
    let requests = behind.mcp.requests().len();
    barrier.pass(&behind).await?;
    assert_eq!(behind.mcp.requests().len(), requests, "{:?}", behind.mcp.requests().last());
    Ok(())
}

fn network(allowed: &[&str]) -> Value {
    json!({"network": {"allow_addresses": allowed, "allow_http": true}})
}

async fn change(behind: &Behind, change: &Value) -> Result<()> {
    patch(behind, &behind.resource, change).await
}

async fn patch(behind: &Behind, resource: &str, change: &Value) -> Result<()> {
    let (status, body) = behind.world.api.patch(&format!("/api/resources/{resource}"), change).await?;
    ensure!(status == 200, "{status} {body}");
    Ok(())
}

/// Another resource with a session. The host ends sessions in one check, so the end of this session shows that the host
/// has ended all others that it ends.
struct Barrier {
    mcp: FakeMcp,
    resource: String,
}

impl Barrier {
    async fn start(behind: &Behind) -> Result<Barrier> {
        let mcp = FakeMcp::start(SESSIONS, &[]).await?;
        let resource = super::resource(&behind.world, "barrier", &mcp.url(), &json!({})).await?;
        super::until_discovery(&behind.world, &resource, |found| found["status"] == "ok").await?;
        Ok(Barrier { mcp, resource })
    }

    async fn pass(&self, behind: &Behind) -> Result<()> {
        let ended = self.mcp.ended_sessions().len();
        // Nothing listens there.
        let elsewhere = json!({"config": {"url": "http://127.0.0.1:1/mcp"}});
        patch(behind, &self.resource, &elsewhere).await?;
        eventually("the session of the barrier is ended", async || {
            Ok((self.mcp.ended_sessions().len() > ended).then_some(()))
        })
        .await?;
        patch(behind, &self.resource, &json!({"config": {"url": self.mcp.url()}})).await?;
        ensure!(super::discover(&behind.world, &self.resource).await?["status"] == "ok");
        Ok(())
    }
}
