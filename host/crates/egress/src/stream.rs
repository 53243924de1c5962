//! Responses whose body is read while it arrives.
//!
//! The body leaves this crate only in pieces that were redacted as a whole: the complete body
//! ([`StreamedBody::read`]), or one event after another ([`StreamedBody::events`]). A secret that arrives in two chunks
//! would not be found in either chunk, so no function returns redacted chunks. [`StreamedBody::unredacted`] is the
//! exception: its caller redacts the texts that the chunks contain.

use std::sync::Arc;

use bytes::Bytes;
use monstrum_types::{Failure, FailureCode};
use tokio::time::{Instant, timeout_at};

use crate::client;
use crate::redact::RedactorCell;
use crate::response::too_large;
use crate::searches::{self, SearchError};
use crate::sse::EventReader;

/// A response whose status and headers have been received, checked and redacted.
pub struct StreamedResponse {
    /// The HTTP status.
    pub status: u16,
    /// The headers, without `content-length`, because redaction may change the length of the body.
    pub headers: Vec<(String, String)>,
    /// The delay in milliseconds after which the server asks clients to repeat the request.
    pub retry_after_ms: Option<u32>,
    /// The body, which has not been read yet.
    pub body: StreamedBody,
}

/// The body of a response that is being received. Dropping the body closes the connection, unless the body has been read
/// to its end.
pub struct StreamedBody {
    /// The response; `None` if it has no body, after the end of the body, and after a failure.
    response: Option<reqwest::Response>,
    host: String,
    redactor: Arc<RedactorCell>,
    deadline: Instant,
    /// The number of bytes that were received.
    bytes: usize,
    bytes_max: usize,
}

impl StreamedBody {
    pub(crate) fn new(
        response: Option<reqwest::Response>,
        redactor: Arc<RedactorCell>,
        deadline: Instant,
        bytes_max: usize,
    ) -> Self {
        let host = response.as_ref().and_then(|response| response.url().host_str()).unwrap_or_default().to_owned();
        StreamedBody { response, host, redactor, deadline, bytes: 0, bytes_max }
    }

    /// Limits the size of the body to `bytes_max`, if the limit of the request is larger.
    #[must_use]
    pub fn at_most(mut self, bytes_max: usize) -> Self {
        self.bytes_max = self.bytes_max.min(bytes_max);
        self
    }

    /// Reads the body to its end and redacts it.
    ///
    /// # Errors
    ///
    /// Fails if the body is too large, does not end before the deadline, or cannot be searched for secrets.
    pub async fn read(mut self) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            body.extend_from_slice(&chunk);
        }
        let current = self.redactor.current();
        let bytes = body.len();
        let search = searches::run(bytes, self.redactor.budget(), move |watch| current.redact_watched(body, watch));
        self.searched(search).await
    }

    /// Reads the body in pieces that are not redacted, for a format in which a secret can be spread over several events.
    /// The caller must redact each text that it puts together from the pieces, for example with [`PieceRedactor`], before
    /// the text leaves the call.
    ///
    /// [`PieceRedactor`]: crate::PieceRedactor
    #[must_use]
    pub fn unredacted(self) -> UnredactedBody {
        UnredactedBody(self)
    }

    /// Reads the body as server-sent events.
    #[must_use]
    pub fn events(self) -> EventReader {
        EventReader::new(self)
    }

    pub(crate) fn redactor(&self) -> &Arc<RedactorCell> {
        &self.redactor
    }

    /// Awaits a search of a part of the body until the deadline.
    pub(crate) async fn searched<T>(&self, search: impl Future<Output = Result<T, SearchError>>) -> Result<T, Failure> {
        let searched = timeout_at(self.deadline, search).await.map_err(|_| late())?;
        searched.map_err(|stopped| Failure { sent: true, ..stopped.failure() })
    }

    /// Closes the connection. The body has ended.
    pub(crate) fn close(&mut self) {
        self.response = None;
    }

    /// Returns the next part of the body, which is not redacted, or `None` at the end. After a failure, the connection is
    /// closed, and the body has ended.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        let Some(response) = &mut self.response else { return Ok(None) };
        let received = match timeout_at(self.deadline, response.chunk()).await {
            Ok(Ok(Some(chunk))) => {
                self.bytes += chunk.len();
                if self.bytes > self.bytes_max { Err(too_large(self.bytes_max)) } else { Ok(Some(chunk)) }
            }
            Ok(Ok(None)) => Ok(None),
            Ok(Err(error)) => Err(Failure { sent: true, ..client::failure(error, &self.host) }),
            Err(_) => Err(late()),
        };
        if !matches!(received, Ok(Some(_))) {
            self.close();
        }
        received.map_err(|failure| self.redactor.current().redact_failure(failure))
    }
}

/// A body whose pieces are not redacted. See [`StreamedBody::unredacted`].
pub struct UnredactedBody(StreamedBody);

impl UnredactedBody {
    /// Returns the next piece of the body, or `None` at its end. Dropping the future loses no piece.
    ///
    /// # Errors
    ///
    /// Fails if the body is too large, is cut off, or does not end before the deadline. The message of the failure is
    /// redacted. After a failure, the connection is closed, and the body has ended.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        self.0.chunk().await
    }
}

fn late() -> Failure {
    Failure::sent(FailureCode::Timeout, "the response did not end in time")
}
