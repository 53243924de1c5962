//! Errors in the form of OpenAI: `{error: {message, type, param, code}}`.
//!
//! Handlers below `/v1` answer with an [`OpenAiError`]. The problems of extractors and of the middleware get the same form
//! by [`render`].

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode, header};
use monstrum_agent::{Answer, AnswerError, TaskCode};
use monstrum_core::operations::OperationError;
use serde_json::{Value, json};

use crate::gateway::http::problem::Problem;

/// Tells the libraries of OpenAI whether they may repeat a request.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
const INVALID: &str = "invalid_request_error";

/// An error answer.
#[derive(Clone, Debug)]
pub(in crate::gateway) struct OpenAiError {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    message: String,
    /// The field of the request that the error concerns.
    param: Option<String>,
    retry_after_s: Option<u64>,
    /// Whether a repetition cannot help, or could do harm.
    is_final: bool,
}

impl OpenAiError {
    fn new(status: StatusCode, kind: &'static str, code: Option<&'static str>, message: impl Into<String>) -> Self {
        let (param, retry_after_s, is_final) = (None, None, false);
        OpenAiError { status, kind, code, message: message.into(), param, retry_after_s, is_final }
    }

    /// 400: the request has an error in this field.
    pub(super) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        let error = OpenAiError::new(StatusCode::BAD_REQUEST, INVALID, None, message);
        OpenAiError { param: Some(param.into()), ..error }
    }

    /// 400: the bot has no model.
    pub(super) fn no_model(message: impl Into<String>) -> Self {
        let error = OpenAiError::new(StatusCode::BAD_REQUEST, INVALID, Some("no_model"), message);
        OpenAiError { param: Some("model".to_owned()), ..error }
    }

    /// 404: the bot does not exist, or the caller may not use it.
    pub(super) fn model_not_found(model: &str) -> Self {
        const CHARS_MAX: usize = 128;
        let shown: String = model.chars().take(CHARS_MAX).collect();
        let message = format!("the model `{shown}` does not exist, or this key may not use it; a model is a bot");
        let error = OpenAiError::new(StatusCode::NOT_FOUND, INVALID, Some("model_not_found"), message);
        OpenAiError { param: Some("model".to_owned()), ..error }
    }

    /// 404: the response does not exist, is not kept, or belongs to another key.
    pub(super) fn response_not_found(param: &str) -> Self {
        let message = "no such response of this key; responses are kept for 30 days, unless `store` is false";
        let error = OpenAiError::new(StatusCode::NOT_FOUND, INVALID, Some("response_not_found"), message);
        OpenAiError { param: Some(param.to_owned()), ..error }
    }

    /// 503: the key was deleted, or the host stops while it makes the answer.
    pub(super) fn interrupted() -> Self {
        let message = "the answer was interrupted: the server stops, or the key was deleted; send the request again";
        OpenAiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", Some("unavailable"), message)
    }

    /// Returns why a task has no answer, or `None` if it has one.
    pub(super) fn of_task(answer: &Answer) -> Option<Self> {
        let task = &answer.task;
        if task.status == "completed" {
            return None;
        }
        let message = task.message.clone().unwrap_or_else(|| "the task was cancelled".to_owned());
        let code = task.code.as_deref().and_then(TaskCode::from_word);
        let error = |status, kind, code| Self::new(status, kind, Some(code), message.clone());
        let failed =
            OpenAiError { is_final: true, ..error(StatusCode::UNPROCESSABLE_ENTITY, "task_failed", "task_failed") };
        // A repetition could do again what the task has done.
        if answer.has_written {
            return Some(failed);
        }
        Some(match code {
            Some(TaskCode::Model | TaskCode::ModelOutput) => {
                error(StatusCode::BAD_GATEWAY, "upstream_error", "upstream_error")
            }
            Some(TaskCode::Budget) => OpenAiError {
                is_final: true,
                ..error(StatusCode::TOO_MANY_REQUESTS, "insufficient_quota", "insufficient_quota")
            },
            Some(TaskCode::Context) => OpenAiError {
                param: Some("messages".to_owned()),
                ..error(StatusCode::BAD_REQUEST, INVALID, "context_length_exceeded")
            },
            Some(TaskCode::Revoked) => error(StatusCode::UNAUTHORIZED, INVALID, "invalid_api_key"),
            Some(TaskCode::Internal) => error(StatusCode::INTERNAL_SERVER_ERROR, "server_error", "internal"),
            Some(TaskCode::Steps | TaskCode::WallClock | TaskCode::Stuck) | None => failed,
        })
    }

    /// Returns the code of the error, or its type if it has none.
    pub(super) fn code(&self) -> &'static str {
        self.code.unwrap_or(self.kind)
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// Returns the body.
    pub(super) fn body(&self) -> Value {
        json!({
            "error": { "message": self.message, "type": self.kind, "param": self.param, "code": self.code },
        })
    }
}

impl IntoResponse for OpenAiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.is_final {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        response
    }
}

impl From<Problem> for OpenAiError {
    fn from(problem: Problem) -> Self {
        let (status, kind, code) = match problem.status {
            StatusCode::UNAUTHORIZED => (StatusCode::UNAUTHORIZED, INVALID, Some("invalid_api_key")),
            StatusCode::FORBIDDEN => (StatusCode::FORBIDDEN, "permission_error", Some("forbidden")),
            StatusCode::TOO_MANY_REQUESTS => {
                (StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", Some("rate_limit_exceeded"))
            }
            StatusCode::BAD_GATEWAY => (StatusCode::BAD_GATEWAY, "upstream_error", Some("upstream_error")),
            // The libraries of OpenAI repeat a 409, and a repetition cannot resolve what the host calls a conflict.
            StatusCode::UNPROCESSABLE_ENTITY | StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED => {
                (StatusCode::BAD_REQUEST, INVALID, None)
            }
            status if status.is_server_error() => (status, "server_error", Some(problem.code())),
            status => (status, INVALID, Some(problem.code())),
        };
        let param = problem.errors().first().map(|error| field(&error.path)).filter(|field| !field.is_empty());
        let retry_after_s = problem.retry_after().map(|wait| wait.as_secs().max(1));
        OpenAiError { param, retry_after_s, ..OpenAiError::new(status, kind, code, problem.detail()) }
    }
}

impl From<OperationError> for OpenAiError {
    fn from(error: OperationError) -> Self {
        Problem::from(error).into()
    }
}

impl From<AnswerError> for OpenAiError {
    fn from(error: AnswerError) -> Self {
        match error {
            AnswerError::Operation(error) => error.into(),
            AnswerError::Diverged => {
                let message = error.to_string();
                OpenAiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", Some("unavailable"), message)
            }
        }
    }
}

/// Returns whether errors of this path have the form of OpenAI.
pub(in crate::gateway) fn covers(path: &str) -> bool {
    path == "/v1" || path.starts_with("/v1/")
}

/// Returns a problem in the form of OpenAI.
pub(in crate::gateway) fn render(problem: Problem) -> Response {
    OpenAiError::from(problem).into_response()
}

/// Returns a JSON pointer in the notation of OpenAI: `/messages/0/content` is `messages[0].content`.
fn field(pointer: &str) -> String {
    let mut field = String::new();
    for part in pointer.split('/').filter(|part| !part.is_empty()) {
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            field.extend(["[", part, "]"]);
        } else {
            if !field.is_empty() {
                field.push('.');
            }
            field.push_str(part);
        }
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(problem: Problem) -> (u16, Value) {
        let error = OpenAiError::from(problem);
        (error.status.as_u16(), error.body()["error"].clone())
    }

    #[test]
    fn problems_have_the_form_of_openai() {
        let (status, error) = shown(Problem::unauthenticated("unknown API key"));
        let expected =
            json!({ "message": "unknown API key", "type": INVALID, "param": null, "code": "invalid_api_key" });
        assert_eq!((status, error), (401, expected));
        let (status, error) = shown(Problem::invalid_at("/messages/0/content", "expected a text"));
        assert_eq!((status, &error["param"], &error["type"]), (400, &json!("messages[0].content"), &json!(INVALID)));
        for (problem, status, code) in [
            (Problem::not_found("route"), 404, "not_found"),
            (Problem::method_not_allowed(), 405, "method_not_allowed"),
            (Problem::too_large(7), 413, "too_large"),
            (Problem::full("later"), 429, "rate_limit_exceeded"),
            (Problem::unavailable("later"), 503, "unavailable"),
            (Problem::not_allowed("no"), 403, "forbidden"),
            (Problem::internal(&"x"), 500, "internal"),
        ] {
            let (found, error) = shown(problem);
            assert_eq!((found, &error["code"]), (status, &json!(code)), "{error}");
        }
        assert_eq!(shown(Problem::conflict("taken")).0, 400, "libraries repeat a 409");
    }

    #[test]
    fn fields_are_written_as_openai_writes_them() {
        assert_eq!(field("/messages/12/content/0/image_url"), "messages[12].content[0].image_url");
        assert_eq!((field("/model").as_str(), field("").as_str()), ("model", ""));
    }

    #[test]
    fn only_paths_below_v1_are_covered() {
        assert!(covers("/v1") && covers("/v1/") && covers("/v1/models"));
        assert!(!covers("/v10/models") && !covers("/api/v1/models") && !covers("/"));
    }
}
