//! The manifest parser. It returns a validated manifest or all errors.

use crate::document::{Document, DocumentError};
use crate::error::{FieldPath, ManifestErrors, Segment};
use crate::model::Manifest;
use crate::repair::{self, Shaped};
use crate::schema::SchemaLimits;
use crate::validate::validate;
use crate::yaml::{self, Keys};

/// Maximum size of a manifest in bytes: enough for several hundred tools with large schemas. Packages have the same
/// limit.
pub const MANIFEST_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of errors in one report. Locating an error takes one pass through the text, about 30 ms for the
/// largest manifest.
const ERRORS_MAX: usize = 50;
const MANIFEST: Document = Document { kind: "manifest", bytes_max: MANIFEST_BYTES_MAX, keys: Keys::WithoutFree };

/// Parses and validates a manifest. `file` is the file name in errors.
///
/// # Errors
/// Returns the syntax error if the text is not YAML, otherwise all errors in the manifest's structure and content.
pub fn parse(file: &str, text: &str) -> Result<Manifest, ManifestErrors> {
    parse_within(file, text, SchemaLimits::Current)
}

/// Parses a stored manifest, which an earlier release may have accepted. Unlike [`parse()`], this function accepts
/// schemas that exceed the current limits; [`InputSchema::exceeds`](crate::InputSchema::exceeds) lists the exceeded
/// limits.
///
/// # Errors
/// Returns the same errors as [`parse()`].
pub fn parse_stored(file: &str, text: &str) -> Result<Manifest, ManifestErrors> {
    parse_within(file, text, SchemaLimits::Stored)
}

fn parse_within(file: &str, text: &str, limits: SchemaLimits) -> Result<Manifest, ManifestErrors> {
    let in_file =
        |errors: Vec<DocumentError>| ManifestErrors(errors.into_iter().map(|error| error.into_error(file)).collect());
    let value = MANIFEST.value(text).map_err(|error| in_file(vec![error]))?;
    let Shaped { read, mut errors, replaced } = repair::read::<Manifest>(text, value, ERRORS_MAX);
    errors.iter_mut().for_each(hint);
    // After a repair, serde may report the remaining errors in a different order.
    errors.sort_by_key(|error| error.position.unwrap_or((usize::MAX, usize::MAX)));
    let content = read.as_ref().map(|manifest| validate(manifest, limits)).unwrap_or_default();
    if errors.is_empty()
        && content.is_empty()
        && let Some(manifest) = read
    {
        return Ok(manifest);
    }
    let is_real = |field: &FieldPath| !replaced.iter().any(|part| may_follow(field, part));
    let mut content: Vec<_> = content.into_iter().filter(|(field, _)| is_real(field)).collect();
    let more = (errors.len() + content.len()).saturating_sub(ERRORS_MAX);
    content.truncate(ERRORS_MAX.saturating_sub(errors.len()));
    let located = |(field, message)| DocumentError { position: yaml::locate(text, &field, false), field, message };
    errors.extend(content.into_iter().map(located));
    if more > 0 {
        let message = format!("and {more} more errors");
        errors.push(DocumentError { position: None, field: FieldPath::default(), message });
    }
    Err(in_file(errors))
}

/// Returns whether the replacement of `replaced` may have caused a content error at `field`. The function returns true
/// if both fields are in the same part of the same section of the manifest, or if they are in the same section and
/// `field` is in a part that refers to other parts.
fn may_follow(field: &FieldPath, replaced: &FieldPath) -> bool {
    const REFERRING: [&str; 3] = ["auth_methods", "credential_check", "calls"];
    let of_section = |path: &FieldPath| path.0.first().cloned();
    let refers = matches!(field.0.get(1), Some(Segment::Key(part)) if REFERRING.contains(&part.as_str()));
    of_section(field) == of_section(replaced) && (refers || field.0.get(1) == replaced.0.get(1))
}

/// Adds a hint to errors about fields from manifests for Python executors, which have a similar format.
fn hint(error: &mut DocumentError) {
    const PYTHON: [&str; 3] = ["module", "class_name", "class"];
    let [Segment::Key(section), Segment::Key(field)] = error.field.0.as_slice() else { return };
    let is_unknown = error.message.starts_with("unknown field, ");
    if is_unknown && section == "executor" && PYTHON.contains(&field.as_str()) {
        let rest = error.message.trim_start_matches("unknown field, ");
        error.message = format!(
            "unknown field: the executor must be a WebAssembly component; set `component` to its file \
             name (default plugin.wasm); {rest}"
        );
    }
}

#[cfg(test)]
mod tests;
