//! Results of content blocks, as in the Model Context Protocol. Clients of that protocol get the blocks unchanged, so the
//! host checks their form.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

/// The members of a content result that the host reads.
pub(super) struct Content<'a> {
    /// The structured data, which the tool's `output_schema` describes.
    pub structured: Option<&'a Value>,
}

/// Checks a content result. Unknown members are permitted, because later revisions of the protocol add members.
///
/// # Errors
/// Returns the place of the first fault and what is expected there.
pub(super) fn check(data: &Value) -> Result<Content<'_>, String> {
    let Value::Object(members) = data else { return Err("expected an object with `content`".to_owned()) };
    let Some(Value::Array(blocks)) = members.get("content") else {
        return Err("content: expected a list of content blocks".to_owned());
    };
    for (index, block) in blocks.iter().enumerate() {
        check_block(block).map_err(|fault| format!("content[{index}]{fault}"))?;
    }
    Ok(Content { structured: members.get("structured") })
}

fn check_block(block: &Value) -> Result<(), String> {
    let Value::Object(members) = block else { return Err(": expected an object".to_owned()) };
    match members.get("type").and_then(Value::as_str) {
        Some("text") => text(members, "text"),
        Some("image" | "audio") => text(members, "mimeType").and_then(|()| encoded(members, "data")),
        Some("resource") => resource(members),
        Some("resource_link") => text(members, "uri").and_then(|()| text(members, "name")),
        _ => Err(".type: expected `text`, `image`, `audio`, `resource` or `resource_link`".to_owned()),
    }
}

fn resource(members: &Map<String, Value>) -> Result<(), String> {
    let Some(Value::Object(resource)) = members.get("resource") else {
        return Err(".resource: expected an object".to_owned());
    };
    let content = match (resource.get("text"), resource.get("blob")) {
        (Some(_), None) => text(resource, "text"),
        (None, Some(_)) => encoded(resource, "blob"),
        _ => Err(": expected either `text` or `blob`".to_owned()),
    };
    text(resource, "uri").and(content).map_err(|fault| format!(".resource{fault}"))
}

fn text(members: &Map<String, Value>, name: &str) -> Result<(), String> {
    match members.get(name) {
        Some(Value::String(_)) => Ok(()),
        _ => Err(format!(".{name}: expected a string")),
    }
}

fn encoded(members: &Map<String, Value>, name: &str) -> Result<(), String> {
    let is_valid = |text: &String| STANDARD.decode(text).is_ok();
    match members.get(name) {
        Some(Value::String(text)) if is_valid(text) => Ok(()),
        _ => Err(format!(".{name}: expected base64")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn blocks_of_all_types_are_accepted() {
        let data = json!({
            "content": [
                {"type": "text", "text": "", "annotations": {"audience": ["user"]}},
                {"type": "image", "data": "aGk=", "mimeType": "image/png"},
                {"type": "audio", "data": "", "mimeType": "audio/wav", "_meta": {}},
                {"type": "resource", "resource": {"uri": "file:///a", "text": "a", "mimeType": "text/plain"}},
                {"type": "resource", "resource": {"uri": "file:///b", "blob": "AA=="}},
                {"type": "resource_link", "uri": "https://example.com/", "name": "c"},
            ],
            "structured": [1],
            "isPartial": true,
        });
        assert_eq!(check(&data).unwrap().structured, Some(&json!([1])));
        assert_eq!(check(&json!({"content": []})).unwrap().structured, None);
    }

    #[test]
    fn each_fault_names_its_place() {
        let of = |block: Value| check(&json!({"content": [{"type": "text", "text": "a"}, block]})).err().unwrap();
        let faults = [
            check(&json!("text")).err().unwrap(),
            check(&json!({})).err().unwrap(),
            check(&json!({"content": "text"})).err().unwrap(),
            of(json!("text")),
            of(json!({"text": "a"})),
            of(json!({"type": "html", "text": "a"})),
            of(json!({"type": "text", "text": 1})),
            of(json!({"type": "image", "data": "aGk="})),
            of(json!({"type": "image", "data": "a", "mimeType": "image/png"})),
            of(json!({"type": "audio", "data": "aGk= ", "mimeType": "audio/wav"})),
            of(json!({"type": "resource", "uri": "file:///a"})),
            of(json!({"type": "resource", "resource": {"uri": "file:///a"}})),
            of(json!({"type": "resource", "resource": {"uri": "file:///a", "text": "a", "blob": ""}})),
            of(json!({"type": "resource", "resource": {"text": "a"}})),
            of(json!({"type": "resource_link", "uri": "file:///a"})),
        ];
        insta::assert_snapshot!(faults.join("\n"), @"
        expected an object with `content`
        content: expected a list of content blocks
        content: expected a list of content blocks
        content[1]: expected an object
        content[1].type: expected `text`, `image`, `audio`, `resource` or `resource_link`
        content[1].type: expected `text`, `image`, `audio`, `resource` or `resource_link`
        content[1].text: expected a string
        content[1].mimeType: expected a string
        content[1].data: expected base64
        content[1].data: expected base64
        content[1].resource: expected an object
        content[1].resource: expected either `text` or `blob`
        content[1].resource: expected either `text` or `blob`
        content[1].resource.uri: expected a string
        content[1].name: expected a string
        ");
    }
}
