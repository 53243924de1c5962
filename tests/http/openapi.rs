//! Tests of `/api/openapi.json` and `/docs`.

use anyhow::{Context, Result};
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::Value;
use support::{Api, Server};

use crate::http::send;

const COMMITTED: &str = include_str!("../../host/openapi.json");

/// Routes that need no key: the probes, the first page, and the OAuth pages. A browser opens these pages and has no
/// key.
const OPEN: [&str; 10] = [
    "/",
    "/healthz",
    "/readyz",
    "/oauth/begin/{ticket}",
    "/oauth/connect/{ticket}",
    "/oauth/connect/callback",
    "/api/oauth/callback",
    "/oauth/client.json",
    "/hooks/{id}",
    "/.well-known/oauth-protected-resource/mcp/{id}",
];

#[tokio::test]
async fn the_description_is_the_committed_one_and_describes_every_route_whole() -> Result<()> {
    let server = Server::start(&[]).await?;
    let (status, headers, document) = send(server.api()?.request(Method::GET, "/api/openapi.json")).await?;
    assert_eq!((status, &headers["content-type"]), (200, &"application/json".parse()?));
    assert_eq!(document, serde_json::from_str::<Value>(COMMITTED)?, "run: cargo xtask openapi");
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.1.")));
    assert_eq!(document["components"]["securitySchemes"]["key"]["scheme"], "bearer");
    let mut ids = Vec::new();
    for (path, item) in document["paths"].as_object().context("the API description has no paths")? {
        for (method, operation) in item.as_object().context("the path has no methods")? {
            let route = format!("{method} {path}");
            ids.push(
                operation["operationId"].as_str().with_context(|| format!("{route} has no operation id"))?.to_owned(),
            );
            assert!(
                operation["summary"].is_string() && operation["tags"][0].is_string(),
                "{route} has no summary or no tag"
            );
            let responses = operation["responses"].as_object().context("the operation has no responses")?;
            // The success of a WebSocket is 101.
            let succeeds = responses.keys().any(|status| status == "101" || status.starts_with(['2', '3']));
            assert!(succeeds, "{route} has no success response");
            let is_open = operation["security"] == serde_json::json!([]);
            assert_eq!(
                is_open,
                OPEN.contains(&path.as_str()),
                "{route}: the description and the list of open routes disagree"
            );
            assert!(
                path.ends_with('z') || path == "/" || responses.contains_key("4XX"),
                "{route} has no error response"
            );
            let named = path.split('/').filter(|part| part.starts_with('{')).map(|part| part.trim_matches(['{', '}']));
            let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
            for name in named {
                assert!(
                    parameters.iter().any(|parameter| parameter["name"] == name && parameter["in"] == "path"),
                    "{route}: {name}"
                );
            }
        }
    }
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count, "operation ids are not unique, but clients are generated from them");
    Ok(())
}

/// The page at the server's address describes the server and reveals nothing else.
#[tokio::test]
async fn the_first_page_says_what_this_is_and_where_the_documentation_is() -> Result<()> {
    let with_console = Server::start(&[]).await?;
    let api = Api::new(with_console.url().context("it runs")?, "")?;
    let browser = api.request(Method::GET, "/").header("Accept", "text/html");
    let (status, headers, _) = send(browser).await?;
    assert_eq!((status, &headers["location"]), (303, &"/console".parse()?));
    let mut closed = Server::prepare(&[])?.argument("--console").argument("off");
    closed.launch().await?;
    let mut open = Server::prepare(&[])?.argument("--public-docs").argument("--console").argument("off");
    open.launch().await?;
    let mut told = Vec::new();
    for server in [&closed, &open] {
        let api = Api::new(server.url().context("it runs")?, "")?;
        let (status, headers, body) = send(api.request(Method::GET, "/")).await?;
        assert_eq!((status, &headers["content-type"]), (200, &"application/json".parse()?));
        told.push(body.to_string());
        let browser = api.request(Method::GET, "/").header("Accept", "text/html,application/xhtml+xml,*/*;q=0.8");
        let (status, headers, page) = send(browser).await?;
        assert_eq!((status, &headers["content-type"]), (200, &"text/html; charset=utf-8".parse()?));
        assert!(headers["content-security-policy"].to_str()?.starts_with("default-src 'none'"));
        told.push(page.as_str().context("a page")?.to_owned());
    }
    assert!(told[1].contains("--public-docs") && !told[1].contains("href"), "{}", told[1]);
    assert!(told[3].contains("href='/docs'"), "{}", told[3]);
    assert!(
        told.iter().all(|text| !text.contains(env!("CARGO_PKG_VERSION"))),
        "the page reveals the version to a caller that has no key"
    );
    assert_snapshot!(told[0], @r#"{"name":"monstrum","about":"Governed tool calls for bots. Every route except this one and the health checks requires an API key","docs":"/docs","openapi":"/api/openapi.json","docs_need_key":true}"#);
    Ok(())
}

/// The documentation and the metrics need a key unless a setting makes them public. All other routes always need a key.
#[tokio::test]
async fn documents_need_a_key_unless_they_are_public() -> Result<()> {
    let with_console = Server::start(&[]).await?;
    let api = Api::new(with_console.url().context("it runs")?, "")?;
    let browser = api.request(Method::GET, "/").header("Accept", "text/html");
    let (status, headers, _) = send(browser).await?;
    assert_eq!((status, &headers["location"]), (303, &"/console".parse()?));
    let mut closed = Server::prepare(&[])?.argument("--console").argument("off");
    closed.launch().await?;
    let mut open = Server::prepare(&[])?.argument("--public-docs").argument("--console").argument("off");
    open.launch().await?;
    let mut table = Vec::new();
    for path in [
        "/api/openapi.json",
        "/api/manifest.schema.json",
        "/docs",
        "/docs/",
        "/docs/swagger-ui.css",
        "/docs/nothing",
        "/metrics",
        "/api/roles",
    ] {
        let mut row = Vec::new();
        for server in [&closed, &open] {
            for api in [server.api()?, Api::new(server.url().context("it runs")?, "")?] {
                row.push(send(api.request(Method::GET, path)).await?.0.to_string());
            }
        }
        table.push(format!("{path}: {}", row.join(" ")));
    }
    assert_snapshot!(table.join("\n"), @r#"
    /api/openapi.json: 200 401 200 200
    /api/manifest.schema.json: 200 401 200 200
    /docs: 303 401 303 303
    /docs/: 200 401 200 200
    /docs/swagger-ui.css: 200 401 200 200
    /docs/nothing: 404 401 404 404
    /metrics: 200 401 200 200
    /api/roles: 200 401 200 401
    "#);
    let (_, headers, page) = send(closed.api()?.request(Method::GET, "/docs/")).await?;
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    assert_snapshot!([header("content-type"), header("content-security-policy"), header("x-content-type-options")].join("\n"), @r#"
    text/html
    default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'
    nosniff
    "#);
    assert!(
        page.as_str()
            .is_some_and(|page| page.contains("swagger-ui") && !page.contains("http://") && !page.contains("https://"))
    );
    let metrics = closed.api()?.get("/metrics").await?.1;
    assert!(metrics.as_str().is_some_and(|text| text.contains("monstrum_http_request_seconds_bucket")), "{metrics}");
    Ok(())
}
