//! Characters that a person does not see in a definition.

use monstrum_types::is_invisible;
use serde_json::{Map, Value};

/// Returns whether a person does not see this character: invisible, bidirectional and tag characters, fillers, and the
/// variation selectors that can carry a hidden text. Line breaks and tabs are ordinary in a description. U+FE0F is part
/// of many emoji.
fn is_hidden(character: char) -> bool {
    let is_layout = matches!(character, '\n' | '\r' | '\t');
    (is_invisible(character) && !is_layout)
        || matches!(character,
            '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2800}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0e}' | '\u{ffa0}' | '\u{e0100}'..='\u{e01ef}')
}

/// Returns whether a value contains a hidden character.
fn hides(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains(is_hidden),
        Value::Array(elements) => elements.iter().any(hides),
        Value::Object(members) => object_hides(members),
        _ => false,
    }
}

/// Returns whether an object contains a hidden character.
pub fn object_hides(members: &Map<String, Value>) -> bool {
    members.iter().any(|(name, value)| name.contains(is_hidden) || hides(value))
}

/// Writes hidden characters as escapes such as `\u{202e}`.
pub fn written_out(text: &str) -> String {
    let escape = |character: char| {
        let (hidden, plain) =
            if is_hidden(character) { (Some(character.escape_unicode()), None) } else { (None, Some(character)) };
        hidden.into_iter().flatten().chain(plain)
    };
    text.chars().flat_map(escape).collect()
}

/// Writes hidden characters in all texts of an object as escapes.
pub fn object_written_out(members: &Map<String, Value>) -> Map<String, Value> {
    members.iter().map(|(name, value)| (written_out(name), value_written_out(value))).collect()
}

/// Writes hidden characters in all texts of a value as escapes.
pub fn value_written_out(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(written_out(text)),
        Value::Array(elements) => Value::Array(elements.iter().map(value_written_out).collect()),
        Value::Object(members) => Value::Object(object_written_out(members)),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hidden_characters_are_found_and_written_out() {
        for hidden in ["a\u{200b}", "\u{202e}", "\u{e0041}", "\u{e0101}", "\u{3164}", "\u{fe01}", "\u{1b}[1m"] {
            for value in [json!(hidden), json!([{"a": hidden}]), json!({"a": {hidden: 1}})] {
                assert!(hides(&value), "{hidden:?}");
                let Value::Object(shown) = json!({"v": value}) else { unreachable!() };
                assert!(!object_hides(&object_written_out(&shown)), "{hidden:?}");
            }
        }
        for plain in ["line\nand\ttab\r\n", "日本語 é", "❤\u{fe0f}"] {
            assert!(!hides(&json!(plain)), "{plain:?}");
            assert_eq!(written_out(plain), plain);
        }
        assert_eq!(written_out("a\u{202e}b"), "a\\u{202e}b");
    }
}
