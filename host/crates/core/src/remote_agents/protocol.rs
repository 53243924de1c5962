//! The messages between an agent and the host. Each message is a text frame with one JSON object. This module parses and
//! builds messages; it keeps no state.

use std::collections::HashSet;

use monstrum_manifest::{Effect, json_depth};
use monstrum_types::JsonText;
use serde::{Deserialize, Serialize};
use serde_json::error::Category;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

/// The version of the protocol, which a hello names.
pub(super) const PROTOCOL: u64 = 1;
/// The WebSocket subprotocol, which a client must request.
pub const SUBPROTOCOL: &str = "monstrum.agent.v1";
/// The maximum size of a frame: a result of 1 MiB, and room for its envelope.
pub const FRAME_BYTES_MAX: usize = 1_088 << 10;
/// The maximum number of tools of one agent. A model that reads more tools chooses badly among them.
pub(super) const TOOLS_MAX: usize = 256;
/// The maximum size of a list of tools.
pub(super) const TOOLS_BYTES_MAX: usize = 1 << 20;
/// The maximum size of a result.
pub(super) const RESULT_BYTES_MAX: usize = 1 << 20;
/// The maximum nesting depth of a result, as for plugins.
pub(super) const RESULT_DEPTH_MAX: usize = 64;
/// The maximum length of the message of a failed call. A longer message is cut.
pub(super) const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// The maximum length of the message of a progress.
pub(super) const PROGRESS_BYTES_MAX: usize = 1 << 10;
/// The maximum number of concurrent calls that an agent may announce.
pub(super) const CONCURRENCY_MAX: u32 = 64;
/// The maximum length of the name, version and instance of an agent, and of an id.
const LABEL_BYTES_MAX: usize = 128;
/// The maximum length of an error that the parser reports. It may quote the frame.
const ERROR_BYTES_MAX: usize = 256;

/// The reason for which the host closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// A frame is not one JSON object.
    NotJson,
    /// The agent breaks a rule of the protocol.
    Violation(&'static str),
    /// A frame is too large.
    TooLarge,
    /// The host stops.
    Restart,
    /// The agent reads too slowly, or the resource has no room for the connection.
    TryLater(&'static str),
    /// The key or the resource was deleted or changed.
    Revoked,
    /// Another connection conflicts with this one, or has replaced it.
    Conflict(&'static str),
    /// The connection is silent or broken, so the peer receives no code.
    Lost,
}

impl Close {
    /// Returns the code of the close frame.
    pub fn code(self) -> u16 {
        match self {
            Close::NotJson => 1007,
            Close::Violation(_) => 1008,
            Close::TooLarge => 1009,
            Close::Restart => 1012,
            Close::TryLater(_) => 1013,
            Close::Revoked => 4401,
            Close::Conflict(_) => 4409,
            Close::Lost => 1001,
        }
    }

    /// Returns the reason in the close frame.
    pub fn reason(self) -> &'static str {
        match self {
            Close::NotJson => "a frame is not one JSON object",
            Close::TooLarge => "a frame exceeds the limit of 1088 KiB",
            Close::Restart => "the server stops",
            Close::Revoked => "the key or the resource was deleted or changed",
            Close::Lost => "the connection is silent",
            Close::Violation(why) | Close::TryLater(why) | Close::Conflict(why) => why,
        }
    }
}

/// A message of an agent.
#[derive(Debug)]
pub(super) enum Message {
    Hello(Hello),
    /// The new list of tools.
    Tools(Offered),
    /// Progress of a call.
    Progress {
        id: String,
        message: String,
    },
    Result {
        id: String,
        ended: Ended,
    },
}

/// The first message of an agent.
#[derive(Clone, Debug)]
pub(super) struct Hello {
    pub(super) name: String,
    pub(super) version: String,
    /// Identifies the process of the agent, so that its new connection replaces its old connection.
    pub(super) instance: String,
    /// The maximum number of concurrent calls.
    pub(super) concurrency: u32,
    /// Whether the connection replaces connections with other tools.
    pub(super) replace: bool,
    pub(super) offered: Offered,
}

/// The tools that an agent offers.
#[derive(Clone, Debug, Default)]
pub(super) struct Offered {
    /// The size of the list.
    pub(super) bytes: usize,
    pub(super) tools: Vec<OfferedTool>,
    /// The tools that cannot be read. The other tools are unaffected.
    pub(super) faults: Vec<ToolFault>,
}

/// A tool of an agent. The definition has the names of the Model Context Protocol.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OfferedTool {
    pub(super) name: String,
    pub(super) definition: Map<String, Value>,
    /// What the agent says about the effect of the tool. An admin decides.
    pub(super) effect: Option<Effect>,
}

/// A tool that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ToolFault {
    pub(super) name: String,
    pub(super) reason: String,
}

/// How a call ended, as the agent says.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    Success(JsonText),
    Error(String),
    ScopeViolation(String),
    /// The result is invalid, for this reason.
    Invalid(&'static str),
    /// The result exceeds its limit.
    TooLarge,
}

/// The reason why a frame is not processed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The connection is closed.
    Close(Close),
    /// The agent receives an error, and the connection stays open.
    Answer(Fault),
}

/// An error that is sent to an agent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) code: &'static str,
    pub(super) message: String,
    pub(super) id: Option<String>,
}

impl Fault {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Fault {
        Fault { code, message: message.into(), id: None }
    }
}

/// The members of a frame that are read at once. A result may be large, so its data stays text.
#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(borrow, rename = "type", default)]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    message: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawHello<'a> {
    protocol: u64,
    name: String,
    version: String,
    instance: String,
    concurrency: u32,
    #[serde(default)]
    replace: bool,
    #[serde(borrow)]
    tools: &'a RawValue,
}

#[derive(Deserialize)]
struct RawTools<'a> {
    #[serde(borrow)]
    tools: &'a RawValue,
}

/// Reads a frame.
pub(super) fn read(text: &str) -> Result<Message, Refused> {
    if !text.trim_start().starts_with('{') {
        return Err(Refused::Close(Close::NotJson));
    }
    let frame: Frame<'_> = serde_json::from_str(text).map_err(|error| match error.classify() {
        // The frame repeats a member.
        Category::Data => Refused::Answer(invalid(&error)),
        Category::Io | Category::Syntax | Category::Eof => Refused::Close(Close::NotJson),
    })?;
    match text_of(frame.kind).as_deref() {
        Some("hello") => hello(text).map(Message::Hello),
        Some("tools") => {
            let tools: RawTools<'_> = serde_json::from_str(text).map_err(|error| Refused::Answer(invalid(&error)))?;
            Ok(Message::Tools(offered(tools.tools).map_err(Refused::Answer)?))
        }
        Some("progress") => progress(&frame),
        Some("result") => result(&frame),
        Some(_) => Err(Refused::Answer(Fault::new("unknown_type", "the type of the message is unknown"))),
        None => Err(Refused::Answer(Fault::new("unknown_type", "the message has no type"))),
    }
}

/// Returns the fault of a message that has not the required form.
fn invalid(error: &serde_json::Error) -> Fault {
    Fault::new("invalid_message", shortened(error))
}

/// Returns the text of an error, which may quote the whole frame.
fn shortened(error: &serde_json::Error) -> String {
    let mut text = error.to_string();
    text.truncate(text.floor_char_boundary(ERROR_BYTES_MAX));
    text
}

/// Returns the text of a member that is a string.
fn text_of(member: Option<&RawValue>) -> Option<String> {
    member.and_then(|member| serde_json::from_str(member.get()).ok())
}

/// Returns an id that may be repeated to the agent.
fn label_of(id: String) -> Option<String> {
    (id.len() <= LABEL_BYTES_MAX).then_some(id)
}

fn hello(text: &str) -> Result<Hello, Refused> {
    let invalid = |message: String| Refused::Answer(Fault::new("invalid_hello", message));
    let raw: RawHello<'_> = serde_json::from_str(text).map_err(|error| invalid(shortened(&error)))?;
    let RawHello { protocol, name, version, instance, concurrency, replace, tools } = raw;
    if protocol != PROTOCOL {
        let message = format!("the server supports version {PROTOCOL} of the protocol only");
        return Err(Refused::Answer(Fault::new("unsupported_protocol", message)));
    }
    for (what, label) in [("name", &name), ("version", &version), ("instance", &instance)] {
        if label.is_empty() || label.len() > LABEL_BYTES_MAX || label.chars().any(monstrum_types::is_invisible) {
            return Err(invalid(format!("`{what}` must have 1 to {LABEL_BYTES_MAX} bytes of visible characters")));
        }
    }
    if !(1..=CONCURRENCY_MAX).contains(&concurrency) {
        return Err(invalid(format!("`concurrency` must be 1 to {CONCURRENCY_MAX}")));
    }
    let offered = offered(tools).map_err(Refused::Answer)?;
    Ok(Hello { name, version, instance, concurrency, replace, offered })
}

/// Reads a list of tools. A tool that cannot be read is a fault of this tool only.
fn offered(tools: &RawValue) -> Result<Offered, Fault> {
    if tools.get().len() > TOOLS_BYTES_MAX {
        return Err(Fault::new("too_many_tools", "the list of tools exceeds 1 MiB"));
    }
    let bytes = tools.get().len();
    let tools: Vec<&RawValue> =
        serde_json::from_str(tools.get()).map_err(|_| Fault::new("invalid_message", "`tools` must be an array"))?;
    if tools.len() > TOOLS_MAX {
        return Err(Fault::new("too_many_tools", format!("an agent may offer at most {TOOLS_MAX} tools")));
    }
    let (mut offered, mut names) = (Offered { bytes, ..Offered::default() }, HashSet::new());
    for (index, raw) in tools.into_iter().enumerate() {
        match tool(raw) {
            Ok(tool) if names.insert(tool.name.clone()) => offered.tools.push(tool),
            Ok(OfferedTool { name, .. }) => {
                offered.faults.push(ToolFault { name, reason: "the list has several tools of this name".to_owned() });
            }
            Err((name, reason)) => {
                let name = name.and_then(label_of).unwrap_or_else(|| format!("#{index}"));
                offered.faults.push(ToolFault { name, reason });
            }
        }
    }
    Ok(offered)
}

fn tool(raw: &RawValue) -> Result<OfferedTool, (Option<String>, String)> {
    #[derive(Deserialize)]
    struct RawTool {
        name: String,
        #[serde(default)]
        title: Option<String>,
        description: String,
        input_schema: Map<String, Value>,
        #[serde(default)]
        output_schema: Option<Map<String, Value>>,
        #[serde(default)]
        effect: Option<Effect>,
    }
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }

    let raw: RawTool = serde_json::from_str(raw.get()).map_err(|error| {
        let name = serde_json::from_str(raw.get()).ok().map(|named: Named| named.name);
        (name, shortened(&error))
    })?;
    let RawTool { name, title, description, input_schema, output_schema, effect } = raw;
    let mut definition = Map::new();
    definition.insert("name".to_owned(), Value::from(name.as_str()));
    definition.extend(title.map(|title| ("title".to_owned(), Value::from(title))));
    definition.insert("description".to_owned(), Value::from(description));
    definition.insert("inputSchema".to_owned(), Value::Object(input_schema));
    definition.extend(output_schema.map(|schema| ("outputSchema".to_owned(), Value::Object(schema))));
    Ok(OfferedTool { name, definition, effect })
}

/// Reads a message about the progress of a call.
fn progress(frame: &Frame<'_>) -> Result<Message, Refused> {
    let refused = |id: Option<String>, why: &str| -> Result<Message, Refused> {
        Err(Refused::Answer(Fault { id: id.and_then(label_of), ..Fault::new("invalid_message", why) }))
    };
    let id = text_of(frame.id);
    match (id, text_of(frame.message)) {
        (id, Some(message)) if message.len() > PROGRESS_BYTES_MAX => {
            refused(id, "the message of a progress exceeds 1 KiB")
        }
        (Some(id), Some(message)) => Ok(Message::Progress { id, message }),
        (id, _) => refused(id, "a progress needs the id of its call and a message"),
    }
}

/// Reads a result. If only its content is invalid, the call ends with an error, and the connection stays open.
fn result(frame: &Frame<'_>) -> Result<Message, Refused> {
    let Some(id) = text_of(frame.id).and_then(label_of) else {
        return Err(Refused::Answer(Fault::new("invalid_message", "a result needs the id of its call")));
    };
    Ok(Message::Result { id, ended: ended(frame) })
}

fn ended(frame: &Frame<'_>) -> Ended {
    let wrong_form = Ended::Invalid("the agent returned a result of the wrong form");
    let Some(status) = text_of(frame.status) else { return wrong_form };
    let message = match frame.message {
        None => None,
        Some(message) => match text_of(Some(message)) {
            Some(message) => Some(message),
            None => return wrong_form,
        },
    };
    match (status.as_str(), frame.data, message) {
        ("success", Some(data), None) => success(data.get()),
        ("success", None, None) => Ended::Success(JsonText::from(&Value::Null)),
        ("error", None, Some(message)) => Ended::Error(cut(message)),
        ("scope_violation", None, Some(message)) => Ended::ScopeViolation(cut(message)),
        ("success" | "error" | "scope_violation", ..) => wrong_form,
        _ => Ended::Invalid("the agent returned a result with an unknown status"),
    }
}

fn success(text: &str) -> Ended {
    if text.len() > RESULT_BYTES_MAX {
        return Ended::TooLarge;
    }
    // The depth is checked before parsing, so that deep nesting cannot exhaust the stack.
    if json_depth(text.as_bytes()) > RESULT_DEPTH_MAX {
        return Ended::Invalid("the agent returned JSON that is nested too deeply");
    }
    JsonText::parse(text).map_or(Ended::Invalid("the agent returned invalid JSON"), Ended::Success)
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MESSAGE_BYTES_MAX));
    text
}

/// The call that is sent to an agent.
#[derive(Clone, Debug)]
pub struct OutgoingCall {
    /// The request id of the call, which also is an idempotency key.
    pub id: String,
    /// The name by which the agent offers the tool.
    pub tool: String,
    /// The parameters as a JSON object.
    pub params: String,
    pub bot_id: String,
    pub bot_name: String,
    pub task_id: String,
    /// The context of the call; null if the call has no context.
    pub chat: Value,
    pub locale: String,
    pub deadline_ms: u64,
    /// Receives the messages of the agent about the progress of the call, if a client listens. It is not sent.
    pub listener: Option<mpsc::Sender<String>>,
}

impl OutgoingCall {
    /// Returns the frame of the call.
    pub fn frame(&self) -> String {
        let head = json!({"type": "call", "id": self.id, "tool": self.tool});
        let mut rest = json!({
            "bot": {"id": self.bot_id, "name": self.bot_name},
            "task_id": self.task_id,
            "locale": self.locale,
            "deadline_ms": self.deadline_ms,
        });
        if !self.chat.is_null() {
            rest["chat"] = self.chat.clone();
        }
        // The parameters stay text: they are JSON already and may be large.
        let (head, rest) = (head.to_string(), rest.to_string());
        let (head, rest) = (&head[..head.len() - 1], &rest[1..]);
        format!("{head},\"params\":{},{rest}", self.params)
    }
}

/// The state of one tool in a welcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ToolState {
    pub(super) name: String,
    /// The name by which bots call the tool; absent if the tool cannot have a name.
    #[serde(rename = "as", skip_serializing_if = "Option::is_none")]
    pub(super) full_name: Option<String>,
    pub(super) status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
}

/// Returns the frame that answers a hello, and that tells later changes of the tools' states.
pub(super) fn welcome(connection: &str, heartbeat_s: u64, tools: &[ToolState]) -> String {
    json!({
        "type": "welcome",
        "connection": connection,
        "heartbeat_s": heartbeat_s,
        "limits": {
            "frame_bytes": FRAME_BYTES_MAX,
            "result_bytes": RESULT_BYTES_MAX,
            "result_depth": RESULT_DEPTH_MAX,
            "progress_bytes": PROGRESS_BYTES_MAX,
            "tools": TOOLS_MAX,
            "tools_bytes": TOOLS_BYTES_MAX,
        },
        "tools": tools,
    })
    .to_string()
}

/// Returns the frame that cancels a call.
pub(super) fn cancel(id: &str, reason: &str) -> String {
    json!({"type": "cancel", "id": id, "reason": reason}).to_string()
}

/// Returns the frame that announces the end of the connection.
pub(super) fn bye(retry_after_ms: u64) -> String {
    json!({"type": "bye", "retry_after_ms": retry_after_ms}).to_string()
}

/// Returns the frame of an error.
pub(super) fn error(fault: &Fault) -> String {
    let mut frame = json!({"type": "error", "code": fault.code, "message": fault.message});
    if let Some(id) = &fault.id {
        frame["id"] = json!(id);
    }
    frame.to_string()
}

#[cfg(test)]
mod tests;
