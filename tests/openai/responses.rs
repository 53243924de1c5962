//! Responses: whole, as a stream, continued, and read again.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use support::LlmReply;

use super::{broken, created, events, looks, post, task_of};
use crate::http::workspace;
use crate::tasks::{Tasks, calls, give_model, list};
use crate::world::text;

const RESPONSES: &str = "/v1/responses";

fn input(said: &str) -> Value {
    json!({ "model": "tester", "input": said })
}

fn with(mut body: Value, field: &str, value: Value) -> Value {
    body[field] = value;
    body
}

#[tokio::test]
async fn a_response_is_answered_kept_and_continued() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([looks(), LlmReply::says(&["There are two."]), LlmReply::says(&["Two, as I said."])]);
    let body = with(with(input("How many?"), "instructions", json!("Be brief.")), "metadata", json!({ "a": "b" }));
    let (status, first) = tasks.api().post(RESPONSES, &body).await?;
    assert_eq!(status, 200, "{first}");
    let id = text(&first["id"]).to_owned();
    assert!(id.starts_with("resp_"), "{first}");
    assert_eq!(
        (&first["object"], &first["status"], &first["model"]),
        (&json!("response"), &json!("completed"), &json!("tester"))
    );
    let content =
        json!([{ "type": "output_text", "text": "Let me look.\n\nThere are two.", "annotations": [], "logprobs": [] }]);
    assert_eq!((first["output"].as_array().map(Vec::len), &first["output"][0]["content"]), (Some(1), &content));
    assert_eq!((&first["usage"]["total_tokens"], &first["metadata"]["a"]), (&json!(24), &json!("b")));
    let (status, again) = tasks.api().get(&format!("{RESPONSES}/{id}")).await?;
    assert_eq!((status, &again), (200, &first));
    assert_eq!(task_of(&tasks, &first["id"]).await?["session_id"], Value::Null);

    let body = with(input("How many again?"), "previous_response_id", json!(id));
    let (status, second) = tasks.api().post(RESPONSES, &body).await?;
    assert_eq!((status, &second["previous_response_id"]), (200, &json!(id)), "{second}");
    let said: Vec<String> = tasks.messages(2)?.iter().map(|said| text(&said["content"]).to_owned()).collect();
    assert_eq!(said[1..], ["How many?", "Let me look.\n\nThere are two.", "How many again?"]);
    assert!(!said[0].contains("Be brief."), "instructions are those of one request: {}", said[0]);
    // A reference to a message is the text of its response.
    tasks.llm.prepare([LlmReply::says(&["Yes."])]);
    let items =
        json!([{ "type": "item_reference", "id": second["output"][0]["id"] }, { "role": "user", "content": "Sure?" }]);
    let (status, third) = tasks.api().post(RESPONSES, &with(input(""), "input", items)).await?;
    assert_eq!(status, 200, "{third}");
    let said: Vec<String> = tasks.messages(3)?[1..].iter().map(|said| text(&said["content"]).to_owned()).collect();
    assert_eq!((said, created(&tasks)), (vec!["Two, as I said.".to_owned(), "Sure?".to_owned()], 1));
    Ok(())
}

#[tokio::test]
async fn the_events_of_a_response_are_typed_and_numbered() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([LlmReply::says(&["One ", "more."]), broken()]);
    let body = with(input("Go."), "stream", json!(true));
    let data = events(post(tasks.api(), RESPONSES, &body).send().await?).await?;
    let sent = data.iter().map(|data| serde_json::from_str(data)).collect::<Result<Vec<Value>, _>>()?;
    let mut names: Vec<&str> = sent.iter().map(|event| text(&event["type"])).collect();
    names.dedup();
    assert_eq!(
        names,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    for (number, event) in sent.iter().enumerate() {
        assert_eq!(event["sequence_number"], json!(number), "{event}");
    }
    let said: String = sent.iter().map(|event| text(&event["delta"])).collect();
    let last = &sent.last().context("no events")?["response"];
    assert_eq!((said.as_str(), text(&last["output"][0]["content"][0]["text"])), ("One more.", "One more."));
    let (_, kept) = tasks.api().get(&format!("{RESPONSES}/{}", text(&last["id"]))).await?;
    assert_eq!(&kept, last);

    let data = events(post(tasks.api(), RESPONSES, &body).send().await?).await?;
    let last: Value = serde_json::from_str(data.last().context("no events")?)?;
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")), "{last}");
    assert_eq!(last["response"]["error"]["code"], "upstream_error");
    Ok(())
}

#[tokio::test]
async fn a_response_belongs_to_its_key_and_its_bot() -> Result<()> {
    let tasks = Tasks::start().await?;
    let api = tasks.api();
    let other_bot = api.bot("another").await?;
    give_model(api, &other_bot, "others", &tasks.llm).await?;
    tasks.llm.prepare([LlmReply::says(&["Kept."]), LlmReply::says(&["Not kept."]), broken()]);
    let (_, kept) = api.post(RESPONSES, &input("Hi")).await?;
    let (_, forgotten) = api.post(RESPONSES, &with(input("Hi"), "store", json!(false))).await?;
    assert_eq!(forgotten["output"][0]["content"][0]["text"], "Not kept.");
    let (id, forgotten) = (text(&kept["id"]), text(&forgotten["id"]));
    let own = api.with_key(&api.new_key("bot", Some(&tasks.world.bot)).await?);
    let foreign = workspace(api, "foreign").await?;
    let chat = format!("resp_{}", monstrum_types::TaskId::new());
    for (api, id) in [(&own, id), (&foreign, id), (api, forgotten), (api, chat.as_str()), (api, "resp_x"), (api, "x")] {
        let (status, refused) = api.get(&format!("{RESPONSES}/{id}")).await?;
        assert_eq!((status, &refused["error"]["code"]), (404, &json!("response_not_found")), "{id}: {refused}");
    }
    let another = json!({ "model": "another", "input": "Hi" });
    for (api, body, id) in [(&own, &input("Hi"), id), (api, &another, id), (api, &input("Hi"), forgotten)] {
        let body = with(body.clone(), "previous_response_id", json!(id));
        let (status, refused) = api.post(RESPONSES, &body).await?;
        assert_eq!((status, &refused["error"]["param"]), (404, &json!("previous_response_id")), "{refused}");
    }
    let message = id.replace("resp_", "msg_");
    let items = json!([{ "type": "item_reference", "id": message }, { "role": "user", "content": "x" }]);
    let (status, refused) = own.post(RESPONSES, &with(input(""), "input", items)).await?;
    assert_eq!((status, &refused["error"]["param"]), (404, &json!("input[0].id")), "{refused}");
    assert_eq!(tasks.llm.requests().len(), 2);
    let status = api.get(&format!("{RESPONSES}/{}", id.replace("resp_", "chatcmpl-"))).await?.0;
    assert_eq!(status, 404);
    Ok(())
}

/// The server does not know what a client's messages were made of, nor what is in the sandbox of a conversation.
#[tokio::test]
async fn a_task_carries_the_labels_of_its_conversation() -> Result<()> {
    let tasks = Tasks::start().await?;
    let path = format!("/api/resources/{}", tasks.github.resource);
    let (status, body) = tasks.api().patch(&path, &json!({ "labels": ["untrusted"] })).await?;
    assert_eq!(status, 200, "{body}");
    tasks.llm.prepare([calls(&[("github_list_issues", list())]), LlmReply::says(&["Two."])]);
    tasks.llm.prepare([LlmReply::says(&["Sure."]), LlmReply::says(&["Yes."]), LlmReply::says(&["Hi."])]);
    let labels = async |body: Value| -> Result<(String, Value)> {
        let (status, response) = tasks.api().post(RESPONSES, &body).await?;
        assert_eq!(status, 200, "{response}");
        Ok((text(&response["id"]).to_owned(), task_of(&tasks, &response["id"]).await?["labels"].clone()))
    };
    let (first, read) = labels(input("How many?")).await?;
    assert_eq!(read, json!(["untrusted"]));
    let (_, next) = labels(with(input("Sure?"), "previous_response_id", json!(first))).await?;
    assert_eq!(next, json!(["untrusted"]), "exactly those of the response that it continues");
    let said = json!([{ "role": "assistant", "content": "Two." }, { "role": "user", "content": "Sure?" }]);
    assert_eq!(labels(with(input(""), "input", said)).await?.1, json!(["*"]));
    let named = with(input("Hi"), "user", json!("ada"));
    let named = with(named, "metadata", json!({ "app_id": "app", "chat_id": "one" }));
    assert_eq!(labels(named).await?.1, json!(["*"]));
    Ok(())
}

#[tokio::test]
async fn references_are_few() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([LlmReply::says(&["Once."])]);
    let (status, first) = tasks.api().post(RESPONSES, &input("Hi")).await?;
    assert_eq!(status, 200, "{first}");
    // References to one response count once.
    let item = |id: &str| json!({ "type": "item_reference", "id": id });
    let mut ids = vec![text(&first["output"][0]["id"]).to_owned(); 40];
    tasks.llm.follow(|_| LlmReply::says(&["Again."]));
    for _ in 0..32 {
        let items: Vec<Value> =
            ids.iter().map(|id| item(id)).chain([json!({ "role": "user", "content": "Hi" })]).collect();
        let (status, answer) = tasks.api().post(RESPONSES, &with(input(""), "input", json!(items))).await?;
        assert_eq!(status, 200, "{answer}");
        ids.push(text(&answer["output"][0]["id"]).to_owned());
    }
    let items: Vec<Value> = ids.iter().map(|id| item(id)).collect();
    let (status, refused) = tasks.api().post(RESPONSES, &with(input(""), "input", json!(items))).await?;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("input")), "{refused}");
    assert_eq!(tasks.llm.requests().len(), 33);
    Ok(())
}

#[tokio::test]
async fn what_the_server_does_not_have_is_refused_by_name() -> Result<()> {
    let tasks = Tasks::start().await?;
    for (field, value, param) in [
        ("conversation", json!("conv_1"), "conversation"),
        ("background", json!(true), "background"),
        ("tools", json!([{ "type": "web_search" }]), "tools"),
        ("tools", json!([{ "type": "function", "name": "look" }]), "tools"),
        ("max_output_tokens", json!(0), "max_output_tokens"),
        ("text", json!({ "format": {} }), "text.format"),
        ("input", json!([{ "type": "web_search_call" }]), "input[0].type"),
        ("input", json!([]), "messages"),
    ] {
        let (status, refused) = tasks.api().post(RESPONSES, &with(input("Hi"), field, value)).await?;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(param)), "{refused}");
    }
    let body = with(with(input("Hi"), "background", json!(false)), "tools", json!([]));
    tasks.llm.prepare([LlmReply::says(&["Hi."])]);
    assert_eq!(tasks.api().post(RESPONSES, &body).await?.0, 200);
    Ok(())
}
