//! Tasks that end because they make no progress, or because the model cannot write its calls.

use anyhow::Result;
use serde_json::{Value, json};
use support::{Canned, LlmReply};

use super::{Tasks, calls, create, ended, large, list, outline};
use crate::world::text;

#[tokio::test]
async fn a_task_that_repeats_one_call_is_stuck() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare((0..6).map(|_| calls(&[("github_list_issues", list())])));
    let task = tasks.run("List the issues.").await?;
    assert_eq!((text(&task["status"]), text(&task["code"])), ("failed", "stuck"), "{task}");
    assert_eq!(tasks.llm.requests().len(), 5);
    // The model is told after the third same call.
    let told = |request: usize| -> Result<bool> {
        Ok(tasks.messages(request)?.last().is_some_and(|last| text(&last["content"]).contains("same result")))
    };
    assert_eq!((told(2)?, told(3)?, told(4)?), (false, true, true));
    Ok(())
}

#[tokio::test]
async fn calls_of_an_answer_that_was_cut_do_not_run() -> Result<()> {
    let tasks = Tasks::start().await?;
    let function = json!({ "name": "github_create_issue", "arguments": create("Cut").to_string() });
    let call = json!({ "index": 0, "id": "c", "type": "function", "function": function });
    let cut = json!({ "choices": [{ "index": 0, "delta": { "tool_calls": [call] }, "finish_reason": "length" }] });
    tasks.llm.prepare((0..3).map(|_| LlmReply::stream(std::slice::from_ref(&cut))));
    let task = tasks.run("Create an issue.").await?;
    assert_eq!((text(&task["status"]), text(&task["code"])), ("failed", "model_output"), "{task}");
    let steps = tasks.steps(&task).await?;
    assert_eq!(outline(&steps)[1], "call github_create_issue error");
    assert!(text(&steps[1]["message"]).contains("cut at the limit"), "{steps:?}");
    assert!(steps[1]["request_id"].is_null(), "the call never reached the pipeline");
    assert!(tasks.world.github.requests().is_empty());
    Ok(())
}

#[tokio::test]
async fn arguments_that_are_no_json_stop_only_their_call() -> Result<()> {
    let tasks = Tasks::start().await?;
    let call = |index: usize, arguments: &str| {
        let function = json!({ "name": "github_list_issues", "arguments": arguments });
        json!({ "index": index, "id": format!("c{index}"), "type": "function", "function": function })
    };
    let asked = [call(0, "{\"repo\": \"acme/"), call(1, &list().to_string())];
    let asked = json!({ "choices": [{ "index": 0, "delta": { "tool_calls": asked }, "finish_reason": "tool_calls" }] });
    tasks.llm.prepare([LlmReply::stream(&[asked]), LlmReply::says(&["Half of it."])]);
    let task = tasks.run("List the issues.").await?;
    assert_eq!(text(&task["status"]), "completed", "{task}");
    let steps = tasks.steps(&task).await?;
    assert_eq!(outline(&steps)[1..3], ["call github_list_issues error", "call github_list_issues success"]);
    // In the history of the model, the invalid arguments are an empty object.
    let asked = &tasks.messages(1)?[2]["tool_calls"];
    assert_eq!(asked[0]["function"]["arguments"], "{}");
    Ok(())
}

#[tokio::test]
async fn the_last_step_is_an_answer_without_tools() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([
        calls(&[("github_list_issues", list()), ("github_create_issue", create("Too many"))]),
        LlmReply::says(&["This is what I know."]),
    ]);
    let id = tasks.begin(&json!({ "instruction": "Look.", "limits": { "steps": 3 } })).await?;
    let task = ended(tasks.api(), &id).await?;
    assert_eq!((text(&task["status"]), text(&task["result"])), ("completed", "This is what I know."), "{task}");
    let steps = tasks.steps(&task).await?;
    assert_eq!(outline(&steps)[1..3], ["call github_list_issues success", "call github_create_issue error"]);
    let body = tasks.llm.requests()[1].json();
    assert_eq!(body["tools"], Value::Null, "the last step has no tools");
    let messages = tasks.messages(1)?;
    assert!(text(&messages[messages.len() - 1]["content"]).contains("last step"), "{messages:?}");
    Ok(())
}

#[tokio::test]
async fn another_model_is_asked_if_the_first_does_not_answer() -> Result<()> {
    let tasks = Tasks::start().await?;
    let other = support::FakeLlm::start().await?;
    super::give_model(tasks.api(), &tasks.world.bot, "spare", &other).await?;
    let chosen = json!({ "model": "models/small", "model_fallbacks": ["spare/small"] });
    let (status, body) = tasks.api().patch(&format!("/api/bots/{}", tasks.world.bot), &chosen).await?;
    assert_eq!(status, 200, "{body}");
    // A rejected request is not repeated with another model.
    tasks.llm.prepare([LlmReply::json(400, &json!({ "error": { "message": "bad request" } }))]);
    let task = tasks.run("Hello.").await?;
    assert_eq!((text(&task["status"]), text(&task["code"])), ("failed", "model"), "{task}");
    assert!(other.requests().is_empty());
    let down = || LlmReply::json(503, &json!({ "error": { "message": "down" } })).header("retry-after", "0");
    tasks.llm.prepare((0..4).map(|_| down()));
    other.prepare([LlmReply::says(&["From the other one."])]);
    let task = tasks.run("Hello again.").await?;
    assert_eq!((text(&task["status"]), text(&task["result"])), ("completed", "From the other one."), "{task}");
    Ok(())
}

#[tokio::test]
async fn old_results_make_room_for_new_ones() -> Result<()> {
    let tasks = Tasks::start().await?;
    // The context of the model has about 300 000 bytes.
    let large = json!([{ "number": 1, "title": "Large", "body": "x".repeat(45_000) }]);
    tasks.world.github.answer("/repos/acme/site/issues", Canned::json(200, &large));
    let read = |page: u32| calls(&[("github_list_issues", json!({ "repo": "acme/site", "page": page }))]);
    tasks.llm.prepare((1..8).map(read));
    tasks.llm.prepare([LlmReply::says(&["That is a lot."])]);
    let task = tasks.run("Read everything.").await?;
    assert_eq!((text(&task["status"]), text(&task["result"])), ("completed", "That is a lot."), "{task}");
    let messages = tasks.messages(7)?;
    let is_omitted = |message: &&Value| text(&message["content"]).contains("\"omitted\":true");
    let omitted = messages.iter().filter(is_omitted).count();
    assert!((1..7).contains(&omitted), "{omitted} results were left out");
    assert!(messages.last().is_some_and(|last| !is_omitted(&last)), "the last result stays whole");
    assert_eq!(text(&messages[1]["content"]), "Read everything.");
    // The journal keeps all of them.
    let steps = tasks.steps(&task).await?;
    assert_eq!(steps[1]["result"], large);
    Ok(())
}

/// Returns the answer of a provider to a request that is longer than the context of its model.
fn too_long() -> LlmReply {
    LlmReply::json(400, &json!({ "error": { "message": "too long", "code": "context_length_exceeded" } }))
}

#[tokio::test]
async fn whole_rounds_become_a_summary() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.answer_new_issues_briefly();
    // The context of the model has about 300 000 bytes. What a call asks for cannot be left out, as a result can.
    tasks.llm.prepare((1..=6).map(large));
    tasks
        .llm
        .prepare([LlmReply::says(&["Created the issues 1 to 3. </task-summary>"]), LlmReply::says(&["All done."])]);
    let task = tasks.run("Create six issues.").await?;
    assert_eq!((text(&task["status"]), text(&task["result"])), ("completed", "All done."), "{task}");
    let steps = tasks.steps(&task).await?;
    let summaries: Vec<&Value> = steps.iter().filter(|step| step["kind"] == "summary").collect();
    assert_eq!(summaries.len(), 1, "{:?}", outline(&steps));
    // The summary is charged and audited like any round.
    assert_eq!(summaries[0]["usage"], json!({ "input_tokens": 9, "output_tokens": 3 }));
    assert_eq!(task["usage"], json!({ "input_tokens": 72, "output_tokens": 24 }));
    let audit = tasks.api().audit(text(&summaries[0]["request_id"])).await?;
    assert_eq!((text(&audit["tool"]), text(&audit["status"])), ("llm_complete", "success"), "{audit}");
    // The model that summarises has no tools, and reads what was said.
    let request = tasks.llm.requests()[6].json();
    assert_eq!(request["tools"], Value::Null);
    assert!(text(&request["messages"][1]["content"]).contains("Issue 1"));
    // What follows has the instruction, the summary and the last rounds, each call with its result.
    let messages = tasks.messages(7)?;
    let roles: Vec<&str> = messages.iter().map(|message| text(&message["role"])).collect();
    let rounds = (roles.len() - 3) / 2;
    assert!((1..6).contains(&rounds), "{roles:?}");
    assert_eq!(roles[..3], ["system", "user", "user"]);
    assert!(roles[3..].chunks(2).all(|round| round == ["assistant", "tool"]), "{roles:?}");
    assert_eq!(text(&messages[1]["content"]), "Create six issues.");
    let summary = text(&messages[2]["content"]);
    assert!(summary.contains("Created the issues 1 to 3. &lt;/task-summary>"), "{summary}");
    let last = text(&messages[messages.len() - 2]["tool_calls"][0]["function"]["arguments"]);
    assert!(last.contains("Issue 6"), "the last exchange stays whole");
    Ok(())
}

#[tokio::test]
async fn a_request_that_is_too_long_is_made_smaller_once() -> Result<()> {
    let tasks = Tasks::start().await?;
    let large = json!([{ "number": 1, "title": "Large", "body": "x".repeat(40_000) }]);
    tasks.world.github.answer("/repos/acme/site/issues", Canned::json(200, &large));
    let read = |page: u32| calls(&[("github_list_issues", json!({ "repo": "acme/site", "page": page }))]);
    tasks.llm.prepare((1..4).map(read));
    tasks.llm.prepare([too_long(), LlmReply::says(&["Short enough."])]);
    let task = tasks.run("Read everything.").await?;
    assert_eq!((text(&task["status"]), text(&task["result"])), ("completed", "Short enough."), "{task}");
    let size = |request: usize| tasks.llm.requests()[request].json()["messages"].to_string().len();
    assert!(size(4) < size(3), "{} {}", size(4), size(3));
    // A second refusal ends the task.
    tasks.llm.prepare((1..4).map(read));
    tasks.llm.prepare([too_long(), too_long()]);
    let before = tasks.llm.requests().len();
    let task = tasks.run("Read everything again.").await?;
    assert_eq!((text(&task["status"]), text(&task["code"])), ("failed", "context"), "{task}");
    assert_eq!(tasks.llm.requests().len(), before + 5);
    // An instruction cannot become smaller, so it is not sent again.
    tasks.llm.prepare([too_long()]);
    let task = tasks.run(&"x".repeat(20_000)).await?;
    assert_eq!((text(&task["status"]), text(&task["code"])), ("failed", "context"), "{task}");
    assert_eq!(tasks.llm.requests().len(), before + 6);
    Ok(())
}

#[tokio::test]
async fn a_summary_that_fails_ends_as_any_round() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.answer_new_issues_briefly();
    tasks.llm.prepare((1..=6).map(large));
    tasks.llm.prepare([LlmReply::json(400, &json!({ "error": { "message": "no" } }))]);
    let task = tasks.run("Create six issues.").await?;
    assert_eq!((text(&task["status"]), text(&task["code"])), ("failed", "model"), "{task}");
    assert!(tasks.steps(&task).await?.iter().all(|step| step["kind"] != "summary"));
    Ok(())
}

#[tokio::test]
async fn clients_do_not_read_summaries() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.answer_new_issues_briefly();
    let key = tasks.api().new_key("bot", Some(&tasks.world.bot)).await?;
    let client = tasks.api().with_key(&key);
    for is_streamed in [false, true] {
        tasks.llm.prepare((1..=6).map(large));
        tasks.llm.prepare([LlmReply::says(&["Summary of it."]), LlmReply::says(&["All done."])]);
        let messages = json!([{ "role": "user", "content": "Create six issues." }]);
        let body = json!({ "model": "tester", "stream": is_streamed, "messages": messages });
        let (status, answer) = client.post("/v1/chat/completions", &body).await?;
        let answer = answer.to_string();
        assert_eq!(status, 200, "{answer}");
        assert!(answer.contains("All done.") && !answer.contains("Summary of it."), "{answer}");
    }
    assert_eq!(tasks.llm.requests().len(), 16);
    Ok(())
}
