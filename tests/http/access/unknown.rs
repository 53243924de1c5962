//! Routes refuse query parameters and fields that they do not have.

use anyhow::{Context, Result};
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::json;

use super::{Fresh, Request};
use crate::http::{Answers, send};

/// Requests every route of the description with a query parameter that the route does not have.
#[tokio::test]
async fn every_route_refuses_unknown_query_parameters() -> Result<()> {
    const LENIENT: [&str; 11] = [
        "/oauth/begin/{ticket}",
        "/oauth/connect/{ticket}",
        "/oauth/connect/callback",
        "/api/oauth/callback",
        "/api/core/ai/sandbox/file",
        "/api/core/ai/sandbox/download",
        "/v1/models",
        "/v1/models/{id}",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/responses/{id}",
    ];
    let fresh = Fresh::start().await?;
    let (_, document) = fresh.world.api.get("/api/openapi.json").await?;
    let (mut refused, mut lenient) = (0, 0);
    for (template, item) in document["paths"].as_object().context("the API description has no paths")? {
        for method in item.as_object().context("the path has no methods")?.keys() {
            let Request { path, body, .. } = fresh.request(&method.to_uppercase(), template).await?;
            let mark = if path.contains('?') { '&' } else { '?' };
            let mut request =
                fresh.world.api.request(method.to_uppercase().parse()?, &format!("{path}{mark}statuss=error"));
            if let Some(body) = body {
                request = request.json(&body);
            }
            let (status, _, answer) = send(request).await?;
            if LENIENT.contains(&template.as_str()) {
                lenient += 1;
                assert_ne!(answer["errors"][0]["path"], "statuss", "{method} {template}: {answer}");
            } else {
                refused += 1;
                assert_eq!(status, 422, "{method} {template}: {answer}");
                assert_eq!(answer["errors"][0]["path"], "statuss", "{method} {template}: {answer}");
            }
        }
    }
    assert!(refused > 70 && lenient == 12, "{refused} {lenient}");
    let (_, audit) = fresh.world.api.get("/api/audit?statuss=error&limit=1").await?;
    let known = "unknown query parameter (supported: bot_id, cursor, limit, operation, resource_id, rule, since, status, tool, tree, until)";
    assert_eq!(audit["errors"], json!([{ "path": "statuss", "message": known }]));
    let (status, head, _) = send(fresh.world.api.request(Method::HEAD, "/api/roles?x=1")).await?;
    assert_eq!((status, head.get("x-request-id").is_some()), (422, true));
    Ok(())
}

/// A route rejects unknown fields instead of ignoring them, because a caller that sends such a field may rely on its
/// effect.
#[tokio::test]
async fn no_route_takes_an_unknown_field() -> Result<()> {
    let fresh = Fresh::start().await?;
    let (_, document) = fresh.world.api.get("/api/openapi.json").await?;
    let mut answers = Answers::default();
    for (path, item) in document["paths"].as_object().context("the API description has no paths")? {
        for method in item.as_object().context("the path has no methods")?.keys() {
            let request = fresh.request(&method.to_uppercase(), path).await?;
            // Messages of the Model Context Protocol may have fields that a later revision defines, and clients of OpenAI
            // send fields that this server does not know.
            let is_lenient = path == "/mcp/{bot}" || path.starts_with("/v1/");
            let Some(mut body) = request.body.filter(|_| !is_lenient) else { continue };
            body["unknown"] = json!(1);
            let asked = fresh.world.api.request(method.to_uppercase().parse()?, &request.path);
            let (status, _, answer) = send(asked.json(&body)).await?;
            answers.add(&format!("{method} {path}"), (status, answer["errors"][0]["path"].clone()));
        }
    }
    assert_snapshot!(answers, @r#"
    post /api/approvals/{id}: 422 "/unknown"
    post /api/bots: 422 "/unknown"
    patch /api/bots/{id}: 422 "/unknown"
    post /api/bots/{id}/resources: 422 "/unknown"
    post /api/bots/{id}/resources/preview: 422 "/unknown"
    patch /api/bots/{id}/resources/{binding_id}: 422 "/unknown"
    post /api/bots/{id}/tasks: 422 "/unknown"
    post /api/bots/{id}/tools/{tool}/call: 422 "/unknown"
    post /api/bots/{id}/tools/{tool}/check: 422 "/unknown"
    put /api/budgets: 422 "/unknown"
    post /api/console/tickets: 422 "/unknown"
    post /api/core/ai/sandbox/download: 503
    post /api/core/ai/sandbox/file: 503
    post /api/demo: 422 "/unknown"
    post /api/events: 422 "/unknown"
    post /api/import: 422 "line 1: /unknown"
    post /api/keys: 422 "/unknown"
    post /api/oauth/providers: 422 "/unknown"
    patch /api/oauth/providers/{id}: 422 "/unknown"
    post /api/platform/{type}/{function}: 422 "/unknown"
    post /api/plugins: 422 "/unknown"
    post /api/plugins/{name}/approve: 422 "/unknown"
    post /api/resources: 422 "/unknown"
    patch /api/resources/{id}: 422 "/unknown"
    put /api/resources/{id}/credential: 422 ""
    post /api/resources/{id}/oauth/confirm: 422 "/unknown"
    post /api/resources/{id}/oauth/device: 422 "/unknown"
    post /api/resources/{id}/oauth/discover: 422 "/unknown"
    post /api/resources/{id}/oauth/refresh: 422 "/unknown"
    post /api/resources/{id}/oauth/start: 422 "/unknown"
    post /api/resources/{id}/tools/approve: 422 "/unknown"
    post /api/resources/{id}/tools/reject: 422 "/unknown"
    post /api/roles: 422 "/unknown"
    patch /api/roles/{id}: 422 "/unknown"
    post /api/runs/{id}/cancel: 422 "/unknown"
    post /api/runs/{id}/steps/{step}/resolve: 422 "/unknown"
    post /api/sandboxes/{id}/exec: 422 "/unknown"
    post /api/schedules: 422 "/unknown"
    post /api/schedules/preview: 422 "/unknown"
    patch /api/schedules/{id}: 422 "/unknown"
    post /api/sessions/{id}/messages: 422 "/unknown"
    post /api/subscriptions: 422 "/unknown"
    patch /api/subscriptions/{id}: 422 "/unknown"
    post /api/trust: 422 "/unknown"
    post /api/webhooks: 422 "/unknown"
    patch /api/webhooks/{id}: 422 "/unknown"
    post /api/workflows: 422 "/unknown"
    post /api/workflows/validate: 422 "/unknown"
    patch /api/workflows/{id}: 422 "/unknown"
    post /api/workflows/{id}/runs: 422 "/unknown"
    post /api/workflows/{id}/triggers: 422 "/unknown"
    patch /api/workflows/{id}/triggers/{trigger_id}: 422 "/unknown"
    post /api/workspaces: 422 "/unknown"
    patch /api/workspaces/{id}: 422 "/unknown"
    post /hooks/{id}: 401
    "#);
    Ok(())
}
