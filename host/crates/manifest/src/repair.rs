//! Error recovery, so that an author sees all errors of a manifest at once.
//!
//! Serde stops at the first error. The parser then removes or replaces the invalid part and reads the whole value
//! again. A repaired manifest is used only to find further errors.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::document::{DocumentError, Misshapen, typed};
use crate::error::{FieldPath, Segment};

/// Maximum number of re-reads of one document: a re-read of the largest document takes about 5 ms, so all re-reads take
/// at most one second. Most errors need one or two re-reads.
const READS_MAX: usize = 200;

/// The result of reading a document with error recovery.
pub(crate) struct Shaped<T> {
    /// The repaired value; `None` if no replacement was valid.
    pub(crate) read: Option<T>,
    pub(crate) errors: Vec<DocumentError>,
    /// The parts that were replaced.
    pub(crate) replaced: Vec<FieldPath>,
}

/// Reads `value`, which was parsed from `text`, and collects at most `errors_max` errors.
pub(crate) fn read<T: DeserializeOwned + Serialize>(text: &str, mut value: Value, errors_max: usize) -> Shaped<T> {
    let mut shaped = Shaped { read: None, errors: Vec::new(), replaced: Vec::new() };
    let mut reads = 0;
    let mut outcome = typed::<T>(&value);
    loop {
        let misshapen = match outcome {
            Ok((read, None)) => return Shaped { read: Some(read), ..shaped },
            Ok((_, Some(misshapen))) | Err(misshapen) => misshapen,
        };
        let (field, is_unknown) = (misshapen.field.clone(), misshapen.is_unknown);
        shaped.errors.push(misshapen.located(text));
        if shaped.errors.len() == errors_max {
            return shaped;
        }
        let Some((repaired, next)) = repair::<T>(&value, &field, is_unknown, &mut reads) else { return shaped };
        if !is_unknown {
            shaped.replaced.push(field);
        }
        (value, outcome) = (repaired, next);
    }
}

type Outcome<T> = Result<(T, Option<Misshapen>), Misshapen>;

/// Repairs the error at `field`. Returns the repaired value and the result of reading it.
fn repair<T: DeserializeOwned + Serialize>(
    value: &Value,
    field: &FieldPath,
    is_unknown: bool,
    reads: &mut usize,
) -> Option<(Value, Outcome<T>)> {
    // Try removal last: removing a required field is also an error, but serde reports it only after the other fields.
    let replacements = if is_unknown { Vec::new() } else { replacements() };
    for replacement in replacements.into_iter().map(Some).chain([None]) {
        let mut repaired = value.clone();
        if !put(&mut repaired, &field.0, replacement) {
            continue;
        }
        *reads += 1;
        if *reads > READS_MAX {
            return None;
        }
        let outcome = typed::<T>(&repaired);
        let is_past = match &outcome {
            Ok((_, None)) => true,
            Ok((_, Some(next))) | Err(next) => !next.field.0.starts_with(&field.0),
        };
        if is_past {
            return Some((repaired, outcome));
        }
    }
    None
}

/// Returns candidate replacements for an invalid part of a manifest: a value of each type that a field can have, and a
/// minimal mapping for each kind of mapping in a manifest.
fn replacements() -> Vec<Value> {
    vec![
        json!("x"),
        json!("1.0.0"),
        json!("none"),
        json!("static"),
        json!("string"),
        json!("http"),
        json!("https://x.example"),
        json!([]),
        json!({}),
        json!(0),
        json!(true),
        json!({"id": "x", "name": "x"}),
        json!({"name": "x", "description": "x", "operation": "x", "input_schema": {}}),
        json!({"key": "x", "param_paths": []}),
        json!({"method": "none"}),
        json!({"field": "x"}),
        json!({"tool": "x"}),
        json!({"header": "x", "value": "x"}),
    ]
}

/// Sets or removes the value at a path. Returns false if the path does not exist.
fn put(value: &mut Value, at: &[Segment], replacement: Option<Value>) -> bool {
    let Some((last, way)) = at.split_last() else { return false };
    let mut inner = value;
    for segment in way {
        let next = match segment {
            Segment::Key(key) => inner.get_mut(key),
            Segment::Index(index) => inner.get_mut(index),
        };
        let Some(next) = next else { return false };
        inner = next;
    }
    match (inner, last, replacement) {
        (Value::Object(fields), Segment::Key(key), None) => fields.remove(key).is_some(),
        (Value::Object(fields), Segment::Key(key), Some(replacement)) => {
            fields.insert(key.clone(), replacement);
            true
        }
        // List entries are not removed, because that would shift the positions of later entries.
        (Value::Array(entries), Segment::Index(index), Some(replacement)) => match entries.get_mut(*index) {
            Some(entry) => {
                *entry = replacement;
                true
            }
            None => false,
        },
        _ => false,
    }
}
