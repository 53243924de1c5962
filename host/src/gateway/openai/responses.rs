//! `/v1/responses`: the Responses API of OpenAI. A response is a task, which is kept unless the client does not want it.

mod conversation;
mod items;
mod object;
mod stream;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use monstrum_agent::Tasks;
use monstrum_agent::requests::{RequestContent, ResponseContent, StoredResponse};
use monstrum_core::call_types::round::RoundOptions;
use monstrum_core::operations::{Caller, OperationError};
use monstrum_core::policy::Bot;
use monstrum_types::TaskId;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::gateway::http::extract::Id;
use crate::gateway::http::state::HttpState;
use crate::gateway::openai::errors::OpenAiError;
use crate::gateway::openai::repeats::Repeat;
use crate::gateway::openai::{
    Asked, bot_of, chat_of, check_effort, check_format, check_history, check_range, continue_rounds, read, schema_of,
    task_of, tools,
};
use conversation::Conversation;
use object::About;

/// The method and path of the route, to which a repetition belongs.
const ROUTE: &str = "POST /v1/responses";
/// The starts of the ids of responses and of their messages, before the id of the task.
const RESPONSE: &str = "resp_";
const MESSAGE: &str = "msg_";
/// The start of the id of a call in a response. The id of the task and the position of the call follow.
const FUNCTION_CALL: &str = "fc_";

/// A request. Fields that are not here are ignored.
#[derive(Deserialize)]
struct ResponseRequest {
    model: String,
    input: Value,
    instructions: Option<String>,
    previous_response_id: Option<String>,
    store: Option<bool>,
    stream: Option<bool>,
    background: Option<bool>,
    conversation: Option<Value>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    max_output_tokens: Option<u64>,
    text: Option<TextOptions>,
    reasoning: Option<ReasoningOptions>,
    user: Option<String>,
    metadata: Option<Map<String, Value>>,
    tools: Option<Value>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
}

#[derive(Deserialize)]
struct TextOptions {
    format: Option<Value>,
}

#[derive(Deserialize)]
struct ReasoningOptions {
    effort: Option<String>,
}

/// Answers a conversation, and keeps the answer
///
/// `model` is the name or the id of a bot. `previous_response_id` continues a conversation of the same bot and the same key.
/// The form is that of OpenAI's Responses, and so is that of errors.
#[utoipa::path(post, path = "/v1/responses", tag = "openai", request_body = Object,
    responses((status = 200, body = Object),
        (status = "4XX", body = Object, description = "`{error: {message, type, param, code}}`")))]
pub(in crate::gateway) async fn respond(
    State(state): State<HttpState>,
    caller: Caller,
    request: Request,
) -> Result<Response, OpenAiError> {
    let (headers, body, mut input) = read::<ResponseRequest>(request).await?;
    let bot = bot_of(&state, &caller, &input.model)?;
    refuse(&input)?;
    let (tools, tool_choice) = (input.tools.take(), input.tool_choice.take());
    let of_client = tools::Input { tools, tool_choice, parallel_tool_calls: input.parallel_tool_calls };
    let offered = tools::offered(&state, &caller, &bot, tools::Form::Responses, &of_client).await?;
    let chat = chat_of(&headers, input.user.as_deref(), input.metadata.as_ref());
    let listens = input.stream == Some(true);
    let (mut request, response) = content(&state.tasks, &caller, &bot, input).await?;
    request.client_tools = offered.tools;
    (request.options.tool_choice, request.options.parallel_tool_calls) = (offered.choice, offered.parallel);
    let form = ("text.format", request.options.response_format.as_ref());
    request.output_schema = schema_of(&state, &caller, &bot, form).await?;
    check_history(&state, &caller, &bot, &request)?;
    continue_rounds(&state, &caller, &bot, chat.as_ref(), &mut request).await?;
    let about = About::new(&request, &response);
    let request = RequestContent { response: Some(response), ..request };
    let repeat = Repeat::of(&headers, &caller, ROUTE, &body)?;
    let answered = task_of(&state, &caller, repeat, Asked { bot, request, chat, listens }).await?;
    if listens {
        return stream::answer(answered, about).await;
    }
    let answer = answered.attendance.answer().await?.ok_or_else(OpenAiError::interrupted)?;
    match OpenAiError::of_task(&answer) {
        Some(error) => Err(error),
        None => Ok(Json(about.of_answer(&answer)).into_response()),
    }
}

/// Shows a response
///
/// Only the key that has asked for a response can show it, for 30 days.
#[utoipa::path(get, path = "/v1/responses/{id}", tag = "openai", params(("id" = String, Path)),
    responses((status = 200, body = Object),
        (status = "4XX", body = Object, description = "`{error: {message, type, param, code}}`")))]
pub(in crate::gateway) async fn retrieve(
    State(state): State<HttpState>,
    caller: Caller,
    Id(id): Id<String>,
) -> Result<Response, OpenAiError> {
    let stored = stored(&state.tasks, &caller, (&id, RESPONSE), "id").await?;
    let StoredResponse { answer, request, response, .. } = stored;
    Ok(Json(About::new(&request, &response).of_answer(&answer)).into_response())
}

/// Refuses what this server does not have.
fn refuse(input: &ResponseRequest) -> Result<(), OpenAiError> {
    if input.background == Some(true) {
        return Err(OpenAiError::invalid("background", "`background` is not supported; start a task instead"));
    }
    if input.conversation.is_some() {
        let message = "`conversation` is not supported; use `previous_response_id`";
        return Err(OpenAiError::invalid("conversation", message));
    }
    Ok(())
}

/// Returns what the task is asked for.
async fn content(
    tasks: &Tasks,
    caller: &Caller,
    bot: &Bot,
    input: ResponseRequest,
) -> Result<(RequestContent, ResponseContent), OpenAiError> {
    check_range("temperature", input.temperature, 2.0)?;
    check_range("top_p", input.top_p, 1.0)?;
    if input.max_output_tokens == Some(0) {
        return Err(OpenAiError::invalid("max_output_tokens", "expected a number of at least 1"));
    }
    let effort = input.reasoning.and_then(|reasoning| reasoning.effort);
    check_effort("reasoning.effort", effort.as_deref())?;
    let format = input.text.and_then(|text| text.format);
    check_format("text.format", format.as_ref())?;
    let previous = input.previous_response_id.as_deref();
    let Conversation { history, labels, previous, .. } =
        Conversation::read(tasks, caller, bot, previous, input.input).await?;
    let options = RoundOptions {
        temperature: input.temperature,
        top_p: input.top_p,
        response_format: format.and_then(object::format_of_chat),
        reasoning_effort: effort,
        ..RoundOptions::default()
    };
    let response = ResponseContent {
        model: input.model,
        previous,
        is_stored: input.store != Some(false),
        metadata: input.metadata.unwrap_or_default(),
    };
    let (instructions, output_tokens) = (input.instructions, input.max_output_tokens);
    let request = RequestContent { history, labels, instructions, options, output_tokens, ..RequestContent::default() };
    Ok((request, response))
}

/// Returns the response whose id has this start.
async fn stored(
    tasks: &Tasks,
    caller: &Caller,
    (id, start): (&str, &str),
    param: &str,
) -> Result<StoredResponse, OpenAiError> {
    let absent = || OpenAiError::response_not_found(param);
    let task: TaskId = id.strip_prefix(start).and_then(|id| id.parse().ok()).ok_or_else(absent)?;
    stored_as(tasks, caller, task, param).await
}

/// Returns the response of this task.
async fn stored_as(tasks: &Tasks, caller: &Caller, task: TaskId, param: &str) -> Result<StoredResponse, OpenAiError> {
    tasks.response(caller, task).await.map_err(|error| match error {
        OperationError::NotFound(_) => OpenAiError::response_not_found(param),
        error => error.into(),
    })
}
