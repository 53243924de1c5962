//! The headers `ETag` and `If-Match` of objects with a version: bots, bindings, resources, roles, schedules,
//! webhooks and workflows.

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use reqwest::header::{ETAG, IF_MATCH};
use serde_json::{Value, json};
use support::Api;

use crate::http::made;
use crate::workflows::definition_with;
use crate::world::World;

/// Sends a request with `If-Match`. Returns the status, the `ETag` and the body of the answer.
async fn send(
    api: &Api,
    method: Method,
    path: &str,
    expected: Option<&str>,
    body: Option<&Value>,
) -> Result<(u16, Option<String>, Value)> {
    let mut request = api.request(method, path);
    if let Some(expected) = expected {
        request = request.header(IF_MATCH, expected);
    }
    if let Some(body) = body {
        request = request.json(body);
    }
    let response = request.send().await?;
    let status = response.status().as_u16();
    let tag = response.headers().get(ETAG).map(|tag| tag.to_str().map(str::to_owned)).transpose()?;
    let text = response.text().await?;
    let body = if text.is_empty() { Value::Null } else { serde_json::from_str(&text)? };
    Ok((status, tag, body))
}

async fn tag_of(api: &Api, path: &str) -> Result<String> {
    let (status, tag, body) = send(api, Method::GET, path, None, None).await?;
    ensure!(status == 200, "GET {path}: {status} {body}");
    tag.with_context(|| format!("GET {path} answered without an ETag"))
}

/// Returns the paths of one object of each kind, with two changes of it. The binding comes before what it refers to.
async fn objects(world: &World) -> Result<Vec<(String, [Value; 2])>> {
    let bound = world.grant_all("test-echo").await?;
    let role = world.api.role("reader", &["*.read"]).await?;
    let times = json!({ "name": "hourly", "bot_id": world.bot, "instruction": "x", "every_s": 3600, "enabled": false });
    let schedule = made(&world.api, "/api/schedules", &times).await?;
    let workflow = |step: &str| json!({ "definition": definition_with("release", &world.bot, step) });
    let release = made(&world.api, "/api/workflows", &workflow("{ id: a, emit: a }")).await?;
    let names = || [json!({ "name": "first" }), json!({ "name": "second" })];
    let webhook = json!({ "name": "hook", "event": "e", "verify": { "kind": "token" } });
    let webhook = made(&world.api, "/api/webhooks", &webhook).await?;
    Ok(vec![
        (
            format!("/api/bots/{}/resources/{}", world.bot, bound.binding),
            [json!({ "calls_per_minute": 7 }), json!({ "calls_per_minute": 8 })],
        ),
        (format!("/api/resources/{}", bound.resource), names()),
        (format!("/api/roles/{role}"), names()),
        (format!("/api/schedules/{schedule}"), names()),
        (format!("/api/webhooks/{webhook}"), names()),
        (format!("/api/workflows/{release}"), [workflow("{ id: a, emit: b }"), workflow("{ id: a, emit: c }")]),
        (format!("/api/bots/{}", world.bot), names()),
    ])
}

#[tokio::test]
async fn a_change_of_a_version_that_is_no_longer_current_is_refused() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let api = &world.api;
    for (path, [first, second]) in objects(&world).await? {
        let old = tag_of(api, &path).await?;
        let (status, tag, body) = send(api, Method::PATCH, &path, Some(&old), Some(&first)).await?;
        assert_eq!(status, 200, "{path}: {body}");
        let current = tag.context("the answer to PATCH has no ETag")?;
        assert_ne!(current, old, "{path}");
        assert_eq!(tag_of(api, &path).await?, current, "{path}");

        let (status, _, body) = send(api, Method::PATCH, &path, Some(&old), Some(&second)).await?;
        assert_eq!((status, &body["type"]), (412, &json!("urn:monstrum:error:precondition_failed")), "{path}");
        let (status, ..) = send(api, Method::DELETE, &path, Some(&old), None).await?;
        assert_eq!(status, 412, "DELETE {path}");
        for never in ["\"other\"", &format!("W/{current}"), &format!("W/{current}, {old}")] {
            let (status, ..) = send(api, Method::PATCH, &path, Some(never), Some(&second)).await?;
            assert_eq!(status, 412, "{path}: {never}");
        }
        let (status, _, body) = send(api, Method::PATCH, &path, Some(current.trim_matches('"')), Some(&second)).await?;
        assert_eq!((status, &body["errors"][0]["path"]), (422, &json!("If-Match")), "{path}: no quotation marks");
        assert_eq!(tag_of(api, &path).await?, current, "a refused request changed {path}");

        let several = format!("{old}, {current}");
        assert_eq!(send(api, Method::PATCH, &path, Some(&several), Some(&second)).await?.0, 200, "{path}: a list");
        assert_eq!(send(api, Method::PATCH, &path, Some("*"), Some(&first)).await?.0, 200, "{path}: any version");
        assert_eq!(send(api, Method::PATCH, &path, None, Some(&second)).await?.0, 200, "{path}: no precondition");
        let current = tag_of(api, &path).await?;
        assert_eq!(send(api, Method::DELETE, &path, Some(&current), None).await?.0, 204, "DELETE {path}");
    }
    Ok(())
}

#[tokio::test]
async fn of_two_changes_of_one_version_one_is_refused() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let api = &world.api;
    for (path, [first, second]) in objects(&world).await? {
        let tag = tag_of(api, &path).await?;
        let (one, other) = tokio::join!(
            send(api, Method::PATCH, &path, Some(&tag), Some(&first)),
            send(api, Method::PATCH, &path, Some(&tag), Some(&second)),
        );
        let mut statuses = [one?.0, other?.0];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 412], "{path}");
    }
    Ok(())
}
