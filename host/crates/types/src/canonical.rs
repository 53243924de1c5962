//! JSON text in a canonical form, from which digests are computed: sorted keys, and a single notation for equal numbers.
//!
//! The form differs from RFC 8785 in one point: integers beyond the precision of a double keep all digits, so that two
//! different integers never have the same digest.

use serde_json::{Map, Value};

/// Appends the canonical form of `value`.
pub fn write(value: &Value, text: &mut String) {
    match value {
        Value::Array(elements) => {
            text.push('[');
            for element in elements {
                write(element, text);
                text.push(',');
            }
            text.push(']');
        }
        Value::Object(fields) => write_object(fields, text),
        Value::Number(number) => text.push_str(&match number.as_f64() {
            // An integer that a double represents exactly is written without a fraction, so that 1.0 and 1 have the
            // same text.
            Some(double) if double.fract() == 0.0 && double.abs() < 9.0e15 => format!("{}", double + 0.0),
            _ => number.to_string(),
        }),
        Value::Null | Value::Bool(_) | Value::String(_) => text.push_str(&value.to_string()),
    }
}

/// Appends the canonical form of an object.
pub fn write_object(fields: &Map<String, Value>, text: &mut String) {
    let mut sorted: Vec<(&String, &Value)> = fields.iter().collect();
    sorted.sort_unstable_by_key(|(key, _)| *key);
    text.push('{');
    for (key, value) in sorted {
        text.push_str(&Value::from(key.as_str()).to_string());
        text.push(':');
        write(value, text);
        text.push(',');
    }
    text.push('}');
}
