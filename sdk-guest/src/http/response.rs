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
    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Whether the status is one of 200 to 299.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The headers, in order.
    #[must_use]
    pub fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    /// The first header with a name, which is case-insensitive.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The body as text; invalid UTF-8 becomes U+FFFD.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.body)
    }

    /// The body parsed as JSON; an empty body is `null`.
    ///
    /// # Errors
    /// [`Error::Message`] if the body is not the expected JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let body = if self.body.is_empty() { b"null" } else { self.body.as_slice() };
        serde_json::from_slice(body)
            .map_err(|error| Error::Message(format!("the upstream's response is not the expected JSON: {error}")))
    }

    /// The answer itself, if its status is one of 200 to 299.
    ///
    /// # Errors
    /// [`Error::Http`] with the status and the body.
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
