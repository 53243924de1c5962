//! The cost of calls, budgets and rate limits: exact under concurrent calls and across a restart.

use std::fs;

use anyhow::{Context, Result, ensure};
use futures::future::join_all;
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::{Value, json};
use support::{Bound, Postgres, Server};

use crate::http::send;
use crate::stable::stable;
use crate::world::{World, text};

const CALLS: usize = 64;
const FITTING: usize = 10;

/// Adds costs to the manifest of `test-echo`: calls of three operations cost 7 tokens and 0.1 credits each.
pub(crate) fn with_costs(server: Server) -> Result<Server> {
    let manifest = server.plugins_dir().join("test-echo/monstrum.yaml");
    let mut told = fs::read_to_string(&manifest)?;
    for operation in ["echo.read", "fetch.run", "nothing.run"] {
        let line = format!("      operation: {operation}\n");
        ensure!(told.contains(&line), "no tool has the operation {operation}");
        told = told.replace(&line, &format!("{line}      cost: {{ tokens: 7, credits: 0.1 }}\n"));
    }
    fs::write(&manifest, told)?;
    Ok(server)
}

async fn world(server: Server, budget: Option<usize>) -> Result<(World, Bound)> {
    let world = World::on(with_costs(server)?).await?;
    let bound = world.grant_all("test-echo").await?;
    set_budget(&world, budget).await?;
    Ok((world, bound))
}

async fn set_budget(world: &World, budget: Option<usize>) -> Result<()> {
    let (status, body) =
        world.api.patch(&format!("/api/bots/{}", world.bot), &json!({ "monthly_token_budget": budget })).await?;
    ensure!(status == 200, "{status} {body}");
    Ok(())
}

/// Returns the bot's usage as the API reports it. Removes the month, which depends on the clock.
async fn usage(world: &World, query: &str) -> Result<Value> {
    let (status, mut body) = world.api.get(&format!("/api/bots/{}/usage{query}", world.bot)).await?;
    ensure!(status == 200, "{status} {body}");
    for item in body["items"].as_array_mut().context("the list has no items")? {
        let month = item["month"].take();
        ensure!(text(&month).len() == 7 && text(&month).starts_with("20"), "{month}");
    }
    Ok(body["items"].take())
}

fn spent(tokens: usize, calls: usize) -> Value {
    json!([{
        "month": null, "tokens": tokens, "tokens_input": 0, "tokens_output": 0, "credits_millionths": calls * 100_000,
        "rounds": 0, "rounds_estimated": 0, "calls": calls,
    }])
}

/// Sends concurrent calls against a budget that suffices for only some of the calls, and sends further calls after a
/// restart.
async fn exactly_those_that_fit(server: Server) -> Result<()> {
    let (mut world, _) = world(server, Some(FITTING * 7 + 6)).await?;
    let params = json!({ "repo": "acme/site" });
    let answers = join_all((0..CALLS).map(|_| world.call("test_echo_run", &params))).await;
    let mut counts = [0, 0];
    for answer in answers {
        let answer = answer?;
        match (text(&answer["status"]), text(&answer["code"])) {
            ("success", _) => counts[0] += 1,
            ("error", "budget") => counts[1] += 1,
            _ => ensure!(false, "{answer}"),
        }
    }
    assert_eq!(counts, [FITTING, CALLS - FITTING]);
    assert_eq!(usage(&world, "").await?, spent(FITTING * 7, FITTING));

    world.server.restart().await?;
    world.api = world.server.api()?;
    assert_eq!(usage(&world, "").await?, spent(FITTING * 7, FITTING));
    assert_eq!(world.call("test_echo_run", &params).await?["code"], "budget");
    set_budget(&world, Some((FITTING + 1) * 7)).await?;
    assert_eq!(world.call("test_echo_run", &params).await?["status"], "success");
    assert_eq!(world.call("test_echo_run", &params).await?["code"], "budget");
    assert_eq!(world.api.verify_audit().await?["valid"], true);
    Ok(())
}

#[tokio::test]
async fn of_many_calls_at_once_exactly_those_run_that_fit() -> Result<()> {
    exactly_those_that_fit(Server::prepare(&["test-echo"])?).await
}

#[tokio::test]
async fn on_postgresql_it_is_the_same() -> Result<()> {
    let postgres = Postgres::start(&["fsync=off"])?;
    postgres.sql("postgres", "create database monstrum")?;
    let server = Server::prepare(&["test-echo"])?;
    exactly_those_that_fit(server.variable("MONSTRUM_DATABASE_URL", &postgres.url("monstrum"))).await
}

#[tokio::test]
async fn a_call_over_the_budget_is_refused_in_plain_words_and_recorded() -> Result<()> {
    let (world, _) = world(Server::prepare(&["test-echo"])?, Some(7)).await?;
    assert_eq!(world.call("test_echo_fetch", &json!({ "path": "/echo" })).await?["status"], "success");
    let sent = world.github.take_requests().len();
    let answer = world.call("test_echo_fetch", &json!({ "path": "/echo" })).await?;
    assert_eq!((sent, world.github.take_requests().len()), (1, 0), "the rejected call sent a request");
    let mut audit = world.audit_of(&answer).await?;
    let events = audit["events"].as_array().context("the call has no events")?.iter();
    audit["events"] = events.map(|event| event["kind"].clone()).collect();
    let message = text(&answer["message"]);
    let month = message.split(' ').nth(11).context("the response does not name the month")?.to_owned();
    let told = stable(&json!([answer, audit])).to_string().replace(&month, "[month]");
    assert_snapshot!(told, @r#"
    [{"request_id":"[id 1]","status":"error","code":"budget","message":"this call costs 7 tokens and exceeds the bot's budget for [month] (7 of 7 tokens are spent)","duration_ms":"[ms]"},{"request_id":"[id 1]","bot_id":"[id 2]","task_id":"[id 1]","resource_id":"[id 3]","tool":"test_echo_fetch","operation":"fetch.run","plugin":"test-echo","plugin_digest":"[digest]","status":"error","code":"budget","message":"this call costs 7 tokens and exceeds the bot's budget for [month] (7 of 7 tokens are spent)","rule":"budget","params":{"path":"/echo"},"duration_ms":"[ms]","started_at":"[time]","finished_at":"[time]","parent_request_id":null,"delegation":null,"events":["finished"]}]
    "#);
    Ok(())
}

/// A call that is rejected before the plugin runs costs nothing. A call that ran is charged, regardless of its result.
#[tokio::test]
async fn only_what_ran_is_charged() -> Result<()> {
    let (world, bound) = world(Server::prepare(&["test-echo"])?, None).await?;
    world.rebind(&bound, &json!({ "scope_constraints": { "repos": ["acme/*"] } })).await?;
    for (tool, params) in [
        ("test_echo_run", json!({ "repo": "other/secret" })),
        ("test_echo_run", json!({ "unknown": 1 })),
        ("no_such_tool", json!({})),
        // This tool has no cost.
        ("test_echo_open", json!({ "repo": "acme/site" })),
    ] {
        world.call(tool, &params).await?;
        assert_eq!(usage(&world, "").await?, json!([]), "{tool} {params}");
    }
    world.rebind(&bound, &json!({ "scope_constraints": {} })).await?;
    let failed = world.call("test_echo_unhandled", &json!({})).await?;
    assert_eq!(failed["status"], "error", "{failed}");
    assert_eq!(usage(&world, "").await?, spent(7, 1));

    // Usage is grouped by the task that the caller named.
    let path = format!("/api/bots/{}/tools/test_echo_run/call", world.bot);
    for task in ["a", "a", "b"] {
        let (status, answer) =
            world.api.post(&path, &json!({ "params": { "repo": "acme/site" }, "task_id": task })).await?;
        ensure!(status == 200 && answer["status"] == "success", "{answer}");
    }
    assert_eq!(usage(&world, "").await?, spent(28, 4));
    for (query, calls) in [("?task_id=a", 2), ("?task_id=b", 1), ("?task_id=", 1)] {
        assert_eq!(usage(&world, query).await?, spent(calls * 7, calls), "{query}");
    }
    assert_eq!(usage(&world, "?task_id=c").await?, json!([]));
    Ok(())
}

/// A tool without a cost ignores the budget, and each bot has its own budget.
#[tokio::test]
async fn a_budget_that_is_spent_stops_what_costs_and_nothing_else() -> Result<()> {
    let (world, bound) = world(Server::prepare(&["test-echo"])?, Some(0)).await?;
    let params = json!({ "repo": "acme/site" });
    assert_eq!(world.call("test_echo_run", &params).await?["code"], "budget");
    assert_eq!(world.call("test_echo_open", &params).await?["status"], "success");
    let other = world.api.bot("other").await?;
    let role = world.api.role("all", &["*"]).await?;
    world.api.bind(&other, &bound.resource, &role, &json!({})).await?;
    assert_eq!(world.api.call(&other, "test_echo_run", &params).await?["status"], "success");
    assert_eq!(usage(&world, "").await?, json!([]));
    Ok(())
}

#[tokio::test]
async fn a_rate_of_a_binding_is_429_with_the_time_to_wait() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bound = world.grant_all("test-echo").await?;
    world.rebind(&bound, &json!({ "calls_per_minute": 2 })).await?;
    let path = format!("/api/bots/{}/tools/test_echo_run/call", world.bot);
    let call = async || send(world.api.request(Method::POST, &path).json(&json!({}))).await;
    for _ in 0..2 {
        let (status, _, answer) = call().await?;
        assert_eq!((status, &answer["status"]), (200, &json!("success")), "{answer}");
    }
    let (status, headers, problem) = call().await?;
    let wait: u64 = headers.get("retry-after").context("the response does not say when to retry")?.to_str()?.parse()?;
    assert!((1..=30).contains(&wait), "{wait} s");
    assert_snapshot!(format!("{status} {}", stable(&problem)), @r#"
    429 {"type":"urn:monstrum:error:rate_limited","title":"Too many requests","status":429,"detail":"the call exceeds the rate limit of this binding (2 per minute)","request_id":"[id 1]"}
    "#);
    let audit = world.api.audit(text(&problem["request_id"])).await?;
    assert_eq!([&audit["status"], &audit["code"], &audit["rule"]], [&json!("error"), &json!("limit"), &json!("rate")]);

    // The rate limit belongs to the binding. A binding that has no rate limit is not limited.
    world.rebind(&bound, &json!({ "calls_per_minute": null })).await?;
    assert_eq!(call().await?.0, 200);
    Ok(())
}
