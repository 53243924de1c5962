//! The one envelope of errors (RFC 9457), for every status.

use anyhow::{Context, Result};
use insta::assert_snapshot;
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use support::Server;

use crate::http::{Answers, made, send};
use crate::locked::Locked;
use crate::world::{World, eventually};

/// The body of a problem, once it is clear that the answer is one.
fn problem(status: u16, headers: &HeaderMap, body: Value) -> Value {
    assert_eq!(headers["content-type"], "application/problem+json", "{body}");
    assert_eq!((&body["status"], &body["request_id"]), (&json!(status), &json!(headers["x-request-id"].to_str().unwrap_or_default())));
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
    assert_snapshot!(answers, @"");
    let (_, headers, _) = send(api.request(Method::PUT, "/api/roles")).await?;
    assert_eq!(headers["allow"], "GET,HEAD,POST");
    let (_, headers, _) = send(api.request(Method::GET, "/api/roles")).await?;
    assert_eq!((&headers["cache-control"], &headers["x-content-type-options"]), (&"no-store".parse()?, &"nosniff".parse()?));
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
    assert_snapshot!(answers, @"");
    Ok(())
}

/// While another process holds the database, nothing is written, so no call runs; then all goes on as before.
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
    assert_snapshot!(answers, @"");
    assert_eq!(world.github.requests().len(), 0, "what is not recorded does not leave");
    locked.release().await?;
    eventually("calls run again", async || {
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
