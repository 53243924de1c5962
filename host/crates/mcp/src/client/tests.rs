//! Tests of the client over a scripted wire.

mod agreements;
mod calls;
mod lists;
mod resumption;
mod revisions;
mod streams;

use std::collections::VecDeque;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use monstrum_types::{Failure, FailureCode};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::wire::{Content, Events, Head, Message, MessageBody, Wire};
use super::{CalledTool, ClientError, Connection, InFlight, RemoteCall};

const STATELESS: &str = "2026-07-28";

/// What the server does with one message.
enum Step {
    /// Answers with a status, headers and a body. `{id}` in the body is replaced with the id of the message.
    Answer {
        status: u16,
        session: Option<&'static str>,
        body: String,
    },
    /// Answers with a stream of events. The stream ends, or never does.
    Stream {
        events: Vec<String>,
        ends: bool,
    },
    /// Answers with events that have ids, and a delay for clients that connect again. The connection breaks after them.
    Numbered {
        events: Vec<(&'static str, String)>,
        retry_ms: Option<u64>,
    },
    Fails(Failure),
}

/// A wire that answers by a script and records the messages.
#[derive(Default)]
struct Script {
    steps: Mutex<VecDeque<Step>>,
    sent: Mutex<Vec<Message>>,
}

impl Script {
    fn new(steps: Vec<Step>) -> Script {
        Script { steps: Mutex::new(steps.into()), sent: Mutex::default() }
    }

    /// Returns the recorded messages: the method, or `reply` for an answer, and the parameters.
    fn sent(&self) -> Vec<(String, Value)> {
        let sent = self.sent.lock();
        let parsed = sent.iter().map(|message| match &message.content {
            Content::Rpc(body) => serde_json::from_slice(body).unwrap(),
            Content::Open => json!({"method": "GET"}),
            Content::End => json!({"method": "DELETE"}),
        });
        parsed
            .map(|body: Value| match body["method"].as_str() {
                Some(method) => (method.to_owned(), body["params"].clone()),
                None => ("reply".to_owned(), body),
            })
            .collect()
    }

    fn methods(&self) -> Vec<String> {
        self.sent().into_iter().map(|(method, _)| method).collect()
    }

    /// Returns a header of the last message.
    fn last_header(&self, name: &str) -> Option<String> {
        let sent = self.sent.lock();
        let headers = &sent.last()?.headers;
        headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone())
    }
}

impl Wire for Script {
    fn send(&self, message: Message) -> BoxFuture<'_, Result<Head, Failure>> {
        let body: Value = match &message.content {
            Content::Rpc(body) => serde_json::from_slice(body).unwrap(),
            Content::Open | Content::End => Value::Null,
        };
        self.sent.lock().push(message);
        let step = self.steps.lock().pop_front();
        async move {
            let step = step.ok_or_else(|| Failure::sent(FailureCode::Internal, "the script has ended"))?;
            let with_id = |text: String| text.replace("{id}", &body["id"].to_string());
            match step {
                Step::Fails(failure) => Err(failure),
                Step::Answer { status, session, body } => {
                    let body = Body { text: with_id(body), ..Body::default() };
                    let (content_type, session) = ("application/json".to_owned(), session.map(str::to_owned));
                    let content_type = Some(content_type);
                    Ok(Head { status, content_type, session, missing_scopes: None, body: Box::new(body) })
                }
                Step::Stream { events, ends } => {
                    let events = events.into_iter().map(|event| ("", with_id(event))).collect();
                    let after = if ends { After::End } else { After::Silence };
                    Ok(stream(Body { events, after, ..Body::default() }))
                }
                Step::Numbered { events, retry_ms } => {
                    let events = events.into_iter().map(|(id, event)| (id, with_id(event))).collect();
                    Ok(stream(Body { events, retry_ms, after: After::Break, ..Body::default() }))
                }
            }
        }
        .boxed()
    }
}

fn stream(body: Body) -> Head {
    let content_type = Some("text/event-stream; charset=utf-8".to_owned());
    Head { status: 200, content_type, session: None, missing_scopes: None, body: Box::new(body) }
}

#[derive(Default)]
struct Body {
    text: String,
    /// The events, each with its id.
    events: VecDeque<(&'static str, String)>,
    after: After,
    retry_ms: Option<u64>,
    last_event_id: String,
}

/// What follows the events.
#[derive(Clone, Copy, Default)]
enum After {
    #[default]
    End,
    Silence,
    Break,
}

impl MessageBody for Body {
    fn read(self: Box<Self>) -> BoxFuture<'static, Result<Vec<u8>, Failure>> {
        async move { Ok(self.text.into_bytes()) }.boxed()
    }

    fn events(self: Box<Self>) -> Box<dyn Events> {
        self
    }
}

impl Events for Body {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<String>, Failure>> {
        async move {
            if let Some((id, event)) = self.events.pop_front() {
                id.clone_into(&mut self.last_event_id);
                return Ok(Some(event));
            }
            match self.after {
                After::End => Ok(None),
                After::Silence => std::future::pending().await,
                After::Break => Err(Failure::sent(FailureCode::Protocol, "closed")),
            }
        }
        .boxed()
    }

    fn last_event_id(&self) -> &str {
        &self.last_event_id
    }

    fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }
}

fn answer(status: u16, body: &Value) -> Step {
    Step::Answer { status, session: None, body: body.to_string().replace("\"{id}\"", "{id}") }
}

/// Returns a JSON-RPC answer with this result.
fn result(result: &Value) -> Step {
    answer(200, &json!({"jsonrpc": "2.0", "id": "{id}", "result": result}))
}

fn rpc_error(status: u16, code: i64) -> Step {
    answer(status, &json!({"jsonrpc": "2.0", "id": "{id}", "error": {"code": code, "message": "no"}}))
}

/// Returns the answer of a server of revision 2026-07-28 to `server/discover`.
fn discovered() -> Step {
    result(&json!({
        "resultType": "complete",
        "supportedVersions": [STATELESS],
        "capabilities": {"tools": {"listChanged": true}},
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "notes", "version": "7"}},
    }))
}

/// Returns the steps of a server of an earlier revision until the first request.
fn initialized(session: Option<&'static str>, revision: &str) -> Vec<Step> {
    let initialize = json!({"protocolVersion": revision, "capabilities": {}, "serverInfo": {"name": "old"}});
    let body = json!({"jsonrpc": "2.0", "id": "{id}", "result": initialize});
    let Step::Answer { status, body, .. } = answer(200, &body) else { unreachable!("an answer") };
    vec![rpc_error(404, -32601), Step::Answer { status, session, body }, answer(202, &Value::Null)]
}

fn text_result(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

/// Calls the tool `note` over `wire`.
async fn call(wire: &Script, connection: &Connection, is_repeatable: bool) -> Result<CalledTool, ClientError> {
    let arguments = Map::from_iter([("text".to_owned(), json!("hi"))]);
    let schema = json!({"properties": {"text": {"type": "string", "x-mcp-header": "Text"}}});
    let Value::Object(input_schema) = schema else { unreachable!("an object") };
    let in_flight = InFlight::default();
    let call = RemoteCall {
        name: "note",
        arguments: &arguments,
        input_schema: &input_schema,
        is_repeatable,
        in_flight: &in_flight,
    };
    connection.call_tool(wire, &call).await
}
