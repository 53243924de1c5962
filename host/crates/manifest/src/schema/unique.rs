//! The keyword `uniqueItems` in linear time.
//!
//! The validator's built-in keyword compares the items of small lists in pairs and hashes the items of longer lists.
//! The hash is equal for lists with different nesting, such as `[[], []]` and `[[[]]]`, so a list of such items takes
//! quadratic time.

use std::collections::HashSet;

use jsonschema::{Keyword, ValidationError};
use serde_json::{Number, Value};

use super::paying;
use super::weight::Weight;

/// The cost, in steps, of serializing one value and looking up its text.
const VALUE_STEPS: u64 = 256;

/// The keyword `uniqueItems` with its value, which may be false.
pub(super) struct UniqueItems {
    pub(super) is_wanted: bool,
}

impl<'i> Keyword<'i> for UniqueItems {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        // The validator's built-in keyword has the same message.
        if self.is_valid(instance) { Ok(()) } else { Err(ValidationError::custom("the value has non-unique elements")) }
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        let Value::Array(items) = instance else { return true };
        if !self.is_wanted || items.len() < 2 {
            return true;
        }
        let effort = paying::current();
        let weight = Weight::of(instance, &effort);
        let paid = weight.and_then(|weight| effort.spend(weight.values().saturating_mul(VALUE_STEPS)));
        paid.is_ok() && are_unique(items)
    }
}

fn are_unique(items: &[Value]) -> bool {
    let mut seen = HashSet::with_capacity(items.len());
    items.iter().all(|item| {
        let mut text = Vec::new();
        write(item, &mut text);
        seen.insert(text)
    })
}

/// Serializes `value` so that two values have the same text if and only if they are equal as JSON.
fn write(value: &Value, text: &mut Vec<u8>) {
    match value {
        Value::Null => text.push(b'n'),
        Value::Bool(value) => text.push(if *value { b't' } else { b'f' }),
        Value::Number(number) => write_number(number, text),
        Value::String(string) => write_text(b's', string, text),
        Value::Array(items) => {
            text.push(b'a');
            text.extend(items.len().to_le_bytes());
            items.iter().for_each(|item| write(item, text));
        }
        Value::Object(members) => {
            text.push(b'o');
            text.extend(members.len().to_le_bytes());
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_unstable_by_key(|(name, _)| name.as_str());
            for (name, member) in sorted {
                write_text(b's', name, text);
                write(member, text);
            }
        }
    }
}

fn write_text(kind: u8, string: &str, text: &mut Vec<u8>) {
    text.push(kind);
    text.extend(string.len().to_le_bytes());
    text.extend(string.as_bytes());
}

/// Writes a number in a canonical form: 1, 1.0 and 1e0 have the same text.
fn write_number(number: &Number, text: &mut Vec<u8>) {
    let float = number.as_f64().unwrap_or(f64::NAN);
    let integer = if let Some(number) = number.as_u64() {
        Some(i128::from(number))
    } else if let Some(number) = number.as_i64() {
        Some(i128::from(number))
    } else if float.fract() == 0.0 && float.abs() < 1e30 {
        #[expect(clippy::cast_possible_truncation, reason = "it is whole and far smaller than the largest i128")]
        let integer = float as i128;
        Some(integer)
    } else {
        None
    };
    if let Some(integer) = integer {
        text.push(b'i');
        text.extend(integer.to_le_bytes());
    } else {
        text.push(b'd');
        text.extend(float.to_bits().to_le_bytes());
    }
}
