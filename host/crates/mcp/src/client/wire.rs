//! The way of messages to a server.

use futures::future::BoxFuture;
use monstrum_types::Failure;

/// Sends messages to one server, with one credential.
pub trait Wire: Send + Sync {
    /// Sends a message and returns the head of the response. The wire follows no redirect.
    fn send(&self, message: Message) -> BoxFuture<'_, Result<Head, Failure>>;
}

/// An HTTP request to the URL of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The headers, without those of the credential.
    pub headers: Vec<(String, String)>,
    pub content: Content,
}

/// The content of a message, which decides on its HTTP method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A JSON-RPC message, which is sent by POST.
    Rpc(Vec<u8>),
    /// No body: a GET, which opens or resumes a stream of events.
    Open,
    /// No body: a DELETE, which ends the session.
    End,
}

/// The head of a response.
pub struct Head {
    /// The HTTP status.
    pub status: u16,
    /// The value of the header `Content-Type`.
    pub content_type: Option<String>,
    /// The value of the header `Mcp-Session-Id`.
    pub session: Option<String>,
    /// The scopes that the server requires in addition, if it refused the request because the token lacks scopes.
    pub missing_scopes: Option<Vec<String>>,
    /// The body, which has not been read yet. Dropping it closes the connection.
    pub body: Box<dyn MessageBody>,
}

/// The body of a response.
pub trait MessageBody: Send {
    /// Reads the body to its end.
    fn read(self: Box<Self>) -> BoxFuture<'static, Result<Vec<u8>, Failure>>;

    /// Reads the body as server-sent events.
    fn events(self: Box<Self>) -> Box<dyn Events>;
}

/// The events of a body.
pub trait Events: Send {
    /// Returns the data of the next event, or `None` at the end of the body.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<String>, Failure>>;

    /// Returns the id of the last event that had an id, or an empty text.
    fn last_event_id(&self) -> &str;

    /// Returns the delay, in milliseconds, after which the server asks clients to connect again.
    fn retry_ms(&self) -> Option<u64>;
}
