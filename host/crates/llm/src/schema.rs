//! Reduces the schema of a tool's parameters to what every server understands.
//!
//! Some servers refuse a request for one keyword that they do not know, and small models do not follow it. A plain schema
//! has the keywords `type`, `properties`, `required`, `enum`, `items` and `description` only. It allows more than the
//! full schema. That is safe, because the host validates the parameters of each call by the full schema; a plain schema
//! must not be used for validation.

use serde_json::{Map, Value, json};

/// The deepest level of a plain schema. What lies deeper is allowed to be any value.
const DEPTH_MAX: usize = 32;

/// Returns the plain form of the schema of a tool's parameters. It is always a schema of an object.
#[must_use]
pub fn plain(schema: &Value) -> Value {
    let mut plain = match reduce(schema, DEPTH_MAX) {
        Value::Object(plain) => plain,
        _ => Map::new(),
    };
    plain.insert("type".to_owned(), json!("object"));
    plain.entry("properties").or_insert_with(|| json!({}));
    Value::Object(plain)
}

/// Keeps the plain keywords of one schema and of the schemas in it.
fn reduce(schema: &Value, depth: usize) -> Value {
    let mut plain = Map::new();
    let (Value::Object(schema), Some(depth)) = (schema, depth.checked_sub(1)) else {
        return Value::Object(plain);
    };
    if let Some(kind) = schema.get("type").and_then(single_type) {
        plain.insert("type".to_owned(), json!(kind));
    }
    if let Some(description @ Value::String(_)) = schema.get("description") {
        plain.insert("description".to_owned(), description.clone());
    }
    if let Some(values @ Value::Array(_)) = schema.get("enum") {
        plain.insert("enum".to_owned(), values.clone());
    }
    if let Some(Value::Object(properties)) = schema.get("properties") {
        let reduced: Map<String, Value> =
            properties.iter().map(|(name, schema)| (name.clone(), reduce(schema, depth))).collect();
        plain.insert("properties".to_owned(), Value::Object(reduced));
    }
    if let Some(required) = required(schema) {
        plain.insert("required".to_owned(), required);
    }
    if let Some(items) = schema.get("items") {
        plain.insert("items".to_owned(), reduce(items, depth));
    }
    Value::Object(plain)
}

/// Returns the type. A list of types with one besides `null` becomes that one; a longer list says nothing.
fn single_type(kind: &Value) -> Option<&str> {
    match kind {
        Value::String(kind) => Some(kind),
        Value::Array(kinds) => {
            let mut kinds = kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null");
            kinds.next().filter(|_| kinds.next().is_none())
        }
        _ => None,
    }
}

/// Returns the required properties that the schema has. Some servers refuse the name of a property that is not there.
fn required(schema: &Map<String, Value>) -> Option<Value> {
    let properties = schema.get("properties")?.as_object()?;
    let names = schema.get("required")?.as_array()?;
    let known = names.iter().filter(|name| name.as_str().is_some_and(|name| properties.contains_key(name)));
    let known: Vec<Value> = known.cloned().collect();
    (!known.is_empty()).then_some(Value::Array(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_keywords_stay() {
        let full = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object", "additionalProperties": false, "title": "T", "description": "D",
            "required": ["type", "gone"],
            "properties": {
                "type": {"type": ["string", "null"], "format": "uri", "minLength": 1, "enum": ["a", "b"]},
                "list": {"type": "array", "minItems": 2, "items": {"type": "integer", "maximum": 4}},
                "any": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                "several": {"type": ["string", "integer"]},
                "free": true,
            },
        });
        let expected = json!({
            "type": "object", "description": "D",
            "properties": {
                "type": {"type": "string", "enum": ["a", "b"]},
                "list": {"type": "array", "items": {"type": "integer"}},
                "any": {}, "several": {}, "free": {},
            },
            "required": ["type"],
        });
        assert_eq!(plain(&full), expected);
        assert_eq!(plain(&expected), expected);
    }

    #[test]
    fn every_schema_becomes_one_of_an_object() {
        for schema in [json!(true), json!(null), json!({}), json!({"type": "string"})] {
            assert_eq!(plain(&schema), json!({"type": "object", "properties": {}}));
        }
    }

    #[test]
    fn the_depth_is_limited() {
        let mut deep = json!({"type": "string"});
        for _ in 0..120 {
            deep = json!({"type": "array", "items": deep});
        }
        let text = plain(&json!({"properties": {"deep": deep}})).to_string();
        assert_eq!(text.matches("items").count(), DEPTH_MAX - 1);
    }
}
