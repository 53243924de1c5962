//! The JSON Schema of the manifest, generated from its types, for completion and validation in editors.

use serde_json::{Value, json};

use crate::model::Manifest;

/// Returns the JSON Schema (2020-12) of `monstrum.yaml`.
#[must_use]
pub fn json_schema() -> Value {
    let mut schema = schemars::schema_for!(Manifest).to_value();
    allow_free_keys(&mut schema);
    if let Some(root) = schema.as_object_mut() {
        root.insert("title".to_owned(), json!("monstrum.yaml"));
    }
    schema
}

/// Returns the text of the JSON Schema that is committed to the repository and that `monstrum plugin schema` prints.
#[must_use]
pub fn json_schema_text() -> String {
    let mut text = serde_json::to_string_pretty(&json_schema()).expect("a JSON value can always be serialized");
    text.push('\n');
    text
}

/// Allows keys that start with `x-` in all closed objects, as the parser does.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(text: &str) -> bool {
        let manifest: Value = serde_yaml::from_str(text).unwrap();
        jsonschema::validator_for(&json_schema()).unwrap().is_valid(&manifest)
    }

    #[test]
    fn the_committed_schema_is_up_to_date() {
        let committed = include_str!("../monstrum.schema.json");
        assert!(committed == json_schema_text(), "monstrum.schema.json is out of date: run `cargo xtask schema`");
    }

    #[test]
    fn the_schema_accepts_the_same_manifests_as_the_parser() {
        let github = include_str!("../fixtures/github.yaml");
        assert!(accepts(github));
        assert!(accepts(&github.replacen("author:", "x-author:", 1)));
        assert!(accepts(&github.replacen("icon: github", "x-icon: { any: thing }", 1)));
        for (old, new) in [
            ("author:", "writer:"),
            ("icon: github", "icons: github"),
            ("name: github", "nick: github"),
            ("mode: plugin", "mode: plug-in"),
            ("executor: {}", "executor: { module: executor }"),
            ("operation: issue.read", "operation: 5"),
        ] {
            assert!(!accepts(&github.replacen(old, new, 1)), "{new}");
        }
    }
}
