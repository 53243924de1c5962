//! Tests of `/api/stats`.

use anyhow::Result;
use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::http::roles::faults;
use crate::http::{Answers, workspace};
use crate::world::{World, text};

/// Starts a world in which the bot made two calls that succeeded, and two that were denied by the scope.
async fn counted() -> Result<World> {
    let world = World::with(&["test-echo"]).await?;
    world.grant("test-echo", &["echo.read"], &json!({ "repos": ["acme/*"] })).await?;
    for repo in ["acme/a", "acme/b", "other/\"site\"", "other/\"site\""] {
        world.call("test_echo_run", &json!({ "repo": repo })).await?;
    }
    world.call("test_echo_write", &json!({})).await?;
    Ok(world)
}

/// Returns the keys and the numbers of an answer, sorted.
fn numbers(answer: &Value) -> Vec<String> {
    let items = answer["items"].as_array().into_iter().flatten();
    let mut numbers: Vec<_> = items.map(|item| format!("{} {}", item["calls"], item["key"])).collect();
    numbers.sort_unstable();
    numbers
}

#[tokio::test]
async fn calls_are_counted_by_one_or_two_properties() -> Result<()> {
    let world = counted().await?;
    let mut told = Vec::new();
    for query in [
        "by=status",
        "by=tool",
        "by=rule",
        "by=rule,message&status=scope_violation",
        "by=tool,status&tool=test_echo_write",
        "by=status&rule=scope.repos",
        "by=bot_id&tool=nothing",
    ] {
        let (status, answer) = world.api.get(&format!("/api/stats?{query}")).await?;
        told.push(format!("{query}: {status} {}", numbers(&answer).join(", ")));
    }
    assert_snapshot!(told.join("\n"), @r#"
    by=status: 200 1 {"status":"permission_denied"}, 2 {"status":"scope_violation"}, 2 {"status":"success"}
    by=tool: 200 1 {"tool":"test_echo_write"}, 4 {"tool":"test_echo_run"}
    by=rule: 200 1 {"rule":"role.allowed_operations"}, 2 {"rule":"scope.repos"}, 2 {"rule":null}
    by=rule,message&status=scope_violation: 200 2 {"message":"Scope violation: Repository other/\"site\" is not authorized","rule":"scope.repos"}
    by=tool,status&tool=test_echo_write: 200 1 {"status":"permission_denied","tool":"test_echo_write"}
    by=status&rule=scope.repos: 200 2 {"status":"scope_violation"}
    by=bot_id&tool=nothing: 200
    "#);
    // The largest number comes first, and the newest call of each group is the newest in the list.
    let (_, answer) = world.api.get("/api/stats?by=tool").await?;
    let (_, newest) = world.api.get("/api/audit?tool=test_echo_run&limit=1").await?;
    assert_eq!(answer["items"][0]["key"], json!({ "tool": "test_echo_run" }));
    assert_eq!(answer["items"][0]["last_at"], newest["items"][0]["started_at"]);
    assert_eq!((answer["items"][0].get("at"), answer.get("truncated_before")), (None, None));
    let (_, by_bot) = world.api.get("/api/stats?by=bot_id,resource_id").await?;
    assert_eq!(by_bot["items"][0]["key"]["bot_id"], json!(world.bot));
    assert_eq!(by_bot["items"][0]["key"]["resource_id"], newest["items"][0]["resource_id"]);
    Ok(())
}

#[tokio::test]
async fn calls_are_counted_in_time() -> Result<()> {
    let world = counted().await?;
    let (_, newest) = world.api.get("/api/audit?limit=1").await?;
    let last = text(&newest["items"][0]["started_at"]).to_owned();
    // A bucket of a day begins at midnight in UTC. If midnight passes during the test, there are two buckets.
    let (status, answer) = world.api.get("/api/stats?by=status&bucket=86400").await?;
    let items = answer["items"].as_array().cloned().unwrap_or_default();
    assert_eq!((status, items.iter().filter_map(|item| item["calls"].as_u64()).sum::<u64>()), (200, 5));
    assert!(items.iter().all(|item| text(&item["at"]).ends_with("T00:00:00.000Z")), "{answer}");
    assert!(items.iter().any(|item| text(&item["at"])[..10] == last[..10]), "{answer}");
    // 600 buckets are within the limit.
    let (_, fine) =
        world.api.get("/api/stats?by=tool&bucket=1&since=2099-01-01T00:00:00Z&until=2099-01-01T00:10:00Z").await?;
    assert_eq!(fine["items"], json!([]));
    let (_, early) = world.api.get("/api/stats?by=tool&until=2020-01-01T00:00:00Z").await?;
    assert_eq!(early["items"], json!([]));
    let (_, excluded) = world.api.get(&format!("/api/stats?by=tool&until={last}")).await?;
    let before: u64 =
        excluded["items"].as_array().into_iter().flatten().filter_map(|item| item["calls"].as_u64()).sum();
    assert!(before < 5, "`until` is excluded: {excluded}");
    Ok(())
}

#[tokio::test]
async fn other_workspaces_and_bots_read_no_numbers() -> Result<()> {
    let world = counted().await?;
    let foreign = workspace(&world.api, "foreign").await?;
    let of_bot = world.api.with_key(&world.api.new_key("bot", Some(&world.bot)).await?);
    let mut answers = Answers::default();
    answers.add("another workspace", foreign.get("/api/stats?by=tool,message").await?);
    answers.add("its filter", foreign.get(&format!("/api/stats?by=tool&bot_id={}", world.bot)).await?);
    answers.add("a bot", faults(of_bot.get("/api/stats?by=tool").await?));
    assert_snapshot!(answers, @r#"
    another workspace: 200 {"items":[]}
    its filter: 200 {"items":[]}
    a bot: 403 "this operation requires an operator, admin or root key"
    "#);
    Ok(())
}

#[tokio::test]
async fn invalid_queries_are_rejected() -> Result<()> {
    let world = World::with(&[]).await?;
    let mut answers = Answers::default();
    for query in [
        "",
        "by=plugin",
        "by=tool,tool",
        "by=tool,status,rule",
        "by=tool&bucket=0",
        "by=tool&bucket=x",
        "by=tool&bucket=100",
        "by=tool&since=2026-01-01T00:00:00Z&until=2026-02-01T00:00:00.001Z",
        "by=tool&since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z",
        "by=tool&status=done&resource_id=x",
        "by=tool&limit=5",
    ] {
        answers.add(query, faults(world.api.get(&format!("/api/stats?{query}")).await?));
    }
    let known = "known parameters";
    let told = answers.to_string();
    // The last answer names all parameters of the route, which the description has.
    let told: Vec<_> = told.lines().map(|line| if line.starts_with("by=tool&limit") { known } else { line }).collect();
    assert_snapshot!(told.join("\n"), @r#"
    422 [{"path":"by","message":"expected one of bot_id, tool, resource_id, status, rule, message, or two separated by a comma"}]
    by=plugin: 422 [{"path":"by","message":"expected one of bot_id, tool, resource_id, status, rule, message, or two separated by a comma"}]
    by=tool,tool: 422 [{"path":"by","message":"expected one of bot_id, tool, resource_id, status, rule, message, or two separated by a comma"}]
    by=tool,status,rule: 422 [{"path":"by","message":"expected one of bot_id, tool, resource_id, status, rule, message, or two separated by a comma"}]
    by=tool&bucket=0: 422 [{"path":"bucket","message":"expected a number of seconds of at least 1"}]
    by=tool&bucket=x: 422 [{"path":"bucket","message":"expected a whole number of seconds of at least 1"}]
    by=tool&bucket=100: 422 [{"path":"bucket","message":"expected a width with at most 750 buckets"}]
    by=tool&since=2026-01-01T00:00:00Z&until=2026-02-01T00:00:00.001Z: 422 [{"path":"since","message":"expected at most 31 days before `until`"}]
    by=tool&since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z: 422 [{"path":"since","message":"expected a time before `until`"}]
    by=tool&status=done&resource_id=x: 422 [{"path":"status","message":"expected success, error, scope_violation, permission_denied, approval_required, running or interrupted"},{"path":"resource_id","message":"expected the id of a resource"}]
    known parameters
    "#);
    Ok(())
}
