//! The stateless generation: each request carries its revision, and headers repeat parts of the body.

use anyhow::Result;
use insta::assert_snapshot;
use reqwest::RequestBuilder;
use serde_json::{Value, json};

use super::{Client, Scene};
use crate::http::{Answers, send};

async fn told(request: RequestBuilder) -> Result<(u16, Value)> {
    let (status, _, body) = send(request).await?;
    Ok((status, body))
}

#[tokio::test]
async fn discover_names_the_bot_and_the_revisions() -> Result<()> {
    let scene = Scene::start().await?;
    let mut answer = scene.client.ask("server/discover", &json!({})).await?;
    assert_eq!(
        answer["_meta"]["io.modelcontextprotocol/serverInfo"]["version"].take(),
        json!(env!("CARGO_PKG_VERSION"))
    );
    assert_snapshot!(serde_json::to_string_pretty(&answer)?, @r#"
    {
      "resultType": "complete",
      "supportedVersions": [
        "2025-03-26",
        "2025-06-18",
        "2025-11-25",
        "2026-07-28"
      ],
      "capabilities": {
        "tools": {
          "listChanged": true
        }
      },
      "ttlMs": 0,
      "cacheScope": "private",
      "_meta": {
        "io.modelcontextprotocol/serverInfo": {
          "name": "monstrum",
          "title": "tester",
          "version": null
        }
      }
    }
    "#);
    Ok(())
}

/// Proxies decide by the headers, and the server decides by the body. Both must therefore say the same.
#[tokio::test]
async fn headers_that_differ_from_the_body_are_rejected() -> Result<()> {
    let scene = Scene::start().await?;
    let params = json!({"name": "test_echo_run", "arguments": {"repo": "acme/site"}});
    let request = |change: fn(RequestBuilder) -> RequestBuilder| change(scene.client.stateless("tools/call", &params));
    let mut answers = Answers::default();
    answers.add("same", (told(request(|request| request)).await?.0, Value::Null));
    // A header that is added is the second one of its name.
    answers.add("two methods", told(request(|request| request.header("mcp-method", "tools/list"))).await?);
    answers.add("two names", told(request(|request| request.header("mcp-name", "test_echo_write"))).await?);
    let bare = |revision: Option<&str>, method: Option<&str>, name: Option<&str>| {
        let headers = [("mcp-protocol-version", revision), ("mcp-method", method), ("mcp-name", name)];
        let body = scene.client.stateless("tools/call", &params).build().ok();
        let body = body.and_then(|request| Some(request.body()?.as_bytes()?.to_vec())).unwrap_or_default();
        let request = scene.client.bare(reqwest::Method::POST).header("content-type", "application/json").body(body);
        let sent = headers.into_iter().filter_map(|(name, value)| Some((name, value?)));
        sent.fold(request, |request, (name, value)| request.header(name, value))
    };
    let (revision, method, name) = (Some("2026-07-28"), Some("tools/call"), Some("test_echo_run"));
    answers.add("another name", told(bare(revision, method, Some("test_echo_write"))).await?);
    answers.add("another method", told(bare(revision, Some("tools/list"), name)).await?);
    answers.add("another revision", told(bare(Some("2025-11-25"), method, name)).await?);
    answers.add("no revision", told(bare(None, method, name)).await?);
    answers.add("no name", told(bare(revision, method, None)).await?);
    answers.add("an unknown revision", told(bare(Some("2024-11-05"), method, name)).await?);
    assert_snapshot!(answers, @r#"
    same: 200
    two methods: 400 {"jsonrpc":"2.0","id":1,"error":{"code":-32020,"message":"duplicate Mcp-Method header"}}
    two names: 400 {"jsonrpc":"2.0","id":1,"error":{"code":-32020,"message":"duplicate Mcp-Name header"}}
    another name: 400 {"jsonrpc":"2.0","id":1,"error":{"code":-32020,"message":"Mcp-Name header `test_echo_write` does not match body value `test_echo_run`"}}
    another method: 400 {"jsonrpc":"2.0","id":1,"error":{"code":-32020,"message":"Mcp-Method header `tools/list` does not match body method `tools/call`"}}
    another revision: 400 {"jsonrpc":"2.0","id":1,"error":{"code":-32020,"message":"MCP-Protocol-Version header (2025-11-25) does not match request _meta protocolVersion (2026-07-28)"}}
    no revision: 400 {"jsonrpc":"2.0","id":1,"error":{"code":-32020,"message":"request _meta protocolVersion requires MCP-Protocol-Version header"}}
    no name: 400 {"jsonrpc":"2.0","id":1,"error":{"code":-32020,"message":"missing required Mcp-Name header for `tools/call`"}}
    an unknown revision: 400 {"jsonrpc":"2.0","id":1,"error":{"code":-32020,"message":"MCP-Protocol-Version header (2024-11-05) does not match request _meta protocolVersion (2026-07-28)"}}
    "#);
    Ok(())
}

#[tokio::test]
async fn what_is_not_one_message_is_rejected() -> Result<()> {
    let scene = Scene::start().await?;
    let post = |body: &str| {
        let request = scene.client.bare(reqwest::Method::POST).header("content-type", "application/json");
        told(request.body(body.to_owned()))
    };
    let mut answers = Answers::default();
    answers.add("batch", post(r#"[{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}]"#).await?);
    answers.add("empty batch", post("[]").await?);
    answers.add("no JSON", post("{").await?);
    answers.add("repeated member", post(r#"{"jsonrpc": "2.0", "id": 1, "method": "ping", "method": "x"}"#).await?);
    let (status, answer) = post(&format!("\"{}\"", "x".repeat(10 << 20))).await?;
    answers.add("too large", (status, answer));
    answers.add("unknown method", told(scene.client.stateless("prompts/list", &json!({}))).await?);
    answers.add("removed method", told(scene.client.stateless("initialize", &json!({}))).await?);
    let listen = scene.client.stateless("subscriptions/listen", &json!({"notifications": 5}));
    answers.add("wrong parameters", told(listen).await?);
    assert_snapshot!(answers, @r#"
    batch: 400 {"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"batches are not supported; send each message in a request of its own"}}
    empty batch: 400 {"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"batches are not supported; send each message in a request of its own"}}
    no JSON: 400 {"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"the body is not JSON: EOF while parsing an object at line 1 column 1"}}
    repeated member: 400 {"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"the body is not a JSON-RPC message: duplicate field `method` at line 1 column 54"}}
    too large: 413 {"type":"urn:monstrum:error:too_large","title":"The body is too large","status":413,"detail":"the body exceeds the limit of 10485760 bytes","request_id":"[id 1]"}
    unknown method: 404 {"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"prompts/list"}}
    removed method: 404 {"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"initialize"}}
    wrong parameters: 200 {"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"the parameters of `subscriptions/listen` do not have the required form"}}
    "#);
    Ok(())
}

#[tokio::test]
async fn a_client_of_a_revision_that_is_not_served_learns_which_are() -> Result<()> {
    let scene = Scene::start().await?;
    let meta = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2031-01-01"}});
    let request = Client { session: None, ..scene.client.clone() };
    let body =
        request.stateless("tools/list", &meta).build()?.body().and_then(|body| body.as_bytes().map(<[u8]>::to_vec));
    let sent = scene.client.bare(reqwest::Method::POST).header("content-type", "application/json");
    let sent = sent.header("mcp-protocol-version", "2031-01-01").header("mcp-method", "tools/list");
    assert_snapshot!(format!("{:?}", told(sent.body(body.unwrap_or_default())).await?), @r#"(400, Object {"jsonrpc": String("2.0"), "id": Number(1), "error": Object {"code": Number(-32022), "message": String("Unsupported protocol version"), "data": Object {"requested": String("2031-01-01"), "supported": Array [String("2025-03-26"), String("2025-06-18"), String("2025-11-25"), String("2026-07-28")]}}})"#);
    Ok(())
}
