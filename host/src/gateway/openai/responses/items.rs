//! The input of a request: a text, or a list of items.

use monstrum_llm::{Arguments, AssistantMessage, Message, ToolCall};
use serde_json::{Map, Value};

use crate::gateway::openai::errors::OpenAiError;
use crate::gateway::openai::messages::{self, MESSAGES_MAX};

/// An item of an input.
#[derive(Debug, PartialEq)]
pub(super) enum Item {
    Message(Message),
    /// The message of an earlier response. `param` is its place in the request.
    Reference {
        id: String,
        param: String,
    },
}

/// Reads an input.
pub(super) fn read(input: Value) -> Result<Vec<Item>, OpenAiError> {
    let items = match input {
        Value::String(text) => return Ok(vec![Item::Message(Message::user(text))]),
        Value::Array(items) => items,
        _ => return Err(OpenAiError::invalid("input", "expected a text or a list of items")),
    };
    if items.len() > MESSAGES_MAX {
        return Err(OpenAiError::invalid("input", format!("expected at most {MESSAGES_MAX} items")));
    }
    let mut read: Vec<Item> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let param = format!("input[{index}]");
        match item.get("type").and_then(Value::as_str) {
            None | Some("message") => read.push(Item::Message(message(item, &param)?)),
            Some("function_call") => {
                let call = call(item, &param)?;
                // Calls of one message are items next to each other.
                match read.last_mut() {
                    Some(Item::Message(Message::Assistant(said))) => said.calls.push(call),
                    _ => {
                        let said = AssistantMessage { calls: vec![call], ..AssistantMessage::default() };
                        read.push(Item::Message(Message::Assistant(said)));
                    }
                }
            }
            Some("function_call_output") => {
                let text = messages::text(item.get("output"), &format!("{param}.output"))?;
                let call_id = field(item, "call_id", &param)?.to_owned();
                read.push(Item::Message(Message::Tool { call_id, text }));
            }
            Some("item_reference") => {
                let id = field(item, "id", &param)?.to_owned();
                read.push(Item::Reference { id, param: format!("{param}.id") });
            }
            // What a model thought is not sent to it again.
            Some("reasoning") => {}
            Some(_) => {
                let message = "expected a message, a function call or its output, or a reference";
                return Err(OpenAiError::invalid(format!("{param}.type"), message));
            }
        }
    }
    Ok(read)
}

fn message(item: &Value, param: &str) -> Result<Message, OpenAiError> {
    let (content, place) = (item.get("content"), format!("{param}.content"));
    Ok(match item.get("role").and_then(Value::as_str) {
        Some("user") => Message::User { parts: messages::parts(content, &place)? },
        Some("system" | "developer") => Message::System { text: messages::text(content, &place)? },
        Some("assistant") => {
            let text = messages::text(content, &place)?;
            Message::Assistant(AssistantMessage { text, ..AssistantMessage::default() })
        }
        _ => {
            let message = "expected user, assistant, system or developer";
            return Err(OpenAiError::invalid(format!("{param}.role"), message));
        }
    })
}

fn call(item: &Value, param: &str) -> Result<ToolCall, OpenAiError> {
    Ok(ToolCall {
        id: field(item, "call_id", param)?.to_owned(),
        name: field(item, "name", param)?.to_owned(),
        arguments: Arguments::new(field(item, "arguments", param)?.to_owned()),
        extra: Map::new(),
        function_extra: Map::new(),
    })
}

fn field<'a>(item: &'a Value, name: &str, param: &str) -> Result<&'a str, OpenAiError> {
    let text = item.get(name).and_then(Value::as_str);
    text.ok_or_else(|| OpenAiError::invalid(format!("{param}.{name}"), "expected a text"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn items_become_messages() {
        let items = read(json!([
            { "role": "developer", "content": "Be brief." },
            { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "Hi" }] },
            { "type": "reasoning", "summary": [] },
            { "type": "function_call", "call_id": "a", "name": "look", "arguments": "{}" },
            { "type": "function_call", "call_id": "b", "name": "look", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "a", "output": "1" },
            { "type": "function_call_output", "call_id": "b", "output": [{ "type": "input_text", "text": "2" }] },
            { "role": "assistant", "content": [{ "type": "output_text", "text": "Hello", "annotations": [] }] },
            { "type": "item_reference", "id": "msg_1" },
        ]))
        .unwrap();
        assert_eq!(items.len(), 7);
        assert_eq!(items[1], Item::Message(Message::user("Hi")));
        assert!(matches!(&items[2], Item::Message(Message::Assistant(said)) if said.calls.len() == 2));
        assert_eq!(items[4], Item::Message(Message::Tool { call_id: "b".to_owned(), text: "2".to_owned() }));
        assert_eq!(items[6], Item::Reference { id: "msg_1".to_owned(), param: "input[8].id".to_owned() });
        assert_eq!(read(json!("Hi")).unwrap(), [Item::Message(Message::user("Hi"))]);
    }

    #[test]
    fn other_items_are_refused_with_their_place() {
        for (input, param) in [
            (json!(7), "input"),
            (json!([{ "type": "web_search_call" }]), "input[0].type"),
            (json!([{ "role": "user", "content": "x" }, { "role": "boss", "content": "x" }]), "input[1].role"),
            (json!([{ "role": "user" }]), "input[0].content"),
            (json!([{ "type": "function_call", "call_id": "a" }]), "input[0].name"),
            (json!([{ "type": "item_reference" }]), "input[0].id"),
        ] {
            assert_eq!(read(input).unwrap_err().body()["error"]["param"], param);
        }
    }
}
