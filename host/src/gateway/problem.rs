//! The one envelope of errors: RFC 9457 `application/problem+json`.
//!
//! A handler returns a [`Problem`]; the outermost middleware adds the request id and writes the body, so that errors of
//! axum's own, such as an unknown route, look the same.

use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use monstrum_store::StoreError;
use monstrum_types::{InputError, InvalidId};
use serde::Serialize;
use utoipa::ToSchema;

/// An answer that is not what was asked for.
#[derive(Clone, Debug)]
pub struct Problem {
    pub status: StatusCode,
    code: &'static str,
    title: &'static str,
    detail: String,
    errors: Vec<InputError>,
    retry_after: Option<Duration>,
}

/// A problem as it is written (RFC 9457).
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemBody {
    /// Stable: `urn:monstrum:error:` and a word such as `not_found`.
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    /// Names this request in the server's log.
    pub request_id: String,
    /// What is wrong with the input, where it is the input's fault.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<InputError>,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        Problem { status, code, title, detail: detail.into(), errors: Vec::new(), retry_after: None }
    }

    /// 401: no key, or one that does not exist.
    pub fn unauthenticated(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", "A valid API key is needed", detail)
    }

    /// What went wrong, in words that may be shown.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// 403: the caller is known and may not do this.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::FORBIDDEN, "forbidden", "This key may not do that", detail)
    }

    /// 404: absent, or not the caller's to see.
    pub fn not_found(what: &str) -> Self {
        Problem::new(StatusCode::NOT_FOUND, "not_found", "Not found", format!("no such {what}"))
    }

    /// 405: the route exists, the method does not.
    pub fn method_not_allowed() -> Self {
        let detail = "this route does not answer that method";
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "Method not allowed", detail)
    }

    /// 409: it exists already, or is still in use.
    pub fn conflict(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::CONFLICT, "conflict", "Conflict", detail)
    }

    /// 413: the body is over the limit.
    pub fn too_large(bytes_max: usize) -> Self {
        let detail = format!("the body may have {bytes_max} bytes at most");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "The body is too large", detail)
    }

    /// 413: what is asked for is over a limit other than that of the body.
    pub fn over_limit(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "It is over a limit", detail)
    }

    /// 404 in words of its own.
    pub fn absent(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::NOT_FOUND, "not_found", "Not found", detail)
    }

    /// 422: the input has faults.
    pub fn invalid(errors: Vec<InputError>) -> Self {
        let detail = match errors.as_slice() {
            [only] if only.path.is_empty() => only.message.clone(),
            [only] => format!("{}: {}", only.path, only.message),
            many => format!("the input has {} faults", many.len()),
        };
        let mut problem =
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", "The input is not acceptable", detail);
        problem.errors = errors;
        problem
    }

    /// 409: what was read for this change is no longer what stands there.
    pub fn changed_meanwhile() -> Self {
        Problem::conflict("it was changed or deleted by another request in the meantime; read it again")
    }

    /// 422 with a single fault.
    pub fn invalid_at(path: impl Into<String>, message: impl Into<String>) -> Self {
        Problem::invalid(vec![InputError { path: path.into(), message: message.into() }])
    }

    /// 429: a configured rate limit.
    pub fn rate_limited(detail: impl Into<String>, retry_after: Duration) -> Self {
        let mut problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", "Too many requests", detail);
        problem.retry_after = Some(retry_after);
        problem
    }

    /// 429: everything that there is room for is in use.
    pub fn full(detail: impl Into<String>) -> Self {
        let mut problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "busy", "There is no room at present", detail);
        problem.retry_after = Some(Duration::from_secs(1));
        problem
    }

    /// 408: the request did not come whole in time.
    pub fn timeout(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", "The request took too long", detail)
    }

    /// 505: the version of HTTP cannot carry the answer.
    pub fn old_http(detail: impl Into<String>) -> Self {
        Problem::new(
            StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            "http_version",
            "A newer version of HTTP is needed",
            detail,
        )
    }

    /// 502: somebody whom the host asked did not answer as they should.
    pub fn bad_gateway(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::BAD_GATEWAY, "bad_gateway", "Another server did not answer as it should", detail)
    }

    /// 503: the host cannot serve this at present.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        let mut problem =
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Not available at present", detail);
        problem.retry_after = Some(Duration::from_secs(1));
        problem
    }

    /// 503: the rows of the workspace, or of the instance, are not those that were sealed.
    pub fn unverified(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unverified", "The stored rows are not verified", detail)
    }

    /// 500: our fault. The cause goes to the log, never into the answer.
    pub fn internal(cause: &dyn std::fmt::Display) -> Self {
        tracing::error!(%cause, "request failed");
        let detail = "the request failed on our side; the server's log has the cause under this request id";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Internal error", detail)
    }

    /// The problem as JSON, under `request_id`.
    pub fn text(&self, request_id: &str) -> String {
        let body = ProblemBody {
            kind: format!("urn:monstrum:error:{}", self.code),
            title: self.title.to_owned(),
            status: self.status.as_u16(),
            detail: self.detail.clone(),
            request_id: request_id.to_owned(),
            errors: self.errors.clone(),
        };
        serde_json::to_string(&body).expect("a problem is plain strings and numbers")
    }

    /// The body and headers, under `request_id`.
    pub fn render(self, request_id: &str) -> Response {
        let mut response = Response::new(Body::from(self.text(request_id)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
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

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Conflict { constraint } => Problem::conflict(conflict_text(&constraint)),
            StoreError::InUse => Problem::conflict("it is still bound; delete what uses it first"),
            StoreError::UnknownReference => Problem::conflict("what it refers to was deleted in the meantime"),
            StoreError::Nul => Problem::invalid_at("", error.to_string()),
            StoreError::Unavailable { .. } => {
                tracing::error!(%error, "the database is not available");
                Problem::unavailable("the database is not available")
            }
            StoreError::Unverified { scope, .. } => Problem::unverified(unverified_text(&scope)),
            other => Problem::internal(&other),
        }
    }
}

/// What a caller is told where a scope is not verified.
pub fn unverified_text(scope: &str) -> String {
    format!(
        "the rows of scope `{scope}` in the database are not those that were sealed; the server's log and `monstrum doctor` \
         name them"
    )
}

impl From<InvalidId> for Problem {
    fn from(error: InvalidId) -> Self {
        Problem::invalid_at("", error.to_string())
    }
}

/// A unique constraint is named `{table}_{column}_{column}_key`; its last column is what the caller can change.
fn conflict_text(constraint: &str) -> String {
    match constraint {
        "trust_public_key_name_glob_key" => "the key is trusted for these names already".to_owned(),
        "workspaces_name_key" => "another workspace has this name".to_owned(),
        name if name.ends_with("_name_key") => "the name is taken in this workspace".to_owned(),
        name if name.ends_with("_resource_id_key") => "this resource is bound to this bot already".to_owned(),
        _ => "it exists already".to_owned(),
    }
}
