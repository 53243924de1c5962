//! What a bot offers to MCP clients, in the host's own terms.

use std::fmt::Display;
use std::future::Future;

use futures::stream::BoxStream;
use monstrum_manifest::{Effect, ResultForm};
use monstrum_types::{AwaitedApproval, Code, JsonText, RequestId, Status};
use serde_json::{Map, Value};
use tokio::sync::mpsc;

/// The tools of one bot, for one authenticated caller.
pub trait Offer: Clone + Send + Sync + 'static {
    /// The error of an operation that could not run. Its text contains no secrets.
    type Error: Display + Send + 'static;

    /// Returns the name that clients show for the server.
    fn title(&self) -> String;

    /// Lists at most `count` tools, sorted by name: the first tools, or those after the name `after`.
    fn list(
        &self,
        after: Option<String>,
        count: usize,
    ) -> impl Future<Output = Result<OfferedPage, Self::Error>> + Send;

    /// Calls a tool. Dropping the future cancels the call.
    fn call(&self, call: ToolCall) -> impl Future<Output = Result<Outcome, Refusal<Self::Error>>> + Send;

    /// Returns a stream with an item for each change of the list. The stream ends when the caller loses access to the
    /// bot or the server stops.
    fn changes(&self) -> BoxStream<'static, ()>;
}

/// A part of the list.
#[derive(Clone, Debug)]
pub struct OfferedPage {
    pub tools: Vec<OfferedTool>,
    /// Whether the list has tools after these.
    pub has_more: bool,
}

/// A tool in the list.
#[derive(Clone, Debug)]
pub struct OfferedTool {
    pub name: String,
    /// The name that clients show to people.
    pub title: Option<String>,
    pub description: String,
    /// The JSON Schema of the arguments, which is an object.
    pub input_schema: JsonText,
    /// The JSON Schema of the result, which is an object.
    pub output_schema: Option<JsonText>,
    pub operation: String,
    pub effect: Effect,
    /// Whether a person may have to approve a call.
    pub asks: bool,
}

/// A call of a tool. A tool of this name need not exist.
#[derive(Clone, Debug)]
pub struct ToolCall {
    pub tool: String,
    pub arguments: Map<String, Value>,
    /// The value of `monstrum/task_id` in the request's `_meta`.
    pub task_id: Option<String>,
    /// The value of `monstrum/chat` in the request's `_meta`. The offer validates the value.
    pub chat: Option<Value>,
    /// The value of `monstrum/wait_for_approval_s` in the request's `_meta`: how long the call waits for a person.
    pub wait_for_approval_s: Option<u32>,
    /// The value of `traceparent` in the request's `_meta`.
    pub trace_parent: Option<String>,
    /// Whether the client can open a URL for its user and then repeat the call with a request state.
    pub takes_request_state: bool,
    /// How the client repeats a call for which it received a request state.
    pub retry: Option<Retry>,
    /// Receives messages about the progress of the call, if the client has asked for them. At most one message a second
    /// may be sent. If the receiver has no room, messages are dropped.
    pub progress: Option<mpsc::Sender<String>>,
}

/// A repeated call. All of this comes from the client, so none of it permits a call.
#[derive(Clone, Debug)]
pub struct Retry {
    /// The text that the client received as request state.
    pub request_state: String,
    /// Whether the client answers that its user did not open the URL.
    pub is_declined: bool,
}

/// How a call ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub request_id: RequestId,
    pub status: Status,
    /// The reason, unless the call succeeded.
    pub code: Option<Code>,
    /// The text for the model, unless the call succeeded.
    pub message: Option<String>,
    pub data: Option<JsonText>,
    /// The form of the data.
    pub form: ResultForm,
    /// Whether the data does not match the output schema of the tool.
    pub output_mismatch: bool,
    /// The approval that the call waits for.
    pub approval: Option<Box<AwaitedApproval>>,
    /// The URL at which the user of the client authorizes a resource, if the call lacks the credential of the user and the
    /// host can offer a URL. The page admits only this user.
    pub connect_url: Option<String>,
    /// The text with which the client can repeat the call after a person has approved it, or the user has authorized the
    /// resource.
    pub request_state: Option<String>,
}

/// The reason why a call did not run.
#[derive(Debug)]
pub enum Refusal<E> {
    /// The request is invalid. The text says what is wrong.
    Params(String),
    /// The operation could not run.
    Failed(E),
}
