//! Requests that libraries repeat.

use anyhow::Result;
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};
use support::{LlmReply, Server};

use super::{CHAT, ask, broken, created, events, looks, post, said, streamed};
use crate::tasks::{Tasks, calls, create, ended};
use crate::world::{eventually, text};

/// Returns a request that its library has repeated this often.
fn repeated(request: RequestBuilder, count: u32) -> RequestBuilder {
    request.header("x-stainless-retry-count", count)
}

async fn answer(response: Response) -> Result<(u16, Value)> {
    let status = response.status().as_u16();
    Ok((status, response.json().await?))
}

#[tokio::test]
async fn a_repetition_joins_the_task_that_runs_or_has_ended() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.world.github.hold();
    tasks.llm.prepare([looks(), LlmReply::says(&["There are two."])]);
    let body = streamed(ask("How many?"));
    let request = || post(tasks.api(), CHAT, &body).header("idempotency-key", "one");
    let first = request().send().await?;
    tasks.world.reached(1).await?;
    // The first client and its repetition get the whole text, although the repetition comes in the middle.
    let second = request().send().await?;
    tasks.world.github.release();
    let third = async { events(request().send().await?).await };
    let (first, second) = (events(first).await?, events(second).await?);
    let third = third.await?;
    for data in [&first, &second, &third] {
        let chunks: Vec<Value> = data.iter().filter_map(|data| serde_json::from_str(data).ok()).collect();
        assert_eq!(said(&chunks), "Let me look.\n\nThere are two.", "{data:?}");
        assert_eq!(chunks[0]["id"], serde_json::from_str::<Value>(&first[0])?["id"]);
    }
    assert_eq!((tasks.llm.requests().len(), created(&tasks)), (2, 1));

    let (status, refused) =
        answer(post(tasks.api(), CHAT, &ask("Else")).header("idempotency-key", "one").send().await?).await?;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("Idempotency-Key")), "{refused}");
    // The key of another caller is another key.
    let other = tasks.api().with_key(&tasks.api().new_key("operator", None).await?);
    tasks.llm.prepare([LlmReply::says(&["Mine."])]);
    let (_, own) = answer(post(&other, CHAT, &ask("Else")).header("idempotency-key", "one").send().await?).await?;
    assert_eq!(own["choices"][0]["message"]["content"], "Mine.");
    Ok(())
}

#[tokio::test]
async fn a_library_that_repeats_a_body_joins_its_task() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([LlmReply::says(&["One."]), LlmReply::says(&["Two."]), LlmReply::says(&["Three."])]);
    let ask = async |count: Option<u32>| -> Result<(String, String)> {
        let request = post(tasks.api(), CHAT, &ask("Hi"));
        let request = match count {
            Some(count) => repeated(request, count),
            None => request,
        };
        let (status, answer) = answer(request.send().await?).await?;
        assert_eq!(status, 200, "{answer}");
        Ok((text(&answer["id"]).to_owned(), text(&answer["choices"][0]["message"]["content"]).to_owned()))
    };
    let first = ask(Some(0)).await?;
    assert_eq!(ask(Some(1)).await?, first);
    assert_eq!(ask(Some(2)).await?, first);
    // A request that is no repetition is another request, and a later repetition joins it.
    let second = ask(Some(0)).await?;
    assert_eq!((first.1.as_str(), second.1.as_str()), ("One.", "Two."));
    assert_eq!(ask(Some(1)).await?, second);
    assert_eq!(ask(None).await?.1, "Three.");
    assert_eq!(tasks.llm.requests().len(), 3);
    Ok(())
}

#[tokio::test]
async fn a_failure_after_a_write_is_final_and_repeats_nothing() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([looks(), broken()]);
    for count in 0..3 {
        let response = repeated(post(tasks.api(), CHAT, &ask("Create.")), count).send().await?;
        assert!(response.headers().get("x-should-retry").is_some_and(|value| value == "false"), "{response:?}");
        let (status, refused) = answer(response).await?;
        assert_eq!((status, &refused["error"]["code"]), (422, &json!("task_failed")), "{refused}");
    }
    assert_eq!((tasks.llm.requests().len(), created(&tasks)), (2, 1));
    Ok(())
}

#[tokio::test]
async fn a_failure_without_a_write_is_tried_again() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([broken(), LlmReply::says(&["Now."])]);
    let first = repeated(post(tasks.api(), CHAT, &ask("Hi")), 0).send().await?;
    assert_eq!((first.status().as_u16(), first.headers().get("x-should-retry")), (502, None));
    let (status, second) = answer(repeated(post(tasks.api(), CHAT, &ask("Hi")), 1).send().await?).await?;
    assert_eq!((status, &second["choices"][0]["message"]["content"]), (200, &json!("Now.")), "{second}");
    Ok(())
}

/// The task goes on after a restart of the server, and the library that repeats its request gets the answer.
#[tokio::test]
async fn a_repetition_joins_its_task_after_a_restart() -> Result<()> {
    let mut tasks = Tasks::start().await?;
    tasks.llm.prepare([LlmReply::chunks(&[LlmReply::piece("I think")]).silent(), LlmReply::says(&["Done."])]);
    let body = streamed(ask("Go."));
    let first = post(tasks.api(), CHAT, &body).header("idempotency-key", "one").send().await?;
    tasks.llm.is_answering().await;
    tasks.world.server.stop().await?;
    let first = first.text().await.unwrap_or_default();
    assert!(!first.contains("[DONE]"), "{first}");
    tasks.world.server.launch().await?;
    tasks.world.api = tasks.world.server.api()?;
    let second = events(post(tasks.api(), CHAT, &body).header("idempotency-key", "one").send().await?).await?;
    let chunks: Vec<Value> = second.iter().filter_map(|data| serde_json::from_str(data).ok()).collect();
    assert_eq!((said(&chunks).as_str(), second.last().map(String::as_str)), ("Done.", Some("[DONE]")), "{second:?}");
    let (_, listed) = tasks.api().get("/api/tasks").await?;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!(tasks.llm.requests().len(), 2);
    Ok(())
}

/// A proxy serves several people with one key, and names them in headers.
#[tokio::test]
async fn the_answer_for_one_user_is_not_for_another() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([LlmReply::says(&["For Ada."]), LlmReply::says(&["For Bob."])]);
    let asked = async |user: &str, count: u32| -> Result<String> {
        let request = repeated(post(tasks.api(), CHAT, &ask("What is new?")), count);
        let request = request.header("x-openwebui-user-id", user).header("x-openwebui-chat-id", user);
        let (status, answer) = answer(request.send().await?).await?;
        assert_eq!(status, 200, "{answer}");
        Ok(text(&answer["choices"][0]["message"]["content"]).to_owned())
    };
    assert_eq!((asked("ada", 0).await?, asked("bob", 0).await?), ("For Ada.".to_owned(), "For Bob.".to_owned()));
    assert_eq!((asked("ada", 1).await?, asked("bob", 1).await?), ("For Ada.".to_owned(), "For Bob.".to_owned()));
    Ok(())
}

/// The plugin sends nothing itself. Its own row `started` is in the audit before each of its calls.
#[tokio::test]
async fn a_failure_after_a_write_of_a_plugins_call_is_final() -> Result<()> {
    let tasks = Tasks::on(Server::prepare(&["github", "test-caller"])?).await?;
    let caller = tasks.world.grant_all("test-caller").await?;
    tasks.world.rebind(&caller, &json!({ "allow_calls": ["*"] })).await?;
    let params = json!({ "tool": "github_create_issue", "params": create("Once") });
    tasks.llm.prepare([calls(&[("test_caller_call", params)]), broken()]);
    for count in 0..2 {
        let response = repeated(post(tasks.api(), CHAT, &ask("Create.")), count).send().await?;
        assert!(response.headers().get("x-should-retry").is_some_and(|value| value == "false"), "{response:?}");
        assert_eq!(response.status(), 422);
    }
    assert_eq!((tasks.llm.requests().len(), created(&tasks)), (2, 1));
    Ok(())
}

/// The client of the task does not come back after the restart.
#[tokio::test]
async fn a_task_without_its_client_ends_after_a_restart() -> Result<()> {
    let mut tasks = Tasks::start().await?;
    tasks.llm.prepare([LlmReply::chunks(&[LlmReply::piece("I think")]).silent(), looks()]);
    let first = post(tasks.api(), CHAT, &streamed(ask("Create."))).send().await?;
    tasks.llm.is_answering().await;
    tasks.world.server.kill().await?;
    drop(first);
    tasks.world.server.launch().await?;
    tasks.world.api = tasks.world.server.api()?;
    let (_, listed) = tasks.api().get("/api/tasks").await?;
    let task = ended(tasks.api(), text(&listed["items"][0]["id"])).await?;
    assert_eq!((text(&task["status"]), created(&tasks)), ("cancelled", 0), "{task}");
    Ok(())
}

/// Starts a request whose client goes in the middle of the second answer, and waits until its task has ended.
async fn deserted(tasks: &Tasks, body: &Value) -> Result<()> {
    let response = post(tasks.api(), CHAT, body).header("idempotency-key", "one").send().await?;
    tasks.llm.is_answering().await;
    drop(response);
    let (_, listed) = tasks.api().get("/api/tasks").await?;
    let task = ended(tasks.api(), text(&listed["items"][0]["id"])).await?;
    assert_eq!(text(&task["status"]), "cancelled", "{task}");
    Ok(())
}

#[tokio::test]
async fn a_client_that_comes_back_too_late_starts_a_new_task_if_nothing_was_written() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([LlmReply::chunks(&[LlmReply::piece("I think")]).silent(), LlmReply::says(&["Now."])]);
    let body = streamed(ask("Hi"));
    deserted(&tasks, &body).await?;
    let again = events(post(tasks.api(), CHAT, &body).header("idempotency-key", "one").send().await?).await?;
    let chunks: Vec<Value> = again.iter().filter_map(|data| serde_json::from_str(data).ok()).collect();
    assert_eq!((said(&chunks).as_str(), again.last().map(String::as_str)), ("Now.", Some("[DONE]")), "{again:?}");
    let (_, listed) = tasks.api().get("/api/tasks").await?;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2), "{listed}");
    Ok(())
}

#[tokio::test]
async fn a_client_that_comes_back_after_a_write_starts_nothing() -> Result<()> {
    let tasks = Tasks::start().await?;
    let silent = LlmReply::chunks(&[LlmReply::piece("I made")]).silent();
    tasks.llm.prepare([calls(&[("github_create_issue", create("Once"))]), silent]);
    let body = streamed(ask("Create."));
    let first = post(tasks.api(), CHAT, &body).header("idempotency-key", "one").send().await?;
    eventually("the issue is created", async || Ok((created(&tasks) == 1).then_some(()))).await?;
    drop(first);
    let (_, listed) = tasks.api().get("/api/tasks").await?;
    assert_eq!(text(&ended(tasks.api(), text(&listed["items"][0]["id"])).await?["status"]), "cancelled");
    let response = post(tasks.api(), CHAT, &body).header("idempotency-key", "one").send().await?.text().await?;
    assert!(response.contains("task_failed"), "{response}");
    assert_eq!(created(&tasks), 1);
    let (_, listed) = tasks.api().get("/api/tasks").await?;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
    Ok(())
}
