//! Prepared answers of the upstream.

use serde_json::Value;

use crate::error::FailureCode;
use crate::wit::monstrum::plugin::{http as wire, types};

/// An answer of the upstream to one request, or the failure of the request.
///
/// A request matches by method and URL. If the URL has a `?`, the percent-encoded query must be equal, including the
/// order of parameters; otherwise any query matches.
///
/// ```
/// use monstrum_sdk::{FailureCode, json, testing::Answer};
///
/// let page = Answer::get("https://api.example.com/items?page=2").json(json!([1])).header("Link", "</items>; rel=prev");
/// let gone = Answer::delete("https://api.example.com/items/7").status(404).body("no such item");
/// let late = Answer::post("https://api.example.com/items").failure(FailureCode::Timeout, "no answer within 30 s");
/// ```
#[derive(Clone, Debug)]
#[must_use = "an answer has no effect until it is added to a `Call`"]
pub struct Answer {
    pub(super) method: String,
    pub(super) url: String,
    pub(super) result: Result<wire::Response, types::Failure>,
}

impl Answer {
    /// Creates an answer to a request with this method and URL. The default status is 200, and the default body is
    /// empty.
    pub fn new(method: &str, url: &str) -> Self {
        let response = wire::Response { status: 200, headers: Vec::new(), body: Vec::new() };
        Answer { method: method.to_owned(), url: url.to_owned(), result: Ok(response) }
    }

    /// Creates an answer to a GET request.
    pub fn get(url: &str) -> Self {
        Answer::new("GET", url)
    }

    /// Creates an answer to a POST request.
    pub fn post(url: &str) -> Self {
        Answer::new("POST", url)
    }

    /// Creates an answer to a PUT request.
    pub fn put(url: &str) -> Self {
        Answer::new("PUT", url)
    }

    /// Creates an answer to a PATCH request.
    pub fn patch(url: &str) -> Self {
        Answer::new("PATCH", url)
    }

    /// Creates an answer to a DELETE request.
    pub fn delete(url: &str) -> Self {
        Answer::new("DELETE", url)
    }

    /// Sets the status.
    pub fn status(self, status: u16) -> Self {
        self.change(|response| response.status = status)
    }

    /// Adds a header.
    pub fn header(self, name: &str, value: &str) -> Self {
        self.change(|response| response.headers.push((name.to_owned(), value.to_owned())))
    }

    /// Sets a JSON body and adds the header `content-type: application/json`.
    pub fn json(self, value: impl Into<Value>) -> Self {
        self.header("content-type", "application/json").body(value.into().to_string())
    }

    /// Sets the body.
    pub fn body(self, body: impl Into<Vec<u8>>) -> Self {
        self.change(|response| response.body = body.into())
    }

    /// Makes the request fail. As on the host, [`Failure::sent`](crate::Failure::sent) is true for the failures that
    /// concern the response: [`FailureCode::Timeout`], [`FailureCode::TooLarge`] and [`FailureCode::Protocol`].
    pub fn failure(mut self, code: FailureCode, message: &str) -> Self {
        self.result = Err(types::Failure {
            code: code.as_str().to_owned(),
            message: message.to_owned(),
            sent: matches!(code, FailureCode::Timeout | FailureCode::TooLarge | FailureCode::Protocol),
            retry_after_ms: None,
        });
        self
    }

    fn change(mut self, change: impl FnOnce(&mut wire::Response)) -> Self {
        if let Ok(response) = &mut self.result {
            change(response);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_of_an_answer_were_sent() {
        let sent = |code| Answer::get("https://a.example").failure(code, "x").result.unwrap_err().sent;
        for code in [FailureCode::Timeout, FailureCode::TooLarge, FailureCode::Protocol] {
            assert!(sent(code), "{code:?}");
        }
        for code in [FailureCode::Denied, FailureCode::Dns, FailureCode::Connect, FailureCode::Tls, FailureCode::Limit]
        {
            assert!(!sent(code), "{code:?}");
        }
    }
}
