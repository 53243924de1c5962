//! `POST /v1/chat/completions`.

mod stream;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use monstrum_agent::Answer;
use monstrum_agent::client_tools::ClientCall;
use monstrum_agent::requests::{RequestContent, labels_of};
use monstrum_api::tasks::{Task, TokenUsage};
use monstrum_core::call_types::round::RoundOptions;
use monstrum_core::operations::Caller;
use monstrum_core::policy::Bot;
use monstrum_llm::{Arguments, AssistantMessage, Message, ToolCall};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::gateway::http::state::HttpState;
use crate::gateway::openai::errors::OpenAiError;
use crate::gateway::openai::messages;
use crate::gateway::openai::repeats::Repeat;
use crate::gateway::openai::tools::{self, Offered, refuse_functions};
use crate::gateway::openai::{
    Answered, Asked, STOP_BYTES_MAX, STOPS_MAX, bot_of, chat_of, check_effort, check_format, check_history,
    check_range, continue_rounds, read, schema_of, task_of,
};

/// The method and path of the route, to which a repetition belongs.
const ROUTE: &str = "POST /v1/chat/completions";
/// The maximum number of calls of a message.
const CALLS_MAX: usize = 128;

/// A request. Fields that are not here are ignored.
#[derive(Deserialize)]
struct ChatRequest {
    model: String,
    messages: Vec<ChatMessage>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    n: Option<u64>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    stop: Option<Value>,
    seed: Option<i64>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    response_format: Option<Value>,
    reasoning_effort: Option<String>,
    user: Option<String>,
    metadata: Option<Map<String, Value>>,
    tools: Option<Value>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    functions: Option<Value>,
}

#[derive(Clone, Copy, Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Deserialize)]
struct ChatMessage {
    role: String,
    content: Option<Value>,
    refusal: Option<String>,
    tool_calls: Option<Vec<ChatCall>>,
    tool_call_id: Option<String>,
}

#[derive(Deserialize)]
struct ChatCall {
    id: String,
    function: ChatFunction,
}

#[derive(Deserialize)]
struct ChatFunction {
    name: String,
    #[serde(default)]
    arguments: String,
}

/// Answers a conversation
///
/// `model` is the name or the id of a bot, which answers with its own model and its own tools. The request is a task. The
/// form is that of OpenAI's Chat Completions, and so is that of errors.
#[utoipa::path(post, path = "/v1/chat/completions", tag = "openai", request_body = Object,
    responses((status = 200, body = Object),
        (status = "4XX", body = Object, description = "`{error: {message, type, param, code}}`")))]
pub(in crate::gateway) async fn complete(
    State(state): State<HttpState>,
    caller: Caller,
    request: Request,
) -> Result<Response, OpenAiError> {
    let (headers, body, mut input) = read::<ChatRequest>(request).await?;
    let bot = bot_of(&state, &caller, &input.model)?;
    refuse_functions(input.functions.as_ref())?;
    if input.n.is_some_and(|n| n != 1) {
        return Err(OpenAiError::invalid("n", "only one answer is possible"));
    }
    let chat = chat_of(&headers, input.user.as_deref(), input.metadata.as_ref());
    let (listens, model) = (input.stream == Some(true), input.model.clone());
    let with_usage = input.stream_options.and_then(|options| options.include_usage) == Some(true);
    let Offered { tools, choice, parallel } = offered_to(&state, &caller, &bot, &mut input).await?;
    let mut request = content(input)?;
    (request.client_tools, request.options.tool_choice, request.options.parallel_tool_calls) =
        (tools, choice, parallel);
    let form = ("response_format", request.options.response_format.as_ref());
    request.output_schema = schema_of(&state, &caller, &bot, form).await?;
    check_history(&state, &caller, &bot, &request)?;
    continue_rounds(&state, &caller, &bot, chat.as_ref(), &mut request).await?;
    let has_form = request.has_form();
    let repeat = Repeat::of(&headers, &caller, ROUTE, &body)?;
    let answered = task_of(&state, &caller, repeat, Asked { bot, request, chat, listens }).await?;
    let head = Head::new(&answered.task, model, has_form);
    if listens {
        return stream::answer(answered, head, with_usage).await;
    }
    whole(&answered, &head).await
}

/// Answers when the task has ended.
async fn whole(answered: &Answered, head: &Head) -> Result<Response, OpenAiError> {
    let answer = answered.attendance.answer().await?.ok_or_else(OpenAiError::interrupted)?;
    if let Some(error) = OpenAiError::of_task(&answer) {
        return Err(error);
    }
    let text = answer.shown_text(head.has_form);
    let calls = tool_calls(&answer);
    let content = if text.is_empty() && !calls.is_empty() { Value::Null } else { json!(text) };
    let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    let choice = json!({
        "index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason(&answer),
    });
    let completion = json!({
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": [choice],
        "usage": usage(answer.task.usage),
    });
    Ok(Json(completion).into_response())
}

/// What every part of an answer says about it.
struct Head {
    id: String,
    /// In seconds since 1970.
    created: i64,
    /// The model, as the client named it.
    model: String,
    /// Whether the answer has a form, so that only the last text is its text.
    has_form: bool,
}

impl Head {
    fn new(task: &Task, model: String, has_form: bool) -> Head {
        Head { id: format!("chatcmpl-{}", task.id), created: task.created_at.0 / 1000, model, has_form }
    }
}

/// Reads the tools of a request.
async fn offered_to(
    state: &HttpState,
    caller: &Caller,
    bot: &Bot,
    input: &mut ChatRequest,
) -> Result<Offered, OpenAiError> {
    let (tools, tool_choice) = (input.tools.take(), input.tool_choice.take());
    let of_client = tools::Input { tools, tool_choice, parallel_tool_calls: input.parallel_tool_calls };
    tools::offered(state, caller, bot, tools::Form::Chat, &of_client).await
}

fn finish_reason(answer: &Answer) -> &'static str {
    match (answer.client_calls.is_empty(), answer.is_cut) {
        (false, _) => "tool_calls",
        (true, true) => "length",
        (true, false) => "stop",
    }
}

/// Returns the calls that the client is to run.
fn tool_calls(answer: &Answer) -> Vec<Value> {
    let call = |call: &ClientCall| {
        let function = json!({ "name": call.name, "arguments": call.arguments });
        json!({ "id": call.id.to_string(), "type": "function", "function": function })
    };
    answer.client_calls.iter().map(call).collect()
}

fn usage(usage: TokenUsage) -> Value {
    let TokenUsage { input_tokens, output_tokens } = usage;
    json!({
        "prompt_tokens": input_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": input_tokens.saturating_add(output_tokens),
    })
}

/// Returns what the task is asked for.
fn content(input: ChatRequest) -> Result<RequestContent, OpenAiError> {
    check_range("temperature", input.temperature, 2.0)?;
    check_range("top_p", input.top_p, 1.0)?;
    check_effort("reasoning_effort", input.reasoning_effort.as_deref())?;
    check_format("response_format", input.response_format.as_ref())?;
    for (param, tokens) in [("max_tokens", input.max_tokens), ("max_completion_tokens", input.max_completion_tokens)] {
        if tokens == Some(0) {
            return Err(OpenAiError::invalid(param, "expected a number of at least 1"));
        }
    }
    if input.messages.len() > messages::MESSAGES_MAX {
        let message = format!("expected at most {} messages", messages::MESSAGES_MAX);
        return Err(OpenAiError::invalid("messages", message));
    }
    let stop = stops(input.stop.as_ref())?;
    let history = input.messages.into_iter().enumerate();
    let history = history.map(|(index, message)| read_message(message, &format!("messages[{index}]")));
    let history = history.collect::<Result<Vec<_>, _>>()?;
    let options = RoundOptions {
        temperature: input.temperature,
        top_p: input.top_p,
        stop,
        seed: input.seed,
        // Plain text is no format.
        response_format: input.response_format.filter(|format| format["type"] != "text"),
        reasoning_effort: input.reasoning_effort,
        ..RoundOptions::default()
    };
    Ok(RequestContent {
        labels: labels_of(&history),
        history,
        options,
        output_tokens: input.max_completion_tokens.or(input.max_tokens),
        ..RequestContent::default()
    })
}

/// Returns the texts that end the answer: one text, or a list of them.
fn stops(stop: Option<&Value>) -> Result<Vec<String>, OpenAiError> {
    let texts: Option<Vec<&str>> = match stop {
        None => return Ok(Vec::new()),
        Some(Value::Array(texts)) => texts.iter().map(Value::as_str).collect(),
        Some(text) => text.as_str().map(|text| vec![text]),
    };
    let is_right = |text: &&str| (1..=STOP_BYTES_MAX).contains(&text.len());
    match texts {
        Some(texts) if texts.len() <= STOPS_MAX && texts.iter().all(is_right) => {
            Ok(texts.into_iter().map(str::to_owned).collect())
        }
        _ => {
            let message = format!("expected a text or at most {STOPS_MAX} texts of 1 to {STOP_BYTES_MAX} bytes");
            Err(OpenAiError::invalid("stop", message))
        }
    }
}

fn read_message(message: ChatMessage, param: &str) -> Result<Message, OpenAiError> {
    let ChatMessage { role, content, refusal, tool_calls, tool_call_id } = message;
    let (content, place) = (content.as_ref(), format!("{param}.content"));
    Ok(match role.as_str() {
        "system" | "developer" => Message::System { text: messages::text(content, &place)? },
        "user" => Message::User { parts: messages::parts(content, &place)? },
        "assistant" => {
            let calls = tool_calls.unwrap_or_default();
            if calls.len() > CALLS_MAX {
                let message = format!("expected at most {CALLS_MAX} calls");
                return Err(OpenAiError::invalid(format!("{param}.tool_calls"), message));
            }
            let text = match (content, refusal) {
                (None, Some(refusal)) => refusal,
                (None, None) if !calls.is_empty() => String::new(),
                (content, _) => messages::text(content, &place)?,
            };
            let calls = calls.into_iter().map(call).collect();
            Message::Assistant(AssistantMessage { text, calls, ..AssistantMessage::default() })
        }
        "tool" => {
            let absent = || OpenAiError::invalid(format!("{param}.tool_call_id"), "expected the id of a call");
            Message::Tool { call_id: tool_call_id.ok_or_else(absent)?, text: messages::text(content, &place)? }
        }
        _ => {
            let message = "expected system, developer, user, assistant or tool";
            return Err(OpenAiError::invalid(format!("{param}.role"), message));
        }
    })
}

fn call(call: ChatCall) -> ToolCall {
    let ChatCall { id, function } = call;
    let arguments = Arguments::new(function.arguments);
    ToolCall { id, name: function.name, arguments, extra: Map::new(), function_extra: Map::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: Value) -> Result<RequestContent, Value> {
        let input = serde_json::from_value(input).map_err(|error| json!(error.to_string()))?;
        content(input).map_err(|error| error.body()["error"]["param"].clone())
    }

    #[test]
    fn messages_of_every_role_are_read() {
        let call = json!({ "id": "c", "type": "function", "function": { "name": "look", "arguments": "{}" } });
        let request = read(json!({
            "model": "helper",
            "messages": [
                { "role": "system", "content": "Be brief." },
                { "role": "developer", "content": [{ "type": "text", "text": "And kind." }] },
                { "role": "user", "content": "Hi", "name": "ada" },
                { "role": "assistant", "content": null, "tool_calls": [call] },
                { "role": "tool", "tool_call_id": "c", "content": "1" },
                { "role": "assistant", "content": "Hello" },
            ],
        }))
        .unwrap();
        let system = |text: &str| Message::System { text: text.to_owned() };
        assert_eq!(request.history[..3], [system("Be brief."), system("And kind."), Message::user("Hi")]);
        assert!(matches!(&request.history[3], Message::Assistant(said) if said.calls[0].name == "look"));
        assert_eq!(request.history[4], Message::Tool { call_id: "c".to_owned(), text: "1".to_owned() });
        assert_eq!(request.conversation().len(), 4);
    }

    #[test]
    fn options_are_passed_on() {
        let messages = json!([{ "role": "user", "content": "Hi" }]);
        let request = read(json!({
            "model": "helper", "messages": messages, "temperature": 0.5, "top_p": 0.9, "stop": "END", "seed": 7,
            "max_tokens": 10, "max_completion_tokens": 20, "response_format": { "type": "json_object" },
            "reasoning_effort": "low", "logit_bias": {}, "store": true,
        }))
        .unwrap();
        let expected = RoundOptions {
            temperature: Some(0.5),
            top_p: Some(0.9),
            stop: vec!["END".to_owned()],
            seed: Some(7),
            response_format: Some(json!({ "type": "json_object" })),
            reasoning_effort: Some("low".to_owned()),
            ..RoundOptions::default()
        };
        assert_eq!((request.options, request.output_tokens), (expected, Some(20)));
    }

    #[test]
    fn errors_name_the_field() {
        let hi = json!([{ "role": "user", "content": "Hi" }]);
        for (field, value, param) in [
            ("temperature", json!(3), "temperature"),
            ("top_p", json!(-1), "top_p"),
            ("stop", json!(["a", "b", "c", "d", "e"]), "stop"),
            ("stop", json!(7), "stop"),
            ("stop", json!([""]), "stop"),
            ("max_tokens", json!(0), "max_tokens"),
            ("max_completion_tokens", json!(0), "max_completion_tokens"),
            ("response_format", json!("json"), "response_format"),
            ("messages", json!([{ "role": "user" }]), "messages[0].content"),
            ("messages", json!([{ "role": "assistant" }]), "messages[0].content"),
            ("messages", json!([{ "role": "tool", "content": "1" }]), "messages[0].tool_call_id"),
            ("messages", json!([{ "role": "boss", "content": "1" }]), "messages[0].role"),
            (
                "messages",
                json!(vec![json!({ "role": "user", "content": "x" }); messages::MESSAGES_MAX + 1]),
                "messages",
            ),
        ] {
            let mut input = json!({ "model": "helper", "messages": hi });
            input[field] = value;
            assert_eq!(read(input).unwrap_err(), param, "{field}");
        }
    }
}
