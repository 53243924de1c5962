//! The Jira plugin against an upstream that accepts a single account, by Basic authentication.

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::{Canned, Recorded};

use crate::canary::encodings::Search;
use crate::stable::stable;
use crate::world::{World, text};

const EMAIL: &str = "bot@acme.example";
/// The token has the format of an Atlassian token, and contains characters that every encoding changes.
const API_TOKEN: &str = "ATATT3xF+7/Zk3~Qd\"9&x=Vt8 LpW2";
const SEARCH: &str = "/rest/api/3/search/jql";
const ISSUE: &str = "/rest/api/3/issue";

/// Starts a world with a bot that may read and write issues of projects whose key starts with ACME.
async fn triage() -> Result<World> {
    let world = World::with(&["jira"]).await?;
    let resource = world.api.resource("jira", "our Jira", &world.github.url()).await?;
    let credential = json!({ "auth_method": "basic", "fields": { "email": EMAIL, "api_token": API_TOKEN } });
    let (status, body) = world.api.put(&format!("/api/resources/{resource}/credential"), &credential).await?;
    ensure!(status == 200, "the credential: {status} {body}");
    secret_free(&body)?;
    let role = world.api.role("triage", &["issue.*"]).await?;
    world.api.bind(&world.bot, &resource, &role, &json!({ "projects": ["ACME*"] })).await?;
    world.github.answer(SEARCH, Canned::json(200, &json!({ "issues": [{ "key": "ACME-1" }], "isLast": true })));
    world.github.answer(ISSUE, Canned::json(201, &json!({ "id": "10007", "key": "ACME-7" })));
    Ok(world)
}

/// Returns the `Authorization` header value of the account (RFC 7617).
fn basic() -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("{EMAIL}:{API_TOKEN}")))
}

fn secret_free(told: &Value) -> Result<()> {
    let told = told.to_string();
    ensure!(Search::of(API_TOKEN).find(told.as_bytes()).is_none(), "the token was not redacted: {told}");
    ensure!(!told.contains(&basic()), "the authorization header was not redacted: {told}");
    Ok(())
}

fn lines(requests: &[Recorded]) -> Vec<String> {
    let line = |request: &Recorded| {
        let sent = request.header("authorization").unwrap_or("nothing");
        let sent = if sent == basic() { "the account" } else { sent };
        format!("{} {}?{} ({sent}) {}", request.method, request.path, request.query, request.json())
    };
    requests.iter().map(line).collect()
}

/// Returns the status, code, data and message of the response, and the requests that the upstream received.
async fn told(world: &World, tool: &str, params: &Value) -> Result<String> {
    let answer = world.call(tool, params).await?;
    secret_free(&answer)?;
    secret_free(&world.audit_of(&answer).await?)?;
    let seen = lines(&world.github.take_requests());
    let mut answer = stable(&answer);
    let members = answer.as_object_mut().context("the answer is not an object")?;
    members.retain(|name, _| name != "request_id" && name != "duration_ms");
    Ok(format!("{answer}\n{}", seen.join("\n")))
}

#[tokio::test]
async fn issues_are_listed_and_created_by_the_account_of_the_resource() -> Result<()> {
    let world = triage().await?;
    let list = json!({ "project": "ACME", "status": "To Do\" OR project = \"SECRET", "max_results": 2 });
    let create = json!({ "project": "ACME2", "summary": "Broken", "description": "Since today." });
    assert_snapshot!(told(&world, "jira_list_issues", &list).await?, @r#"
    {"status":"success","data":{"issues":[{"key":"ACME-1"}],"isLast":true}}
    GET /rest/api/3/search/jql?jql=project%20%3D%20%22ACME%22%20AND%20status%20%3D%20%22To%20Do%5C%22%20OR%20project%20%3D%20%5C%22SECRET%22&maxResults=2&fields=%2Anavigable (the account) null
    "#);
    assert_snapshot!(told(&world, "jira_create_issue", &create).await?, @r#"
    {"status":"success","data":{"id":"10007","key":"ACME-7"}}
    POST /rest/api/3/issue? (the account) {"fields":{"project":{"key":"ACME2"},"summary":"Broken","description":{"type":"doc","version":1,"content":[{"type":"paragraph","content":[{"type":"text","text":"Since today."}]}]},"issuetype":{"name":"Task"}}}
    "#);
    Ok(())
}

#[tokio::test]
async fn a_project_outside_of_the_scope_is_refused_before_anything_is_sent() -> Result<()> {
    let world = triage().await?;
    let mut answers = Vec::new();
    for project in ["SECRET", "acme", "ACME OR project = SECRET", "ACME\" OR \"1\" = \"1"] {
        answers.push(told(&world, "jira_list_issues", &json!({ "project": project })).await?);
        answers.push(told(&world, "jira_create_issue", &json!({ "project": project, "summary": "x" })).await?);
    }
    assert_snapshot!(answers.join(""), @r#"
    {"status":"scope_violation","code":"scope","message":"Scope violation: Project SECRET is not authorized"}
    {"status":"scope_violation","code":"scope","message":"Scope violation: Project SECRET is not authorized"}
    {"status":"scope_violation","code":"scope","message":"Scope violation: Project acme is not authorized"}
    {"status":"scope_violation","code":"scope","message":"Scope violation: Project acme is not authorized"}
    {"status":"error","code":"plugin","message":"Invalid project key, expected letters, digits and '_' such as 'PROJ'"}
    {"status":"error","code":"plugin","message":"Invalid project key, expected letters, digits and '_' such as 'PROJ'"}
    {"status":"error","code":"plugin","message":"Invalid project key, expected letters, digits and '_' such as 'PROJ'"}
    {"status":"error","code":"plugin","message":"Invalid project key, expected letters, digits and '_' such as 'PROJ'"}
    "#);
    Ok(())
}

/// The upstream repeats the credential in its response, like the error page of a careless proxy.
#[tokio::test]
async fn an_upstream_that_echoes_the_account_gives_nothing_away() -> Result<()> {
    let world = triage().await?;
    let echo = format!("{} / {API_TOKEN} / {EMAIL}", basic());
    world.github.answer(SEARCH, Canned::json(400, &json!({ "errorMessages": [echo] })));
    assert_snapshot!(told(&world, "jira_list_issues", &json!({ "project": "ACME" })).await?, @r#"
    {"status":"error","code":"plugin","message":"Jira API error: 400 - {\"errorMessages\":[\"Basic [redacted] / [redacted] / bot@acme.example\"]}"}
    GET /rest/api/3/search/jql?jql=project%20%3D%20%22ACME%22&maxResults=50&fields=%2Anavigable (the account) null
    "#);
    let answer = world.call("jira_list_issues", &json!({ "project": "ACME" })).await?;
    ensure!(text(&answer["status"]) == "error", "{answer}");
    Ok(())
}
