//! The defaults of a schema. They are collected once, so that a call only fills them in.

use serde_json::{Map, Value};

use super::walk::certain_parts;

/// The defaults of an object.
#[derive(Debug, Default)]
pub(super) struct Defaults(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    name: String,
    value: Option<Value>,
    inner: Defaults,
}

impl Defaults {
    /// Collects the defaults of the properties that `schema` always declares. A default of null means that the
    /// parameter is absent.
    pub(super) fn of(root: &Value, schema: &Value) -> Defaults {
        let mut entries = Vec::new();
        for part in certain_parts(root, schema) {
            for (name, property) in part.get("properties").and_then(Value::as_object).into_iter().flatten() {
                let own = certain_parts(root, property).into_iter().find_map(|part| part.get("default"));
                let value = own.filter(|value| !value.is_null()).cloned();
                let inner = Defaults::of(root, property);
                if value.is_some() || !inner.0.is_empty() {
                    entries.push(Entry { name: name.clone(), value, inner });
                }
            }
        }
        Defaults(entries)
    }

    /// Returns whether [`Defaults::fill`] changes `object`.
    pub(super) fn are_missing_in(&self, object: &Map<String, Value>) -> bool {
        self.0.iter().any(|entry| match object.get(&entry.name) {
            None => entry.value.is_some(),
            Some(Value::Object(inner)) => entry.inner.are_missing_in(inner),
            Some(_) => false,
        })
    }

    /// Fills in absent properties. An absent object without its own default stays absent.
    pub(super) fn fill(&self, object: &mut Map<String, Value>) {
        for entry in &self.0 {
            if let Some(value) = &entry.value
                && !object.contains_key(&entry.name)
            {
                object.insert(entry.name.clone(), value.clone());
            }
            if let Some(Value::Object(inner)) = object.get_mut(&entry.name) {
                entry.inner.fill(inner);
            }
        }
    }
}
