//! The parser: text in, a checked manifest or all its faults out.

use crate::document::{Document, Fault};
use crate::error::{FieldPath, ManifestErrors, Segment};
use crate::model::Manifest;
use crate::repair::{self, Shaped};
use crate::schema::SchemaLimits;
use crate::validate::validate;
use crate::yaml::{self, Keys};

/// The largest manifest, in bytes: some hundred tools with generous schemas; the same cap as in packages.
pub const MANIFEST_BYTES_MAX: usize = 256 * 1024;
/// How many faults are told at once: more than anybody mends in one go. Each costs a walk through the text, about 30 ms
/// in a manifest of the largest size.
const FAULTS_MAX: usize = 50;
const MANIFEST: Document = Document { kind: "manifest", bytes_max: MANIFEST_BYTES_MAX, keys: Keys::WithoutFree };

/// Reads and checks a manifest. `file` is only how the errors name it.
///
/// # Errors
/// The fault that keeps the text from being YAML, or else every fault of shape and of content.
pub fn parse(file: &str, text: &str) -> Result<Manifest, ManifestErrors> {
    parse_within(file, text, SchemaLimits::Current)
}

/// Reads a manifest that an earlier release may have accepted: as [`parse()`], but schemas may exceed the limits that are
/// newer than it. [`InputSchema::exceeds`](crate::InputSchema::exceeds) names what does.
///
/// # Errors
/// As for [`parse()`].
pub fn parse_stored(file: &str, text: &str) -> Result<Manifest, ManifestErrors> {
    parse_within(file, text, SchemaLimits::Stored)
}

fn parse_within(file: &str, text: &str, limits: SchemaLimits) -> Result<Manifest, ManifestErrors> {
    let errors = |faults: Vec<Fault>| ManifestErrors(faults.into_iter().map(|fault| fault.into_error(file)).collect());
    let value = MANIFEST.value(text).map_err(|fault| errors(vec![fault]))?;
    let Shaped { read, mut faults, replaced } = repair::read::<Manifest>(text, value, FAULTS_MAX);
    faults.iter_mut().for_each(hint);
    // Repairs change the order in which serde meets the rest.
    faults.sort_by_key(|fault| fault.position.unwrap_or((usize::MAX, usize::MAX)));
    let content = read.as_ref().map(|manifest| validate(manifest, limits)).unwrap_or_default();
    if faults.is_empty()
        && content.is_empty()
        && let Some(manifest) = read
    {
        return Ok(manifest);
    }
    let is_real = |field: &FieldPath| !replaced.iter().any(|part| may_follow(field, part));
    let mut content: Vec<_> = content.into_iter().filter(|(field, _)| is_real(field)).collect();
    let more = (faults.len() + content.len()).saturating_sub(FAULTS_MAX);
    content.truncate(FAULTS_MAX.saturating_sub(faults.len()));
    let located = |(field, message)| Fault { position: yaml::locate(text, &field, false), field, message };
    faults.extend(content.into_iter().map(located));
    if more > 0 {
        let message = format!("and {more} more faults");
        faults.push(Fault { position: None, field: FieldPath::default(), message });
    }
    Err(errors(faults))
}

/// Whether a fault of content may only be there because something else was read in place of `replaced`: it is in the same
/// part of its section, or in one that refers to other parts.
fn may_follow(field: &FieldPath, replaced: &FieldPath) -> bool {
    const REFERRING: [&str; 3] = ["auth_methods", "credential_check", "calls"];
    let of_section = |path: &FieldPath| path.0.first().cloned();
    let refers = matches!(field.0.get(1), Some(Segment::Key(part)) if REFERRING.contains(&part.as_str()));
    of_section(field) == of_section(replaced) && (refers || field.0.get(1) == replaced.0.get(1))
}

/// Explains fields of manifests for Python executors, which look much like ours.
fn hint(fault: &mut Fault) {
    const PYTHON: [&str; 3] = ["module", "class_name", "class"];
    let [Segment::Key(section), Segment::Key(field)] = fault.field.0.as_slice() else { return };
    let is_unknown = fault.message.starts_with("unknown field, ");
    if is_unknown && section == "executor" && PYTHON.contains(&field.as_str()) {
        let rest = fault.message.trim_start_matches("unknown field, ");
        fault.message = format!(
            "unknown field: an executor is a WebAssembly component here, named by `component` (default plugin.wasm); {rest}"
        );
    }
}

#[cfg(test)]
mod tests;
