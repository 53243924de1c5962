//! Counts the values inside a JSON value, by kind. The cost of a check depends on these counts.

use monstrum_types::{Effort, Overrun};
use serde_json::Value;

/// The number of bytes of text that count as one additional value. Comparing text and counting its characters takes
/// less than one step per byte.
const TEXT_BYTES: usize = 64;
/// The cost, in steps, of visiting one entry of a list or object.
const ENTRY_STEPS: u64 = 8;

/// The number of values inside a JSON value, including the value itself. A long text or name counts as several values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Weight {
    pub(super) objects: u64,
    pub(super) arrays: u64,
    pub(super) scalars: u64,
    /// The total length of all member names in bytes.
    pub(super) name_bytes: u64,
    /// The length of the longest member name in bytes.
    pub(super) name_bytes_max: usize,
}

impl Weight {
    /// Counts the values in `value`. The steps for the entries of a list or object are spent before the entries are
    /// visited.
    pub(super) fn of(value: &Value, effort: &Effort) -> Result<Weight, Overrun> {
        let mut weight = Weight::default();
        weight.add(value, effort)?;
        Ok(weight)
    }

    pub(super) fn values(&self) -> u64 {
        self.objects.saturating_add(self.arrays).saturating_add(self.scalars)
    }

    fn add(&mut self, value: &Value, effort: &Effort) -> Result<(), Overrun> {
        match value {
            Value::Object(members) => {
                effort.spend(ENTRY_STEPS.saturating_mul(members.len() as u64))?;
                self.objects += 1;
                for (name, member) in members {
                    self.objects += units(name);
                    self.name_bytes += name.len() as u64;
                    self.name_bytes_max = self.name_bytes_max.max(name.len());
                    self.add(member, effort)?;
                }
            }
            Value::Array(items) => {
                effort.spend(ENTRY_STEPS.saturating_mul(items.len() as u64))?;
                self.arrays += 1;
                for item in items {
                    self.add(item, effort)?;
                }
            }
            Value::String(text) => self.scalars += 1 + units(text),
            Value::Null | Value::Bool(_) | Value::Number(_) => self.scalars += 1,
        }
        Ok(())
    }
}

fn units(text: &str) -> u64 {
    (text.len() / TEXT_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_value_counts_and_long_texts_count_more() {
        let value = json!({"a": [1, null, "x".repeat(640)], "long".repeat(32): {}});
        let weight = Weight::of(&value, &Effort::of(1_000)).unwrap();
        assert_eq!(weight, Weight { objects: 4, arrays: 1, scalars: 13, name_bytes: 129, name_bytes_max: 128 });
        assert_eq!(Weight::of(&value, &Effort::of(39)), Err(Overrun::Steps), "five entries of eight steps");
    }
}
