//! Frames that break the protocol, and its limits.

use anyhow::Result;
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::{Agent, hello};
use tokio_tungstenite::tungstenite::Message;

use super::{Scene, ending, sum, tool};
use crate::world::text;

/// Returns the close code and the codes of the errors before it.
fn summary((code, frames): (u16, Vec<Value>)) -> String {
    let errors: Vec<&str> = frames.iter().filter(|frame| frame["type"] == "error").map(|f| text(&f["code"])).collect();
    format!("{code} {}", errors.join(","))
}

#[tokio::test]
async fn the_first_message_is_a_valid_hello() -> Result<()> {
    let scene = Scene::start().await?;
    let mut endings = Vec::new();
    let many: Vec<Value> = (0..257).map(|index| tool(&index.to_string(), "")).collect();
    for (label, frame) in [
        ("no hello", json!({"type": "tools", "tools": []}).to_string()),
        ("no json", "hello".to_owned()),
        ("an array", "[]".to_owned()),
        ("an unknown type", json!({"type": "hi"}).to_string()),
        ("another version", hello(&json!([]), &json!({"protocol": 2})).to_string()),
        ("no concurrency", hello(&json!([]), &json!({"concurrency": 0})).to_string()),
        ("too many tools", hello(&json!(many), &json!({})).to_string()),
        ("a large frame", format!("{{\"type\": \"{}\"}}", "x".repeat(1_088 << 10))),
        ("a huge frame", "x".repeat(8 << 20)),
    ] {
        let mut agent = scene.socket().await?;
        // The server may close the socket while a huge frame is sent.
        let sent = agent.send_text(frame).await;
        let (code, frames) = agent.closed().await?;
        if label == "a huge frame" {
            assert!(sent.is_err() || code == 1009 || code == 0, "{code}");
            continue;
        }
        endings.push(format!("{label}: {}", summary((code, frames))));
    }
    let mut agent = scene.socket().await?;
    agent.send_message(Message::binary(b"{}".to_vec())).await?;
    endings.push(format!("binary: {}", summary(agent.closed().await?)));
    assert_snapshot!(endings.join("\n"), @r"
    no hello: 1008 hello_expected
    no json: 1007 invalid_frame
    an array: 1007 invalid_frame
    an unknown type: 1008 unknown_type
    another version: 1008 unsupported_protocol
    no concurrency: 1008 invalid_hello
    too many tools: 1008 too_many_tools
    a large frame: 1009 invalid_frame
    binary: 1007 invalid_frame
    ");
    scene.has(&[]).await
}

#[tokio::test]
async fn a_socket_without_a_hello_is_closed_after_ten_seconds() -> Result<()> {
    let scene = Scene::start().await?;
    let mut agent = scene.socket().await?;
    let began = std::time::Instant::now();
    assert_eq!(summary(agent.closed().await?), "1008 hello_expected");
    assert!((9..30).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_connected_agent_that_breaks_the_protocol_is_told_or_closed() -> Result<()> {
    let scene = Scene::start().await?;
    let mut agent = scene.agent(&json!([sum()])).await?;
    for (frame, code) in [
        (json!({"type": "call"}), "unknown_type"),
        (json!({}), "unknown_type"),
        (hello(&json!([]), &json!({})), "unexpected_hello"),
        (json!({"type": "result", "status": "success"}), "invalid_message"),
        (json!({"type": "progress", "id": "x", "message": "m".repeat(2_000)}), "invalid_message"),
        (json!({"type": "tools", "tools": {}}), "invalid_message"),
    ] {
        agent.send(&frame).await?;
        assert_eq!(agent.next_of("error").await?["code"], code, "{frame}");
    }
    // The connection still serves.
    scene.has(&["lab__sum"]).await?;
    let call = scene.call("lab__sum", &json!({}));
    let frame = agent.next_of("call").await?;
    agent.succeed(&frame, &json!(1)).await?;
    assert_eq!(ending(&call.await??), "success   1");

    let call = scene.call("lab__sum", &json!({}));
    agent.next_of("call").await?;
    agent.send_text("{".to_owned()).await?;
    assert_eq!(agent.closed().await?.0, 1007);
    assert_eq!(call.await??["code"], "uncertain");
    let mut agent = scene.agent(&json!([sum()])).await?;
    agent.send_text(format!("{{\"type\": \"{}\"}}", "x".repeat(1_088 << 10))).await?;
    assert_eq!(agent.closed().await?.0, 1009);
    scene.has(&[]).await
}

#[tokio::test]
async fn a_flood_is_closed() -> Result<()> {
    let scene = Scene::start().await?;
    let mut agent = scene.agent(&json!([sum()])).await?;
    // Other connections of the host are served meanwhile.
    scene.has(&["lab__sum"]).await?;
    for index in 0..5_000 {
        if agent.send(&json!({"type": "result", "id": index.to_string(), "status": "success"})).await.is_err() {
            break;
        }
    }
    assert_eq!(agent.closed().await?.0, 1008);
    scene.has(&[]).await
}

/// An agent that does not read takes no more calls, and its socket is closed after some seconds.
#[tokio::test]
async fn a_slow_reader_is_closed() -> Result<()> {
    let scene = Scene::with(&json!({"concurrent": 64, "timeout_s": 60})).await?;
    let mut echo = tool("echo", "Returns its parameters.");
    echo["input_schema"] = json!({"type": "object", "properties": {"text": {"type": "string"}}});
    let mut agent = scene.agent_as(&json!([echo]), &json!({"concurrency": 64})).await?;
    scene.has(&["lab__echo"]).await?;
    let params = json!({"text": "x".repeat(900 << 10)});
    // The kernel buffers some megabytes, so more calls than 4 MiB leave the host.
    let calls: Vec<_> = (0..24).map(|_| scene.call("lab__echo", &params)).collect();
    let mut codes = Vec::new();
    for call in calls {
        codes.push(text(&call.await??["code"]).to_owned());
    }
    codes.sort();
    codes.dedup();
    assert!(codes.iter().all(|code| ["busy", "uncertain", "unavailable"].contains(&code.as_str())), "{codes:?}");
    scene.has(&[]).await?;
    let (code, _) = agent.closed().await?;
    assert!(code == 1013 || code == 0, "{code}");
    Ok(())
}

#[tokio::test]
async fn other_requests_do_not_open_a_socket() -> Result<()> {
    let scene = Scene::start().await?;
    let url = scene.url()?;
    let refused = async |key: &str, change: &dyn Fn(&mut reqwest::header::HeaderMap)| -> Result<u16> {
        let mut request = Agent::request(&url, key)?;
        change(request.headers_mut());
        Ok(Agent::open(request).await?.err().unwrap_or(101))
    };
    let root = scene.world.api.key().to_owned();
    let mut statuses = Vec::new();
    for (label, key, header) in [
        ("the agent's key", scene.key.as_str(), None),
        ("an origin", scene.key.as_str(), Some(("origin", "https://example.com"))),
        ("the server's own origin", scene.key.as_str(), Some(("origin", url.as_str()))),
        ("the origin null", scene.key.as_str(), Some(("origin", "null"))),
        ("another subprotocol", scene.key.as_str(), Some(("sec-websocket-protocol", "monstrum.agent.v2"))),
        ("a root key", root.as_str(), None),
        ("an unknown key", "mk_AAAA", None),
    ] {
        let change = |headers: &mut reqwest::header::HeaderMap| {
            if let Some((name, value)) = header {
                headers.insert(name, value.parse().expect("a header value"));
            }
        };
        statuses.push(format!("{label}: {}", refused(key, &change).await?));
    }
    let without = refused(&scene.key, &|headers| drop(headers.remove("sec-websocket-protocol"))).await?;
    statuses.push(format!("no subprotocol: {without}"));
    let (status, problem) = scene.world.api.with_key(&scene.key).get("/ws/agent").await?;
    statuses.push(format!("a plain GET: {status} {}", text(&problem["detail"])));
    assert_snapshot!(statuses.join("\n"), @r"
    the agent's key: 101
    an origin: 403
    the server's own origin: 403
    the origin null: 403
    another subprotocol: 426
    a root key: 403
    an unknown key: 401
    no subprotocol: 426
    a plain GET: 426 Connection header did not include 'upgrade'
    ");
    Ok(())
}
