//! The parser: text in, a checked manifest or all its faults out.

use crate::document::{Document, Fault};
use crate::error::{FieldPath, ManifestErrors};
use crate::model::Manifest;
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
/// The first fault of shape, or else every fault of content.
pub fn parse(file: &str, text: &str) -> Result<Manifest, ManifestErrors> {
    let errors = |faults: Vec<Fault>| ManifestErrors(faults.into_iter().map(|fault| fault.into_error(file)).collect());
    let manifest = MANIFEST.read(text).map_err(|fault| errors(vec![fault]))?;
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

#[cfg(test)]
mod tests;
