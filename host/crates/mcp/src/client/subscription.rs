//! Notifications about changes of a server's list of tools.

use serde_json::json;

use super::ClientError;
use super::agreement::UsedAgreement;
use super::connection::Connection;
use super::exchange::{Replies, Request, ServerRequest, is_list_change, is_stream, parsed_event};
use super::stream::ResumableStream;
use super::wire::{Content, Head, Message, Wire};

/// A stream of notifications of a server.
pub struct Subscription<'a> {
    stream: ResumableStream<'a>,
    replies: Replies<'a>,
    /// Keeps the session from being idle.
    _agreement: UsedAgreement,
}

impl Connection {
    /// Opens a stream of notifications.
    ///
    /// # Errors
    /// Fails if the server does not open the stream. Most servers of earlier revisions do not.
    pub async fn subscribe<'a>(&self, wire: &'a dyn Wire) -> Result<Subscription<'a>, ClientError> {
        let agreement = self.agreed(wire).await?;
        let headers = agreement.headers();
        let message = if agreement.is_stateless() {
            let params = json!({"notifications": {"toolsListChanged": true}});
            let request: Request = agreement.request(self.next_id(), "subscriptions/listen", params);
            request.message()
        } else {
            let accept = ("accept".to_owned(), "text/event-stream".to_owned());
            Message { headers: headers.iter().cloned().chain([accept]).collect(), content: Content::Open }
        };
        let Head { status, content_type, body, .. } = wire.send(message).await?;
        match status {
            200..=299 if is_stream(content_type.as_deref()) => {}
            200..=299 => return Err(ClientError::Unsupported("it opens no stream of notifications".to_owned())),
            401 => return Err(ClientError::Unauthenticated),
            _ => return Err(ClientError::Status(status)),
        }
        let follow_up = (!agreement.is_stateless()).then_some(headers);
        let stream = ResumableStream::new(wire, body.events(), follow_up.as_deref());
        Ok(Subscription { stream, replies: Replies::new(wire, follow_up), _agreement: agreement })
    }
}

impl Subscription<'_> {
    /// Waits until the list of tools has changed. Returns `false` at the end of the stream.
    ///
    /// # Errors
    /// Fails if the stream breaks, or if the server sends more requests than a client answers.
    pub async fn changed(&mut self) -> Result<bool, ClientError> {
        while let Some(data) = self.stream.next().await? {
            let Some(message) = parsed_event(&data)? else { continue };
            if is_list_change(&message) {
                return Ok(true);
            }
            if let Some(request) = ServerRequest::of(&message) {
                self.replies.reply(&request).await?;
            }
        }
        Ok(false)
    }
}
