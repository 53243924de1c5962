//! Requests to the upstream. The host resolves, checks and authenticates them, and redacts the responses.
//!
//! Plugins never see a credential. If the origin of a request is in the credential's audience, the host adds the
//! credential. The host refreshes a credential before it expires. After a 401 response, the host refreshes the
//! credential and repeats the request once.

mod pages;
mod path;
mod response;

use std::fmt::Display;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::Error;
use crate::host;
use crate::request::Request;
use crate::wit::monstrum::plugin::http as wire;

pub use path::Path;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use path::RESERVED;
#[doc(hidden)]
pub use path::placeholders;
pub use response::HttpResponse;

/// The settings that the requests of a call share: base URL, headers and timeout.
///
/// ```
/// use monstrum_sdk::{Http, Request, json};
/// # use monstrum_sdk::{Error, Executor, Operations, Value, operations, testing::{Answer, Call}};
/// # struct Plugin;
/// # impl Executor for Plugin { const OPERATIONS: Operations = operations! { "create" => create }; }
///
/// fn create(request: &Request) -> Result<Value, Error> {
///     let http = Http::new(request).base("https://api.example.com/v2").header("Accept", "application/json");
///     http.post("/tickets").query("notify", true).body_json(&json!({ "title": "Broken" })).json()
/// }
///
/// # let answer = || Answer::post("https://api.example.com/v2/tickets?notify=true").json(json!(7));
/// # let run = Call::new("t", "create").answer(answer()).run(&Plugin);
/// # assert_eq!(run.requests[0].header("accept"), Some("application/json"));
/// # assert_eq!(run.requests[0].json(), json!({ "title": "Broken" }));
/// # assert_eq!(run.success(), 7);
/// ```
#[derive(Clone, Debug)]
pub struct Http {
    base: String,
    headers: Vec<(String, String)>,
    timeout_ms: u32,
}

impl Http {
    /// Creates settings with the `api_base` of the resource's configuration as the base URL.
    #[must_use]
    pub fn new(request: &Request) -> Self {
        let base = request.resource_config.get("api_base").and_then(Value::as_str).unwrap_or_default();
        Http { base: base.to_owned(), headers: Vec::new(), timeout_ms: request.deadline_ms }
    }

    /// Sets the base URL for resources whose configuration has no `api_base`.
    #[must_use]
    pub fn base(mut self, default: &str) -> Self {
        if self.base.is_empty() {
            self.base = default.to_owned();
        }
        self
    }

    /// Sets a header for all requests. A header of the same name that is set on a request takes precedence.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        set_header(&mut self.headers, name, value);
        self
    }

    /// Sets the timeout of each request. The default and the maximum are the time limit of the call, which the operator
    /// and `limits.timeout_s` of the manifest determine.
    #[must_use]
    pub fn timeout_ms(mut self, timeout_ms: u32) -> Self {
        self.timeout_ms = self.timeout_ms.min(timeout_ms);
        self
    }

    /// Creates a GET request.
    pub fn get(&self, path: impl Into<Path>) -> HttpRequest {
        self.request("GET", path)
    }

    /// Creates a POST request.
    pub fn post(&self, path: impl Into<Path>) -> HttpRequest {
        self.request("POST", path)
    }

    /// Creates a PUT request.
    pub fn put(&self, path: impl Into<Path>) -> HttpRequest {
        self.request("PUT", path)
    }

    /// Creates a PATCH request.
    pub fn patch(&self, path: impl Into<Path>) -> HttpRequest {
        self.request("PATCH", path)
    }

    /// Creates a DELETE request.
    pub fn delete(&self, path: impl Into<Path>) -> HttpRequest {
        self.request("DELETE", path)
    }

    /// Creates a request with the method GET, POST, PUT, PATCH, DELETE or HEAD.
    pub fn request(&self, method: &str, path: impl Into<Path>) -> HttpRequest {
        let (url, defect) = match path.into().join(&self.base) {
            Ok(url) => (url, None),
            Err(error) => (String::new(), Some(error)),
        };
        HttpRequest {
            request: wire::Request {
                method: method.to_owned(),
                url,
                query: Vec::new(),
                headers: self.headers.clone(),
                body: None,
                timeout_ms: Some(self.timeout_ms),
                authenticate: true,
                options: Vec::new(),
            },
            defect,
        }
    }
}

/// A request that has not been sent.
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is sent"]
pub struct HttpRequest {
    request: wire::Request,
    /// The first error that occurred while the request was built. Sending the request returns this error, so that the
    /// builder methods can be chained.
    defect: Option<Error>,
}

impl HttpRequest {
    /// Adds a query parameter.
    pub fn query(mut self, name: &str, value: impl Display) -> Self {
        self.request.query.push((name.to_owned(), value.to_string()));
        self
    }

    /// Adds a query parameter if the value is `Some`.
    pub fn optional_query(self, name: &str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    /// Sets a header. The host rejects requests with headers that only the host may set, such as `Host` and the headers
    /// of the credential.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        set_header(&mut self.request.headers, name, value);
        self
    }

    /// Sets a JSON body and the header `content-type: application/json`.
    pub fn body_json(mut self, value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => self.header("content-type", "application/json").body(body),
            Err(error) => {
                self.defect.get_or_insert(error.into());
                self
            }
        }
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.request.body = Some(body.into());
        self
    }

    /// Sets whether the host may add the credential. By default, the host adds the credential if the credential's
    /// audience allows it.
    pub fn authenticate(mut self, authenticate: bool) -> Self {
        self.request.authenticate = authenticate;
        self
    }

    /// Sets the timeout of this request. The maximum is the timeout of [`Http::timeout_ms`].
    pub fn timeout_ms(mut self, timeout_ms: u32) -> Self {
        self.request.timeout_ms = self.request.timeout_ms.map(|allowed| allowed.min(timeout_ms));
        self
    }

    /// Sends the request and returns the response. A response with an error status is not an error.
    ///
    /// # Errors
    /// Returns [`Error::Host`] if the host received no response, and [`Error::Message`] if the request could not be
    /// built.
    pub fn send(self) -> Result<HttpResponse, Error> {
        match self.defect {
            Some(error) => Err(error),
            None => send(&self.request),
        }
    }

    /// Sends the request and parses the response as JSON. An empty body is parsed as `null`.
    ///
    /// # Errors
    /// Returns the errors of [`send`](Self::send), [`Error::Http`] for a status outside 200 to 299, and
    /// [`Error::Message`] if the response is not the expected JSON.
    pub fn json<T: DeserializeOwned>(self) -> Result<T, Error> {
        self.send()?.error_for_status()?.json()
    }

    /// Sends the request, follows the `next` links in Link headers (RFC 8288), and concatenates the JSON lists of at
    /// most `pages_max` pages.
    ///
    /// A `next` link to another origin is not followed, because the upstream must not choose the server of the next
    /// request.
    ///
    /// ```
    /// use monstrum_sdk::{Error, Http, Request, Value};
    ///
    /// fn all(request: &Request) -> Result<Value, Error> {
    ///     let items = Http::new(request).base("https://api.example.com").get("/items").query("per_page", 100).pages(10)?;
    ///     Ok(Value::Array(items))
    /// }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`json`](Self::json) for each of the requests.
    pub fn pages(self, pages_max: usize) -> Result<Vec<Value>, Error> {
        if let Some(error) = self.defect {
            return Err(error);
        }
        pages::collect(self.request, pages_max)
    }
}

fn send(request: &wire::Request) -> Result<HttpResponse, Error> {
    match host::send(request) {
        Ok(response) => Ok(HttpResponse::from(response)),
        Err(failure) => Err(Error::Host(failure.into())),
    }
}

fn set_header(headers: &mut Vec<(String, String)>, name: &str, value: &str) {
    headers.retain(|(own, _)| !own.eq_ignore_ascii_case(name));
    headers.push((name.to_owned(), value.to_owned()));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Answer, Call, Run};
    use crate::{Executor, FailureCode, Operations, operations, path};

    struct Plugin;

    impl Executor for Plugin {
        const OPERATIONS: Operations = operations! {
            "update" => |request| {
                let http = Http::new(request).base("https://default.example/").header("Accept", "a").header("X-One", "1");
                let id: String = request.param("id")?;
                let call = http.put(path!("/things/{}", id)).optional_query("since", request.optional_param::<String>("since")?);
                call.header("accept", "b").body_json(&json!({ "a": 1 })).json()
            },
            "raw" => |request| {
                let response = Http::new(request).delete("https://else.example/x").authenticate(false).timeout_ms(50).send()?;
                Ok(json!([response.status(), response.header("x-NAME"), response.text()]))
            },
        };
    }

    fn update(call: Call, answer: Answer) -> Run {
        call.answer(answer).run(&Plugin)
    }

    #[test]
    fn a_request_has_all_its_parts() {
        let call = Call::new("t", "update").param("id", "a b/c").param("since", "x&y");
        let run = update(call, Answer::put("https://default.example/things/a%20b%2Fc").json(json!({ "ok": true })));
        let sent = &run.requests[0];
        assert_eq!(sent.url, "https://default.example/things/a%20b%2Fc?since=x%26y");
        assert_eq!(sent.query, [("since".to_owned(), "x&y".to_owned())]);
        let headers = [("X-One", "1"), ("accept", "b"), ("content-type", "application/json")];
        assert_eq!(sent.headers, headers.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(sent.json(), json!({ "a": 1 }));
        assert_eq!((sent.authenticate, sent.timeout_ms), (true, Some(30_000)));
        assert_eq!(run.success(), json!({ "ok": true }));
    }

    #[test]
    fn the_configured_base_takes_precedence() {
        let call = Call::new("t", "update").param("id", "7").config("api_base", "https://ghe.example/api/v3/");
        update(call, Answer::put("https://ghe.example/api/v3/things/7").json(json!(1))).success();
    }

    #[test]
    fn a_timeout_is_at_most_the_time_of_the_call() {
        let call = Call::new("t", "update").param("id", "7").with(|request| request.deadline_ms = 1_200);
        let run = update(call, Answer::put("https://default.example/things/7").json(json!(1)));
        assert_eq!(run.requests[0].timeout_ms, Some(1_200));
    }

    #[test]
    fn the_default_timeout_is_the_time_of_the_call() {
        let call = Call::new("t", "update").param("id", "7").with(|request| request.deadline_ms = 120_000);
        let run = update(call, Answer::put("https://default.example/things/7").json(json!(1)));
        assert_eq!(run.requests[0].timeout_ms, Some(120_000));
    }

    #[test]
    fn a_segment_that_changes_the_path_is_not_sent() {
        for id in ["", ".", ".."] {
            let run = Call::new("t", "update").param("id", id).run(&Plugin);
            assert!(run.requests.is_empty());
            assert_eq!(run.error(), "a segment of the URL path must not be empty, `.` or `..`");
        }
    }

    #[test]
    fn a_raw_response_is_returned_with_any_status() {
        let answer = Answer::delete("https://else.example/x").status(410).header("X-Name", "v").body("gone");
        let run = Call::new("t", "raw").answer(answer).run(&Plugin);
        assert_eq!((run.requests[0].authenticate, run.requests[0].timeout_ms), (false, Some(50)));
        assert_eq!(run.success(), json!([410, "v", "gone"]));
    }

    #[test]
    fn errors_are_distinguished() {
        let call = || Call::new("t", "update").param("id", "7");
        let answer = || Answer::put("https://default.example/things/7");
        assert_eq!(update(call(), answer().status(404).body("nope")).error(), "the upstream answered 404: nope");
        let denied = answer().failure(FailureCode::Denied, "10.0.0.1 is not allowed");
        assert_eq!(update(call(), denied).error(), "10.0.0.1 is not allowed");
        let expected = "the upstream's response is not the expected JSON: expected value at line 1 column 1";
        assert_eq!(update(call(), answer().body("<html>")).error(), expected);
        assert_eq!(update(call(), answer().status(204)).success(), Value::Null);
    }
}
