//! Parameters that a client copies into HTTP headers, as revision 2026-07-28 requires: a property of the input schema
//! with the keyword `x-mcp-header` becomes the header `Mcp-Param-{name}`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

const KEYWORD: &str = "x-mcp-header";
const BASE64_PREFIX: &str = "=?base64?";
const BASE64_SUFFIX: &str = "?=";

/// Returns the headers for the annotated parameters in `arguments`.
pub(super) fn param_headers(schema: &Map<String, Value>, arguments: &Map<String, Value>) -> Vec<(String, String)> {
    let mut headers = Vec::new();
    collect(schema, arguments, &mut headers);
    headers
}

fn collect(schema: &Map<String, Value>, arguments: &Map<String, Value>, headers: &mut Vec<(String, String)>) {
    let Some(Value::Object(properties)) = schema.get("properties") else { return };
    for (name, property) in properties {
        let Some(argument) = arguments.get(name) else { continue };
        if let Some(header) = property.get(KEYWORD).and_then(Value::as_str).filter(|header| !header.is_empty())
            && let Some(text) = text_of(argument)
        {
            headers.push((format!("mcp-param-{}", header.to_ascii_lowercase()), encoded(&text)));
        }
        if let (Value::Object(property), Value::Object(argument)) = (property, argument) {
            collect(property, argument, headers);
        }
    }
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Encodes a text for a header. A text that a header cannot contain is wrapped as base64.
pub(super) fn encoded(text: &str) -> String {
    let is_plain = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte))
        && text.trim_matches([' ', '\t']) == text
        && !(text.starts_with(BASE64_PREFIX) && text.ends_with(BASE64_SUFFIX));
    if is_plain { text.to_owned() } else { format!("{BASE64_PREFIX}{}{BASE64_SUFFIX}", STANDARD.encode(text)) }
}
