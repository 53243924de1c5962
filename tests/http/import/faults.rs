//! Rejected imports, of which nothing is written.

use anyhow::{Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{IMPORT, binding, bot, joined, post, resource, role};
use crate::http::Answers;
use crate::http::export::exported;
use crate::world::{World, text};

/// Formats the errors of a response as lines. Fails unless the response has status 422.
fn errors((status, answer): &(u16, Value)) -> Result<String> {
    ensure!(*status == 422, "{status} {answer}");
    let errors = answer["errors"].as_array().into_iter().flatten();
    let lines: Vec<String> =
        errors.map(|error| format!("{} => {}", text(&error["path"]), text(&error["message"]))).collect();
    Ok(lines.join("\n"))
}

fn with(mut line: Value, field: &str, value: Value) -> Value {
    line[field] = value;
    line
}

#[tokio::test]
async fn every_fault_is_reported_with_its_line_and_nothing_is_written() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let before = exported(&world.api).await?;
    let mut short = role("short", &[]);
    short.as_object_mut().and_then(|line| line.remove("scope_constraints"));
    let lines = joined(&[
        bot("fine"),
        resource("site"),
        role("reader", &[]),
        json!("text"),
        short,
        with(bot("coloured"), "colour", json!("red")),
        with(bot("poor"), "monthly_token_budget", json!(-1)),
        with(resource("odd"), "config", json!({ "region": "mars" })),
        with(resource("else"), "resource_type", json!("nothing")),
        with(resource("near"), "network", json!({ "allow_addresses": ["10.0.0.1"], "allow_http": false })),
        binding("nobody", "nothing", "none"),
        with(binding("fine", "site", "reader"), "scope_constraints", json!({ "planets": ["mars"] })),
        with(binding("tester", "site", "reader"), "role", Value::Null),
        role("long", &[&"x".repeat(4097)]),
        bot("fine"),
        with(bot("nul"), "description", json!("a\0b")),
        with(role("", &[]), "allowed_tools", json!(vec!["*"; 201])),
        with(resource("helper"), "resource_type", json!("bot")),
    ]);
    let answer = post(&world.api, IMPORT, &format!("{lines}\n{{\"kind\": \n")).await?;
    assert_snapshot!(errors(&answer)?, @r#"
    line 4 => expected a JSON object
    line 5: /scope_constraints => required field is missing
    line 6: /colour => unknown field `colour`, expected one of `workspace`, `name`, `description`, `system_prompt`, `model`, `use_agent_sandbox`, `monthly_token_budget`, `gates`, `model_fallbacks`, `task_limits`, `session_idle_s`, `client_tools`
    line 7: /monthly_token_budget => must be at least 0
    line 8: /config/region => expected one of `eu`, `us`
    line 9: /resource_type => no loaded plugin has this resource type
    line 10: /network/allow_addresses/0 => expected an address range; write a single address with /32
    line 11: /bot => no such bot in this workspace or in the import
    line 11: /resource => no such resource in this workspace or in the import
    line 11: /role => no such role in this workspace or in the import
    line 12: /scope_constraints/planets => unknown scope dimension (known dimensions: repos, paths, labels, kinds)
    line 13 => `role_id` or `permissions` is required, because a binding with neither allows nothing
    line 14: /scope_constraints/repos/0 => the pattern is too long; at most 4096 bytes are allowed
    line 15 => line 1 has the same bot
    line 16 => a string contains U+0000, which the database cannot store
    line 17: /name => must not be empty
    line 17: /allowed_tools => the list has 201 patterns; at most 200 are allowed; use fewer, more general patterns, or split the list into several roles
    line 18: /config/region => unknown field
    line 18: /config/bot => required field is missing
    line 20 => EOF while parsing a value at column 9
    "#);
    assert_eq!(exported(&world.api).await?, before);
    let (status, changes) = world.api.get("/api/audit/changes").await?;
    ensure!(status == 200 && !changes.to_string().contains("import"), "{changes}");
    Ok(())
}

#[tokio::test]
async fn no_line_brings_a_credential_an_id_or_a_key() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let before = exported(&world.api).await?;
    let lines = joined(&[
        with(resource("site"), "credential", json!({ "access_token": "a-secret-token" })),
        with(bot("one"), "id", json!("019a0000-0000-7000-8000-000000000001")),
        json!({ "kind": "key", "name": "mine", "key": "mk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" }),
        with(resource("other"), "config", json!({ "access_token": "a-secret-token" })),
    ]);
    let answer = post(&world.api, IMPORT, &lines).await?;
    assert_snapshot!(errors(&answer)?, @r#"
    line 1: /credential => unknown field `credential`, expected one of `workspace`, `resource_type`, `name`, `config`, `network`, `labels`
    line 2: /id => unknown field `id`, expected one of `workspace`, `name`, `description`, `system_prompt`, `model`, `use_agent_sandbox`, `monthly_token_budget`, `gates`, `model_fallbacks`, `task_limits`, `session_idle_s`, `client_tools`
    line 3: /kind => expected `workspace`, `role`, `bot`, `resource` or `binding`
    line 4: /config/access_token => unknown field
    "#);
    ensure!(!answer.1.to_string().contains("a-secret-token"), "{}", answer.1);
    assert_eq!(exported(&world.api).await?, before);
    Ok(())
}

#[tokio::test]
async fn at_most_a_hundred_faults_are_listed() -> Result<()> {
    let world = World::with(&[]).await?;
    let (status, answer) = post(&world.api, IMPORT, &"{}\n".repeat(150)).await?;
    let listed = answer["errors"].as_array().map(Vec::as_slice).unwrap_or_default();
    assert_eq!((status, listed.len()), (422, 101));
    assert_eq!(listed[99]["path"], "line 100: /kind");
    assert_eq!(listed[100], json!({ "path": "", "message": "the import has 150 errors; the first 100 are listed" }));
    Ok(())
}

#[tokio::test]
async fn lines_and_bodies_have_limits() -> Result<()> {
    let world = World::with(&[]).await?;
    let mut answers = Answers::default();
    let long = format!("\"{}\"\n{{}}\n", "x".repeat(2 << 20));
    answers.add("a long line", post(&world.api, IMPORT, &long).await?);
    answers.add("many lines", post(&world.api, IMPORT, &"\n".repeat(200_001)).await?);
    answers.add("many values", post(&world.api, IMPORT, &format!("[{}0]\n", "0,".repeat(1_000_000)).repeat(9)).await?);
    let workspace = |number: usize| json!({ "kind": "workspace", "name": format!("w{number}"), "sandbox": null });
    let workspaces: Vec<Value> = (0..1_001).map(workspace).collect();
    answers.add("many workspaces", post(&world.api, IMPORT, &joined(&workspaces)).await?);
    let blank = format!("{}\n", " ".repeat((1 << 20) - 1)).repeat(64);
    answers.add("a large body", post(&world.api, IMPORT, &format!("{blank} ")).await?);
    assert_eq!(post(&world.api, IMPORT, &blank).await?.0, 200, "the largest body");
    assert_snapshot!(answers, @r#"
    a long line: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"the input has 2 errors","request_id":"[id 1]","errors":[{"path":"line 1","message":"the line exceeds the limit of 2097152 bytes"},{"path":"line 2: /kind","message":"expected `workspace`, `role`, `bot`, `resource` or `binding`"}]}
    many lines: 413 {"type":"urn:monstrum:error:too_large","title":"A limit is exceeded","status":413,"detail":"an import can have at most 200000 lines","request_id":"[id 2]"}
    many values: 413 {"type":"urn:monstrum:error:too_large","title":"A limit is exceeded","status":413,"detail":"an import can have at most 8000000 values","request_id":"[id 3]"}
    many workspaces: 413 {"type":"urn:monstrum:error:too_large","title":"A limit is exceeded","status":413,"detail":"an import can have at most 1000 workspaces","request_id":"[id 4]"}
    a large body: 413 {"type":"urn:monstrum:error:too_large","title":"The body is too large","status":413,"detail":"the body exceeds the limit of 67108864 bytes","request_id":"[id 5]"}
    "#);
    Ok(())
}

#[tokio::test]
async fn a_workspace_without_a_line_is_not_created() -> Result<()> {
    let world = World::with(&[]).await?;
    let lines = joined(&[with(role("reader", &[]), "workspace", json!("nowhere"))]);
    assert_snapshot!(errors(&post(&world.api, IMPORT, &lines).await?)?, @"line 1: /workspace => no such workspace, and no line of the import creates it");
    Ok(())
}

#[tokio::test]
async fn a_name_of_another_type_is_a_fault() -> Result<()> {
    let world = World::with(&["test-echo", "test-caller"]).await?;
    world.api.resource("test-echo", "site", "https://upstream.example").await?;
    let lines = joined(&[with(resource("site"), "resource_type", json!("test-caller"))]);
    let answer = post(&world.api, IMPORT, &lines).await?;
    ensure!(errors(&answer)?.contains("line 1: /resource_type => the resource exists with another type"), "{answer:?}");
    Ok(())
}
