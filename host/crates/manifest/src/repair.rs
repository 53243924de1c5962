//! Reading goes on behind a fault of shape, so that an author sees all of them at once.
//!
//! Serde stops at the first fault. The part that it stops at is taken out or replaced by one that can be read, and the
//! whole is read again. What is read then is only looked at for further faults and never used.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::document::{Fault, Misshapen, typed};
use crate::error::{FieldPath, Segment};

/// How often a document is read again: some 5 ms each in one of the largest size, so at most a second in all. Most faults
/// take one or two.
const READS_MAX: usize = 200;

/// What was made of a document.
pub(crate) struct Shaped<T> {
    /// With what is wrong taken out or replaced; `None` where nothing was found that fits in its place.
    pub(crate) read: Option<T>,
    pub(crate) faults: Vec<Fault>,
    /// The parts in whose place something else was read.
    pub(crate) replaced: Vec<FieldPath>,
}

/// Reads `value`, which `text` holds, and collects at most `faults_max` faults.
pub(crate) fn read<T: DeserializeOwned + Serialize>(text: &str, mut value: Value, faults_max: usize) -> Shaped<T> {
    let mut shaped = Shaped { read: None, faults: Vec::new(), replaced: Vec::new() };
    let mut reads = 0;
    let mut outcome = typed::<T>(&value);
    loop {
        let misshapen = match outcome {
            Ok((read, None)) => return Shaped { read: Some(read), ..shaped },
            Ok((_, Some(misshapen))) | Err(misshapen) => misshapen,
        };
        let (field, is_unknown) = (misshapen.field.clone(), misshapen.is_unknown);
        shaped.faults.push(misshapen.located(text));
        if shaped.faults.len() == faults_max {
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

/// The value without its fault at `field`, and what reading it comes to.
fn repair<T: DeserializeOwned + Serialize>(
    value: &Value,
    field: &FieldPath,
    is_unknown: bool,
    reads: &mut usize,
) -> Option<(Value, Outcome<T>)> {
    // Taken out last: what is required would be missed, and only once the reading has come to its end.
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

/// What can be read in place of some part of a manifest: each kind of value, and the least of each kind of mapping.
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

/// Puts `replacement` at a place, or removes what is there; whether there is such a place.
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
        // Nothing is taken out of a list: what follows would move, and be told in another place.
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
