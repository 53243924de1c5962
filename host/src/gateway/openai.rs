//! `/v1`: bots for clients of the OpenAI API. A model is a bot, and a request is a task without a session.
//!
//! The libraries of OpenAI repeat requests by themselves, and people close their connections. So a repeated request joins
//! the task of the first one, and a task whose clients have all gone ends.

mod chat;
mod errors;
mod messages;
mod models;
mod repeats;
mod responses;
mod tools;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::Request;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use http::{HeaderMap, HeaderName};
use monstrum_agent::Attendance;
use monstrum_agent::client_tools::Continues;
use monstrum_agent::requests::{EarlierTask, RequestContent};
use monstrum_api::tasks::Task;
use monstrum_api::tools::Chat;
use monstrum_core::models::candidates;
use monstrum_core::operations::tools::bot_called;
use monstrum_core::operations::{Caller, OperationError};
use monstrum_core::policy::Bot;
use monstrum_llm::request::check_results;
use monstrum_llm::{Message, Part};
use monstrum_types::TaskId;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::gateway::http::extract::{read_body, whole_body_of};
use crate::gateway::http::state::HttpState;
use crate::gateway::http::streams::{StreamPlace, Streams};
use crate::gateway::openai::errors::OpenAiError;
use crate::gateway::openai::messages::MESSAGES_MAX;
use crate::gateway::openai::repeats::{Entry, Repeat};

pub(super) use chat::{__path_complete, complete};
pub(super) use errors::{covers, render};
pub(super) use models::{__path_list, __path_show, list, show};
pub(super) use responses::{__path_respond, __path_retrieve, respond, retrieve};

/// The maximum size of a request. It has room for several images. The record of a task has at most 16 MiB, and also has
/// the answer, which has at most 8 MiB.
const BODY_BYTES_MAX: usize = 6 << 20;
/// The maximum number of requests that wait for their answers. Each reads the database once a second.
const REQUESTS_MAX: usize = 1024;
/// The same maximum for one key.
const REQUESTS_OF_KEY_MAX: usize = 256;
/// The headers in which `Open WebUI` names the user and the conversation.
const USER_HEADERS: [&str; 2] = ["x-openwebui-user-id", "x-openwebui-chat-id"];
static PLACES: LazyLock<Streams> = LazyLock::new(|| Streams::new(REQUESTS_OF_KEY_MAX, REQUESTS_MAX));
/// The interval of comments in a silent stream, shorter than the time-outs of common proxies.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Tells nginx not to hold events back.
const UNBUFFERED: (HeaderName, &str) = (HeaderName::from_static("x-accel-buffering"), "no");
/// The app of conversations whose user and chat `Open WebUI` names in its headers.
const OPEN_WEBUI: &str = "open-webui";
/// The maximum number of texts that end an answer, as OpenAI permits.
const STOPS_MAX: usize = 4;
/// The maximum size of a text that ends an answer, of the name of an effort, and of a format, in bytes.
const STOP_BYTES_MAX: usize = 1000;
const EFFORT_BYTES_MAX: usize = 32;
const FORMAT_BYTES_MAX: usize = 64 << 10;

/// Reads the body of a request.
async fn read<T>(request: Request) -> Result<(HeaderMap, Bytes, T), OpenAiError>
where
    T: DeserializeOwned + Send + 'static,
{
    let (parts, body) = request.into_parts();
    let body = whole_body_of(body, BODY_BYTES_MAX).await?;
    let input = read_body(body.clone()).await?;
    Ok((parts.headers, body, input))
}

/// Returns the bot that a request names as its model.
fn bot_of(state: &HttpState, caller: &Caller, model: &str) -> Result<Arc<Bot>, OpenAiError> {
    bot_called(&state.app, caller, model).map_err(|error| match error {
        OperationError::NotFound(_) => OpenAiError::model_not_found(model),
        error => error.into(),
    })
}

/// Checks that a model can read a conversation.
fn check_history(state: &HttpState, caller: &Caller, bot: &Bot, request: &RequestContent) -> Result<(), OpenAiError> {
    let param = "messages";
    if request.history.len() > MESSAGES_MAX {
        return Err(OpenAiError::invalid(param, format!("expected at most {MESSAGES_MAX} messages")));
    }
    let conversation = request.conversation();
    if conversation.is_empty() {
        return Err(OpenAiError::invalid(param, "expected at least one message of the user"));
    }
    check_results(&conversation).map_err(|error| OpenAiError::invalid(param, error.to_string()))?;
    let now = state.app.clock.now();
    let models = candidates(&state.app.policy.load(), caller.workspace, bot.row.id, now)
        .map_err(|error| OpenAiError::no_model(error.to_string()))?;
    let has_images = conversation.iter().any(|message| {
        matches!(message, Message::User { parts } if parts.iter().any(|part| matches!(part, Part::Image { .. })))
    });
    if has_images && models.first().is_some_and(|first| !first.model.vision) {
        return Err(OpenAiError::invalid(param, "the model of the bot does not read images"));
    }
    Ok(())
}

/// Continues with the rounds of earlier tasks whose calls the client has answered. The conversation has been checked.
async fn continue_rounds(
    state: &HttpState,
    caller: &Caller,
    bot: &Bot,
    chat: Option<&Chat>,
    request: &mut RequestContent,
) -> Result<(), OpenAiError> {
    let history = std::mem::take(&mut request.history);
    let bytes_max = BODY_BYTES_MAX.saturating_sub(size_of(&history));
    let continues = Continues { bot: bot.row.id, chat, bytes_max };
    request.history = state.tasks.continued(caller, continues, history).await?;
    Ok(())
}

/// Returns the size of a conversation, in bytes of JSON.
fn size_of(history: &[Message]) -> usize {
    history.iter().map(|message| serde_json::to_string(message).map_or(0, |text| text.len())).sum()
}

/// Returns the schema that the answer must fit if it is to have a format, which is in the form of Chat Completions. A
/// format that is not JSON is left to the model.
async fn schema_of(
    state: &HttpState,
    caller: &Caller,
    bot: &Bot,
    (param, format): (&str, Option<&Value>),
) -> Result<Option<Map<String, Value>>, OpenAiError> {
    let any = || json!({ "type": "object" });
    let schema = match format.map(|format| (format["type"].as_str(), &format["json_schema"]["schema"])) {
        Some((Some("json_object"), _)) => any(),
        Some((Some("json_schema"), schema)) if schema.is_null() => any(),
        Some((Some("json_schema"), schema)) => schema.clone(),
        _ => return Ok(None),
    };
    let checked = state.tasks.checked_schema(caller, bot.row.id, schema).await;
    checked.map_err(|error| match error {
        OperationError::Invalid(errors) => {
            let message = errors.first().map_or("the schema is not valid", |error| error.message.as_str());
            OpenAiError::invalid(param, message)
        }
        error => error.into(),
    })
}

/// Refuses a number outside of its range.
fn check_range(param: &str, number: Option<f64>, max: f64) -> Result<(), OpenAiError> {
    match number {
        Some(number) if !(0.0..=max).contains(&number) => {
            Err(OpenAiError::invalid(param, format!("expected a number from 0 to {max}")))
        }
        _ => Ok(()),
    }
}

/// Refuses the name of an effort that is too long.
fn check_effort(param: &str, effort: Option<&str>) -> Result<(), OpenAiError> {
    match effort {
        Some(effort) if effort.is_empty() || effort.len() > EFFORT_BYTES_MAX => {
            Err(OpenAiError::invalid(param, "expected the name of an effort, such as `low`"))
        }
        _ => Ok(()),
    }
}

/// Refuses a format that is not an object with a type, or that is too large.
fn check_format(param: &str, format: Option<&Value>) -> Result<(), OpenAiError> {
    let Some(format) = format else { return Ok(()) };
    if !format["type"].is_string() {
        return Err(OpenAiError::invalid(param, "expected an object with a `type`"));
    }
    if format.to_string().len() > FORMAT_BYTES_MAX {
        return Err(OpenAiError::invalid(param, format!("expected at most {FORMAT_BYTES_MAX} bytes")));
    }
    Ok(())
}

/// Returns the conversation that a request names: by `user` and `metadata`, or by the headers of `Open WebUI`. A request that
/// names only parts of it has none.
fn chat_of(headers: &HeaderMap, user: Option<&str>, metadata: Option<&Map<String, Value>>) -> Option<Chat> {
    let field = |name: &str| metadata?.get(name)?.as_str();
    let chat = |app_id: &str, user_id: &str, chat_id: &str| Chat {
        app_id: app_id.to_owned(),
        user_id: user_id.to_owned(),
        chat_id: chat_id.to_owned(),
    };
    if let (Some(app), Some(user), Some(id)) = (field("app_id"), user, field("chat_id")) {
        return Some(chat(app, user, id));
    }
    let header = |name: &str| headers.get(name)?.to_str().ok().filter(|value| !value.is_empty());
    let (user, id) = header(USER_HEADERS[0]).zip(header(USER_HEADERS[1]))?;
    Some(chat(OPEN_WEBUI, user, id))
}

/// A request that is answered by a task.
struct Asked {
    bot: Arc<Bot>,
    request: RequestContent,
    chat: Option<Chat>,
    /// Whether the client gets the text as it arrives.
    listens: bool,
}

/// The task of a request, and the place of the request.
struct Answered {
    task: Task,
    attendance: Attendance,
    /// Whether this request has started the task.
    is_new: bool,
    place: StreamPlace,
}

/// Starts the task of a request, or joins the task of the request that this one repeats.
async fn task_of(
    state: &HttpState,
    caller: &Caller,
    repeat: Option<Repeat>,
    asked: Asked,
) -> Result<Answered, OpenAiError> {
    let place = PLACES.enter(caller.key)?;
    let (tasks, bot) = (&state.tasks, asked.bot.row.id);
    let entry = match repeat {
        Some(repeat) => repeat.entry(&state.app, tasks, caller, bot).await?,
        None => Entry::Starts(TaskId::new()),
    };
    let attend = |id: TaskId| tasks.attend(caller, id, asked.listens);
    let id = match entry {
        Entry::Starts(id) => {
            let attendance = attend(id);
            match tasks.start_request(caller, (bot, id), asked.request, asked.chat).await {
                Ok(task) => return Ok(Answered { task, attendance, is_new: true, place }),
                // Another repetition of the request may have started the task in the meantime.
                Err(error) => match tasks.earlier_task(caller, bot, id).await {
                    Ok(EarlierTask::Joinable | EarlierTask::Ending | EarlierTask::Failed) => id,
                    Ok(EarlierTask::Absent) | Err(_) => {
                        attendance.abandon();
                        return Err(error.into());
                    }
                },
            }
        }
        Entry::Joins(id) => id,
    };
    let attendance = attend(id);
    let task = tasks.show(caller, id).await?;
    Ok(Answered { task, attendance, is_new: false, place })
}

/// Returns events as an answer that is not held back on its way.
fn events<S>(events: S) -> Response
where
    S: Stream<Item = Result<Event, std::convert::Infallible>> + Send + 'static,
{
    ([UNBUFFERED], Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))).into_response()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_conversation_is_named_as_a_whole_or_not_at_all() {
        let none = HeaderMap::new();
        let metadata = json!({ "app_id": "app", "chat_id": "one", "other": 1 });
        let chat = chat_of(&none, Some("ada"), metadata.as_object()).unwrap();
        assert_eq!((chat.app_id.as_str(), chat.user_id.as_str(), chat.chat_id.as_str()), ("app", "ada", "one"));
        assert!(chat_of(&none, None, metadata.as_object()).is_none());
        assert!(chat_of(&none, Some("ada"), json!({ "app_id": "app" }).as_object()).is_none());
        assert!(chat_of(&none, Some("ada"), None).is_none());
        let mut headers = HeaderMap::new();
        headers.insert("x-openwebui-user-id", HeaderValue::from_static("ada"));
        assert!(chat_of(&headers, None, None).is_none());
        headers.insert("x-openwebui-chat-id", HeaderValue::from_static("two"));
        let chat = chat_of(&headers, Some("ignored"), None).unwrap();
        assert_eq!((chat.app_id.as_str(), chat.user_id.as_str(), chat.chat_id.as_str()), (OPEN_WEBUI, "ada", "two"));
    }

    #[test]
    fn options_have_ranges() {
        assert!(check_range("temperature", Some(2.0), 2.0).is_ok() && check_range("temperature", None, 2.0).is_ok());
        for bad in [-0.1, 2.1, f64::NAN, f64::INFINITY] {
            assert!(check_range("temperature", Some(bad), 2.0).is_err(), "{bad}");
        }
        assert!(check_effort("e", Some("low")).is_ok());
        assert!(check_effort("e", Some("")).is_err() && check_effort("e", Some(&"x".repeat(33))).is_err());
        assert!(check_format("f", Some(&json!({ "type": "json_object" }))).is_ok());
        for bad in [json!("json"), json!({}), json!({ "type": "json_schema", "schema": "x".repeat(FORMAT_BYTES_MAX) })]
        {
            assert!(check_format("f", Some(&bad)).is_err());
        }
    }
}
