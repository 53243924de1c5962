//! The server does not read the body of a request if the caller lacks the permission.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Fresh, Request};
use crate::http::send;

/// Sends only the head of a request that announces a body. Returns the status of the response, which the server sends
/// although the body has not arrived.
async fn status_without_body(server: &str, method: &str, path: &str, key: &str) -> Result<u16> {
    let host = server.strip_prefix("http://").context("a URL")?;
    let mut stream = TcpStream::connect(host).await?;
    let key = if key.is_empty() { String::new() } else { format!("authorization: Bearer {key}\r\n") };
    // The body is announced as longer than any limit and of a type that no route accepts. The idempotency key covers
    // routes that store responses.
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\n{key}content-type: text/garbage\r\nidempotency-key: k\r\n\
         content-length: 1000000000\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    let mut answer = String::new();
    let mut bytes = [0; 4096];
    while !answer.contains("\r\n") {
        let read = timeout(Duration::from_secs(60), stream.read(&mut bytes)).await;
        let read = read.with_context(|| format!("{method} {path}: the server waits for the body"))??;
        ensure!(read > 0, "{method} {path}: the connection was closed without an answer");
        answer.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    Ok(answer.split_whitespace().nth(1).context("a status")?.parse()?)
}

/// On every route with a request body, the server rejects a caller that lacks the permission as soon as the head of the
/// request has arrived.
#[tokio::test]
async fn no_route_reads_the_body_of_a_caller_without_the_right() -> Result<()> {
    let fresh = Fresh::start().await?;
    let root = &fresh.world.api;
    let server = fresh.world.server.url().context("the server is not running")?.to_owned();
    let other_bot = fresh.key_of(&root.bot("other").await?).await?;
    let (_, document) = root.get("/api/openapi.json").await?;
    let mut refused = BTreeMap::new();
    for (template, item) in document["paths"].as_object().context("the API description has no paths")? {
        for (method, operation) in item.as_object().context("the path has no methods")? {
            // A request to a webhook has no key: its body is read, because its signature covers the body.
            if operation["requestBody"].is_null() || template.starts_with("/hooks/") {
                continue;
            }
            let method = method.to_uppercase();
            for kind in ["no key", "unknown key", "admin", "operator", "bot", "other bot"] {
                // These bodies name the bot, so they are read before the bot is known.
                if kind == "other bot" && template.starts_with("/v1/") {
                    continue;
                }
                let Request { path, body, bot } = fresh.request(&method, template).await?;
                let caller = match kind {
                    "no key" => root.with_key(""),
                    "unknown key" => root.with_key("mk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
                    "admin" => fresh.admin.clone(),
                    "operator" => fresh.operator.clone(),
                    "bot" => fresh.key_of(&bot).await?,
                    _ => other_bot.clone(),
                };
                let body =
                    body.with_context(|| format!("the test has no values for `{method} {template}`; add them"))?;
                let (expected, _, _) = send(caller.request(method.parse()?, &path).json(&body)).await?;
                if !matches!(expected, 401 | 403 | 404) {
                    continue;
                }
                let label = format!("{method} {template} with {kind}");
                let garbage = caller.request(method.parse()?, &path).header("idempotency-key", "k").body("{garbage");
                assert_eq!(send(garbage).await?.0, expected, "{label}, and garbage");
                let status = status_without_body(&server, &method, &path, caller.key()).await?;
                assert_eq!(status, expected, "{label}, and no body");
                *refused.entry(kind).or_insert(0) += 1;
            }
        }
    }
    // Each route with a request body needs a key. A bot key can use only the tools and the sandboxes of its own bot,
    // and decides about no approval.
    assert_snapshot!(
        format!("{refused:?}"),
        @r#"{"admin": 7, "bot": 47, "no key": 57, "operator": 26, "other bot": 55, "unknown key": 57}"#
    );
    Ok(())
}
