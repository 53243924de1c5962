//! The JSON Schema of the manifest, generated from the shapes, so that editors complete and check it.

use serde_json::{Value, json};

use crate::model::Manifest;

/// The JSON Schema (2020-12) of `monstrum.yaml`.
#[must_use]
pub fn json_schema() -> Value {
    let mut schema = schemars::schema_for!(Manifest).to_value();
    allow_free_keys(&mut schema);
    if let Some(root) = schema.as_object_mut() {
        root.insert("title".to_owned(), json!("monstrum.yaml"));
    }
    schema
}

/// Lets every closed object have keys that start with `x-`, as the parser does.
fn allow_free_keys(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.values_mut().for_each(allow_free_keys);
            if map.get("additionalProperties") == Some(&Value::Bool(false)) {
                map.insert("patternProperties".to_owned(), json!({"^x-": true}));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(allow_free_keys),
        _ => {}
    }
}
