//! The recipes of docs/workflows.md, executed as they stand: the page's commands, with the files of examples/workflows. A
//! scripted model and a simulated GitHub take the places of OpenAI and GitHub, and a second key decides about the release.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use support::{Api, FakeGithub, FakeLlm, LlmReply, Recorded, Server};

use super::walk::{Place, examples};
use super::{page, root, search_path};

const PAGE: &str = "docs/workflows.md";
const NETWORK: &str = "--allow-http --allow-address 127.0.0.0/8";
const REPORT: &str = "Five issues are open in two repositories.";
const POLL: Duration = Duration::from_millis(50);

#[tokio::test]
async fn the_recipes_run_as_the_page_shows() -> Result<()> {
    let (github, llm) = (FakeGithub::start().await?, FakeLlm::start().await?);
    llm.follow(next_round);
    let upstream = Api::new(&github.url(), &github.token())?;
    for title in ["The list is empty", "Please add a search"] {
        let (status, issue) = upstream.post("/repos/acme/api/issues", &json!({ "title": title })).await?;
        ensure!(status == 201, "{status} {issue}");
    }
    drop(github.take_requests());
    let server = Server::start(&["github"]).await?;
    let home = server.home();
    fs::create_dir(home.join("bin"))?;
    symlink(support::program()?, home.join("bin/monstrum"))?;
    symlink(root()?.join("examples"), home.join("examples"))?;
    let variables = vec![
        ("PATH", format!("{}:{}", home.join("bin").display(), search_path()?)),
        ("MONSTRUM_URL", server.url().context("the server is not running")?.to_owned()),
        ("MONSTRUM_KEY", fs::read_to_string(server.key_file())?.trim().to_owned()),
        ("OPENAI_API_KEY", "sk-of-a-maintainer".to_owned()),
        ("GITHUB_TOKEN", github.token()),
    ];
    let replacements = vec![
        ("api_base=https://api.openai.com/v1", format!("api_base={} {NETWORK}", llm.url())),
        ("--type github", format!("--type github --config api_base={} {NETWORK}", github.url())),
    ];
    let found = examples(&page(PAGE)?);
    ensure!(found.len() >= 6, "the page has only {} examples", found.len());
    let api = server.api()?;
    let place = Place { folder: home, variables, replacements };
    let mut ran = std::pin::pin!(place.run(&found));
    let approved = tokio::select! {
        ended = &mut ran => {
            ended?;
            bail!("the release asked for no approval");
        }
        approved = approve_the_release(&api) => approved?,
    };
    ran.await?;

    labels_are_set(&github)?;
    the_approved_call_was_made(&github, &approved)?;
    the_report_is_published(&github)?;
    the_rollout_is_undone(&github)?;
    let (_, runs) = api.get("/api/runs").await?;
    let ends: Vec<&str> =
        runs["items"].as_array().into_iter().flatten().filter_map(|run| run["status"].as_str()).collect();
    assert_eq!(
        ends,
        ["failed", "completed", "completed", "completed"],
        "the newest run is that of the rollout: {runs}"
    );
    let (_, events) = api.get("/api/events?event_type=custom.release.ended").await?;
    assert_eq!(events["items"][0]["data"], json!({ "repo": "acme/site", "version": "2.0", "status": "completed" }));
    assert_eq!(api.verify_audit().await?["valid"], true);
    Ok(())
}

/// The model: judges an issue by its title, and writes the report.
fn next_round(request: &Value) -> LlmReply {
    let asked = request["messages"].to_string();
    if asked.contains("numbers of open issues") {
        return LlmReply::says(&[REPORT]);
    }
    let label = if asked.contains("Please add") { "feature" } else { "bug" };
    LlmReply::says(&[&json!({ "label": label }).to_string()])
}

/// Approves the only question with the key of an approver. Returns the approval as the approver saw it.
async fn approve_the_release(api: &Api) -> Result<Value> {
    let approver = api.with_key(&api.new_key("approver", None).await?);
    let approval = loop {
        let (status, list) = approver.get("/api/approvals?status=pending").await?;
        ensure!(status == 200, "{status} {list}");
        if !list["items"][0].is_null() {
            break list["items"][0].clone();
        }
        tokio::time::sleep(POLL).await;
    };
    let path = format!("/api/approvals/{}", approval["id"].as_str().context("the approval has no id")?);
    let decision = json!({ "decision": "approve", "digest": approval["digest"] });
    let (status, refused) = api.post(&path, &decision).await?;
    ensure!(status != 200, "the key that started the run has decided: {refused}");
    let (status, shown) = approver.get(&path).await?;
    ensure!(status == 200, "{status} {shown}");
    let (status, decided) = approver.post(&path, &decision).await?;
    ensure!(status == 200, "{status} {decided}");
    Ok(shown)
}

/// Returns the bodies of the requests with this method to this path, in order.
fn sent(github: &FakeGithub, method: &str, path: &str) -> Vec<Value> {
    let requests = github.requests();
    requests.iter().filter(|request| request.method == method && request.path == path).map(Recorded::json).collect()
}

fn labels_are_set(github: &FakeGithub) -> Result<()> {
    for (issue, label) in [(1, "bug"), (2, "feature")] {
        let bodies = sent(github, "POST", &format!("/repos/acme/api/issues/{issue}/labels"));
        ensure!(bodies == [json!({ "labels": [label] })], "issue {issue} of acme/api: {bodies:?}");
    }
    Ok(())
}

fn the_approved_call_was_made(github: &FakeGithub, approval: &Value) -> Result<()> {
    assert_eq!((&approval["kind"], &approval["step"]), (&json!("step"), &json!("ok")), "{approval}");
    assert_eq!(approval["text"], "Announce version 2.0 of acme/site?");
    let mut params = approval["for"][0]["params"].clone();
    params.as_object_mut().context("the approval shows no parameters")?.remove("repo");
    let bodies = sent(github, "POST", "/repos/acme/site/issues");
    ensure!(bodies.first() == Some(&params), "approved: {params}, made: {bodies:?}");
    let comments = sent(github, "POST", "/repos/acme/site/issues/4/comments");
    ensure!(comments.len() == 1, "{comments:?}");
    Ok(())
}

fn the_report_is_published(github: &FakeGithub) -> Result<()> {
    let bodies = sent(github, "POST", "/repos/acme/site/issues");
    ensure!(bodies.get(1).is_some_and(|body| body["body"] == REPORT), "{bodies:?}");
    Ok(())
}

/// The two issues that the rollout has opened are closed, and the third repository got no request.
fn the_rollout_is_undone(github: &FakeGithub) -> Result<()> {
    for path in ["/repos/acme/site/issues", "/repos/acme/api/issues"] {
        let opened = sent(github, "POST", path);
        ensure!(opened.iter().filter(|body| body["title"] == "Use TLS 1.3").count() == 1, "{path}: {opened:?}");
    }
    for path in ["/repos/acme/site/issues/6", "/repos/acme/api/issues/3"] {
        let bodies = sent(github, "PATCH", path);
        ensure!(bodies == [json!({ "state": "closed" })], "{path}: {bodies:?}");
    }
    let elsewhere = github.requests().iter().filter(|request| request.path.contains("secret")).count();
    ensure!(elsewhere == 0, "the bot has reached another repository");
    Ok(())
}
