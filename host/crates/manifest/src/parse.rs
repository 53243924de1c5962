//! The parser: text in, a checked manifest or all its faults out.

use serde_json::Value;
use serde_path_to_error::Segment as ErrorSegment;

use crate::error::{FieldPath, ManifestError, ManifestErrors, Segment, cut};
use crate::model::Manifest;
use crate::nesting::check_nesting;
use crate::validate::validate;
use crate::yaml;

/// The largest manifest, in bytes: some hundred tools with generous schemas; the same cap as in packages.
pub const MANIFEST_BYTES_MAX: usize = 256 * 1024;
/// The deepest nesting of a manifest. The manifest itself takes 8 levels, so schemas have ample room.
pub const MANIFEST_DEPTH_MAX: usize = 64;
/// How many faults are told at once: more than anybody mends in one go. Each costs a walk through the text, about 30 ms
/// in a manifest of the largest size.
const FAULTS_MAX: usize = 50;
/// The longest message, in characters: it may quote the manifest.
const MESSAGE_CHARS_MAX: usize = 400;

/// Reads and checks a manifest. `file` is only how the errors name it.
///
/// # Errors
/// The first fault of shape, or else every fault of content.
pub fn parse(file: &str, text: &str) -> Result<Manifest, ManifestErrors> {
    let errors = |faults: Vec<Fault>| ManifestErrors(faults.into_iter().map(|fault| fault.into_error(file)).collect());
    let manifest = read(text).map_err(|fault| errors(vec![fault]))?;
    let mut faults = validate(&manifest);
    if faults.is_empty() {
        return Ok(manifest);
    }
    let more = faults.len().saturating_sub(FAULTS_MAX);
    faults.truncate(FAULTS_MAX);
    let mut located: Vec<Fault> = faults
        .into_iter()
        .map(|(field, message)| Fault { position: yaml::locate(text, &field, false), field, message })
        .collect();
    if more > 0 {
        let message = format!("and {more} more faults");
        located.push(Fault { position: None, field: FieldPath::default(), message });
    }
    Err(errors(located))
}

struct Fault {
    position: Option<yaml::Position>,
    field: FieldPath,
    message: String,
}

impl Fault {
    fn of_file(message: String) -> Self {
        Fault { position: None, field: FieldPath::default(), message }
    }

    fn into_error(self, file: &str) -> ManifestError {
        ManifestError {
            file: file.to_owned(),
            line: self.position.map(|(line, _)| line),
            column: self.position.map(|(_, column)| column),
            field: shown(&self.field.to_string()),
            message: shown(&self.message),
        }
    }
}

/// One line that a terminal shows as it is: what it quotes of the manifest may hold anything.
fn shown(text: &str) -> String {
    let escaped: String =
        text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect();
    cut(&escaped, MESSAGE_CHARS_MAX)
}

/// From text to shapes.
fn read(text: &str) -> Result<Manifest, Fault> {
    if text.len() > MANIFEST_BYTES_MAX {
        let size = text.len();
        return Err(Fault::of_file(format!("a manifest has at most {MANIFEST_BYTES_MAX} bytes, this one has {size}")));
    }
    check_nesting(text, MANIFEST_DEPTH_MAX).map_err(|deep| Fault {
        position: Some((deep.line, deep.column)),
        field: FieldPath::default(),
        message: format!("nested deeper than {MANIFEST_DEPTH_MAX} levels"),
    })?;
    let value = yaml::read(text, MANIFEST_DEPTH_MAX).map_err(|fault| Fault {
        position: fault.position,
        field: fault.field,
        message: fault.message,
    })?;
    match value {
        Value::Null => return Err(Fault::of_file("the manifest is empty".to_owned())),
        Value::Array(_) => return Err(Fault::of_file("expected a mapping, found a list".to_owned())),
        _ => {}
    }
    typed(text, &value)
}

fn typed(text: &str, value: &Value) -> Result<Manifest, Fault> {
    let manifest: Manifest = serde_path_to_error::deserialize(value).map_err(|error| {
        let mut field = FieldPath::default();
        for segment in error.path() {
            match segment {
                ErrorSegment::Seq { index } => field.0.push(Segment::Index(*index)),
                ErrorSegment::Map { key } => field.0.push(Segment::Key(key.clone())),
                // An enum's variant is no step in the text.
                ErrorSegment::Enum { .. } | ErrorSegment::Unknown => {}
            }
        }
        shape_fault(text, field, &error.inner().to_string())
    })?;
    // Serde also takes a list for a mapping and a mapping for a word; here a thing is written in one way only.
    let canonical = serde_json::to_value(&manifest).map_err(|error| Fault::of_file(error.to_string()))?;
    if let Some((field, expected)) = other_shape(&FieldPath::default(), value, &canonical) {
        return Err(Fault {
            position: yaml::locate(text, &field, false),
            field,
            message: format!("expected {expected}"),
        });
    }
    Ok(manifest)
}

/// The first place where `written` is of another kind than `canonical`, and the kind that is expected there.
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
        (Value::Object(_), Value::String(_)) => Some((at.clone(), "one word")),
        _ => None,
    }
}

/// Puts serde's words into those of somebody who writes YAML.
fn shape_fault(text: &str, field: FieldPath, message: &str) -> Fault {
    if let Some(accepted) = message.strip_prefix("unknown field `").and_then(|rest| rest.split_once("`, ")) {
        let position = yaml::locate(text, &field, true);
        return Fault { position, field, message: format!("unknown field, {}", accepted.1) };
    }
    let position = yaml::locate(text, &field, false);
    if let Some(name) = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return Fault { position, field: field.key(name), message: "required field is missing".to_owned() };
    }
    if let Some(value) = message.strip_prefix("unknown variant `").and_then(|rest| rest.split_once("`, ")) {
        return Fault { position, field, message: format!("{}, found `{}`", value.1, cut(value.0, 64)) };
    }
    let mismatch = ["invalid type: ", "invalid value: "].iter().find_map(|start| message.strip_prefix(start));
    let message = match mismatch.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((found, expected)) => format!("expected {}, found {}", in_yaml_words(expected), found_word(found)),
        None if field == FieldPath::default().key("version") => {
            format!("expected a semantic version such as 1.0.0: {message}")
        }
        None => message.to_owned(),
    };
    Fault { position, field, message }
}

fn in_yaml_words(expected: &str) -> &str {
    match expected {
        "a sequence" => "a list",
        "a map" => "a mapping",
        "u8" => "a whole number from 0 to 255",
        "u32" | "u64" => "a whole number, not negative",
        "f64" => "a number",
        "semver version" => "a semantic version such as 1.0.0",
        other if other.starts_with("struct ") => "a mapping",
        other if other.starts_with("string or map") => "one of the known words",
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
mod tests;
