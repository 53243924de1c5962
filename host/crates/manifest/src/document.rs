//! Reads YAML documents into typed values. Errors name the file, line and field. Manifests and the test cases of
//! `monstrum plugin test` use this format.

use monstrum_types::is_invisible;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment as ErrorSegment;

use crate::error::{FieldPath, ManifestError, Segment, cut};
use crate::nesting::check_nesting;
use crate::yaml::{self, Keys};

/// Maximum nesting depth of a document. The fields of a manifest need 8 levels; the remaining levels are available to
/// JSON Schemas.
pub const MANIFEST_DEPTH_MAX: usize = 64;
/// Maximum length of an error message in characters. Messages may quote the document.
const MESSAGE_CHARS_MAX: usize = 400;

/// Reads a document and keeps its keys that start with `x-`. `file` is the name of the document in errors.
///
/// # Errors
/// Returns the first error in the document.
pub fn read_document<T: DeserializeOwned + Serialize>(
    file: &str,
    text: &str,
    bytes_max: usize,
) -> Result<T, ManifestError> {
    let document = Document { kind: "file", bytes_max, keys: Keys::All };
    document.read(text).map_err(|error| error.into_error(file))
}

/// Creates an error at a field, such as `http[0].answer.status`, of a document that has already been read.
#[must_use]
pub fn error_at(file: &str, text: &str, field: &str, message: impl Into<String>) -> ManifestError {
    let segments = field.split(['.', '[']).map(|step| match step.strip_suffix(']').map(str::parse) {
        Some(Ok(index)) => Segment::Index(index),
        _ => Segment::Key(step.to_owned()),
    });
    let field = FieldPath(segments.collect());
    DocumentError { position: yaml::locate(text, &field, false), field, message: message.into() }.into_error(file)
}

/// An error in a document, with its position.
pub(crate) struct DocumentError {
    pub(crate) position: Option<yaml::Position>,
    pub(crate) field: FieldPath,
    pub(crate) message: String,
}

impl DocumentError {
    fn of_file(message: String) -> Self {
        DocumentError { position: None, field: FieldPath::default(), message }
    }

    pub(crate) fn into_error(self, file: &str) -> ManifestError {
        ManifestError {
            file: file.to_owned(),
            line: self.position.map(|(line, _)| line),
            column: self.position.map(|(_, column)| column),
            field: shown(&self.field.to_string()),
            message: shown(&self.message),
        }
    }
}

/// Makes text safe for one line of a terminal: escapes invisible characters, which the quoted document may contain, and
/// truncates the text.
fn shown(text: &str) -> String {
    let escaped: String =
        text.chars().flat_map(|c| if is_invisible(c) { c.escape_default().collect() } else { vec![c] }).collect();
    cut(&escaped, MESSAGE_CHARS_MAX)
}

/// A kind of document.
pub(crate) struct Document {
    /// The name of the kind in messages.
    pub(crate) kind: &'static str,
    pub(crate) bytes_max: usize,
    pub(crate) keys: Keys,
}

impl Document {
    /// Reads a document into a typed value. Returns the first error if the document is invalid.
    pub(crate) fn read<T: DeserializeOwned + Serialize>(&self, text: &str) -> Result<T, DocumentError> {
        let value = self.value(text)?;
        match typed(&value) {
            Ok((read, None)) => Ok(read),
            Ok((_, Some(misshapen))) | Err(misshapen) => Err(misshapen.located(text)),
        }
    }

    /// Reads a document that is a mapping with any fields. Also accepts a scalar, which the conversion to a typed value
    /// rejects.
    pub(crate) fn value(&self, text: &str) -> Result<Value, DocumentError> {
        let Document { kind, bytes_max, keys } = *self;
        if text.len() > bytes_max {
            return Err(DocumentError::of_file(format!(
                "the {kind} has {} bytes; at most {bytes_max} are allowed",
                text.len()
            )));
        }
        check_nesting(text, MANIFEST_DEPTH_MAX).map_err(|deep| DocumentError {
            position: Some((deep.line, deep.column)),
            field: FieldPath::default(),
            message: format!("nested deeper than {MANIFEST_DEPTH_MAX} levels"),
        })?;
        let value = yaml::read(text, MANIFEST_DEPTH_MAX, keys, bytes_max).map_err(|error| DocumentError {
            position: error.position,
            field: error.field,
            message: error.message,
        })?;
        match value {
            Value::Null => Err(DocumentError::of_file(format!("the {kind} is empty"))),
            Value::Array(_) => Err(DocumentError::of_file("expected a mapping, found a list".to_owned())),
            value => Ok(value),
        }
    }
}

/// An error in the structure of a document, with the field at which it occurred.
pub(crate) struct Misshapen {
    pub(crate) field: FieldPath,
    pub(crate) message: String,
    /// Whether the key of the field is the error, and not the field's value.
    pub(crate) is_unknown: bool,
}

impl Misshapen {
    fn new(field: FieldPath, message: String) -> Misshapen {
        Misshapen { field, message, is_unknown: false }
    }

    /// Adds the position of the field. To find the position, the text is parsed again.
    pub(crate) fn located(self, text: &str) -> DocumentError {
        // A missing field gets the position of its nearest existing parent.
        let position = yaml::locate(text, &self.field, self.is_unknown);
        DocumentError { position, field: self.field, message: self.message }
    }
}

/// Deserializes a value. Also returns the first part of the value whose form serde accepts but documents must not use.
pub(crate) fn typed<T: DeserializeOwned + Serialize>(value: &Value) -> Result<(T, Option<Misshapen>), Misshapen> {
    let read: T = serde_path_to_error::deserialize(value).map_err(|error| {
        let mut field = FieldPath::default();
        for segment in error.path() {
            match segment {
                ErrorSegment::Seq { index } => field.0.push(Segment::Index(*index)),
                ErrorSegment::Map { key } => field.0.push(Segment::Key(key.clone())),
                // The variant of an enum is not part of the path in the text.
                ErrorSegment::Enum { .. } | ErrorSegment::Unknown => {}
            }
        }
        shape_error(field, &error.inner().to_string())
    })?;
    // Serde also accepts a list for a struct and a mapping for an enum's variant; documents must use the form that
    // serde would write.
    let canonical =
        serde_json::to_value(&read).map_err(|error| Misshapen::new(FieldPath::default(), error.to_string()))?;
    let other = other_shape(&FieldPath::default(), value, &canonical);
    Ok((read, other.map(|(field, expected)| Misshapen::new(field, format!("expected {expected}")))))
}

/// Returns the first place where `written` has a list for a mapping or a mapping for a string, and the expected kind.
fn other_shape(at: &FieldPath, written: &Value, canonical: &Value) -> Option<(FieldPath, &'static str)> {
    match (written, canonical) {
        (Value::Object(written), Value::Object(canonical)) => written
            .iter()
            .find_map(|(key, value)| other_shape(&at.key(key), value, canonical.get(key).unwrap_or(value))),
        (Value::Array(written), Value::Array(canonical)) => written
            .iter()
            .zip(canonical)
            .enumerate()
            .find_map(|(index, (value, canonical))| other_shape(&at.index(index), value, canonical)),
        (Value::Array(_), Value::Object(_)) => Some((at.clone(), "a mapping")),
        (Value::Object(_), Value::String(_)) => Some((at.clone(), "a string")),
        _ => None,
    }
}

/// Rewrites serde's message in YAML terms.
fn shape_error(field: FieldPath, message: &str) -> Misshapen {
    if let Some(accepted) = message.strip_prefix("unknown field `").and_then(|rest| rest.split_once("`, ")) {
        return Misshapen { field, message: format!("unknown field, {}", accepted.1), is_unknown: true };
    }
    if let Some(name) = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return Misshapen::new(field.key(name), "required field is missing".to_owned());
    }
    if let Some(value) = message.strip_prefix("unknown variant `").and_then(|rest| rest.split_once("`, ")) {
        return Misshapen::new(field, format!("{}, found `{}`", value.1, cut(value.0, 64)));
    }
    let mismatch = ["invalid type: ", "invalid value: "].iter().find_map(|start| message.strip_prefix(start));
    let message = match mismatch.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((found, expected)) => format!("expected {}, found {}", in_yaml_words(expected), found_word(found)),
        None if field == FieldPath::default().key("version") => {
            format!("expected a semantic version such as 1.0.0: {message}")
        }
        None => message.to_owned(),
    };
    Misshapen::new(field, message)
}

fn in_yaml_words(expected: &str) -> &str {
    match expected {
        "a sequence" => "a list",
        "a map" => "a mapping",
        "u8" => "an integer from 0 to 255",
        "u32" | "u64" => "a non-negative integer",
        "f64" => "a number",
        "semver version" => "a semantic version such as 1.0.0",
        other if other.starts_with("struct ") => "a mapping",
        other if other.starts_with("string or map") => "one of the allowed values",
        other => other,
    }
}

fn found_word(found: &str) -> String {
    match found {
        "sequence" => "a list".to_owned(),
        "map" => "a mapping".to_owned(),
        "null" => "nothing".to_owned(),
        other => cut(other, 80),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        headers: BTreeMap<String, String>,
        #[serde(default)]
        items: Vec<u32>,
    }

    fn says(text: &str) -> String {
        read_document::<Sample>("s.yaml", text, 100).unwrap_err().to_string()
    }

    #[test]
    fn keys_with_the_prefix_x_are_not_ignored() {
        let sample: Sample = read_document("s.yaml", "headers: { x-request-id: a }\n", 100).unwrap();
        assert_eq!(sample.headers["x-request-id"], "a");
        assert_eq!(
            says("headers: {}\nx-free: 1\n"),
            "s.yaml:2:1: x-free: unknown field, expected `headers` or `items`"
        );
    }

    #[test]
    fn errors_show_no_invisible_characters() {
        assert_eq!(
            says("headers: {}\n\"\\u202ea\\u200b\\u2028\\e\\u2066\": 1\n"),
            "s.yaml:2:1: \\u{202e}a\\u{200b}\\u{2028}\\u{1b}\\u{2066}: unknown field, expected `headers` or `items`"
        );
        assert_eq!(
            says("headers: {}\nitems: [\"\u{202e}a\u{feff}\"]\n"),
            "s.yaml:2:9: items[0]: expected a non-negative integer, found string \"\\u{202e}a\\u{feff}\""
        );
    }

    #[test]
    fn errors_have_a_position() {
        assert_eq!(
            says("headers: {}\nitems: [1, a]\n"),
            "s.yaml:2:12: items[1]: expected a non-negative integer, found string \"a\""
        );
        assert_eq!(says(""), "s.yaml: the file is empty");
        assert_eq!(says(&"#".repeat(101)), "s.yaml: the file has 101 bytes; at most 100 are allowed");
        let error = error_at("s.yaml", "headers: {}\nitems: [1, 7]\n", "items[1]", "too large");
        assert_eq!(error.to_string(), "s.yaml:2:12: items[1]: too large");
    }
}
