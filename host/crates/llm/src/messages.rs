//! The messages of a conversation with a model, and their form in a request.
//!
//! The module owns what the host keeps of a conversation. Servers add fields of their own to what a model says, such as
//! signatures of its thoughts, and some refuse a history without them. Such fields are kept with the [`Origin`] that they
//! came from, and are written only into requests to the same origin: to another server they would be an error, or a leak.

use monstrum_types::ResourceId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::json::{self, JsonError};

/// The model that said something: the model's id as its server knows it, and the resource through which it was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The resource whose configuration and credential the request used.
    pub resource: ResourceId,
    /// The id of the model, as it stands in requests.
    pub model: String,
}

/// One message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    /// Instructions of the host.
    System {
        /// The instructions.
        text: String,
    },
    /// What the user, or the program that set the task, says.
    User {
        /// Text and images, in order.
        parts: Vec<Part>,
    },
    /// What a model said.
    Assistant(AssistantMessage),
    /// The result of one call. It stands after the assistant message that asked for the call.
    Tool {
        /// The id of the call.
        call_id: String,
        /// What the model reads.
        text: String,
    },
}

/// A part of a user message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// An image, which travels inside the request. The address of an image is never sent: the server would fetch it.
    Image {
        /// The media type, such as `image/png`.
        media_type: String,
        /// The image in base64.
        base64: String,
    },
}

/// What a model said in one round.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AssistantMessage {
    /// The model that said it. Without an origin, fields that are not the host's are not sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The text; empty if the model only asked for calls.
    pub text: String,
    /// The calls that the model asked for, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<ToolCall>,
    /// The other fields of the message, as the server sent them.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// One call that a model asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The id that its result names. It is unique in its message.
    pub id: String,
    /// The name of the tool, as the model wrote it.
    pub name: String,
    /// The arguments, as the model wrote them.
    pub arguments: Arguments,
    /// The other fields of the call, as the server sent them.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
    /// The other fields of the call's `function`, as the server sent them.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub function_extra: Map<String, Value>,
}

/// The arguments of a call: the text of the model, which may be invalid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Arguments(String);

/// Why the arguments of a call are invalid.
#[derive(Debug, thiserror::Error)]
pub enum ArgumentsError {
    /// The text cannot be parsed.
    #[error("the arguments of the call cannot be parsed")]
    Json(#[from] JsonError),
    /// The text is JSON, but not an object.
    #[error("the arguments of the call are not a JSON object")]
    NotAnObject,
}

impl Arguments {
    /// Takes the text of a model. An empty text and `null`, which servers send for a tool without parameters, become an
    /// empty object. Nothing else is changed.
    #[must_use]
    pub fn new(text: String) -> Self {
        if matches!(text.trim_ascii(), "" | "null") { Arguments("{}".to_owned()) } else { Arguments(text) }
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses the arguments. They are never repaired: half an argument can mean the opposite of the whole.
    ///
    /// # Errors
    ///
    /// The text is not a JSON object. The call must not run.
    pub fn parse(&self) -> Result<Map<String, Value>, ArgumentsError> {
        match json::parse(&self.0)? {
            Value::Object(arguments) => Ok(arguments),
            _ => Err(ArgumentsError::NotAnObject),
        }
    }

    /// Returns the text for a request. Invalid arguments become `{}`, because servers refuse a history that has them.
    fn in_history(&self) -> &str {
        if self.parse().is_ok() { &self.0 } else { "{}" }
    }
}

impl Message {
    /// Creates a user message of one text.
    #[must_use]
    pub fn user(text: impl Into<String>) -> Self {
        Message::User { parts: vec![Part::Text { text: text.into() }] }
    }

    /// Returns the message as it stands in a request to `to`.
    pub(crate) fn to_json(&self, to: &Origin) -> Value {
        match self {
            Message::System { text } => json!({"role": "system", "content": text}),
            Message::User { parts } => json!({"role": "user", "content": user_content(parts)}),
            Message::Assistant(message) => message.to_json(to),
            Message::Tool { call_id, text } => json!({"role": "tool", "tool_call_id": call_id, "content": text}),
        }
    }
}

/// One text is written as a string, which every server understands; some do not understand parts.
fn user_content(parts: &[Part]) -> Value {
    match parts {
        [Part::Text { text }] => json!(text),
        parts => parts.iter().map(Part::to_json).collect(),
    }
}

impl Part {
    fn to_json(&self) -> Value {
        match self {
            Part::Text { text } => json!({"type": "text", "text": text}),
            Part::Image { media_type, base64 } => {
                json!({"type": "image_url", "image_url": {"url": format!("data:{media_type};base64,{base64}")}})
            }
        }
    }
}

impl AssistantMessage {
    fn to_json(&self, to: &Origin) -> Value {
        let is_same_origin = self.origin.as_ref() == Some(to);
        let mut message = Map::new();
        message.insert("role".to_owned(), json!("assistant"));
        let has_only_calls = self.text.is_empty() && !self.calls.is_empty();
        message.insert("content".to_owned(), if has_only_calls { Value::Null } else { json!(self.text) });
        if !self.calls.is_empty() {
            let calls = self.calls.iter().map(|call| call.to_json(is_same_origin)).collect();
            message.insert("tool_calls".to_owned(), calls);
        }
        if is_same_origin {
            add(&mut message, &self.extra, &["tool_calls"]);
        }
        Value::Object(message)
    }
}

impl ToolCall {
    fn to_json(&self, is_same_origin: bool) -> Value {
        let mut function = Map::new();
        function.insert("name".to_owned(), json!(self.name));
        function.insert("arguments".to_owned(), json!(self.arguments.in_history()));
        let mut call = Map::new();
        call.insert("id".to_owned(), json!(self.id));
        call.insert("type".to_owned(), json!("function"));
        if is_same_origin {
            add(&mut function, &self.function_extra, &[]);
            add(&mut call, &self.extra, &["function", "index"]);
        }
        call.insert("function".to_owned(), Value::Object(function));
        Value::Object(call)
    }
}

/// Adds kept fields. A kept field never replaces a field of the host.
fn add(target: &mut Map<String, Value>, kept: &Map<String, Value>, reserved: &[&str]) {
    for (name, value) in kept {
        if !target.contains_key(name) && !reserved.contains(&name.as_str()) {
            target.insert(name.clone(), value.clone());
        }
    }
}
