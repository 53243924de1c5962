//! A bot works on a task of four calls. A scope rejects the first, a person approves the second, and the server is killed in
//! the middle of the third. After the restart the task goes on, and no write happens twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{Api, FakeGithub, FakeLlm, LlmReply, Server};

use crate::leaks;
use crate::scenes::{TOKEN, text};

const CREATE: &str = "github_create_issue";
const COMMENT: &str = "github_add_comment";
const LIST: &str = "github_list_issues";
const POLL: Duration = Duration::from_millis(20);
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Shows a task with a scripted model. The server is killed and starts again.
pub(crate) async fn show(server: &mut Server) -> Result<()> {
    println!("A fourth bot, `release`, works on a task with a model, which this program scripts:\n");
    let (github, llm) = (Arc::new(FakeGithub::start_with_token(TOKEN).await?), FakeLlm::start().await?);
    let upstream = Arc::clone(&github);
    llm.follow(move |request| next_round(request, &upstream));
    let api = server.api()?;
    let bot = set_up(&api, &github, &llm).await?;
    let body = json!({ "instruction": "Announce version 2.0 of acme/site." });
    let (status, task) = api.post(&format!("/api/bots/{bot}/tasks"), &body).await?;
    ensure!(status == 202, "the task did not start: {status} {task}");
    let id = text(&task["id"]).to_owned();

    let approval = waiting_approval(&api).await?;
    tell(&api, &id, 1, "rejected by the scope", "scope_violation").await?;
    let shown = &approval["params"];
    println!("  {CREATE} waits for a person, who sees its parameters: {shown}");
    let approver = api.with_key(&api.new_key("approver", None).await?);
    let path = format!("/api/approvals/{}", text(&approval["id"]));
    let decision = json!({ "decision": "approve", "digest": approval["digest"] });
    let (status, decided) = approver.post(&path, &decision).await?;
    ensure!(status == 200, "the approval was refused: {status} {decided}");
    until("the issue is created", async || Ok(writes(&github, "/issues") == 1)).await?;
    until("the comment is under way", async || Ok(writes(&github, "/comments") == 1)).await?;
    tell(&api, &id, 2, "approved, and made once", "success").await?;

    server.kill().await?;
    println!("  {COMMENT} has left the server when the server is killed (SIGKILL)");
    github.release();
    server.launch().await?;
    let api = server.api()?;
    println!("  the server starts again, and the task goes on");
    let mut task = Value::Null;
    until("the task has ended", async || {
        task = api.get(&format!("/api/tasks/{id}")).await?.1;
        Ok(!task["ended_at"].is_null())
    })
    .await?;
    ensure!(task["status"] == "completed", "the task should be completed: {task}");
    let uncertain = call(&api, &id, 3).await?;
    ensure!(uncertain["code"] == "uncertain", "the comment should be uncertain: {uncertain}");
    println!("  {COMMENT} was not repeated: {}", text(&uncertain["message"]));
    tell(&api, &id, 4, "the model looks what has become of it", "success").await?;
    println!("  the answer of the bot: {}\n", text(&task["result"]));
    let made = (writes(&github, "/issues"), writes(&github, "/comments"));
    ensure!(made == (1, 1), "each write should have reached the upstream once: {made:?}");
    leaks::check_text("the task", &task.to_string())
}

/// Creates the bot, with a gate for new issues and a scope for one organisation.
async fn set_up(api: &Api, github: &FakeGithub, llm: &FakeLlm) -> Result<String> {
    let bot = api.bot("release").await?;
    llm.give_to(api, &bot, "model of release").await?;
    let (url, scope) = (github.url(), json!({ "repos": ["acme/*"] }));
    let operations = ["issue.read", "issue.write", "issue.comment.write"];
    let bound = api.grant(&bot, "github", (&url, TOKEN), &operations, &scope).await?;
    let gate = json!({ "tools": [CREATE], "action": "ask", "approvers": ["approver"], "reason": "it is public" });
    let path = format!("/api/bots/{bot}/resources/{}", bound.binding);
    let (status, answer) = api.patch(&path, &json!({ "gates": [gate] })).await?;
    ensure!(status == 200, "the gate was not saved: {status} {answer}");
    Ok(bot)
}

/// The model: asks for writes one after the other, looks when it does not know what became of one, and answers. The
/// upstream does not answer the last write, so it is under way when the server is killed.
fn next_round(request: &Value, github: &FakeGithub) -> LlmReply {
    let messages = request["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let results: Vec<&str> = messages
        .iter()
        .filter(|message| message["role"] == "tool")
        .filter_map(|message| message["content"].as_str())
        .collect();
    let issue = |repo: &str| json!({ "repo": repo, "title": "Version 2.0" });
    match results.len() {
        0 => LlmReply::calls(&[(CREATE, issue("other/site"))]),
        1 => LlmReply::calls(&[(CREATE, issue("acme/site"))]),
        2 => {
            github.hold();
            LlmReply::calls(&[(COMMENT, json!({ "repo": "acme/site", "issue_number": 1, "body": "See 2.0" }))])
        }
        3 if results[2].contains("uncertain") => LlmReply::calls(&[(LIST, json!({ "repo": "acme/site" }))]),
        _ => LlmReply::says(&["Version 2.0 is announced. ", "One comment may be missing."]),
    }
}

/// Returns the approval that waits for a person.
pub(crate) async fn waiting_approval(api: &Api) -> Result<Value> {
    let mut approval = Value::Null;
    until("the task asks for an approval", async || {
        let (status, list) = api.get("/api/approvals?status=pending").await?;
        ensure!(status == 200, "{status} {list}");
        approval = list["items"][0].clone();
        Ok(!approval.is_null())
    })
    .await?;
    Ok(approval)
}

/// Returns the call of a task at this position among its calls, from 1.
async fn call(api: &Api, task: &str, position: usize) -> Result<Value> {
    let (status, steps) = api.get(&format!("/api/tasks/{task}/steps")).await?;
    ensure!(status == 200, "{status} {steps}");
    let mut calls = steps["items"].as_array().into_iter().flatten().filter(|step| step["kind"] == "call");
    calls.nth(position - 1).cloned().with_context(|| format!("the task has no call {position}: {steps}"))
}

/// Checks the status of a call, and prints what it shows.
async fn tell(api: &Api, task: &str, position: usize, what: &str, status: &str) -> Result<()> {
    let call = call(api, task, position).await?;
    ensure!(call["status"] == status, "the status should be {status}: {call}");
    println!("  {} · {what}", text(&call["tool"]));
    Ok(())
}

/// Returns the number of writes that the upstream has received at paths with this end.
pub(crate) fn writes(github: &FakeGithub, end: &str) -> usize {
    let requests = github.requests();
    let writes = requests.iter().filter(|request| request.method == "POST" && request.path.ends_with(end));
    writes.count()
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !is_so().await? {
        ensure!(began.elapsed() < WAIT_MAX, "not within {WAIT_MAX:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}
