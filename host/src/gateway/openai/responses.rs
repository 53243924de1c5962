//! `/v1/responses`: the Responses API of OpenAI. A response is a task, which is kept unless the client does not want it.

mod items;
mod object;
mod stream;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use monstrum_agent::Tasks;
use monstrum_agent::requests::{RequestContent, ResponseContent, StoredResponse, labels_of};
use monstrum_core::call_types::round::RoundOptions;
use monstrum_core::operations::{Caller, OperationError};
use monstrum_core::policy::Bot;
use monstrum_llm::{AssistantMessage, Message};
use monstrum_types::{Labels, TaskId};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::gateway::http::extract::Id;
use crate::gateway::http::state::HttpState;
use crate::gateway::openai::errors::OpenAiError;
use crate::gateway::openai::repeats::Repeat;
use crate::gateway::openai::{
    Asked, BODY_BYTES_MAX, bot_of, chat_of, check_effort, check_format, check_history, check_range, read, refuse_tools,
    task_of,
};
use object::About;

/// The method and path of the route, to which a repetition belongs.
const ROUTE: &str = "POST /v1/responses";
/// The starts of the ids of responses and of their messages, before the id of the task.
const RESPONSE: &str = "resp_";
const MESSAGE: &str = "msg_";
/// The maximum number of references of a request to earlier responses, each of which is read whole.
const REFERENCES_MAX: usize = 16;

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
    let (headers, body, input) = read::<ResponseRequest>(request).await?;
    let bot = bot_of(&state, &caller, &input.model)?;
    refuse(&bot, &input)?;
    let chat = chat_of(&headers, input.user.as_deref(), input.metadata.as_ref());
    let listens = input.stream == Some(true);
    let (request, response) = content(&state.tasks, &caller, &bot, input).await?;
    check_history(&state, &caller, &bot, &request)?;
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
fn refuse(bot: &Bot, input: &ResponseRequest) -> Result<(), OpenAiError> {
    refuse_tools(bot, input.tools.as_ref(), "tools")?;
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
    let (mut history, mut previous, mut labels) = (Vec::new(), None, Labels::none());
    if let Some(id) = &input.previous_response_id {
        let param = "previous_response_id";
        let earlier = of_bot(stored(tasks, caller, (id, RESPONSE), param).await?, bot, param)?;
        previous = Some(earlier.answer.task.id);
        labels.add(&earlier.labels);
        history = earlier.request.history;
        history.push(said(earlier.answer.text));
    }
    let mut references = 0;
    for item in items::read(input.input)? {
        history.push(match item {
            items::Item::Message(message) => {
                labels.add(&labels_of(std::slice::from_ref(&message)));
                message
            }
            items::Item::Reference { id, param } => {
                references += 1;
                if references > REFERENCES_MAX {
                    let message = format!("expected at most {REFERENCES_MAX} references to earlier responses");
                    return Err(OpenAiError::invalid("input", message));
                }
                let earlier = of_bot(stored(tasks, caller, (&id, MESSAGE), &param).await?, bot, &param)?;
                labels.add(&earlier.labels);
                said(earlier.answer.text)
            }
        });
    }
    let size: usize = history.iter().map(|message| serde_json::to_string(message).map_or(0, |text| text.len())).sum();
    if size > BODY_BYTES_MAX {
        let message = format!("the conversation exceeds the limit of {BODY_BYTES_MAX} bytes; begin another one");
        return Err(OpenAiError::invalid("previous_response_id", message));
    }
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
    Ok((RequestContent { history, labels, instructions, options, output_tokens, response: None }, response))
}

fn said(text: String) -> Message {
    Message::Assistant(AssistantMessage { text, ..AssistantMessage::default() })
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
    tasks.response(caller, task).await.map_err(|error| match error {
        OperationError::NotFound(_) => absent(),
        error => error.into(),
    })
}

/// Returns a response that a further request can continue: one of the same bot that is complete.
fn of_bot(stored: StoredResponse, bot: &Bot, param: &str) -> Result<StoredResponse, OpenAiError> {
    if stored.answer.task.bot_id != bot.row.id {
        return Err(OpenAiError::response_not_found(param));
    }
    if stored.answer.task.status != "completed" {
        return Err(OpenAiError::invalid(param, "the response is not complete, so it cannot be continued"));
    }
    Ok(stored)
}
