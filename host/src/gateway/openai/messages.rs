//! Parts of messages, as Chat Completions and Responses write them.

use monstrum_llm::Part;
use serde_json::Value;

use crate::gateway::openai::errors::OpenAiError;

/// The maximum number of messages of a conversation. A conversation that is longer needs a summary.
pub(super) const MESSAGES_MAX: usize = 1000;
/// The maximum number of parts of a message.
const PARTS_MAX: usize = 1000;
/// The types of images that models read.
const IMAGE_TYPES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// Returns the text of a content that has only text.
pub(super) fn text(content: Option<&Value>, param: &str) -> Result<String, OpenAiError> {
    let parts = parts(content, param)?;
    let mut text = String::new();
    for part in parts {
        match part {
            Part::Text { text: next } => text.push_str(&next),
            Part::Image { .. } => return Err(OpenAiError::invalid(param, "only a user message can have images")),
        }
    }
    Ok(text)
}

/// Returns the parts of a content, which is a text or a list of parts.
pub(super) fn parts(content: Option<&Value>, param: &str) -> Result<Vec<Part>, OpenAiError> {
    match content {
        Some(Value::String(text)) => Ok(vec![Part::Text { text: text.clone() }]),
        Some(Value::Array(parts)) if parts.len() > PARTS_MAX => {
            Err(OpenAiError::invalid(param, format!("expected at most {PARTS_MAX} parts")))
        }
        Some(Value::Array(parts)) => {
            parts.iter().enumerate().map(|(index, value)| part(value, &format!("{param}[{index}]"))).collect()
        }
        _ => Err(OpenAiError::invalid(param, "expected a text or a list of parts")),
    }
}

fn part(part: &Value, param: &str) -> Result<Part, OpenAiError> {
    let text = |name: &str| match part.get(name).and_then(Value::as_str) {
        Some(text) => Ok(Part::Text { text: text.to_owned() }),
        None => Err(OpenAiError::invalid(format!("{param}.{name}"), "expected a text")),
    };
    match part.get("type").and_then(Value::as_str) {
        Some("text" | "input_text" | "output_text") => text("text"),
        Some("refusal") => text("refusal"),
        Some("image_url") => {
            let url = part.pointer("/image_url/url").and_then(Value::as_str);
            image(url, &format!("{param}.image_url.url"))
        }
        Some("input_image") => {
            let url = part.get("image_url").and_then(Value::as_str);
            image(url, &format!("{param}.image_url"))
        }
        _ => Err(OpenAiError::invalid(format!("{param}.type"), "expected a text or an image")),
    }
}

/// Returns the image in a data URL. The host fetches no images from other URLs.
fn image(url: Option<&str>, param: &str) -> Result<Part, OpenAiError> {
    let data = url.and_then(|url| url.strip_prefix("data:")).and_then(|rest| rest.split_once(','));
    let image = data.and_then(|(kind, base64)| Some((kind.strip_suffix(";base64")?, base64)));
    match image {
        Some((kind, base64)) if IMAGE_TYPES.contains(&kind) && is_base64(base64) => {
            Ok(Part::Image { media_type: kind.to_owned(), base64: base64.to_owned() })
        }
        _ => {
            let types = IMAGE_TYPES.join(", ");
            let message = format!("expected a URL `data:image/…;base64,…` with one of the types {types}");
            Err(OpenAiError::invalid(param, message))
        }
    }
}

fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    !digits.is_empty() && text.len().is_multiple_of(4) && text.len() - digits.len() <= 2 && digits.bytes().all(is_digit)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn contents_are_texts_or_lists_of_parts() {
        let url = "data:image/png;base64,iVBORw0KGgo=";
        let content = json!([
            { "type": "text", "text": "What is it?" },
            { "type": "image_url", "image_url": { "url": url, "detail": "low" } },
            { "type": "input_image", "image_url": url },
        ]);
        let image = Part::Image { media_type: "image/png".to_owned(), base64: "iVBORw0KGgo=".to_owned() };
        let asked = Part::Text { text: "What is it?".to_owned() };
        assert_eq!(parts(Some(&content), "c").unwrap(), [asked, image.clone(), image]);
        assert_eq!(text(Some(&json!("Hi")), "c").unwrap(), "Hi");
        assert_eq!(
            text(Some(&json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }])), "c").unwrap(),
            "ab"
        );
        assert!(text(Some(&content), "c").is_err(), "a text has no images");
    }

    #[test]
    fn other_parts_are_refused_with_their_place() {
        for (content, param) in [
            (
                json!([{ "type": "image_url", "image_url": { "url": "https://example.com/a.png" } }]),
                "c[0].image_url.url",
            ),
            (
                json!([{ "type": "image_url", "image_url": { "url": "data:image/svg+xml;base64,AAAA" } }]),
                "c[0].image_url.url",
            ),
            (json!([{ "type": "input_image", "image_url": "data:image/png;base64,A===" }]), "c[0].image_url"),
            (json!([{ "type": "input_image", "file_id": "f" }]), "c[0].image_url"),
            (json!([{ "type": "text", "text": "x" }, { "type": "input_audio" }]), "c[1].type"),
            (json!([{ "type": "text" }]), "c[0].text"),
            (json!(7), "c"),
            (json!(vec![json!({ "type": "text", "text": "" }); PARTS_MAX + 1]), "c"),
        ] {
            let error = parts(Some(&content), "c").unwrap_err().body();
            assert_eq!(error["error"]["param"], param, "{error}");
        }
    }
}
