//! Chat completions, whole and as a stream, and models.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use support::{FakeLlm, LlmReply};

use super::{CHAT, ask, created, events, looks, post, said, streamed, task_of};
use crate::http::{made, workspace};
use crate::models;
use crate::tasks::{Tasks, ended, give_model, outline};
use crate::world::text;

const ANSWER: &str = "Let me look.\n\nThere are two.";

#[tokio::test]
async fn a_conversation_with_two_calls_is_answered_whole() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([looks(), LlmReply::says(&["There are ", "two."])]);
    let mut body = ask("How many?");
    body["messages"] = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "Hi" },
        { "role": "assistant", "content": "Hello" },
        { "role": "user", "content": [{ "type": "text", "text": "How many?" }] },
    ]);
    let (status, answer) = tasks.api().post(CHAT, &body).await?;
    assert_eq!(status, 200, "{answer}");
    let choice = json!({
        "index": 0, "message": { "role": "assistant", "content": ANSWER, "refusal": null }, "logprobs": null,
        "finish_reason": "stop",
    });
    assert_eq!((&answer["object"], &answer["model"]), (&json!("chat.completion"), &json!("tester")));
    assert_eq!(answer["choices"], json!([choice]));
    assert_eq!(answer["usage"], json!({ "prompt_tokens": 18, "completion_tokens": 6, "total_tokens": 24 }));
    assert!(text(&answer["id"]).starts_with("chatcmpl-"), "{answer}");

    let task = task_of(&tasks, &answer["id"]).await?;
    assert_eq!((&task["session_id"], text(&task["instruction"])), (&Value::Null, "How many?"), "{task}");
    let steps = outline(&tasks.steps(&task).await?);
    let expected =
        ["round success", "call github_list_issues success", "call github_create_issue success", "round success"];
    assert_eq!((steps, created(&tasks)), (expected.map(str::to_owned).to_vec(), 1));
    // The instructions of the client stand below the prompt of the bot, and the conversation is what the client sent.
    let messages = tasks.messages(0)?;
    let roles: Vec<&str> = messages.iter().map(|message| text(&message["role"])).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user"]);
    let system = text(&messages[0]["content"]);
    assert!(system.contains("You work on a task") && system.ends_with("Be brief."), "{system}");
    assert_eq!(tasks.messages(1)?.len(), 7, "the round and its two results follow");
    Ok(())
}

#[tokio::test]
async fn a_conversation_with_two_calls_is_streamed() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([looks(), LlmReply::says(&["There are ", "two."])]);
    let data = events(post(tasks.api(), CHAT, &streamed(ask("How many?"))).send().await?).await?;
    assert_eq!(data.last().context("no events")?, "[DONE]");
    let chunks =
        data[..data.len() - 1].iter().map(|data| serde_json::from_str(data)).collect::<Result<Vec<Value>, _>>()?;
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    assert_eq!(said(&chunks), ANSWER);
    assert!(chunks.len() > 4, "the text comes in pieces: {chunks:?}");
    let [.., finish, usage] = chunks.as_slice() else { anyhow::bail!("too few chunks") };
    assert_eq!(finish["choices"][0]["finish_reason"], "stop");
    assert_eq!((&usage["choices"], &usage["usage"]["total_tokens"]), (&json!([]), &json!(24)));
    for chunk in &chunks {
        assert_eq!((&chunk["id"], &chunk["model"]), (&chunks[0]["id"], &json!("tester")), "{chunk}");
        assert_eq!(chunk["object"], "chat.completion.chunk");
    }
    assert!(chunks[..chunks.len() - 1].iter().all(|chunk| chunk["usage"].is_null()));
    assert_eq!(created(&tasks), 1);
    Ok(())
}

#[tokio::test]
async fn options_reach_the_model_and_its_limit_cuts_the_answer() -> Result<()> {
    let tasks = Tasks::start().await?;
    let end = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "length" }] });
    tasks.llm.prepare([LlmReply::stream(&[LlmReply::piece("Half of"), end])]);
    let mut body = ask("Go.");
    let options = json!({
        "temperature": 0.5, "top_p": 0.9, "stop": ["END"], "seed": 7, "response_format": { "type": "json_object" },
        "reasoning_effort": "low",
    });
    for (name, value) in options.as_object().context("an object")? {
        body[name] = value.clone();
    }
    (body["max_completion_tokens"], body["logit_bias"], body["n"]) = (json!(10), json!({}), json!(1));
    let (status, answer) = tasks.api().post(CHAT, &body).await?;
    assert_eq!(status, 200, "{answer}");
    let choice = &answer["choices"][0];
    assert_eq!((text(&choice["message"]["content"]), text(&choice["finish_reason"])), ("Half of", "length"));
    let asked = tasks.llm.requests()[0].json();
    for (name, value) in options.as_object().context("an object")? {
        assert_eq!(&asked[name], value, "{name}");
    }
    assert_eq!((&asked["max_tokens"], asked.get("logit_bias")), (&json!(10), None), "{asked}");
    Ok(())
}

#[tokio::test]
async fn images_are_data_urls_for_a_model_that_sees() -> Result<()> {
    let tasks = Tasks::start().await?;
    let (api, llm) = (tasks.api(), FakeLlm::start().await?);
    let bot = api.bot("seer").await?;
    let sees = json!({ "context_tokens": 100_000, "vision": true });
    let resource = made(api, "/api/resources", &models::resource("sight", &llm.url(), &sees, &json!({}))).await?;
    models::bind(api, &bot, &resource, &json!({})).await?;
    let body = |model: &str, url: &str| {
        let parts = json!([{ "type": "text", "text": "What?" }, { "type": "image_url", "image_url": { "url": url } }]);
        json!({ "model": model, "messages": [{ "role": "user", "content": parts }] })
    };
    let image = "data:image/png;base64,iVBORw0KGgo=";
    llm.prepare([LlmReply::says(&["A cat."])]);
    let (status, answer) = api.post(CHAT, &body("seer", image)).await?;
    assert_eq!((status, &answer["choices"][0]["message"]["content"]), (200, &json!("A cat.")), "{answer}");
    let asked = llm.requests()[0].json();
    assert_eq!(asked["messages"][1]["content"][1]["image_url"]["url"], image);
    for (model, url, param) in
        [("seer", "https://example.com/a.png", "messages[0].content[1].image_url.url"), ("tester", image, "messages")]
    {
        let (status, refused) = api.post(CHAT, &body(model, url)).await?;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(param)), "{refused}");
    }
    assert_eq!((llm.requests().len(), tasks.llm.requests().len()), (1, 0));
    Ok(())
}

#[tokio::test]
async fn the_conversation_of_a_request_reaches_the_calls() -> Result<()> {
    let tasks = Tasks::start().await?;
    for by_header in [false, true] {
        tasks.llm.prepare([looks(), LlmReply::says(&["Done."])]);
        let mut body = ask("Go.");
        let mut request = tasks.api().request(reqwest::Method::POST, CHAT);
        if by_header {
            request = request.header("x-openwebui-user-id", "ada").header("x-openwebui-chat-id", "one");
        } else {
            body["user"] = json!("ada");
            body["metadata"] = json!({ "app_id": "app", "chat_id": "one" });
        }
        let answer: Value = request.json(&body).send().await?.json().await?;
        let task = task_of(&tasks, &answer["id"]).await?;
        let steps = tasks.steps(&task).await?;
        let audited = tasks.api().audit(text(&steps[1]["request_id"])).await?;
        let app = if by_header { "open-webui" } else { "app" };
        assert_eq!(audited["user"], json!({ "app_id": app, "user_id": "ada" }), "{audited}");
    }
    Ok(())
}

/// The task has no session, but works for the conversation that the client names.
#[tokio::test]
async fn a_conversation_is_deleted_with_the_tasks_of_its_requests() -> Result<()> {
    let tasks = Tasks::start().await?;
    let api = tasks.api();
    tasks.llm.prepare([LlmReply::chunks(&[LlmReply::piece("I think")]).silent()]);
    let mut body = streamed(ask("Go."));
    body["user"] = json!("ada");
    body["metadata"] = json!({ "app_id": "app", "chat_id": "one" });
    let stream = post(api, CHAT, &body).send().await?;
    tasks.llm.is_answering().await;
    let (_, listed) = api.get("/api/tasks").await?;
    let task = format!("/api/tasks/{}", text(&listed["items"][0]["id"]));
    for chat in ["/api/chats/one?app_id=app", "/api/apps/app"] {
        assert_eq!(api.delete(chat).await?.0, 409, "{chat}");
    }
    assert_eq!(api.delete("/api/chats/two?app_id=app").await?.0, 202, "another conversation");
    assert_eq!(api.delete(&task).await?.0, 202);
    ended(api, text(&listed["items"][0]["id"])).await?;
    drop(stream);
    assert_eq!(api.delete("/api/chats/one?app_id=app").await?.0, 202);
    assert_eq!(api.get(&task).await?.0, 404);
    Ok(())
}

#[tokio::test]
async fn models_are_the_bots_of_a_key_that_have_a_model() -> Result<()> {
    let tasks = Tasks::start().await?;
    let api = tasks.api();
    let other = api.bot("another").await?;
    api.bot("without-a-model").await?;
    give_model(api, &other, "others", &tasks.llm).await?;
    let names = async |api: &support::Api| -> Result<Vec<String>> {
        let (status, models) = api.get("/v1/models").await?;
        assert_eq!((status, &models["object"]), (200, &json!("list")), "{models}");
        let data = models["data"].as_array().context("no data")?;
        assert!(data.iter().all(|model| model["object"] == "model" && model["created"].is_i64()), "{models}");
        Ok(data.iter().map(|model| text(&model["id"]).to_owned()).collect())
    };
    let operator = api.with_key(&api.new_key("operator", None).await?);
    let own = api.with_key(&api.new_key("bot", Some(&other)).await?);
    let foreign = workspace(api, "foreign").await?;
    assert_eq!(names(api).await?, ["another", "tester"]);
    assert_eq!(names(&operator).await?, ["another", "tester"]);
    assert_eq!(names(&own).await?, ["another"]);
    assert_eq!(names(&foreign).await?, Vec::<String>::new());
    for name in ["another", other.as_str()] {
        let (status, model) = own.get(&format!("/v1/models/{name}")).await?;
        assert_eq!((status, &model["id"]), (200, &json!("another")), "{model}");
    }
    for (api, name) in [(&own, "tester"), (&foreign, "tester"), (api, "without-a-model"), (api, "absent")] {
        let (status, refused) = api.get(&format!("/v1/models/{name}")).await?;
        assert_eq!((status, &refused["error"]["code"]), (404, &json!("model_not_found")), "{name}: {refused}");
    }
    Ok(())
}
