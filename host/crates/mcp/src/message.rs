//! Reads from a JSON-RPC message what the gateway needs before `rmcp` parses the message.
//!
//! The reader is stricter than `rmcp`: it rejects batches, which no served revision supports, repeated members, which
//! two parsers may read differently, and lists in place of objects.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::values;

/// A message from a client.
#[derive(Clone, Debug)]
pub struct Message {
    /// The id of a request, or `None` for a notification. The text tells numbers from strings.
    pub id: Option<Value>,
    pub method: Method,
    /// The token with which the client wants to receive notifications about the progress of this request.
    pub progress_token: Option<Value>,
    /// Whether the request carries its revision, as requests of the stateless generation do.
    pub has_revision: bool,
    /// Whether the call may wait for a person.
    pub may_wait: bool,
}

/// The member of `_meta` that contains the time in seconds for which a call waits for a person.
pub(crate) const WAIT_FOR_APPROVAL: &str = "monstrum/wait_for_approval_s";

/// The method of a message, with the parameters that the gateway needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Method {
    Initialize(Initialize),
    /// A call of the tool with this name.
    Call(String),
    /// A list of the tools.
    List,
    /// A subscription to changes.
    Listen,
    /// A notification that cancels the request with this id.
    Cancelled(String),
    /// Another method, or a response.
    Other,
}

/// The parameters of `initialize`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Initialize {
    /// Whether the client can open a URL for its user.
    pub opens_urls: bool,
}

/// The reason why a body is not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("the body is not JSON: {0}")]
    Syntax(String),
    #[error("batches are not supported; send each message in a request of its own")]
    Batch,
    #[error("the body is not a JSON-RPC message: {0}")]
    Shape(String),
}

impl Unreadable {
    /// Returns the code of the JSON-RPC error.
    #[must_use]
    pub fn code(&self) -> i32 {
        match self {
            Unreadable::Syntax(_) => -32700,
            Unreadable::Batch | Unreadable::Shape(_) => -32600,
        }
    }

    /// Returns the JSON-RPC error. Its id is null, because the id of the message is unknown.
    #[must_use]
    pub fn to_json(&self) -> Value {
        serde_json::json!({
            "jsonrpc": "2.0", "id": null, "error": {"code": self.code(), "message": self.to_string()},
        })
    }
}

#[derive(Deserialize)]
struct Wire {
    jsonrpc: Option<String>,
    id: Option<Value>,
    method: Option<String>,
    params: Option<Object<Params>>,
}

#[derive(Default, Deserialize)]
struct Params {
    name: Option<Value>,
    #[serde(rename = "requestId")]
    request_id: Option<Value>,
    capabilities: Option<Value>,
    #[serde(rename = "_meta")]
    meta: Option<Map<String, Value>>,
    #[serde(rename = "requestState")]
    request_state: Option<Value>,
}

/// A value that is an object. Derived deserializers also accept a list of the members' values.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(members)).map(Object)
    }
}

/// The member of `_meta` that contains the revision of a request.
pub(crate) const REVISION: &str = "io.modelcontextprotocol/protocolVersion";

impl Message {
    /// Reads a message.
    ///
    /// # Errors
    /// Returns the reason if the body is not a single JSON-RPC message.
    pub fn read(body: &[u8]) -> Result<Message, Unreadable> {
        if body.trim_ascii_start().first() == Some(&b'[') {
            return Err(Unreadable::Batch);
        }
        if values::has_too_many(body) {
            return Err(Unreadable::Shape(format!("it has more than {} values", values::VALUES_MAX)));
        }
        let Object(wire): Object<Wire> = serde_json::from_slice(body).map_err(|error| match error.classify() {
            serde_json::error::Category::Data => Unreadable::Shape(error.to_string()),
            _ => Unreadable::Syntax(error.to_string()),
        })?;
        if wire.jsonrpc.as_deref() != Some("2.0") {
            return Err(Unreadable::Shape("`jsonrpc` must be \"2.0\"".to_owned()));
        }
        let params = wire.params.map(|Object(params)| params).unwrap_or_default();
        let method = match wire.method.as_deref() {
            Some("initialize") => {
                Method::Initialize(Initialize { opens_urls: opens_urls(params.capabilities.as_ref()) })
            }
            Some("tools/call") => Method::Call(text(params.name)),
            Some("tools/list") => Method::List,
            Some("subscriptions/listen") => Method::Listen,
            Some("notifications/cancelled") => {
                Method::Cancelled(params.request_id.map_or_else(String::new, |id| id.to_string()))
            }
            _ => Method::Other,
        };
        let meta = params.meta.unwrap_or_default();
        let progress_token = meta.get("progressToken").filter(|token| token.is_string() || token.is_number());
        let progress_token = progress_token.cloned();
        let has_revision = meta.get(REVISION).is_some_and(Value::is_string);
        // A repeated call waits unless its metadata says otherwise.
        let may_wait = meta.get(WAIT_FOR_APPROVAL).map_or(params.request_state.is_some(), |seconds| *seconds != 0);
        Ok(Message { id: wire.id, method, progress_token, has_revision, may_wait })
    }
}

fn opens_urls(capabilities: Option<&Value>) -> bool {
    capabilities.and_then(|capabilities| capabilities.pointer("/elicitation/url")).is_some_and(Value::is_object)
}

fn text(value: Option<Value>) -> String {
    match value {
        Some(Value::String(text)) => text,
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Message, i32> {
        Message::read(text.as_bytes()).map_err(|unreadable| unreadable.code())
    }

    #[test]
    fn batches_repeated_members_and_garbage_are_rejected() {
        for (body, code) in [
            ("[]", -32600),
            (" [{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]", -32600),
            ("{", -32700),
            ("", -32700),
            ("\"text\"", -32600),
            ("{\"id\":1,\"method\":\"ping\"}", -32600),
            ("{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ping\"}", -32600),
            ("{\"jsonrpc\":\"2.0\",\"method\":\"ping\",\"method\":\"tools/call\"}", -32600),
            ("{\"jsonrpc\":\"2.0\",\"method\":\"tools/call\",\"params\":{\"name\":\"a\",\"name\":\"b\"}}", -32600),
            ("{\"jsonrpc\":\"2.0\",\"method\":\"ping\",\"params\":\"text\"}", -32600),
            ("{\"jsonrpc\":\"2.0\",\"method\":\"tools/call\",\"params\":[\"a\"]}", -32600),
            ("{} {}", -32700),
        ] {
            assert_eq!(read(body).map(|message| message.method), Err(code), "{body}");
        }
    }

    #[test]
    fn a_message_with_too_many_values_is_rejected() {
        let call = |count: usize| {
            let values = vec!["{}"; count].join(",");
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"_meta":{{"x":[{values}]}}}}}}"#)
        };
        assert!(read(&call(1_000)).is_ok());
        assert_eq!(read(&call(values::VALUES_MAX)).map(|message| message.method), Err(-32600));
    }

    #[test]
    fn a_message_tells_its_method_its_id_and_its_progress_token() {
        let call = json!({
            "jsonrpc": "2.0", "id": "7", "method": "tools/call",
            "params": {"name": "a", "arguments": {"name": "b"}, "_meta": {"progressToken": 5, REVISION: "2026-07-28"}},
        });
        let message = read(&call.to_string()).unwrap();
        assert_eq!(message.method, Method::Call("a".to_owned()));
        assert_eq!((message.id, message.progress_token), (Some(json!("7")), Some(json!(5))));
        assert!(message.has_revision && !message.may_wait);
        for (seconds, may_wait) in [(0, false), (60, true)] {
            let params = json!({"name": "a", "_meta": {WAIT_FOR_APPROVAL: seconds}});
            let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
            assert_eq!(read(&call.to_string()).unwrap().may_wait, may_wait);
        }
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","requestState":"b"}}"#;
        assert!(read(call).unwrap().may_wait);
        let cancelled =
            read(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"7"}}"#).unwrap();
        assert_eq!(cancelled.method, Method::Cancelled("\"7\"".to_owned()));
        let initialize = |capabilities: Value| {
            let params = json!({ "capabilities": capabilities });
            read(&json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).to_string())
        };
        let opens_urls = |message: Message| message.method == Method::Initialize(Initialize { opens_urls: true });
        assert!(opens_urls(initialize(json!({"elicitation": {"url": {}}})).unwrap()));
        assert!(!opens_urls(initialize(json!({"elicitation": {}})).unwrap()));
        assert!(!opens_urls(initialize(json!({})).unwrap()));
    }
}
