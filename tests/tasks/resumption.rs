//! Tasks whose server is killed: they go on after the next start, and repeat no call that may have taken effect.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::LlmReply;

use super::{Tasks, calls, create, ended, large, list, outline, steps};
use crate::tamper::sqlite;
use crate::world::{eventually, text};

impl Tasks {
    /// Kills the server and starts it again.
    pub(super) async fn killed(&mut self) -> Result<()> {
        self.world.server.kill().await?;
        self.world.server.launch().await?;
        self.world.api = self.world.server.api()?;
        Ok(())
    }

    fn created(&self) -> usize {
        self.world.github.requests().iter().filter(|request| request.method == "POST").count()
    }
}

#[tokio::test]
async fn a_write_that_was_cut_off_is_uncertain_and_never_repeated() -> Result<()> {
    let mut tasks = Tasks::start().await?;
    tasks.world.github.hold();
    tasks.llm.prepare([
        calls(&[("github_create_issue", create("One")), ("github_create_issue", create("Two"))]),
        LlmReply::says(&["I do not know about the first."]),
    ]);
    let id = tasks.begin(&json!({ "instruction": "Create two issues." })).await?;
    tasks.world.reached(1).await?;
    tasks.world.server.kill().await?;
    tasks.world.github.release();
    tasks.world.server.launch().await?;
    tasks.world.api = tasks.world.server.api()?;
    let task = ended(tasks.api(), &id).await?;
    assert_eq!(
        (text(&task["status"]), text(&task["result"])),
        ("completed", "I do not know about the first."),
        "{task}"
    );
    let steps = tasks.steps(&task).await?;
    assert_eq!(outline(&steps)[1..3], ["call github_create_issue error", "call github_create_issue success"]);
    assert_eq!(steps[1]["code"], "uncertain");
    assert_eq!(tasks.created(), 2, "each write reached the upstream once");
    let messages = tasks.messages(1)?;
    assert!(text(&messages[3]["content"]).contains("may or may not have taken effect"), "{messages:?}");
    let verified = tasks.api().verify_audit().await?;
    assert_eq!((&verified["valid"], &verified["problems"]), (&json!(true), &json!([])));
    Ok(())
}

#[tokio::test]
async fn a_read_that_was_cut_off_runs_again_with_its_request_id() -> Result<()> {
    let mut tasks = Tasks::start().await?;
    tasks.world.github.hold();
    tasks.llm.prepare([calls(&[("github_list_issues", list())]), LlmReply::says(&["Listed."])]);
    let id = tasks.begin(&json!({ "instruction": "List." })).await?;
    tasks.world.reached(1).await?;
    let before = steps(tasks.api(), &id).await?;
    tasks.world.server.kill().await?;
    tasks.world.github.release();
    tasks.world.server.launch().await?;
    tasks.world.api = tasks.world.server.api()?;
    let task = ended(tasks.api(), &id).await?;
    assert_eq!(text(&task["status"]), "completed", "{task}");
    let after = tasks.steps(&task).await?;
    assert_eq!(outline(&after)[1], "call github_list_issues success");
    assert_eq!(before[1]["request_id"], after[1]["request_id"]);
    Ok(())
}

#[tokio::test]
async fn a_round_that_was_cut_off_is_asked_again() -> Result<()> {
    let mut tasks = Tasks::start().await?;
    tasks.llm.prepare([LlmReply::chunks(&[LlmReply::piece("I begin")]).silent(), LlmReply::says(&["I end."])]);
    let id = tasks.begin(&json!({ "instruction": "Say something." })).await?;
    tasks.llm.is_answering().await;
    tasks.killed().await?;
    let task = ended(tasks.api(), &id).await?;
    assert_eq!((text(&task["status"]), text(&task["result"])), ("completed", "I end."), "{task}");
    assert_eq!(outline(&tasks.steps(&task).await?), ["round success"]);
    assert_eq!(tasks.llm.requests().len(), 2);
    Ok(())
}

#[tokio::test]
async fn a_summary_is_neither_lost_nor_repeated() -> Result<()> {
    let mut tasks = Tasks::start().await?;
    tasks.answer_new_issues_briefly();
    tasks.llm.prepare((1..=6).map(large));
    tasks.llm.prepare([LlmReply::chunks(&[LlmReply::piece("Lost.")]).silent()]);
    let id = tasks.begin(&json!({ "instruction": "Create six issues." })).await?;
    let asked = async |tasks: &Tasks, count: usize| {
        eventually("the model was asked", async || Ok((tasks.llm.requests().len() == count).then_some(()))).await
    };
    // The server is killed while the model summarises, and again in the round after the summary.
    asked(&tasks, 7).await?;
    tasks.llm.is_answering().await;
    let silent = LlmReply::chunks(&[LlmReply::piece("I begin")]).silent();
    tasks.llm.prepare([LlmReply::says(&["Kept."]), silent, LlmReply::says(&["All done."])]);
    tasks.killed().await?;
    asked(&tasks, 9).await?;
    tasks.llm.is_answering().await;
    tasks.killed().await?;
    let task = ended(tasks.api(), &id).await?;
    assert_eq!((text(&task["status"]), text(&task["result"])), ("completed", "All done."), "{task}");
    let steps = tasks.steps(&task).await?;
    let summaries: Vec<&str> =
        steps.iter().filter(|step| step["kind"] == "summary").map(|step| text(&step["text"])).collect();
    assert_eq!((summaries, tasks.created()), (vec!["Kept."], 6));
    let read = serde_json::to_string(&tasks.messages(9)?)?;
    assert!(read.contains("Kept.") && !read.contains("Lost."));
    Ok(())
}

/// The next turn has called no tool of the resource, but an earlier one may have.
#[tokio::test]
async fn the_secrets_of_all_resources_of_the_bot_are_redacted_after_a_restart() -> Result<()> {
    let mut tasks = Tasks::start().await?;
    let token = tasks.world.github.token();
    let said = format!("The token is {token}, said twice: {token}");
    tasks.llm.prepare([LlmReply::chunks(&[LlmReply::piece("I begin")]).silent(), LlmReply::says(&[&said])]);
    let id = tasks.begin(&json!({ "instruction": "Say something." })).await?;
    tasks.llm.is_answering().await;
    tasks.killed().await?;
    let task = ended(tasks.api(), &id).await?;
    assert_eq!(text(&task["result"]), "The token is [redacted], said twice: [redacted]", "{task}");
    Ok(())
}

#[tokio::test]
async fn a_task_goes_on_after_an_orderly_restart() -> Result<()> {
    let mut tasks = Tasks::start().await?;
    tasks.llm.prepare([LlmReply::chunks(&[LlmReply::piece("I begin")]).silent(), LlmReply::says(&["I end."])]);
    let id = tasks.begin(&json!({ "instruction": "Say something." })).await?;
    tasks.llm.is_answering().await;
    tasks.world.server.restart().await?;
    tasks.world.api = tasks.world.server.api()?;
    let task = ended(tasks.api(), &id).await?;
    assert_eq!((text(&task["status"]), text(&task["result"])), ("completed", "I end."), "{task}");
    Ok(())
}

#[tokio::test]
async fn a_task_ends_with_the_key_that_started_it() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([LlmReply::chunks(&[LlmReply::piece("I go on")]).silent()]);
    let body = json!({ "name": "starter", "kind": "operator" });
    let (status, key) = tasks.api().post("/api/keys", &body).await?;
    ensure!(status == 201, "{key}");
    let starter = tasks.api().with_key(text(&key["key"]));
    let path = format!("/api/bots/{}/tasks", tasks.world.bot);
    let (status, task) = starter.post(&path, &json!({ "instruction": "Talk." })).await?;
    ensure!(status == 202, "{status} {task}");
    tasks.llm.is_answering().await;
    let (status, _) = tasks.api().delete(&format!("/api/keys/{}", text(&key["id"]))).await?;
    ensure!(status == 204);
    let task = ended(tasks.api(), text(&task["id"])).await?;
    assert_eq!((text(&task["status"]), text(&task["code"])), ("failed", "revoked"), "{task}");
    tasks.llm.is_idle().await;
    Ok(())
}

/// While a row of the workspace cannot be verified, the policy has no bot.
#[tokio::test]
async fn a_task_whose_bot_is_not_in_the_policy_is_tried_again() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.world.github.hold();
    tasks.llm.prepare([calls(&[("github_list_issues", list())]), LlmReply::says(&["Done."])]);
    let id = tasks.begin(&json!({ "instruction": "List." })).await?;
    tasks.world.reached(1).await?;
    let folder = tasks.world.server.data_dir();
    let bell = "update settings set generation = generation + 1";
    let edit = async |change: &str| sqlite(&folder, &["begin immediate", change, bell, "commit"]).await;
    edit("update bots set name = name || '-edited'").await?;
    let failures = format!("select failures from wakes where key = 'task/{id}'");
    eventually("a turn of the task has failed", async || {
        let rows = sqlite(&folder, &[&failures]).await?;
        Ok((rows[0][0].as_i64().unwrap_or_default() > 0).then_some(()))
    })
    .await?;
    edit("update bots set name = replace(name, '-edited', '')").await?;
    tasks.world.github.release();
    let restored = async || {
        let (status, task) = tasks.api().get(&format!("/api/tasks/{id}")).await?;
        Ok((status == 200 && !task["ended_at"].is_null()).then_some(task))
    };
    let task = eventually("the task has ended", restored).await?;
    assert_eq!((text(&task["status"]), text(&task["result"])), ("completed", "Done."), "{task}");
    Ok(())
}

#[tokio::test]
async fn a_task_that_was_set_back_with_sql_does_not_run_again() -> Result<()> {
    let mut tasks = Tasks::start().await?;
    tasks.llm.prepare([calls(&[("github_create_issue", create("One"))]), LlmReply::says(&["Created."])]);
    let completed = tasks.run("Create an issue.").await?;
    tasks.llm.prepare([LlmReply::chunks(&[LlmReply::piece("I begin")]).silent()]);
    let cancelled = tasks.begin(&json!({ "instruction": "Talk." })).await?;
    tasks.llm.is_answering().await;
    tasks.api().delete(&format!("/api/tasks/{cancelled}")).await?;
    let cancelled = ended(tasks.api(), &cancelled).await?;
    tasks.llm.prepare([LlmReply::says(&["Again."]), LlmReply::says(&["Again."])]);
    tasks.world.server.stop().await?;
    let folder = tasks.world.server.data_dir();
    for task in [&completed, &cancelled] {
        let id = text(&task["id"]);
        let reset = format!(
            "update tasks set status = 'running', ended_at = null, cancelled_at = null, code = null where id = '{id}'"
        );
        let steps = format!("delete from task_steps where task_id = '{id}'");
        let wake = format!(
            "insert into wakes (key, workspace_id, due_at, version) select 'task/{id}', workspace_id, 0, 1 \
             from tasks where id = '{id}'"
        );
        sqlite(&folder, &[&reset, &steps, &wake]).await?;
    }
    tasks.world.server.launch().await?;
    tasks.world.api = tasks.world.server.api()?;
    for before in [&completed, &cancelled] {
        let after = ended(tasks.api(), text(&before["id"])).await?;
        assert_eq!((&after["status"], &after["result"]), (&before["status"], &before["result"]));
    }
    assert_eq!((tasks.llm.requests().len(), tasks.created()), (3, 1), "nothing was asked or called again");
    Ok(())
}

#[tokio::test]
async fn a_task_that_was_made_with_sql_starts_nothing() -> Result<()> {
    let mut tasks = Tasks::start().await?;
    tasks.llm.prepare([LlmReply::says(&["Done."]), LlmReply::says(&["Stolen."])]);
    let task = tasks.run("Do it.").await?;
    tasks.world.server.stop().await?;
    let id = monstrum_types::TaskId::new().to_string();
    let database = rusqlite::Connection::open(tasks.world.server.data_dir().join("monstrum.db"))?;
    let columns = "workspace_id, bot_id, session_id, code, key_id, steps, input_tokens, output_tokens, created_at, \
                   started_at, cancelled_at, waited_ms, labels, sealed";
    let copied = format!(
        "insert into tasks (id, status, ended_at, {columns}) select ?1, 'queued', null, {columns} from tasks where id = ?2"
    );
    database.execute(&copied, [id.as_str(), text(&task["id"])])?;
    let wake =
        "insert into wakes (key, workspace_id, due_at, version) select ?1, workspace_id, 0, 1 from tasks where id = ?2";
    database.execute(wake, [&format!("task/{id}"), &id])?;
    drop(database);
    tasks.world.server.launch().await?;
    tasks.world.api = tasks.world.server.api()?;
    // The record does not open in another row, so the task cannot even be shown.
    eventually("the task has ended", async || {
        let (_, list) = tasks.api().get("/api/tasks?status=queued").await?;
        Ok((list["items"] == json!([])).then_some(()))
    })
    .await?;
    let said: Vec<Value> = tasks.llm.requests().iter().map(|request| request.json()).collect();
    assert_eq!(said.len(), 1, "the forged task asked no model");
    Ok(())
}

#[tokio::test]
async fn tasks_open_after_a_rotation_of_the_master_key() -> Result<()> {
    let mut tasks = Tasks::start().await?;
    tasks.llm.prepare([calls(&[("github_list_issues", list())]), LlmReply::says(&["Done."])]);
    let task = tasks.run("Look.").await?;
    let before = tasks.steps(&task).await?;
    tasks.world.server.stop().await?;
    let rotated = tasks.world.server.command(&["vault", "rotate"]).await?;
    ensure!(rotated.status.success(), "{}", String::from_utf8_lossy(&rotated.stderr));
    tasks.world.server.launch().await?;
    tasks.world.api = tasks.world.server.api()?;
    assert_eq!(ended(tasks.api(), text(&task["id"])).await?, task);
    assert_eq!(tasks.steps(&task).await?, before);
    Ok(())
}
