//! The routes that an agent key reaches.

use anyhow::{Context, Result};
use serde_json::json;

use super::{Fresh, Request, may};
use crate::http::{made, send};
use crate::world::text;

/// An agent key opens its socket and reads what it is. Every other route that asks for a key refuses it.
#[tokio::test]
async fn an_agent_key_is_refused_by_every_route_except_its_own() -> Result<()> {
    const PUBLIC: [&str; 10] = [
        "/",
        "/hooks/{id}",
        "/healthz",
        "/readyz",
        "/api/oauth/callback",
        "/oauth/client.json",
        "/oauth/begin/{ticket}",
        "/oauth/connect/{ticket}",
        "/oauth/connect/callback",
        "/.well-known/oauth-protected-resource/mcp/{id}",
    ];
    let fresh = Fresh::start().await?;
    let api = &fresh.world.api;
    let resource = made(api, "/api/resources", &json!({ "resource_type": "agent", "name": "lab" })).await?;
    let body = json!({ "name": "agent", "kind": "agent", "resource_id": resource });
    let agent = api.with_key(text(&api.post("/api/keys", &body).await?.1["key"]));
    let (_, document) = api.get("/api/openapi.json").await?;
    let (mut refused, mut allowed) = (0, Vec::new());
    for (template, item) in document["paths"].as_object().context("the API description has no paths")? {
        for method in item.as_object().context("the path has no methods")?.keys() {
            let Request { path, body, .. } = fresh.request(&method.to_uppercase(), template).await?;
            let mut request = agent.request(method.to_uppercase().parse()?, &path);
            if template.starts_with("/mcp") {
                request = request.header("accept", "application/json, text/event-stream");
            }
            if let Some(body) = body {
                request = request.json(&body);
            }
            let status = send(request).await?.0;
            if status != 403 {
                allowed.push(may::operation(&document, method, template));
            }
            match template.as_str() {
                "/ws/agent" => assert_eq!(status, 426, "a plain request"),
                "/api/me" => assert_eq!(status, 200),
                public if PUBLIC.contains(&public) => assert_ne!(status, 403, "{method} {template}"),
                _ => {
                    refused += 1;
                    assert_eq!(status, 403, "{method} {template}");
                }
            }
        }
    }
    assert!(refused > 70, "{refused}");
    may::names(&agent, allowed).await
}
