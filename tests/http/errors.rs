//! The error format (RFC 9457), for every status.

use anyhow::{Context, Result};
use insta::assert_snapshot;
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use support::Server;

use crate::http::{Answers, made, send};
use crate::locked::Locked;
use crate::world::{World, eventually};

/// Checks that a response is a problem document, and returns its body.
fn problem(status: u16, headers: &HeaderMap, body: Value) -> Value {
    assert_eq!(headers["content-type"], "application/problem+json", "{body}");
    assert_eq!(
        (&body["status"], &body["request_id"]),
        (&json!(status), &json!(headers["x-request-id"].to_str().unwrap_or_default()))
    );
    assert!(body["type"].as_str().is_some_and(|kind| kind.starts_with("urn:monstrum:error:")), "{body}");
    assert!(body["title"].is_string() && body["detail"].is_string(), "{body}");
    body
}

#[tokio::test]
async fn every_refusal_has_the_one_envelope() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let operator = api.with_key(&api.new_key("operator", None).await?);
    made(&api, "/api/roles", &json!({ "name": "taken" })).await?;
    let mut answers = Answers::default();
    for (label, request) in [
        ("no key", api.with_key("").request(Method::GET, "/api/roles")),
        ("unknown key", api.with_key("mk_unknown").request(Method::GET, "/api/roles")),
        ("refused", operator.request(Method::GET, "/api/keys")),
        ("absent", api.request(Method::GET, "/api/roles/019a0000-0000-7000-8000-000000000001")),
        ("no id", api.request(Method::GET, "/api/roles/x")),
        ("not UTF-8", api.request(Method::GET, "/api/roles/%ff")),
        ("no route", api.request(Method::GET, "/nowhere")),
        ("no route below", api.request(Method::GET, "/api/roles/x/y")),
        ("a slash too many", api.request(Method::GET, "/api/roles/")),
        ("no method", api.request(Method::PUT, "/api/roles").json(&json!({}))),
        ("taken", api.request(Method::POST, "/api/roles").json(&json!({ "name": "taken" }))),
        ("too large", api.request(Method::POST, "/api/roles").body(vec![b' '; (2 << 20) + 1])),
        ("no body", api.request(Method::POST, "/api/roles")),
        ("no JSON", api.request(Method::POST, "/api/roles").body("{")),
        ("more than JSON", api.request(Method::POST, "/api/roles").body("{\"name\": \"x\"} {}")),
        ("not UTF-8 in a text", api.request(Method::POST, "/api/roles").body(&b"{\"name\": \"\xff\"}"[..])),
        ("a field twice", api.request(Method::POST, "/api/roles").body("{\"name\": \"a\", \"name\": \"b\"}")),
        ("unknown field", api.request(Method::POST, "/api/roles").json(&json!({ "name": "x", "colour": 1 }))),
        ("two faults", api.request(Method::POST, "/api/bots").json(&json!({ "name": "", "monthly_token_budget": -1 }))),
        ("very deep", api.request(Method::POST, "/api/roles").body("[".repeat(100_000))),
    ] {
        let (status, headers, body) = send(request).await?;
        answers.add(label, (status, problem(status, &headers, body)));
    }
    assert_snapshot!(answers, @r#"
    no key: 401 {"type":"urn:monstrum:error:unauthenticated","title":"A valid API key is required","status":401,"detail":"send exactly one header `Authorization: Bearer mk_…`","request_id":"[id 1]"}
    unknown key: 401 {"type":"urn:monstrum:error:unauthenticated","title":"A valid API key is required","status":401,"detail":"unknown API key","request_id":"[id 2]"}
    refused: 403 {"type":"urn:monstrum:error:forbidden","title":"This key has no permission for this action","status":403,"detail":"an admin key is required","request_id":"[id 3]"}
    absent: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such role","request_id":"[id 4]"}
    no id: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such object with this id","request_id":"[id 5]"}
    not UTF-8: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such object with this id","request_id":"[id 6]"}
    no route: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such route","request_id":"[id 7]"}
    no route below: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such route","request_id":"[id 8]"}
    a slash too many: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such route","request_id":"[id 9]"}
    no method: 405 {"type":"urn:monstrum:error:method_not_allowed","title":"Method not allowed","status":405,"detail":"this route does not support this method","request_id":"[id 10]"}
    taken: 409 {"type":"urn:monstrum:error:conflict","title":"Conflict","status":409,"detail":"the name is already used in this workspace","request_id":"[id 11]"}
    too large: 413 {"type":"urn:monstrum:error:too_large","title":"The body is too large","status":413,"detail":"the body exceeds the limit of 2097152 bytes","request_id":"[id 12]"}
    no body: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"EOF while parsing a value at line 1 column 0","request_id":"[id 13]","errors":[{"path":"","message":"EOF while parsing a value at line 1 column 0"}]}
    no JSON: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"EOF while parsing an object at line 1 column 1","request_id":"[id 14]","errors":[{"path":"","message":"EOF while parsing an object at line 1 column 1"}]}
    more than JSON: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"trailing characters at line 1 column 15","request_id":"[id 15]","errors":[{"path":"","message":"trailing characters at line 1 column 15"}]}
    not UTF-8 in a text: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/name: invalid unicode code point at line 1 column 11","request_id":"[id 16]","errors":[{"path":"/name","message":"invalid unicode code point at line 1 column 11"}]}
    a field twice: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/name: duplicate field","request_id":"[id 17]","errors":[{"path":"/name","message":"duplicate field"}]}
    unknown field: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/colour: unknown field `colour`, expected one of `name`, `allowed_operations`, `allowed_tools`, `scope_constraints`, `gates`","request_id":"[id 18]","errors":[{"path":"/colour","message":"unknown field `colour`, expected one of `name`, `allowed_operations`, `allowed_tools`, `scope_constraints`, `gates`"}]}
    two faults: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"the input has 2 errors","request_id":"[id 19]","errors":[{"path":"/name","message":"must not be empty"},{"path":"/monthly_token_budget","message":"must be at least 0"}]}
    very deep: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"expected a JSON object","request_id":"[id 20]","errors":[{"path":"","message":"expected a JSON object"}]}
    "#);
    let (_, headers, _) = send(api.request(Method::PUT, "/api/roles")).await?;
    assert_eq!(headers["allow"], "GET,HEAD,POST");
    let (_, headers, _) = send(api.request(Method::GET, "/api/roles")).await?;
    assert_eq!(
        (&headers["cache-control"], &headers["x-content-type-options"]),
        (&"no-store".parse()?, &"nosniff".parse()?)
    );
    Ok(())
}

#[tokio::test]
async fn a_rate_that_is_used_up_says_when_to_come_back() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bound = world.grant_all("test-echo").await?;
    world.rebind(&bound, &json!({ "calls_per_minute": 1 })).await?;
    assert_eq!(world.call("test_echo_run", &json!({})).await?["status"], "success");
    let path = format!("/api/bots/{}/tools/test_echo_run/call", world.bot);
    let (status, headers, body) = send(world.api.request(Method::POST, &path).json(&json!({}))).await?;
    let wait: u64 = headers["retry-after"].to_str()?.parse()?;
    assert!((1..=60).contains(&wait), "{wait}");
    let mut answers = Answers::default();
    answers.add("", (status, problem(status, &headers, body.clone())));
    let audit = world.api.audit(body["request_id"].as_str().context("a text")?).await?;
    answers.add("in the audit", (0, json!([audit["status"], audit["code"], audit["message"], audit["rule"]])));
    assert_snapshot!(answers, @r#"
    429 {"type":"urn:monstrum:error:rate_limited","title":"Too many requests","status":429,"detail":"the call exceeds the rate limit of this binding (1 per minute)","request_id":"[id 1]"}
    in the audit: 0 ["error","limit","the call exceeds the rate limit of this binding (1 per minute)","rate"]
    "#);
    Ok(())
}

/// While another process locks the database, nothing can be written, so no call runs. After the lock is released, calls
/// succeed again.
#[tokio::test]
async fn a_locked_database_is_not_available_at_present() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    world.grant_all("test-echo").await?;
    let call = format!("/api/bots/{}/tools/test_echo_fetch/call", world.bot);
    let locked = Locked::hold(&world.server.data_dir().join("monstrum.db")).await?;
    let (made, called) = tokio::try_join!(
        send(world.api.request(Method::POST, "/api/roles").json(&json!({ "name": "late" }))),
        send(world.api.request(Method::POST, &call).json(&json!({ "params": { "path": "/echo" } }))),
    )?;
    let mut answers = Answers::default();
    for (label, (status, headers, body)) in [("create", made), ("call", called)] {
        assert_eq!(headers["retry-after"], "1", "{label}: {body}");
        answers.add(label, (status, problem(status, &headers, body)));
    }
    assert_snapshot!(answers, @r#"
    create: 503 {"type":"urn:monstrum:error:unavailable","title":"Temporarily unavailable","status":503,"detail":"the audit cannot be written; nothing was changed","request_id":"[id 1]"}
    call: 503 {"type":"urn:monstrum:error:unavailable","title":"Temporarily unavailable","status":503,"detail":"the audit cannot be written; try again later","request_id":"[id 2]"}
    "#);
    assert_eq!(world.github.requests().len(), 0, "a request reached the upstream although the call was not recorded");
    locked.release().await?;
    eventually("calls succeed again", async || {
        let answer = world.api.post(&call, &json!({ "params": { "path": "/echo" } })).await?.1;
        Ok((answer["status"] == "success").then_some(()))
    })
    .await?;
    assert_eq!(made_again(&world).await?, 201);
    assert_eq!(world.api.verify_audit().await?["valid"], true);
    Ok(())
}

async fn made_again(world: &World) -> Result<u16> {
    Ok(world.api.post("/api/roles", &json!({ "name": "late" })).await?.0)
}
