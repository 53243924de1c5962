//! The common format of errors: RFC 9457 `application/problem+json`.
//!
//! A handler returns a [`Problem`]. The outermost middleware adds the request id and writes the body, so that axum's
//! own errors, such as an unknown route, have the same format.

use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use monstrum_api::oauth::OauthProposal;
use monstrum_api::pins::PinnedTool;
use monstrum_core::operations::OperationError;
use monstrum_store::StoreError;
use monstrum_types::{DocumentError, InputError, with_causes};
use serde::Serialize;
use utoipa::ToSchema;

/// An error answer.
#[derive(Clone, Debug)]
pub struct Problem {
    pub status: StatusCode,
    code: &'static str,
    title: &'static str,
    detail: String,
    errors: Vec<ProblemError>,
    retry_after: Option<Duration>,
    /// The value of the header `WWW-Authenticate`.
    challenge: Option<Box<HeaderValue>>,
    current: Option<Box<Current>>,
}

/// The current state of what a request names with an earlier digest.
#[derive(Clone, Debug, Default)]
struct Current {
    proposal: Option<OauthProposal>,
    tools: Option<Vec<PinnedTool>>,
}

/// One validation error of the input.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ProblemError {
    /// The invalid part, as a JSON pointer (RFC 6901) into the input or into its document; empty for the whole.
    pub path: String,
    /// The line of the invalid part in a document, from 1. Absent for other inputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The column of the invalid part in characters, from 1. Absent for other inputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u64>,
    /// A description of the error.
    pub message: String,
    /// What to do about an error in a document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl From<InputError> for ProblemError {
    fn from(InputError { path, message }: InputError) -> ProblemError {
        ProblemError { path, line: None, column: None, message, hint: None }
    }
}

impl From<DocumentError> for ProblemError {
    fn from(DocumentError { path, line, column, message, hint }: DocumentError) -> ProblemError {
        ProblemError { path, line: Some(line), column: Some(column), message, hint }
    }
}

/// The body of an error response (RFC 9457).
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemBody {
    /// The type of the error: `urn:monstrum:error:` and a stable code such as `not_found`.
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    /// The id of this request in the server's log.
    pub request_id: String,
    /// The validation errors of the input. Absent for other errors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ProblemError>,
    /// The current proposal of an OAuth provider, if the request names another one. Absent for other errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proposal: Option<OauthProposal>,
    /// The current tools of a resource, if a decision names another definition of a tool. Absent for other errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<Vec<PinnedTool>>,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        Problem {
            status,
            code,
            title,
            detail: detail.into(),
            errors: Vec::new(),
            retry_after: None,
            challenge: None,
            current: None,
        }
    }

    pub(super) fn with_retry_after(self, wait: Duration) -> Self {
        Problem { retry_after: Some(wait), ..self }
    }

    /// Sets the value of the header `WWW-Authenticate`, which says how a client authenticates.
    pub fn with_challenge(self, challenge: HeaderValue) -> Self {
        Problem { challenge: Some(Box::new(challenge)), ..self }
    }

    /// Sets the current proposal of an OAuth provider, which the request did not name.
    pub fn with_proposal(self, proposal: OauthProposal) -> Self {
        let current = Current { proposal: Some(proposal), ..Current::default() };
        Problem { current: Some(Box::new(current)), ..self }
    }

    /// Sets the current tools of a resource, which are not those that the request names.
    pub fn with_tools(self, tools: Vec<PinnedTool>) -> Self {
        let current = Current { tools: Some(tools), ..Current::default() };
        Problem { current: Some(Box::new(current)), ..self }
    }

    /// Returns the description of the error, which contains no secrets.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Returns the stable code of the error.
    pub(in crate::gateway) fn code(&self) -> &'static str {
        self.code
    }

    /// Returns the validation errors of the input.
    pub(in crate::gateway) fn errors(&self) -> &[ProblemError] {
        &self.errors
    }

    /// Returns the time after which the client may try again.
    pub(in crate::gateway) fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// 401: the API key is missing or does not exist.
    pub fn unauthenticated(detail: impl Into<String>) -> Self {
        OperationError::Unauthenticated(detail.into()).into()
    }

    /// 403: the server rejects requests from this host or origin before it reads their key.
    pub fn not_allowed(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::FORBIDDEN, "forbidden", "The server does not accept this request", detail)
    }

    /// 401: a request to a webhook has neither a valid signature nor a valid token.
    pub fn unsigned(detail: impl Into<String>) -> Self {
        let title = "A valid signature or token is required";
        Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", title, detail)
    }

    /// 404: the object does not exist, or the caller has no right to see it.
    pub fn not_found(what: &str) -> Self {
        OperationError::not_found(what).into()
    }

    /// 405: the route exists, but does not support the method.
    pub fn method_not_allowed() -> Self {
        let detail = "this route does not support this method";
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "Method not allowed", detail)
    }

    /// 409: the object already exists, or is still in use.
    pub fn conflict(detail: impl Into<String>) -> Self {
        OperationError::Conflict(detail.into()).into()
    }

    /// 413: the body exceeds the limit.
    pub fn too_large(bytes_max: usize) -> Self {
        let detail = format!("the body exceeds the limit of {bytes_max} bytes");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "The body is too large", detail)
    }

    /// 422: the input has validation errors.
    pub fn invalid(errors: Vec<InputError>) -> Self {
        OperationError::Invalid(errors).into()
    }

    /// 422: the input has a single validation error.
    pub fn invalid_at(path: impl Into<String>, message: impl Into<String>) -> Self {
        OperationError::invalid_at(path, message).into()
    }

    /// 426: the route opens a `WebSocket` only.
    pub fn upgrade_required(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", "Open a WebSocket", detail)
    }

    /// 429: the server has no capacity for this request now.
    pub fn full(detail: impl Into<String>) -> Self {
        OperationError::Busy(detail.into()).into()
    }

    /// 408: the request did not arrive completely in time.
    pub fn timeout(detail: impl Into<String>) -> Self {
        OperationError::Timeout(detail.into()).into()
    }

    /// 503: the host cannot serve the request now.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        OperationError::Unavailable(detail.into()).into()
    }

    /// 500: an internal error. The cause is logged and never part of the answer.
    pub fn internal(cause: &dyn std::fmt::Display) -> Self {
        OperationError::internal(cause.to_string()).into()
    }

    /// Returns the problem as JSON, with `request_id`.
    pub fn text(&self, request_id: &str) -> String {
        let Current { proposal, tools } = self.current.as_deref().cloned().unwrap_or_default();
        let body = ProblemBody {
            kind: format!("urn:monstrum:error:{}", self.code),
            title: self.title.to_owned(),
            status: self.status.as_u16(),
            detail: self.detail.clone(),
            request_id: request_id.to_owned(),
            errors: self.errors.clone(),
            proposal,
            items: tools,
        };
        serde_json::to_string(&body).expect("a problem is plain strings and numbers")
    }

    /// Returns the response, with `request_id` in its body.
    pub fn render(self, request_id: &str) -> Response {
        let mut response = Response::new(Body::from(self.text(request_id)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        let bearer = || (self.status == StatusCode::UNAUTHORIZED).then(|| HeaderValue::from_static("Bearer"));
        if let Some(challenge) = self.challenge.map(|challenge| *challenge).or_else(bearer) {
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        if let Some(wait) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(wait.as_secs().max(1)));
        }
        response
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.status;
        response.extensions_mut().insert(self);
        response
    }
}

impl From<OperationError> for Problem {
    fn from(error: OperationError) -> Self {
        let (status, code, title) = match &error {
            OperationError::Unauthenticated(_) => {
                (StatusCode::UNAUTHORIZED, "unauthenticated", "A valid API key is required")
            }
            OperationError::Forbidden(_) => {
                (StatusCode::FORBIDDEN, "forbidden", "This key has no permission for this action")
            }
            OperationError::NotFound(_) => (StatusCode::NOT_FOUND, "not_found", "Not found"),
            OperationError::Conflict(_) => (StatusCode::CONFLICT, "conflict", "Conflict"),
            OperationError::PreconditionFailed => {
                (StatusCode::PRECONDITION_FAILED, "precondition_failed", "The object was changed")
            }
            OperationError::Invalid(_) | OperationError::InvalidDocument(_) => {
                (StatusCode::UNPROCESSABLE_ENTITY, "invalid", "The input is invalid")
            }
            OperationError::OverLimit(_) => (StatusCode::PAYLOAD_TOO_LARGE, "too_large", "A limit is exceeded"),
            OperationError::Busy(_) => (StatusCode::TOO_MANY_REQUESTS, "busy", "The server is busy"),
            OperationError::RateLimited { .. } => (StatusCode::TOO_MANY_REQUESTS, "rate_limited", "Too many requests"),
            OperationError::Undeliverable(_) => {
                (StatusCode::HTTP_VERSION_NOT_SUPPORTED, "http_version", "HTTP/1.1 or later is required")
            }
            OperationError::Timeout(_) => (StatusCode::REQUEST_TIMEOUT, "timeout", "The request timed out"),
            OperationError::BadGateway(_) => (StatusCode::BAD_GATEWAY, "bad_gateway", "An upstream server failed"),
            OperationError::Unavailable(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Temporarily unavailable")
            }
            OperationError::Unverified(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, "unverified", "The stored rows failed verification")
            }
            OperationError::Internal(cause) | OperationError::BrokenOff { source: cause, .. } => {
                tracing::error!(cause = %with_causes(cause.as_ref()), "request failed");
                (StatusCode::INTERNAL_SERVER_ERROR, "internal", "Internal error")
            }
        };
        let problem = Problem::new(status, code, title, error.to_string());
        match error {
            OperationError::Invalid(errors) => Problem { errors: listed(errors), ..problem },
            OperationError::InvalidDocument(errors) => Problem { errors: listed(errors), ..problem },
            OperationError::RateLimited { retry_after, .. } => problem.with_retry_after(retry_after),
            OperationError::Busy(_) | OperationError::Unavailable(_) => {
                problem.with_retry_after(Duration::from_secs(1))
            }
            _ => problem,
        }
    }
}

fn listed<E: Into<ProblemError>>(errors: Vec<E>) -> Vec<ProblemError> {
    errors.into_iter().map(Into::into).collect()
}

/// Converts errors of middleware that uses the store directly.
impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        OperationError::from(error).into()
    }
}
