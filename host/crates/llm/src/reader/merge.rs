//! Puts together the fields that the host does not know, over the chunks of a stream.
//!
//! These fields are only sent back to the server, so the result must equal what the server would have sent without
//! streaming. The protocol does not define how to merge them. The following rules fit the known servers: null is ignored;
//! objects are merged; elements of lists with the same `index` and `type` are one element; texts of the fields in
//! [`PIECES`] are concatenated. Other texts of a message are concatenated too, unless a chunk repeats the whole text. Other
//! values inside objects replace the earlier value.
//!
//! The limits of one JSON text do not limit what many chunks leave, so the module counts the values that are kept. The
//! reader limits their number over the whole answer.

use serde_json::{Map, Value};

/// The fields that servers send in pieces.
const PIECES: &[&str] =
    &["text", "summary", "data", "content", "thinking", "reasoning", "reasoning_content", "refusal", "transcript"];

/// The number of values that are kept of unknown fields.
#[derive(Debug, Default)]
pub(super) struct Kept(usize);

impl Kept {
    /// Returns the number of values.
    pub(super) fn count(&self) -> usize {
        self.0
    }

    fn add(&mut self, value: &Value) {
        self.0 = self.0.saturating_add(values(value));
    }

    fn remove(&mut self, value: &Value) {
        self.0 = self.0.saturating_sub(values(value));
    }
}

/// Returns the number of values in `value`, with itself.
fn values(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(values).sum(),
        Value::Object(fields) => fields.values().map(values).sum(),
        _ => 0,
    }
}

/// Adds the unknown fields of a chunk's message.
pub(super) fn message_fields(known: &mut Map<String, Value>, added: Map<String, Value>, kept: &mut Kept) {
    merge(known, added, kept, &|known, added| known != added);
}

/// Adds the unknown fields of an object inside of a message.
pub(super) fn object_fields(known: &mut Map<String, Value>, added: Map<String, Value>, kept: &mut Kept) {
    merge(known, added, kept, &|_, _| false);
}

fn merge(
    known: &mut Map<String, Value>,
    added: Map<String, Value>,
    kept: &mut Kept,
    is_other_piece: &dyn Fn(&str, &str) -> bool,
) {
    for (name, value) in added {
        if is_nothing(&value) {
            continue;
        }
        match (known.get_mut(&name), value) {
            (Some(Value::String(text)), Value::String(piece))
                if PIECES.contains(&name.as_str()) || is_other_piece(text, &piece) =>
            {
                text.push_str(&piece);
            }
            (Some(Value::Object(known)), Value::Object(added)) => object_fields(known, added, kept),
            (Some(Value::Array(known)), Value::Array(added)) => elements(known, added, kept),
            (Some(known), value) => {
                kept.remove(known);
                kept.add(&value);
                *known = value;
            }
            (None, Value::Array(added)) => {
                let mut list = Vec::new();
                // The list itself.
                kept.add(&Value::Null);
                elements(&mut list, added, kept);
                known.insert(name, Value::Array(list));
            }
            (None, value) => {
                kept.add(&value);
                known.insert(name, value);
            }
        }
    }
}

/// Null and empty lists say nothing, and some servers refuse to read them back.
fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

/// Adds elements to a list. An element continues the last one if both have the same `index` and `type`.
fn elements(known: &mut Vec<Value>, added: Vec<Value>, kept: &mut Kept) {
    for element in added {
        match (known.last_mut(), element) {
            (Some(Value::Object(last)), Value::Object(element)) if is_same_element(last, &element) => {
                object_fields(last, element, kept);
            }
            (_, element) => {
                kept.add(&element);
                known.push(element);
            }
        }
    }
}

fn is_same_element(last: &Map<String, Value>, element: &Map<String, Value>) -> bool {
    let index = element.get("index").filter(|index| index.is_u64());
    index.is_some() && last.get("index") == index && last.get("type") == element.get("type")
}
