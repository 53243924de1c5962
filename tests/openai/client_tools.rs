//! Tools that clients bring: the bot's calls run here, the client's go to the client, and the next request continues with the
//! same rounds.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{Api, LlmReply, sqlite};

use super::{CHAT, ask, events, post, said, streamed, task_of};
use crate::tasks::{Tasks, calls, give_model, list, outline};
use crate::world::text;

const RESPONSES: &str = "/v1/responses";
const LIST: &str = "github_list_issues";
const WEATHER: &str = "get_weather";

/// A server whose bot admits tools of clients.
async fn open() -> Result<Tasks> {
    let tasks = Tasks::start().await?;
    admit(tasks.api(), &tasks.world.bot, true).await?;
    Ok(tasks)
}

async fn admit(api: &Api, bot: &str, client_tools: bool) -> Result<()> {
    let (status, changed) = api.patch(&format!("/api/bots/{bot}"), &json!({ "client_tools": client_tools })).await?;
    ensure!(status == 200, "{status} {changed}");
    Ok(())
}

fn parameters() -> Value {
    json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] })
}

fn function(name: &str) -> Value {
    json!({ "name": name, "description": "Returns the weather in a city.", "parameters": parameters() })
}

/// Returns a request for a chat completion with the tool of the client.
fn chat() -> Value {
    let mut body = ask("How is the weather?");
    body["tools"] = json!([{ "type": "function", "function": function(WEATHER) }]);
    body
}

/// Returns a request for a response with the tool of the client.
fn response(input: &Value) -> Value {
    let mut tool = function(WEATHER);
    tool["type"] = json!("function");
    json!({ "model": "tester", "input": input, "tools": [tool] })
}

/// Returns an answer of a model that asks for a tool of the bot and for two calls of the client's tool, with a field that
/// only the model's server knows.
fn asks() -> LlmReply {
    let calls = [(LIST, list()), (WEATHER, json!({ "city": "Berlin" })), (WEATHER, json!({ "city": "Paris" }))];
    let call = |(index, (name, params)): (usize, (&str, Value))| {
        let function = json!({ "name": name, "arguments": params.to_string() });
        json!({ "index": index, "id": format!("own_{index}"), "type": "function", "function": function,
                "extra_content": { "signature": format!("s{index}") } })
    };
    let calls: Vec<Value> = calls.into_iter().enumerate().map(call).collect();
    let asked = json!({ "choices": [{ "index": 0, "delta": { "tool_calls": calls }, "finish_reason": "tool_calls" }] });
    LlmReply::stream(&[LlmReply::piece("I ask "), LlmReply::piece("around."), asked])
}

/// Returns what follows a message with calls: the results of the client's tools.
fn results(message: &Value) -> Result<Vec<Value>> {
    let calls = message["tool_calls"].as_array().context("no calls")?;
    let result =
        |call: &Value| json!({ "role": "tool", "tool_call_id": call["id"], "content": rain(&call["function"]) });
    Ok(calls.iter().map(result).collect())
}

fn rain(function: &Value) -> String {
    format!("Rain: {}", text(&function["arguments"]))
}

/// Returns the request that follows this answer.
fn followed(mut body: Value, message: &Value) -> Result<Value> {
    let messages = body["messages"].as_array_mut().context("no messages")?;
    messages.push(message.clone());
    messages.extend(results(message)?);
    Ok(body)
}

/// Checks that the model has read its own round, with all results.
fn check_round(messages: &[Value]) -> Result<()> {
    let roles: Vec<&str> = messages.iter().map(|message| text(&message["role"])).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "tool", "tool"]);
    let said = &messages[2];
    assert_eq!(said["content"], "I ask around.");
    let calls = said["tool_calls"].as_array().context("no calls")?;
    for (index, call) in calls.iter().enumerate() {
        assert_eq!(
            (&call["id"], text(&call["extra_content"]["signature"])),
            (&json!(format!("own_{index}")), &*format!("s{index}"))
        );
        assert_eq!(messages[3 + index]["tool_call_id"], call["id"], "{messages:?}");
    }
    let result = |index: usize| text(&messages[index]["content"]);
    assert!(
        result(3).starts_with("<tool-result tool=\"github_list_issues\">\n{\"status\":\"success\""),
        "{}",
        result(3)
    );
    let rain = "<tool-result tool=\"get_weather\">\nRain: {\"city\":\"Paris\"}\n</tool-result>";
    assert_eq!((calls.len(), result(5)), (3, rain));
    Ok(())
}

/// Asks for the weather and returns the message with the calls of the client.
async fn asked(tasks: &Tasks) -> Result<Value> {
    tasks.llm.prepare([asks()]);
    let (status, answer) = tasks.api().post(CHAT, &chat()).await?;
    ensure!(status == 200, "{status} {answer}");
    Ok(answer["choices"][0]["message"].clone())
}

#[tokio::test]
async fn a_chat_gets_its_calls_and_continues_the_round() -> Result<()> {
    let tasks = open().await?;
    tasks.llm.prepare([asks(), LlmReply::says(&["It rains."])]);
    let (status, answer) = tasks.api().post(CHAT, &chat()).await?;
    assert_eq!(status, 200, "{answer}");
    let choice = &answer["choices"][0];
    let message = &choice["message"];
    assert_eq!((text(&choice["finish_reason"]), text(&message["content"])), ("tool_calls", "I ask around."));
    let calls = message["tool_calls"].as_array().context("no calls")?;
    let functions: Vec<&Value> = calls.iter().map(|call| &call["function"]).collect();
    let function = |city: &str| json!({ "name": WEATHER, "arguments": json!({ "city": city }).to_string() });
    assert_eq!(functions, [&function("Berlin"), &function("Paris")]);
    assert!(calls.iter().all(|call| call["type"] == "function" && text(&call["id"]).len() == 39), "{message}");

    // The tool of the bot has run; those of the client are in no step and in no audit.
    let task = task_of(&tasks, &answer["id"]).await?;
    assert_eq!((text(&task["status"]), &task["labels"]), ("completed", &json!([])), "{task}");
    assert_eq!(outline(&tasks.steps(&task).await?), ["round success", "call github_list_issues success"]);
    let (_, audit) = tasks.api().get("/api/audit?limit=100").await?;
    assert!(!audit.to_string().contains(WEATHER), "{audit}");
    let offered = tasks.llm.requests()[0].json();
    let names: Vec<&str> =
        offered["tools"].as_array().into_iter().flatten().map(|tool| text(&tool["function"]["name"])).collect();
    assert!(names.contains(&LIST) && names.contains(&WEATHER), "{names:?}");

    let (status, answer) = tasks.api().post(CHAT, &followed(chat(), message)?).await?;
    assert_eq!((status, &answer["choices"][0]["message"]["content"]), (200, &json!("It rains.")), "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    check_round(&tasks.messages(1)?)?;
    let task = task_of(&tasks, &answer["id"]).await?;
    assert_eq!(
        (&task["labels"], outline(&tasks.steps(&task).await?)),
        (&json!(["*"]), vec!["round success".to_owned()])
    );
    Ok(())
}

#[tokio::test]
async fn a_streamed_chat_gets_its_calls_at_the_end() -> Result<()> {
    let tasks = open().await?;
    tasks.llm.prepare([asks()]);
    let data = events(post(tasks.api(), CHAT, &streamed(chat())).send().await?).await?;
    assert_eq!(data.last().context("no events")?, "[DONE]");
    let chunks =
        data[..data.len() - 1].iter().map(|data| serde_json::from_str(data)).collect::<Result<Vec<Value>, _>>()?;
    assert_eq!(said(&chunks), "I ask around.");
    let deltas: Vec<&Value> = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0])
        .filter(|call| !call.is_null())
        .collect();
    let cities: Vec<&str> = deltas.iter().map(|call| text(&call["function"]["arguments"])).collect();
    assert_eq!(cities, [r#"{"city":"Berlin"}"#, r#"{"city":"Paris"}"#]);
    assert_eq!((&deltas[0]["index"], &deltas[1]["index"]), (&json!(0), &json!(1)));
    let finish: Vec<&Value> =
        chunks.iter().map(|chunk| &chunk["choices"][0]["finish_reason"]).filter(|finish| !finish.is_null()).collect();
    assert_eq!(finish, ["tool_calls"]);
    Ok(())
}

#[tokio::test]
async fn a_response_gets_its_calls_and_continues_the_round() -> Result<()> {
    let tasks = open().await?;
    tasks.llm.prepare([asks(), LlmReply::says(&["It rains."])]);
    let (status, first) = tasks.api().post(RESPONSES, &response(&json!("How is the weather?"))).await?;
    assert_eq!(
        (status, &first["status"], &first["tools"][0]["name"]),
        (200, &json!("completed"), &json!(WEATHER)),
        "{first}"
    );
    let output = first["output"].as_array().context("no output")?;
    let kinds: Vec<&str> = output.iter().map(|item| text(&item["type"])).collect();
    assert_eq!(kinds, ["message", "function_call", "function_call"]);
    assert_eq!((text(&output[1]["name"]), text(&output[2]["arguments"])), (WEATHER, r#"{"city":"Paris"}"#));
    let outputs: Vec<Value> = output[1..]
        .iter()
        .map(|call| json!({ "type": "function_call_output", "call_id": call["call_id"], "output": rain(call) }))
        .collect();

    let mut body = response(&json!(outputs));
    body["previous_response_id"] = first["id"].clone();
    let (status, second) = tasks.api().post(RESPONSES, &body).await?;
    assert_eq!((status, &second["output"][0]["content"][0]["text"]), (200, &json!("It rains.")), "{second}");
    check_round(&tasks.messages(1)?)?;
    assert_eq!(
        task_of(&tasks, &second["id"]).await?["labels"],
        json!(["untrusted"]),
        "the results of a client's tools"
    );

    // Items and references lead to the same round. The server does not know where items have been.
    let user = json!({ "role": "user", "content": "How is the weather?" });
    let reference = |item: &Value| json!({ "type": "item_reference", "id": item["id"] });
    let items = [std::slice::from_ref(&user), &output[..], &outputs[..]].concat();
    let references = [vec![user.clone()], output.iter().map(reference).collect(), outputs.clone()].concat();
    let mixed = [&[user, reference(&output[0])], &output[1..], &outputs[..]].concat();
    let all = json!(["*"]);
    for (request, input, labels) in [(2, items, all.clone()), (3, references, json!(["untrusted"])), (4, mixed, all)] {
        tasks.llm.prepare([LlmReply::says(&["It rains."])]);
        let (status, answer) = tasks.api().post(RESPONSES, &response(&json!(input))).await?;
        assert_eq!(status, 200, "{answer}");
        check_round(&tasks.messages(request)?)?;
        assert_eq!(task_of(&tasks, &answer["id"]).await?["labels"], labels);
    }
    Ok(())
}

#[tokio::test]
async fn the_events_of_calls_are_typed_and_numbered() -> Result<()> {
    let tasks = open().await?;
    tasks.llm.prepare([calls(&[(WEATHER, json!({ "city": "Oslo" }))])]);
    let mut body = response(&json!("How is the weather?"));
    body["stream"] = json!(true);
    let data = events(post(tasks.api(), RESPONSES, &body).send().await?).await?;
    let sent = data.iter().map(|data| serde_json::from_str(data)).collect::<Result<Vec<Value>, _>>()?;
    let names: Vec<&str> = sent.iter().map(|event| text(&event["type"])).collect();
    assert_eq!(
        names,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    for (number, event) in sent.iter().enumerate() {
        assert_eq!(event["sequence_number"], json!(number), "{event}");
    }
    let item = &sent[5]["item"];
    assert_eq!((text(&item["arguments"]), &sent[3]["item_id"]), (r#"{"city":"Oslo"}"#, &item["id"]));
    assert_eq!(sent[6]["response"]["output"], json!([item]));
    Ok(())
}

#[tokio::test]
async fn the_choice_of_a_client_reaches_the_model() -> Result<()> {
    let tasks = open().await?;
    let named = json!({ "type": "function", "function": { "name": WEATHER } });
    for (choice, wanted) in [
        (json!("none"), (false, true, json!(null))),
        (json!("auto"), (true, true, json!(null))),
        (json!("required"), (true, true, json!("required"))),
        (named, (true, false, json!("required"))),
    ] {
        tasks.llm.prepare([LlmReply::says(&["Sun."])]);
        let mut body = chat();
        (body["tool_choice"], body["parallel_tool_calls"]) = (choice.clone(), json!(false));
        let (status, answer) = tasks.api().post(CHAT, &body).await?;
        assert_eq!(status, 200, "{answer}");
        let asked = tasks.llm.requests().last().context("no request")?.json();
        let tools = asked["tools"].to_string();
        assert_eq!((tools.contains(WEATHER), tools.contains(LIST), asked["tool_choice"].clone()), wanted, "{choice}");
        assert_eq!(asked["parallel_tool_calls"], if choice == "none" { Value::Null } else { json!(false) });
    }
    Ok(())
}

#[tokio::test]
async fn a_call_without_arguments_as_json_stays_with_the_task() -> Result<()> {
    let tasks = open().await?;
    let function = |arguments: &str| json!({ "name": WEATHER, "arguments": arguments });
    let broken = json!([{ "index": 0, "id": "a", "type": "function", "function": function("{\"city\":") }]);
    let asked =
        json!({ "choices": [{ "index": 0, "delta": { "tool_calls": broken }, "finish_reason": "tool_calls" }] });
    tasks.llm.prepare([LlmReply::stream(&[asked]), calls(&[(WEATHER, json!({ "city": "Oslo" }))])]);
    let (status, answer) = tasks.api().post(CHAT, &chat()).await?;
    assert_eq!(status, 200, "{answer}");
    let calls = &answer["choices"][0]["message"]["tool_calls"];
    assert_eq!(
        (calls.as_array().map(Vec::len), text(&calls[0]["function"]["arguments"])),
        (Some(1), r#"{"city":"Oslo"}"#)
    );
    let told = tasks.messages(1)?;
    assert!(text(&told.last().context("no message")?["content"]).contains("did not run"), "{told:?}");
    Ok(())
}

/// The answer has a form. What the model says before its calls is no part of it.
#[tokio::test]
async fn an_answer_with_a_form_is_checked_and_stands_alone() -> Result<()> {
    let tasks = open().await?;
    let schema = json!({ "type": "object", "required": ["n"], "properties": { "n": { "type": "integer" } } });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "count", "schema": schema, "strict": true } });
    let script = || [asks(), LlmReply::says(&["Two."]), LlmReply::says(&["{\"n\": ", "2}"])];
    let mut body = chat();
    body["response_format"] = format;
    tasks.llm.prepare(script());
    let (status, answer) = tasks.api().post(CHAT, &body).await?;
    let message = &answer["choices"][0]["message"];
    assert_eq!((status, &message["content"]), (200, &Value::Null), "{answer}");
    let (status, answer) = tasks.api().post(CHAT, &followed(body.clone(), message)?).await?;
    assert_eq!((status, &answer["choices"][0]["message"]["content"]), (200, &json!("{\"n\": 2}")), "{answer}");
    assert!(text(&tasks.messages(2)?.last().context("no message")?["content"]).contains("it is not JSON"));

    // A stream sends nothing of the answers that do not fit.
    tasks.llm.prepare(script().into_iter().skip(1));
    body["tools"] = json!([]);
    let data = events(post(tasks.api(), CHAT, &streamed(body.clone())).send().await?).await?;
    let chunks: Vec<Value> = data.iter().filter_map(|data| serde_json::from_str(data).ok()).collect();
    assert_eq!(said(&chunks), "{\"n\": 2}");
    let format = json!({ "type": "json_schema", "name": "count", "schema": schema });
    let request = json!({ "model": "tester", "input": "Count.", "text": { "format": format } });
    tasks.llm.prepare(script().into_iter().skip(1));
    let (status, answer) = tasks.api().post(RESPONSES, &request).await?;
    assert_eq!((status, &answer["output"][0]["content"][0]["text"]), (200, &json!("{\"n\": 2}")), "{answer}");

    // The answer never fits, or the schema is none.
    tasks.llm.prepare((0..3).map(|_| LlmReply::says(&["Two."])));
    let (status, refused) = tasks.api().post(RESPONSES, &request).await?;
    assert_eq!((status, &refused["error"]["code"]), (502, &json!("upstream_error")), "{refused}");
    body["response_format"]["json_schema"]["schema"] = json!({ "type": "no type" });
    let (status, refused) = tasks.api().post(CHAT, &body).await?;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("response_format")), "{refused}");
    Ok(())
}

#[tokio::test]
async fn hostile_tools_are_refused() -> Result<()> {
    let tasks = open().await?;
    let with = |name: &str| json!({ "type": "function", "function": { "name": name, "parameters": parameters() } });
    let name = |index: usize| format!("tools[{index}].function.name");
    for (tools, param) in [
        (json!([with(LIST)]), name(0)),
        (json!([with(WEATHER), with("github_create_issue")]), name(1)),
        (json!([with(WEATHER), with(WEATHER)]), name(1)),
        (json!([with("llm_complete")]), name(0)),
        (json!([with("task_read_result")]), name(0)),
        (json!([with("task_call_tool")]), name(0)),
        (json!([with("agent_run")]), name(0)),
        (json!([with("look</tool-result>")]), name(0)),
        (json!([with("")]), name(0)),
        (json!([{ "type": "custom", "custom": { "name": "x" } }]), "tools[0].type".to_owned()),
        (json!(vec![with(WEATHER); 129]), "tools".to_owned()),
    ] {
        let mut body = ask("Hi");
        body["tools"] = tools;
        let (status, refused) = tasks.api().post(CHAT, &body).await?;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(param)), "{refused}");
    }
    // A bot that does not admit tools does not admit one of them, by any route.
    admit(tasks.api(), &tasks.world.bot, false).await?;
    for (path, body) in [(CHAT, chat()), (RESPONSES, response(&json!("Hi")))] {
        let (status, refused) = tasks.api().post(path, &body).await?;
        assert_eq!((status, &refused["error"]["param"]), (400, &json!("tools")), "{refused}");
    }
    assert!(tasks.llm.requests().is_empty());
    Ok(())
}

/// A model that makes a call of a tool that was not offered, with a name of a client's request that had another tool.
#[tokio::test]
async fn a_name_that_was_not_offered_is_an_unknown_tool() -> Result<()> {
    let tasks = open().await?;
    tasks.llm.prepare([calls(&[("look_up", json!({}))]), LlmReply::says(&["Nothing."])]);
    let (_, answer) = tasks.api().post(CHAT, &chat()).await?;
    assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
    let steps = tasks.steps(&task_of(&tasks, &answer["id"]).await?).await?;
    assert_eq!((text(&steps[1]["tool"]), text(&steps[1]["code"])), ("look_up", "denied"), "{steps:?}");
    Ok(())
}

/// Only the key, the bot and the user of a round continue it, and only with its ids, for an hour. All others read what they
/// have sent themselves.
#[tokio::test]
async fn a_round_is_continued_by_nobody_else() -> Result<()> {
    let tasks = open().await?;
    let api = tasks.api();
    let another = api.bot("another").await?;
    give_model(api, &another, "others", &tasks.llm).await?;
    let operator = api.with_key(&api.new_key("operator", None).await?);
    let message = asked(&tasks).await?;
    let with = |change: &dyn Fn(&mut Value)| {
        let mut body = ask("How is the weather?");
        change(&mut body);
        body
    };
    let forged =
        |from: &str, to: &str| -> Result<Value> { Ok(serde_json::from_str(&message.to_string().replace(from, to))?) };
    let id = text(&message["tool_calls"][0]["id"]).to_owned();
    let (task, rest) = (&id[5..37], &id[37..]);
    let unknown = monstrum_types::TaskId::new().to_string().replace('-', "");
    let mut fewer = message.clone();
    fewer["tool_calls"].as_array_mut().context("calls")?.pop();
    let named = json!({ "app_id": "app", "chat_id": "one" });
    let cases: [(&str, &Api, Value, Value); 6] = [
        ("another key", &operator, with(&|_| ()), message.clone()),
        ("another bot", api, with(&|body| body["model"] = json!("another")), message.clone()),
        (
            "another user",
            api,
            with(&|body| (body["user"], body["metadata"]) = (json!("ada"), named.clone())),
            message.clone(),
        ),
        ("another task", api, with(&|_| ()), forged(task, &unknown)?),
        ("another position", api, with(&|_| ()), forged(rest, "_0")?),
        ("fewer calls", api, with(&|_| ()), fewer),
    ];
    let read = async |what: &str, api: &Api, body: Value, message: &Value| -> Result<Vec<Value>> {
        tasks.llm.prepare([LlmReply::says(&["So be it."])]);
        let (status, answer) = api.post(CHAT, &followed(body, message)?).await?;
        ensure!(status == 200, "{what}: {status} {answer}");
        assert_eq!(task_of(&tasks, &answer["id"]).await?["labels"], json!(["*"]), "{what}");
        tasks.messages(tasks.llm.requests().len() - 1)
    };
    for (what, api, body, message) in cases {
        let messages = read(what, api, body, &message).await?;
        let said = &messages[2];
        assert_eq!(
            said["tool_calls"].as_array().map(Vec::len),
            message["tool_calls"].as_array().map(Vec::len),
            "{what}"
        );
        assert!(
            !said.to_string().contains("signature") && !messages[3].to_string().contains("success"),
            "{what}: {messages:?}"
        );
    }
    check_round(&read("the same", api, ask("How is the weather?"), &message).await?)?;
    let earlier = "update tasks set ended_at = ended_at - 3600001 where ended_at is not null";
    sqlite(&tasks.world.server.data_dir(), &[earlier]).await?;
    let messages = read("after an hour", api, ask("How is the weather?"), &message).await?;
    assert_eq!((messages.len(), text(&messages[2]["tool_calls"][0]["id"])), (5, id.as_str()));
    Ok(())
}

/// Each call of the client needs its result, in the same request.
#[tokio::test]
async fn calls_without_results_are_refused() -> Result<()> {
    let tasks = open().await?;
    let message = asked(&tasks).await?;
    let mut body = followed(chat(), &message)?;
    body["messages"].as_array_mut().context("messages")?.pop();
    let (status, refused) = tasks.api().post(CHAT, &body).await?;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("messages")), "{refused}");
    tasks.llm.prepare([asks()]);
    let (_, first) = tasks.api().post(RESPONSES, &response(&json!("Hi"))).await?;
    let mut body = response(&json!("Never mind."));
    body["previous_response_id"] = first["id"].clone();
    let (status, refused) = tasks.api().post(RESPONSES, &body).await?;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("messages")), "{refused}");
    assert_eq!(tasks.llm.requests().len(), 2);
    Ok(())
}
