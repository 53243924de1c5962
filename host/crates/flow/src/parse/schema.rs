//! Reads JSON Schemas, and bounds the work of the validators that are made of them.

use std::collections::HashMap;

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

use super::fields::Parsing;
use crate::fault::At;
use crate::node::Node;

/// Maximum number of subschemas after references are followed. The validator of a schema is made of as many parts, and
/// references can double the number with every line.
const PARTS_MAX: u64 = 5_000;
/// Maximum size of a compiled regular expression in bytes.
const PATTERN_BYTES_MAX: usize = 10 * 1024;
/// Maximum number of errors that are reported for one value.
const ERRORS_MAX: usize = 20;

/// Reads a schema.
pub(super) fn read(parsing: &mut Parsing, node: &Node, at: At<'_>) -> Option<Value> {
    parsing.entries(node, at, "a JSON Schema")?;
    let schema = node.to_json();
    match compile(&schema) {
        Ok(_) => Some(schema),
        Err(message) => {
            parsing.fault(node.spot(at).fault(format!("not a usable JSON Schema: {message}")));
            None
        }
    }
}

/// Compiles a schema whose validator needs little time and memory.
pub(crate) fn compile(schema: &Value) -> Result<Validator, String> {
    let mut costs = HashMap::new();
    if cost(schema, schema, &mut costs)? > PARTS_MAX {
        return Err(format!("it has more than {PARTS_MAX} parts after references are followed"));
    }
    jsonschema::options()
        .offline()
        .with_pattern_options(PatternOptions::regex().size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX))
        .should_validate_formats(false)
        .build(schema)
        .map_err(|error| error.to_string())
}

/// Counts the parts of a schema. A reference costs what it refers to, and a circle of references costs infinitely much
/// only if each turn doubles: a part that is being counted counts as one.
fn cost(root: &Value, schema: &Value, costs: &mut HashMap<String, u64>) -> Result<u64, String> {
    let mut total = 1_u64;
    match schema {
        Value::Array(items) => {
            for item in items {
                total = total.saturating_add(cost(root, item, costs)?);
            }
        }
        Value::Object(members) => {
            for (key, value) in members {
                match (key.as_str(), value) {
                    ("$ref", Value::String(target)) => {
                        total = total.saturating_add(reference(root, target, costs)?);
                    }
                    // In `properties`, a property may have one of these names, and its value is a schema.
                    (
                        "$id" | "id" | "$anchor" | "$dynamicAnchor" | "$dynamicRef" | "$recursiveRef",
                        Value::String(_),
                    ) => {
                        return Err(format!("`{key}` is not supported"));
                    }
                    _ => total = total.saturating_add(cost(root, value, costs)?),
                }
            }
        }
        _ => {}
    }
    Ok(total)
}

fn reference(root: &Value, target: &str, costs: &mut HashMap<String, u64>) -> Result<u64, String> {
    let Some(pointer) = target.strip_prefix('#').filter(|rest| rest.is_empty() || rest.starts_with('/')) else {
        return Err(format!("`$ref` must refer to this schema, as in `#/$defs/name`, found `{target}`"));
    };
    if let Some(known) = costs.get(pointer) {
        return Ok(*known);
    }
    costs.insert(pointer.to_owned(), 1);
    let part = root.pointer(pointer).ok_or_else(|| format!("`{target}` refers to nothing"))?;
    let total = cost(root, part, costs)?;
    costs.insert(pointer.to_owned(), total);
    Ok(total)
}

/// An error of a value, with the pointer to it.
pub(crate) struct SchemaError {
    pub(crate) pointer: String,
    pub(crate) message: String,
    /// Whether the error remains if a value below it changes.
    pub(crate) is_about_keys: bool,
}

/// Returns the errors of a value.
pub(crate) fn errors(validator: &Validator, value: &Value) -> Vec<SchemaError> {
    let about_keys = ["required", "additionalProperties", "unevaluatedProperties", "type"];
    let errors = validator.iter_errors(value).take(ERRORS_MAX).map(|error| SchemaError {
        pointer: error.instance_path().as_str().to_owned(),
        is_about_keys: about_keys.contains(&error.kind().keyword()),
        // The value may be long, or an expression's place.
        message: error.masked_with("the value").to_string(),
    });
    errors.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_that_double_are_refused() {
        let mut defs = serde_json::Map::new();
        for level in 0..40 {
            let next = format!("#/$defs/a{}", level + 1);
            defs.insert(format!("a{level}"), json!({"allOf": [{"$ref": next}, {"$ref": next}]}));
        }
        defs.insert("a40".to_owned(), json!({"type": "string"}));
        let error = compile(&json!({"$ref": "#/$defs/a0", "$defs": defs})).unwrap_err();
        assert!(error.contains("parts"), "{error}");
        let mutual =
            json!({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"});
        drop(compile(&mutual));
        for schema in
            [json!({"$ref": "https://example.com/s"}), json!({"$id": "x"}), json!({"type": 1}), json!({"pattern": "("})]
        {
            compile(&schema).unwrap_err();
        }
        let tree = json!({"type": "object", "properties": {"id": {"type": "string"}, "inner": {"$ref": "#"}}});
        assert!(compile(&tree).unwrap().is_valid(&json!({"id": "a", "inner": {"id": "b"}})));
    }
}
