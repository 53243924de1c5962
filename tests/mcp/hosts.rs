//! From where a request may come: hosts, origins of pages, and requests of browsers before the real one.

use anyhow::{Context, Result};
use insta::assert_snapshot;
use reqwest::{Method, RequestBuilder};
use serde_json::json;
use support::Server;

use super::Scene;
use crate::http::send;

async fn status(request: RequestBuilder) -> Result<(u16, String)> {
    let (status, _, body) = send(request).await?;
    Ok((status, body["detail"].as_str().unwrap_or_default().to_owned()))
}

/// A page of an attacker can point a name of its own at this server. The browser then sends that name as the host.
#[tokio::test]
async fn a_rebound_host_is_rejected_and_a_configured_one_is_not() -> Result<()> {
    let server = Server::prepare(&["test-echo"])?.argument("--mcp-hosts").argument("monstrum.internal");
    let scene = Scene::on(server).await?;
    let ping = |host: &str| scene.client.stateless("tools/list", &json!({})).header("host", host);
    let url = scene.world.server.url().context("the server runs")?;
    let port = url.rsplit(':').next().context("the URL has a port")?;
    for host in [format!("localhost:{port}"), format!("127.0.0.1:{port}"), "monstrum.internal:7000".to_owned()] {
        assert_eq!(status(ping(&host)).await?.0, 200, "{host}");
    }
    assert_snapshot!(
        format!("{:?}", status(ping(&format!("attacker.example:{port}"))).await?),
        @r#"(403, "the header `Host` names another server; add the host name to --mcp-hosts if clients use this name")"#
    );
    // The host is checked before the key, so that the answer reveals nothing about the key.
    let keyless = scene.client.api.with_key("").request(Method::POST, &scene.client.path);
    assert_eq!(status(keyless.header("host", "attacker.example")).await?.0, 403);
    // Other routes do not depend on the host.
    let (status, _, _) =
        send(scene.world.api.request(Method::GET, "/api/bots").header("host", "proxy.example")).await?;
    assert_eq!(status, 200);
    Ok(())
}

#[tokio::test]
async fn a_page_of_a_foreign_origin_is_rejected_and_a_configured_one_may_read_the_answer() -> Result<()> {
    let server = Server::prepare(&["test-echo"])?.argument("--mcp-origins").argument("https://app.example");
    let scene = Scene::on(server).await?;
    let from = |origin: &str| scene.client.stateless("tools/list", &json!({})).header("origin", origin);
    for origin in ["https://evil.example", "null", "http://app.example"] {
        let (status, headers, _) = send(from(origin)).await?;
        assert_eq!((status, headers.get("access-control-allow-origin")), (403, None), "{origin}");
    }
    let (status, headers, _) = send(from("https://app.example")).await?;
    assert_eq!((status, &headers["access-control-allow-origin"]), (200, &"https://app.example".parse()?));
    // A page can read why its key is rejected.
    let keyless = scene.client.api.with_key("").request(Method::POST, &scene.client.path);
    let (status, headers, _) = send(keyless.header("origin", "https://app.example")).await?;
    assert_eq!((status, &headers["access-control-allow-origin"]), (401, &"https://app.example".parse()?));
    assert_eq!(&headers["access-control-expose-headers"], "Mcp-Session-Id, WWW-Authenticate, X-Request-Id");
    assert_eq!(&headers["www-authenticate"], "Bearer");

    let asks = |origin: &str| {
        let request = scene.client.api.with_key("").request(Method::OPTIONS, &scene.client.path);
        request.header("origin", origin).header("access-control-request-headers", "authorization,mcp-method")
    };
    let (status, headers, _) = send(asks("https://app.example")).await?;
    assert_eq!(status, 204);
    assert_eq!(&headers["access-control-allow-headers"], "authorization,mcp-method");
    assert_eq!(&headers["access-control-allow-methods"], "GET, POST");
    let (status, headers, _) = send(asks("https://evil.example")).await?;
    assert_eq!((status, headers.get("access-control-allow-headers")), (403, None));
    Ok(())
}
