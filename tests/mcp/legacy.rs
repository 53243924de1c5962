//! The generation that begins with `initialize`.

use anyhow::{Context, Result};
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::{Value, json};

use super::{Client, Scene, result};
use crate::http::{Answers, send};

#[tokio::test]
async fn initialize_agrees_on_a_revision() -> Result<()> {
    let scene = Scene::start().await?;
    let mut client = scene.client.clone();
    let mut agreed = Vec::new();
    for asked in ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05", "2026-07-28", "2031-01-01"] {
        let answer = client.initialize(asked).await?;
        agreed.push(format!("{asked}: {} {}", answer["protocolVersion"], answer["capabilities"]));
        assert_eq!(client.notify("notifications/initialized", &json!({})).await?, 202);
        let list = result(send(client.legacy(&json!(2), "tools/list", &json!({}))).await?)?;
        assert!(list["tools"].as_array().is_some_and(|tools| tools.len() > 5), "{list}");
        assert!(list.get("resultType").is_none(), "{list}");
        let call = json!({"name": "test_echo_run", "arguments": {"repo": "acme/site"}});
        let answer = result(send(client.legacy(&json!(3), "tools/call", &call)).await?)?;
        assert_eq!(answer["structuredContent"]["params"], json!({"repo": "acme/site"}));
        assert_eq!(result(send(client.legacy(&json!(4), "ping", &json!({}))).await?)?, json!({}));
    }
    assert_snapshot!(agreed.join("\n"), @r#"
    2025-11-25: "2025-11-25" {"tools":{"listChanged":true}}
    2025-06-18: "2025-06-18" {"tools":{"listChanged":true}}
    2025-03-26: "2025-03-26" {"tools":{"listChanged":true}}
    2024-11-05: "2025-11-25" {"tools":{"listChanged":true}}
    2026-07-28: "2025-11-25" {"tools":{"listChanged":true}}
    2031-01-01: "2025-11-25" {"tools":{"listChanged":true}}
    "#);
    Ok(())
}

#[tokio::test]
async fn a_session_is_good_for_its_key_and_its_bot() -> Result<()> {
    let scene = Scene::start().await?;
    let api = &scene.world.api;
    let other_bot = api.bot("other").await?;
    let mut own = scene.client.clone();
    own.initialize("2025-11-25").await?;
    let session = own.session.clone().context("a session")?;
    let with = async |client: &Client, session: &str| {
        let client = Client { session: Some(session.to_owned()), ..client.clone() };
        let (status, _, body) = send(client.legacy(&json!(1), "tools/list", &json!({}))).await?;
        // A request with two session ids is rejected, even if one of them is valid.
        let twice = send(client.bare(Method::GET).header("mcp-session-id", "second")).await?.0;
        anyhow::Ok(format!("{status} {twice} {}", body["detail"]))
    };
    let root = Client::new(api, &scene.world.bot);
    let mut root_session = root.clone();
    root_session.initialize("2025-11-25").await?;
    let root_session = root_session.session.context("a session")?;
    let end = session.len() - 1;
    let last = if session.ends_with('0') { "1" } else { "0" };
    let mut lines = Vec::new();
    for (what, client, session) in [
        ("own", &own, session.clone()),
        ("forged", &own, format!("{}{last}", &session[..end])),
        ("garbage", &own, "garbage".to_owned()),
        ("of another key", &own, root_session.clone()),
        ("own of the other key", &root, root_session.clone()),
        ("of another bot", &Client::new(api, &other_bot), root_session),
    ] {
        lines.push(format!("{what}: {}", with(client, &session).await?));
    }
    assert_snapshot!(lines.join("\n"), @r#"
    own: 200 404 null
    forged: 404 404 "no such session; send `initialize` again"
    garbage: 404 404 "no such session; send `initialize` again"
    of another key: 404 404 "no such session; send `initialize` again"
    own of the other key: 200 404 null
    of another bot: 404 404 "no such session; send `initialize` again"
    "#);
    Ok(())
}

#[tokio::test]
async fn a_client_without_a_session_can_list_and_call() -> Result<()> {
    let scene = Scene::start().await?;
    let request =
        scene.client.legacy(&json!("x"), "tools/list", &json!({})).header("mcp-protocol-version", "2025-06-18");
    assert!(result(send(request).await?)?["tools"].is_array());
    let mut answers = Answers::default();
    let old = scene.client.legacy(&json!(1), "tools/list", &json!({})).header("mcp-protocol-version", "2024-11-05");
    let (status, _, body) = send(old).await?;
    answers.add("a revision that is not served", (status, body));
    for (what, method) in [("GET", Method::GET), ("DELETE", Method::DELETE), ("PUT", Method::PUT)] {
        let (status, headers, body) = send(scene.client.bare(method)).await?;
        let allow = headers.get("allow").map(|allow| String::from_utf8_lossy(allow.as_bytes()).into_owned());
        answers.add(what, (status, json!({"allow": allow, "detail": body["detail"]})));
    }
    assert_snapshot!(answers, @r#"
    a revision that is not served: 400 {"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"this server does not support the revision in the header mcp-protocol-version","data":{"supported":["2025-03-26","2025-06-18","2025-11-25","2026-07-28"],"requested":"2024-11-05"}}}
    GET: 405 {"allow":"POST","detail":"this route does not support this method"}
    DELETE: 405 {"allow":"POST,GET,HEAD","detail":"this route does not support this method"}
    PUT: 405 {"allow":"POST,GET,HEAD","detail":"this route does not support this method"}
    "#);
    Ok(())
}

/// Clients of earlier revisions reject structured content that is not an object.
#[tokio::test]
async fn a_result_that_is_not_an_object_is_a_text() -> Result<()> {
    let scene = Scene::start().await?;
    let call = json!({"name": "test_echo_write", "arguments": {"kind": "feature"}});
    let request = scene.client.legacy(&json!(1), "tools/call", &call).header("mcp-protocol-version", "2025-11-25");
    let answer: Value = result(send(request).await?)?;
    assert_eq!(answer["isError"], json!(true));
    assert_eq!(answer["content"][0]["text"], "Scope violation: Kind feature is not authorized");
    assert!(answer.get("resultType").is_none() && answer.get("structuredContent").is_none(), "{answer}");
    Ok(())
}
