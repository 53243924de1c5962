//! Tasks that one bot gives another: the three tools, what the links restrict, how tasks end with them, and the limits.

mod limits;
mod links;
mod platform;

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};
use support::{Api, FakeLlm, LlmReply};

use super::{Tasks, calls, create, ended, give_model, list, outline, steps};
use crate::http::{made, workspace};
use crate::world::{eventually, text};

/// A bot with a model and the tools of the plugin `github`, and a helper with a model of its own and the same tools.
struct Pair {
    tasks: Tasks,
    helper: String,
    of_helper: FakeLlm,
    /// The binding through which the bot gives the helper tasks.
    link: String,
}

impl Pair {
    async fn start() -> Result<Pair> {
        Pair::with(&json!({})).await
    }

    /// Starts a pair. `more` is merged into the binding between the bots.
    async fn with(more: &Value) -> Result<Pair> {
        Pair::on(Tasks::start().await?, more).await
    }

    async fn on(tasks: Tasks, more: &Value) -> Result<Pair> {
        let helper = tasks.api().bot("helper").await?;
        let of_helper = FakeLlm::start().await?;
        give_model(tasks.api(), &helper, "models of the helper", &of_helper).await?;
        let role = tasks.api().role("all of github", &["*"]).await?;
        tasks.api().bind(&helper, &tasks.github.resource, &role, &json!({})).await?;
        let link = link(tasks.api(), (&tasks.world.bot, &helper), more).await?;
        Ok(Pair { tasks, helper, of_helper, link })
    }

    fn api(&self) -> &Api {
        self.tasks.api()
    }

    /// Gives the helper a task and returns the id of the task.
    async fn execute(&self, instruction: &str) -> Result<String> {
        let answer = self.tasks.world.call("bot_execute_task", &json!({ "instruction": instruction })).await?;
        let id = answer["data"]["task_id"].as_str().with_context(|| answer.to_string())?;
        Ok(id.to_owned())
    }

    async fn status(&self, task: &str) -> Result<Value> {
        self.tasks.world.call("bot_task_status", &json!({ "task_id": task })).await
    }

    /// Returns the newest task of the helper.
    async fn newest(&self) -> Result<Value> {
        let (_, list) = self.api().get(&format!("/api/bots/{}/tasks", self.helper)).await?;
        Ok(list["items"][0].clone())
    }

    fn path_of_link(&self) -> String {
        format!("/api/bots/{}/resources/{}", self.tasks.world.bot, self.link)
    }
}

/// Lets a bot act through another one. `more` is merged into the binding, whose id is returned.
async fn link(api: &Api, (from, to): (&str, &str), more: &Value) -> Result<String> {
    let resource = json!({ "resource_type": "bot", "name": format!("{to} for {from}"), "config": { "bot": to } });
    let resource = made(api, "/api/resources", &resource).await?;
    let mut binding = json!({ "resource_id": resource, "permissions": { "allowed_operations": ["bot.*"] } });
    for (name, value) in more.as_object().into_iter().flatten() {
        binding[name] = value.clone();
    }
    made(api, &format!("/api/bots/{from}/resources"), &binding).await
}

fn query(question: &str) -> LlmReply {
    calls(&[("bot_query", json!({ "question": question }))])
}

fn silent() -> LlmReply {
    LlmReply::chunks(&[LlmReply::piece("I go on")]).silent()
}

fn told(answer: &Value) -> String {
    format!("{} {} {}", text(&answer["status"]), text(&answer["code"]), text(&answer["message"]))
}

#[tokio::test]
async fn a_bot_asks_another_and_reads_its_answer() -> Result<()> {
    let pair = Pair::start().await?;
    pair.tasks.llm.prepare([query("Which issues are there?"), LlmReply::says(&["The helper knows one."])]);
    pair.of_helper.prepare([calls(&[("github_list_issues", list())]), LlmReply::says(&["There is issue 7."])]);
    let chat = json!({ "app_id": "shop", "user_id": "ada", "chat_id": "42" });
    let id = pair.tasks.begin(&json!({ "instruction": "Ask the helper.", "chat": chat })).await?;
    let task = ended(pair.api(), &id).await?;
    assert_eq!((text(&task["status"]), text(&task["result"])), ("completed", "The helper knows one."), "{task}");
    let own = pair.tasks.steps(&task).await?;
    assert_eq!(outline(&own), ["round success", "call bot_query success", "round success"]);
    assert_eq!(own[1]["result"], json!({ "answer": "There is issue 7." }));

    let child = pair.newest().await?;
    let fields = ["bot_id", "parent_task_id", "session_id", "status", "instruction", "result"];
    let expected = json!([pair.helper, id, null, "completed", "Which issues are there?", "There is issue 7."]);
    assert_eq!(Value::from(fields.map(|field| child[field].clone()).to_vec()), expected, "{child}");
    // Each round and each call of the other bot is recorded with the delegation, and for the user of the conversation.
    let steps = steps(pair.api(), text(&child["id"])).await?;
    assert_eq!(outline(&steps), ["round success", "call github_list_issues success", "round success"]);
    for step in &steps {
        let row = pair.api().audit(text(&step["request_id"])).await?;
        let chain = json!([{
            "binding_id": pair.link, "from": pair.tasks.world.bot, "to": pair.helper, "delegate": null,
        }]);
        assert_eq!(
            (&row["bot_id"], &row["task_id"], &row["delegation"]),
            (&json!(pair.helper), &child["id"], &chain),
            "{row}"
        );
        assert_eq!(row["user"], json!({ "app_id": "shop", "user_id": "ada" }), "{row}");
    }
    assert_eq!(pair.api().verify_audit().await?["valid"], true);
    Ok(())
}

#[tokio::test]
async fn a_bot_gives_another_a_task_and_asks_how_it_goes() -> Result<()> {
    let pair = Pair::start().await?;
    pair.of_helper.prepare([silent(), LlmReply::says(&["Done."])]);
    let params = json!({ "instruction": "Do it.", "params": { "issue": 7 } });
    let started = pair.tasks.world.call("bot_execute_task", &params).await?;
    let first = text(&started["data"]["task_id"]).to_owned();
    pair.of_helper.is_answering().await;
    assert_eq!(pair.status(&first).await?["data"], json!({ "status": "running" }));
    let asked = pair.of_helper.requests()[0].json();
    assert!(text(&asked["messages"][1]["content"]).contains("\"issue\":7"), "{asked}");
    pair.api().delete(&format!("/api/tasks/{first}")).await?;
    ended(pair.api(), &first).await?;
    assert_eq!(pair.status(&first).await?["data"], json!({ "status": "cancelled" }));

    let second = pair.execute("Do the next thing.").await?;
    let task = ended(pair.api(), &second).await?;
    assert_eq!(pair.status(&second).await?["data"], json!({ "status": "completed", "result": "Done." }));
    assert_eq!(task["parent_task_id"], Value::Null);
    // No answer is prepared, so the model fails.
    let third = pair.execute("Fail.").await?;
    ended(pair.api(), &third).await?;
    let failed = pair.status(&third).await?;
    assert_eq!(failed["data"]["status"], "failed", "{failed}");
    assert!(text(&failed["data"]["message"]).contains("did not answer"), "{failed}");
    let answer = pair.tasks.world.call("bot_query", &json!({ "question": "And this?" })).await?;
    assert!(told(&answer).starts_with("error plugin the bot has no answer (model): "), "{answer}");
    Ok(())
}

#[tokio::test]
async fn a_bot_sees_only_the_tasks_that_it_has_set() -> Result<()> {
    let pair = Pair::start().await?;
    let foreign = workspace(pair.api(), "foreign").await?;
    let elsewhere = foreign.bot("elsewhere").await?;
    let of_foreign = FakeLlm::start().await?;
    give_model(&foreign, &elsewhere, "models", &of_foreign).await?;
    of_foreign.prepare([LlmReply::says(&["Secret."])]);
    let (_, started) = foreign.post(&format!("/api/bots/{elsewhere}/tasks"), &json!({ "instruction": "x" })).await?;
    let of_workspace = text(&started["id"]).to_owned();
    // The helper works for a key, for another bot, and for the bot itself.
    pair.of_helper.prepare((0..3).map(|_| LlmReply::says(&["Secret."])));
    let path = format!("/api/bots/{}/tasks", pair.helper);
    let of_key = made_task(pair.api(), &path).await?;
    let other = pair.api().bot("other").await?;
    link(pair.api(), (&other, &pair.helper), &json!({})).await?;
    let of_other = pair.api().call(&other, "bot_execute_task", &json!({ "instruction": "x" })).await?;
    let of_other = text(&of_other["data"]["task_id"]).to_owned();
    let own = pair.execute("Do it.").await?;
    for id in [&of_key, &of_other, &own] {
        ended(pair.api(), id).await?;
    }
    assert_eq!(pair.status(&own).await?["data"]["result"], "Secret.");
    pair.tasks.llm.prepare([LlmReply::says(&["Secret."])]);
    let of_bot = pair.tasks.run("Do it.").await?;
    let unknown = monstrum_types::TaskId::new().to_string();
    let refused = "error invalid_params Invalid parameters: /task_id: the other bot has no such task from you";
    for id in [&of_key, &of_other, &of_workspace, text(&of_bot["id"]), &unknown, "7", ""] {
        assert_eq!(told(&pair.status(id).await?), refused, "{id}");
    }
    let of_own = pair.api().call(&other, "bot_task_status", &json!({ "task_id": own })).await?;
    assert_eq!(told(&of_own), refused);
    // The bot asks for another user than the one for whom it has set the task.
    let path = format!("/api/bots/{}/tools/bot_task_status/call", pair.tasks.world.bot);
    let chat = json!({ "app_id": "shop", "user_id": "ada", "chat_id": "42" });
    let (_, for_user) = pair.api().post(&path, &json!({ "params": { "task_id": own }, "chat": chat })).await?;
    assert_eq!(told(&for_user), refused);
    Ok(())
}

async fn made_task(api: &Api, path: &str) -> Result<String> {
    let (status, task) = api.post(path, &json!({ "instruction": "x" })).await?;
    ensure!(status == 202, "{status} {task}");
    Ok(text(&task["id"]).to_owned())
}

#[tokio::test]
async fn a_bot_without_a_model_gets_no_task() -> Result<()> {
    let tasks = Tasks::start().await?;
    let mute = tasks.api().bot("mute").await?;
    link(tasks.api(), (&tasks.world.bot, &mute), &json!({})).await?;
    for (tool, params) in
        [("bot_execute_task", json!({ "instruction": "x" })), ("bot_query", json!({ "question": "x" }))]
    {
        let answer = tasks.world.call(tool, &params).await?;
        assert_eq!((text(&answer["status"]), text(&answer["code"])), ("error", "unavailable"), "{answer}");
        assert!(text(&answer["message"]).contains("model"), "{answer}");
    }
    for (tool, params, pointer) in [
        ("bot_execute_task", json!({ "instruction": " " }), "/instruction"),
        ("bot_query", json!({ "question": "" }), "/question"),
    ] {
        let answer = tasks.world.call(tool, &params).await?;
        assert_eq!(told(&answer), format!("error invalid_params Invalid parameters: {pointer}: must not be empty"));
    }
    let (_, list) = tasks.api().get("/api/tasks").await?;
    assert_eq!(list["items"], json!([]));
    Ok(())
}

#[tokio::test]
async fn the_task_of_a_query_ends_with_its_call() -> Result<()> {
    let pair = Pair::start().await?;
    // The task of the caller is cancelled.
    pair.tasks.llm.prepare([query("Are you there?")]);
    pair.of_helper.prepare([silent(), silent()]);
    let parent = pair.tasks.begin(&json!({ "instruction": "Ask." })).await?;
    pair.of_helper.is_answering().await;
    let child = pair.newest().await?;
    pair.api().delete(&format!("/api/tasks/{parent}")).await?;
    let child = ended(pair.api(), text(&child["id"])).await?;
    assert_eq!(text(&child["status"]), "cancelled", "{child}");
    assert_eq!(text(&ended(pair.api(), &parent).await?["status"]), "cancelled");
    pair.of_helper.is_idle().await;

    // The caller disconnects.
    let path = format!("/api/bots/{}/tools/bot_query/call", pair.tasks.world.bot);
    let request = pair.api().request(Method::POST, &path).json(&json!({ "params": { "question": "And now?" } }));
    let call = tokio::spawn(request.send());
    pair.of_helper.is_answering().await;
    call.abort();
    let child = ended(pair.api(), text(&pair.newest().await?["id"])).await?;
    assert_eq!((text(&child["status"]), text(&child["instruction"])), ("cancelled", "And now?"), "{child}");
    pair.of_helper.is_idle().await;

    // A task that is set goes on without its call.
    pair.of_helper.prepare([silent()]);
    pair.tasks.llm.prepare([
        calls(&[("bot_execute_task", json!({ "instruction": "Take your time." }))]),
        LlmReply::says(&["It works on it."]),
    ]);
    let parent = pair.tasks.run("Set a task.").await?;
    assert_eq!(text(&parent["status"]), "completed", "{parent}");
    pair.of_helper.is_answering().await;
    let child = pair.newest().await?;
    assert_eq!((&child["parent_task_id"], text(&child["status"])), (&parent["id"], "running"), "{child}");
    Ok(())
}

#[tokio::test]
async fn a_cancelled_task_has_no_answer() -> Result<()> {
    let pair = Pair::start().await?;
    pair.tasks.llm.prepare([query("Are you there?"), LlmReply::says(&["It was cancelled."])]);
    pair.of_helper.prepare([silent()]);
    let parent = pair.tasks.begin(&json!({ "instruction": "Ask." })).await?;
    pair.of_helper.is_answering().await;
    pair.api().delete(&format!("/api/tasks/{}", text(&pair.newest().await?["id"]))).await?;
    let task = ended(pair.api(), &parent).await?;
    assert_eq!(text(&task["result"]), "It was cancelled.", "{task}");
    // The other bot may have done a part of its work.
    let steps = pair.tasks.steps(&task).await?;
    assert_eq!((outline(&steps)[1].as_str(), text(&steps[1]["code"])), ("call bot_query error", "uncertain"));
    Ok(())
}

#[tokio::test]
async fn after_a_crash_a_set_task_goes_on_under_its_links_and_a_query_does_not() -> Result<()> {
    let mut pair = Pair::with(&json!({ "delegate": { "allowed_tools": ["github_list_*"] } })).await?;
    pair.of_helper.prepare([silent()]);
    let set = pair.execute("Create an issue.").await?;
    pair.of_helper.is_answering().await;
    pair.of_helper.prepare([silent()]);
    pair.tasks.llm.prepare([query("Are you there?"), LlmReply::says(&["I do not know."])]);
    let parent = pair.tasks.begin(&json!({ "instruction": "Ask." })).await?;
    eventually(
        "both tasks of the helper have begun",
        async || Ok((pair.of_helper.requests().len() == 2).then_some(())),
    )
    .await?;
    let asked = text(&pair.newest().await?["id"]).to_owned();
    pair.of_helper.prepare([calls(&[("github_create_issue", create("Not mine"))]), LlmReply::says(&["I may not."])]);
    pair.tasks.killed().await?;

    let set = ended(pair.api(), &set).await?;
    assert_eq!((text(&set["status"]), text(&set["result"])), ("completed", "I may not."), "{set}");
    let steps = steps(pair.api(), text(&set["id"])).await?;
    assert_eq!(outline(&steps)[1], "call github_create_issue permission_denied");
    let row = pair.api().audit(text(&steps[1]["request_id"])).await?;
    assert_eq!(row["delegation"][0]["binding_id"], json!(pair.link), "{row}");
    assert_eq!(text(&ended(pair.api(), &asked).await?["status"]), "cancelled");
    let parent = ended(pair.api(), &parent).await?;
    assert_eq!(text(&parent["result"]), "I do not know.", "{parent}");
    assert_eq!(pair.tasks.steps(&parent).await?[1]["code"], "uncertain");
    assert!(pair.tasks.world.github.requests().is_empty());
    Ok(())
}
