//! `monstrum task` and `monstrum session`.

use anyhow::{Result, ensure};
use serde_json::Value;
use support::LlmReply;

use super::{Tasks, calls, list};
use crate::world::text;

#[tokio::test]
async fn a_task_is_run_watched_shown_and_listed() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([
        calls(&[("github_list_issues", list()), ("github_nothing", list())]),
        LlmReply::says(&["All ", "done."]),
    ]);
    let server = &tasks.world.server;
    let run = server.command(&["task", "run", "tester", "Look at the issues.", "--watch"]).await?;
    let (out, told) = (String::from_utf8(run.stdout)?, String::from_utf8(run.stderr)?);
    ensure!(run.status.success(), "{out}\n{told}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("✓ github_list_issues {\"repo\":\"acme/site\"}"), "{out}");
    assert!(lines[1].starts_with("✗ github_nothing"), "{out}");
    assert_eq!(lines[2..], ["All done."]);
    assert!(told.contains("completed (4 steps, 18 + 6 tokens)"), "{told}");

    let listed = server.command(&["task", "list", "--bot", "tester", "--json"]).await?;
    let listed: Value = serde_json::from_slice(&listed.stdout)?;
    let id = text(&listed["items"][0]["id"]).to_owned();
    let shown = server.command(&["task", "show", &id]).await?;
    let shown = String::from_utf8(shown.stdout)?;
    assert!(shown.contains("All done.") && shown.contains("github_nothing"), "{shown}");
    let cancelled = server.command(&["task", "cancel", &id]).await?;
    assert!(String::from_utf8(cancelled.stderr)?.contains("has ended: completed"));

    let session = text(&listed["items"][0]["session_id"]).to_owned();
    let shown = server.command(&["session", "show", &session]).await?;
    assert!(String::from_utf8(shown.stdout)?.contains("Look at the issues."));
    let deleted = server.command(&["session", "delete", &session, "--yes"]).await?;
    ensure!(deleted.status.success());
    let sessions = server.command(&["session", "list", "--json"]).await?;
    assert_eq!(serde_json::from_slice::<Value>(&sessions.stdout)?["items"], Value::Array(Vec::new()));
    Ok(())
}

#[tokio::test]
async fn a_task_is_run_with_fewer_tools() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([calls(&[("github_list_issues", list())]), LlmReply::says(&["I may not."])]);
    let command =
        ["task", "run", "tester", "Look.", "--allow-tool", "github_get_*", "--allow-tool", "github_add_*", "--watch"];
    let run = tasks.world.server.command(&command).await?;
    let (out, told) = (String::from_utf8(run.stdout)?, String::from_utf8(run.stderr)?);
    ensure!(run.status.success(), "{out}\n{told}");
    assert!(out.starts_with("✗ github_list_issues"), "{out}");
    let (_, listed) = tasks.api().get("/api/tasks").await?;
    let narrow = serde_json::json!({ "allowed_tools": ["github_get_*", "github_add_*"] });
    assert_eq!(listed["items"][0]["narrow"], narrow, "{listed}");
    Ok(())
}

#[tokio::test]
async fn a_task_that_fails_has_an_exit_code() -> Result<()> {
    let tasks = Tasks::start().await?;
    let run = tasks.world.server.command(&["task", "run", "tester", "Fail.", "--watch"]).await?;
    let told = String::from_utf8(run.stderr)?;
    assert!(!run.status.success() && told.contains("failed: model"), "{told}");
    Ok(())
}

#[tokio::test]
async fn a_task_is_run_with_labels_and_a_schema() -> Result<()> {
    let tasks = Tasks::start().await?;
    let server = &tasks.world.server;
    let schema = server.home().join("count.json");
    std::fs::write(
        &schema,
        r#"{"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}"#,
    )?;
    tasks.llm.prepare([LlmReply::says(&["Three."]), LlmReply::says(&["{\"count\": 3}"])]);
    let from_file = format!("@{}", schema.display());
    let command = ["task", "run", "tester", "Count.", "--label", "untrusted", "--label", "mail", "--output-schema"];
    let run = server.command(&[&command[..], &[&from_file, "--watch"]].concat()).await?;
    ensure!(run.status.success(), "{}", String::from_utf8(run.stderr)?);
    let (_, listed) = tasks.api().get("/api/tasks").await?;
    let task = &listed["items"][0];
    assert_eq!((text(&task["result"]), &task["labels"]), ("{\"count\": 3}", &serde_json::json!(["mail", "untrusted"])));

    std::fs::write(&schema, "{")?;
    let run = server.command(&[&command[..], &[&from_file]].concat()).await?;
    let told = String::from_utf8(run.stderr)?;
    assert!(!run.status.success() && told.contains("the schema is not JSON"), "{told}");
    Ok(())
}
