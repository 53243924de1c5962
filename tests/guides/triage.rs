//! docs/triage.md, executed as it stands. A scripted model and a simulated GitHub take the places of OpenAI and GitHub.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{FakeGithub, FakeLlm, LlmReply, Server};

use super::walk::{Place, examples};
use super::{page, search_path};

const PAGE: &str = "docs/triage.md";
const NETWORK: &str = "--allow-http --allow-address 127.0.0.0/8";

#[tokio::test]
async fn a_newcomer_gets_to_a_bot_that_labels_issues() -> Result<()> {
    let (github, llm) = (FakeGithub::start().await?, FakeLlm::start().await?);
    llm.follow(next_round);
    let server = Server::start(&["github"]).await?;
    let home = server.home();
    fs::create_dir(home.join("bin"))?;
    symlink(support::program()?, home.join("bin/monstrum"))?;
    let variables = vec![
        ("PATH", format!("{}:{}", home.join("bin").display(), search_path()?)),
        ("MONSTRUM_URL", server.url().context("the server is not running")?.to_owned()),
        ("MONSTRUM_KEY", fs::read_to_string(server.key_file())?.trim().to_owned()),
        ("OPENAI_API_KEY", "sk-of-a-newcomer".to_owned()),
        ("GITHUB_TOKEN", github.token()),
    ];
    let replacements = vec![
        ("api_base=https://api.openai.com/v1", format!("api_base={} {NETWORK}", llm.url())),
        ("--type github", format!("--type github --config api_base={} {NETWORK}", github.url())),
    ];
    let found = examples(&page(PAGE)?);
    ensure!(found.len() >= 7, "the page has only {} examples", found.len());
    Place { folder: home, variables, replacements }.run(&found).await?;

    let requests = github.requests();
    let made: Vec<String> = requests.iter().map(|request| format!("{} {}", request.method, request.path)).collect();
    assert_eq!(made, ["GET /repos/acme/site/issues", "POST /repos/acme/site/issues/1/labels"]);
    let asked = llm.requests();
    ensure!(asked.len() == 5, "the model was asked {} times", asked.len());
    assert_eq!(asked[0].header("authorization"), Some("Bearer sk-of-a-newcomer"));
    let body = asked[0].json();
    let prompt = body["messages"][0]["content"].as_str().context("the request has no system prompt")?;
    assert!(prompt.starts_with("You triage issues."), "{prompt}");
    let api = server.api()?;
    let (_, usage) = api.get("/api/usage?by=model").await?;
    assert_eq!((&usage["items"][0]["model"], &usage["items"][0]["rounds"]), (&json!("openai/gpt-5-mini"), &json!(5)));
    assert_eq!(api.verify_audit().await?["valid"], true);
    Ok(())
}

/// The model: lists the issues of the repository in the instruction, labels the first one, and answers.
fn next_round(request: &Value) -> LlmReply {
    let messages = request["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of = |role: &str| messages.iter().filter(|message| message["role"] == role).collect::<Vec<_>>();
    let is_elsewhere = of("user").first().is_some_and(|asked| asked.to_string().contains("acme/secret"));
    let repo = if is_elsewhere { "acme/secret" } else { "acme/site" };
    match of("tool").len() {
        0 => LlmReply::calls(&[("github_list_issues", json!({ "repo": repo }))]),
        1 if !is_elsewhere => {
            let params = json!({ "repo": repo, "issue_number": 1, "labels": ["bug"] });
            LlmReply::calls(&[("github_add_labels", params)])
        }
        1 => LlmReply::says(&["I may not read that repository."]),
        _ => LlmReply::says(&["Issue 1 is a bug."]),
    }
}
