//! Streams of events that are resumed after their connection has ended.
//!
//! A server of an earlier revision can give its events ids. A GET with the id of the last event continues the stream:
//! the server sends the events that the client has missed. The request that began the stream is not sent again, so that
//! a call which is resumed takes effect once. Revision 2026-07-28 has no resumption.

use std::time::Duration;

use tokio::time::sleep;

use super::exchange::is_stream;
use super::wire::{Content, Events, Message, Wire};
use super::{ClientError, is_broken_connection};

/// The maximum number of attempts to resume a stream from which no further event arrives.
const ATTEMPTS_MAX: usize = 3;
/// The maximum number of connections for one stream. Servers may close each connection on purpose, so that clients poll.
/// A call lasts at most ten minutes, and most servers ask for a delay of one second.
const CONNECTIONS_MAX: usize = 600;
/// The delay before an attempt, if the server asks for none. It has limits, because the server chooses it.
const DELAY: Duration = Duration::from_secs(1);
const DELAY_MIN: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(30);
/// The maximum length of the id of an event, in bytes.
const EVENT_ID_BYTES_MAX: usize = 1024;

/// The events of an answer or of a subscription.
pub(super) struct ResumableStream<'a> {
    wire: &'a dyn Wire,
    events: Box<dyn Events>,
    /// The headers of a resumption, or `None` if the stream cannot be resumed.
    headers: Option<Vec<(String, String)>>,
    last_event_id: String,
    delay: Duration,
    /// The number of attempts since the last event.
    attempts: usize,
    connections: usize,
}

impl<'a> ResumableStream<'a> {
    pub(super) fn new(wire: &'a dyn Wire, events: Box<dyn Events>, headers: Option<&[(String, String)]>) -> Self {
        ResumableStream {
            wire,
            events,
            headers: headers.map(<[_]>::to_vec),
            last_event_id: String::new(),
            delay: DELAY,
            attempts: 0,
            connections: 1,
        }
    }

    /// Returns the data of the next event, or `None` at the end of a stream that is not continued.
    ///
    /// # Errors
    /// Fails if the connection breaks and the stream is not continued, or if the server sends more than the host accepts.
    pub(super) async fn next(&mut self) -> Result<Option<String>, ClientError> {
        loop {
            let end = match self.events.next().await {
                Ok(Some(data)) => {
                    self.attempts = 0;
                    return Ok(Some(data));
                }
                Ok(None) => Ok(None),
                Err(failure) if is_broken_connection(&failure) => Err(failure),
                Err(failure) => return Err(failure.into()),
            };
            if !self.resumed().await {
                return end.map_err(ClientError::from);
            }
        }
    }

    /// Continues the stream over another connection. Returns whether the server does so.
    async fn resumed(&mut self) -> bool {
        let Some(headers) = &self.headers else { return false };
        // A new connection has no id until its first event.
        let id = self.events.last_event_id();
        if !id.is_empty() {
            id.clone_into(&mut self.last_event_id);
        }
        if !is_sendable(&self.last_event_id) {
            return false;
        }
        if let Some(retry_ms) = self.events.retry_ms() {
            self.delay = Duration::from_millis(retry_ms).clamp(DELAY_MIN, DELAY_MAX);
        }
        let own = [("accept", "text/event-stream"), ("last-event-id", self.last_event_id.as_str())];
        let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let message = Message { headers: headers.iter().cloned().chain(own).collect(), content: Content::Open };
        while self.attempts < ATTEMPTS_MAX && self.connections < CONNECTIONS_MAX {
            self.attempts += 1;
            self.connections += 1;
            sleep(self.delay).await;
            match self.wire.send(message.clone()).await {
                Ok(head) if head.status == 200 && is_stream(head.content_type.as_deref()) => {
                    self.events = head.body.events();
                    return true;
                }
                // The attempt has no effect at the server, so it can be repeated.
                Err(failure) if is_broken_connection(&failure) => {}
                Ok(_) | Err(_) => return false,
            }
        }
        false
    }
}

/// Returns whether an id can be sent in a header.
fn is_sendable(id: &str) -> bool {
    !id.is_empty() && id.len() <= EVENT_ID_BYTES_MAX && id.bytes().all(|byte| (0x21..=0x7e).contains(&byte))
}
