//! Responses of the upstream.

use std::borrow::Cow;

use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::wit::monstrum::plugin::http as wire;

/// A response of the upstream, redacted by the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl HttpResponse {
    /// Returns the HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Returns whether the status is in the range 200 to 299.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Returns the headers, in order.
    #[must_use]
    pub fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    /// Returns the value of the first header with this name. Names are case-insensitive.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Returns the body.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Returns the body as text. Invalid UTF-8 is replaced with U+FFFD.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.body)
    }

    /// Parses the body as JSON. An empty body is parsed as `null`.
    ///
    /// # Errors
    /// Returns [`Error::Message`] if the body is not the expected JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let body = if self.body.is_empty() { b"null" } else { self.body.as_slice() };
        serde_json::from_slice(body)
            .map_err(|error| Error::Message(format!("the upstream's response is not the expected JSON: {error}")))
    }

    /// Returns the response if its status is in the range 200 to 299.
    ///
    /// # Errors
    /// Returns [`Error::Http`] with the status and the body for any other status.
    pub fn error_for_status(self) -> Result<Self, Error> {
        if self.is_success() {
            Ok(self)
        } else {
            Err(Error::Http { status: self.status, body: self.text().into_owned() })
        }
    }
}

impl From<wire::Response> for HttpResponse {
    fn from(response: wire::Response) -> Self {
        HttpResponse { status: response.status, headers: response.headers, body: response.body }
    }
}
