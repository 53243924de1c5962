//! The client of the HTTP API in this process. The pages of the console read and change everything through it, with the
//! key of their session, so that the console can do nothing that the API does not allow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Version, header};
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower::ServiceExt;

use crate::gateway::console::text::Text;
use crate::gateway::http::extract::{ConsoleKey, WORKSPACE};

/// The maximum number of requests for one page.
const REQUESTS_MAX: u32 = 32;
/// The time within which the API answers a request for a page.
const READ_MAX: Duration = Duration::from_secs(5);
/// The number of times that a form which was sent twice asks for the answer to the first, and the time between two.
const REPEATS_MAX: u32 = 15;
const REPEAT_WAIT: Duration = Duration::from_millis(300);
/// The maximum size of an answer.
pub(super) const ANSWER_BYTES_MAX: usize = 8 << 20;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// A client with the key of one session, for one page.
#[derive(Clone)]
pub(super) struct Client {
    api: axum::Router,
    key: ConsoleKey,
    workspace: Option<HeaderValue>,
    language: HeaderValue,
    sent: Arc<AtomicU32>,
}

/// Why the API did not do what a page asked for.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// The API refused the request.
    Refused(Refusal),
    /// The API did not answer in time, or its answer could not be read.
    NoAnswer,
    /// The page made more requests than a page may.
    TooMany,
}

/// An error answer of the API.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Refusal {
    pub status: u16,
    pub detail: String,
    pub request_id: String,
    #[serde(default)]
    pub errors: Vec<ErrorAt>,
}

/// One error of a refusal.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ErrorAt {
    pub path: String,
    pub message: String,
    /// The place in a document with lines.
    #[serde(default)]
    pub line: Option<u64>,
    #[serde(default)]
    pub column: Option<u64>,
    #[serde(default)]
    pub hint: Option<String>,
}

impl Refusal {
    /// Returns the places and the messages of the errors, or the whole error without a place.
    pub(super) fn told(&self) -> Vec<(Text, Text)> {
        match self.errors.as_slice() {
            [] => vec![(Text::default(), self.detail.as_str().into())],
            errors => errors.iter().map(|error| (error.path.as_str().into(), error.message.as_str().into())).collect(),
        }
    }
}

impl Failure {
    /// Returns the status with which the page of the failure is answered.
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Failure::Refused(refusal) => {
                StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }
            Failure::NoAnswer => StatusCode::GATEWAY_TIMEOUT,
            Failure::TooMany => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns the answer of the API, if there is one.
    pub(super) fn refusal(&self) -> Option<&Refusal> {
        match self {
            Failure::Refused(refusal) => Some(refusal),
            Failure::NoAnswer | Failure::TooMany => None,
        }
    }

    /// Returns the failure of an object that does not exist.
    pub(super) fn not_found() -> Failure {
        Failure::of_page(StatusCode::NOT_FOUND, "no object with this id")
    }

    /// Returns the failure of a request that does not come from a page of this console.
    pub(super) fn foreign() -> Failure {
        Failure::of_page(StatusCode::FORBIDDEN, "this request does not come from a page of the console")
    }

    /// Returns the failure of a page that the key of the session may not see.
    pub(super) fn forbidden() -> Failure {
        Failure::of_page(StatusCode::FORBIDDEN, "this kind of key may not see this page")
    }

    fn of_page(status: StatusCode, detail: &str) -> Failure {
        let (status, detail) = (status.as_u16(), detail.to_owned());
        Failure::Refused(Refusal { status, detail, request_id: String::new(), errors: Vec::new() })
    }
}

/// The conditions of a changing request.
#[derive(Clone, Copy, Default)]
pub(super) struct Conditions<'a> {
    /// The version that the page showed. The API refuses a change of another version.
    pub if_match: Option<&'a str>,
    /// The id of the form, so that a form that is sent twice creates one object.
    pub idempotency_key: Option<&'a str>,
}

/// An answer with the version of the object.
pub(super) struct Versioned<T> {
    pub value: T,
    pub version: String,
}

impl Client {
    pub(super) fn new(api: axum::Router, key: ConsoleKey, workspace: Option<&str>, language: &'static str) -> Client {
        // No workspace has a name that cannot be the value of a header, so the API answers that it does not exist.
        let workspace =
            workspace.map(|name| HeaderValue::from_str(name).unwrap_or(HeaderValue::from_static("unknown name")));
        Client { api, key, workspace, language: HeaderValue::from_static(language), sent: Arc::default() }
    }

    /// Reads `path`.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let response = self.read(path).await?;
        json(response).await
    }

    /// Reads `path` with the version of the object.
    pub(super) async fn get_versioned<T: DeserializeOwned>(&self, path: &str) -> Result<Versioned<T>, Failure> {
        let response = self.read(path).await?;
        let version = response.headers().get(header::ETAG).and_then(|value| value.to_str().ok());
        let version = version.unwrap_or_default().to_owned();
        Ok(Versioned { value: json(response).await?, version })
    }

    /// Sends a request that has an answer.
    pub(super) async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &Value,
        conditions: Conditions<'_>,
    ) -> Result<T, Failure> {
        json(self.request(method, path, Some(body), conditions).await?).await
    }

    /// Sends a request whose answer does not matter.
    pub(super) async fn act(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        conditions: Conditions<'_>,
    ) -> Result<(), Failure> {
        self.request(method, path, body, conditions).await.map(drop)
    }

    /// Reads `path`, whose answer can take longer than the answer for a page.
    pub(super) async fn get_slowly<T: DeserializeOwned>(&self, path: &str, max: Duration) -> Result<T, Failure> {
        let request = self.built(Method::GET, path, None, Conditions::default())?;
        let answer = async { json(self.answered(request).await?).await };
        tokio::time::timeout(max, answer).await.map_err(|_| Failure::NoAnswer)?
    }

    /// Reads `path` as text. An answer with an error status is text too.
    pub(super) async fn text(&self, path: &str) -> Result<(StatusCode, String), Failure> {
        let request = self.built(Method::GET, path, None, Conditions::default())?;
        let answer = async {
            let response = self.sent(request).await;
            let status = response.status();
            let body = whole(response).await?;
            Ok((status, String::from_utf8_lossy(&body).into_owned()))
        };
        tokio::time::timeout(READ_MAX, answer).await.map_err(|_| Failure::NoAnswer)?
    }

    /// Passes the answer of the API on, as it is, for streams and downloads.
    pub(super) async fn stream(&self, path: &str, headers: &[(HeaderName, HeaderValue)]) -> Result<Response, Failure> {
        let mut request = self.built(Method::GET, path, None, Conditions::default())?;
        request.headers_mut().extend(headers.iter().cloned());
        self.answered(request).await
    }

    /// Passes the answer to a POST request on, as it is. `version` is the version of HTTP in which the browser gets it.
    pub(super) async fn download(&self, path: &str, body: &Value, version: Version) -> Result<Response, Failure> {
        let mut request = self.built(Method::POST, path, Some(body), Conditions::default())?;
        *request.version_mut() = version;
        self.answered(request).await
    }

    async fn read(&self, path: &str) -> Result<Response, Failure> {
        let request = self.built(Method::GET, path, None, Conditions::default())?;
        tokio::time::timeout(READ_MAX, self.answered(request)).await.map_err(|_| Failure::NoAnswer)?
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        conditions: Conditions<'_>,
    ) -> Result<Response, Failure> {
        for _ in 0..REPEATS_MAX {
            let response = self.sent(self.built(method.clone(), path, body, conditions)?).await;
            // The API asks to repeat a request whose key is that of a request that still runs.
            let is_running =
                response.status() == StatusCode::CONFLICT && response.headers().contains_key(header::RETRY_AFTER);
            if !is_running {
                return accepted(response).await;
            }
            tokio::time::sleep(REPEAT_WAIT).await;
        }
        self.answered(self.built(method, path, body, conditions)?).await
    }

    fn built(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        conditions: Conditions<'_>,
    ) -> Result<Request<Body>, Failure> {
        if self.sent.fetch_add(1, Ordering::Relaxed) >= REQUESTS_MAX {
            return Err(Failure::TooMany);
        }
        let mut request = Request::builder().method(method).uri(path).header(header::ACCEPT_LANGUAGE, &self.language);
        if let Some(workspace) = &self.workspace {
            request = request.header(WORKSPACE, workspace);
        }
        if let Some(version) = conditions.if_match.filter(|version| !version.is_empty()) {
            request = request.header(header::IF_MATCH, version);
        }
        if let Some(key) = conditions.idempotency_key.filter(|key| !key.is_empty()) {
            request = request.header(IDEMPOTENCY_KEY, key);
        }
        let body = match body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Body::from(body.to_string())
            }
            None => Body::empty(),
        };
        // This fails only if the browser sent a version or a form id that is not valid.
        let mut request = request.body(body).map_err(|_| Failure::not_found())?;
        request.extensions_mut().insert(self.key);
        Ok(request)
    }

    async fn sent(&self, request: Request<Body>) -> Response {
        match self.api.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    async fn answered(&self, request: Request<Body>) -> Result<Response, Failure> {
        accepted(self.sent(request).await).await
    }
}

/// Returns an answer that is not an error.
async fn accepted(response: Response) -> Result<Response, Failure> {
    if response.status().is_client_error() || response.status().is_server_error() {
        return Err(Failure::Refused(json(response).await?));
    }
    Ok(response)
}

async fn json<T: DeserializeOwned>(response: Response) -> Result<T, Failure> {
    serde_json::from_slice(&whole(response).await?).map_err(|error| unread(&error))
}

async fn whole(response: Response) -> Result<Bytes, Failure> {
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    Ok(body.map_err(|error| unread(&error))?.to_bytes())
}

fn unread(error: &dyn std::fmt::Display) -> Failure {
    tracing::error!(%error, "the console cannot read an answer of the API");
    Failure::NoAnswer
}

/// Returns `text` as one segment of a path.
pub(super) fn segment(text: &str) -> String {
    let mut segment = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => segment.push(char::from(byte)),
            b'.' if text != "." && text != ".." => segment.push('.'),
            other => segment.push_str(&format!("%{other:02X}")),
        }
    }
    segment
}

/// The maximum length of a link with parameters. Longer ones are refused by this server and by others on the way.
pub(super) const LINK_BYTES_MAX: usize = 56 << 10;

/// Returns `path` with a query string of the parameters that are not empty.
pub(super) fn with_query(path: &str, parameters: &[(&str, &str)]) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    for (name, value) in parameters.iter().filter(|(_, value)| !value.is_empty()) {
        query.append_pair(name, value);
    }
    let query = query.finish();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_stays_one_segment() {
        for (text, expected) in
            [("a-1", "a-1"), ("a/b", "a%2Fb"), ("..", "%2E%2E"), ("a?b#c", "a%3Fb%23c"), ("é", "%C3%A9")]
        {
            assert_eq!(segment(text), expected);
        }
    }

    #[test]
    fn empty_parameters_are_left_out() {
        assert_eq!(with_query("/a", &[("b", "c d"), ("e", "")]), "/a?b=c+d");
        assert_eq!(with_query("/a", &[("b", "")]), "/a");
    }
}
