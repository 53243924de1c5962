//! Reads JSON Schemas, and bounds the work of the validators that are made of them.

use std::collections::HashMap;

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

use super::fields::Parsing;
use crate::fault::{At, cut};
use crate::node::Node;

/// Maximum number of subschemas after references are followed. The validator of a schema is made of as many parts, and
/// references can double the number with every line.
const PARTS_MAX: u64 = 5_000;
/// Maximum number of references that lead from one to the next. Schemas of people have a handful.
const REFERENCES_DEEP_MAX: usize = 64;
/// Maximum size of a compiled regular expression in bytes.
const PATTERN_BYTES_MAX: usize = 10 * 1024;
/// Maximum number of errors that are reported for one value.
const ERRORS_MAX: usize = 20;
/// Maximum work of checking one value against one schema, about a tenth of a second. A unit is one part of the schema at
/// one value.
pub(crate) const WORK_MAX: u64 = 10_000_000;
/// The work of compiling one part of a schema.
const COMPILE_WORK: u64 = 100;
/// The work of matching one byte with a regular expression.
const MATCH_WORK: u64 = 16;
/// Maximum work of a check whose errors are listed. The validator collects all errors before it returns the first one,
/// and each alternative of a schema can have an error for each value.
const LISTED_WORK_MAX: u64 = 50_000;

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

/// A schema that can check values.
pub(crate) struct Schema {
    validator: Validator,
    cost: Cost,
}

/// Compiles a schema whose validator needs little time and memory.
pub(crate) fn compile(schema: &Value) -> Result<Schema, String> {
    let cost = cost(schema, schema, &mut HashMap::new(), 0)?;
    if cost.parts > PARTS_MAX {
        return Err(format!("it has more than {PARTS_MAX} parts after references are followed"));
    }
    let validator = jsonschema::options()
        .offline()
        .with_pattern_options(PatternOptions::regex().size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX))
        .should_validate_formats(false)
        .build(schema)
        .map_err(|error| error.to_string())?;
    Ok(Schema { validator, cost })
}

/// What a schema costs after references are followed.
#[derive(Clone, Copy, Default)]
struct Cost {
    /// The values in the schema.
    parts: u64,
    patterns: u64,
    /// The parts that compare the items of a list with each other.
    uniques: u64,
}

impl Cost {
    fn add(&mut self, inner: Cost) {
        self.parts = self.parts.saturating_add(inner.parts);
        self.patterns = self.patterns.saturating_add(inner.patterns);
        self.uniques = self.uniques.saturating_add(inner.uniques);
    }

    fn times(self, factor: u64) -> Cost {
        Cost {
            parts: self.parts.saturating_mul(factor),
            patterns: self.patterns.saturating_mul(factor),
            uniques: self.uniques.saturating_mul(factor),
        }
    }
}

/// Counts the parts of a schema. A reference costs what it refers to. References in a circle are refused, because a
/// validator can take time exponential in the depth of a value.
fn cost(root: &Value, schema: &Value, costs: &mut HashMap<String, Option<Cost>>, depth: usize) -> Result<Cost, String> {
    let mut total = Cost { parts: 1, ..Cost::default() };
    match schema {
        Value::Array(items) => {
            for item in items {
                total.add(cost(root, item, costs, depth)?);
            }
        }
        Value::Object(members) => {
            for (key, value) in members {
                match (key.as_str(), value) {
                    ("$ref", Value::String(target)) => total.add(reference(root, target, costs, depth + 1)?),
                    // In `properties`, a property may have one of these names, and its value is a schema.
                    (
                        "$id" | "id" | "$anchor" | "$dynamicAnchor" | "$dynamicRef" | "$recursiveRef",
                        Value::String(_),
                    ) => {
                        return Err(format!("`{key}` is not supported"));
                    }
                    _ => total.add(cost(root, value, costs, depth)?),
                }
                match (key.as_str(), value) {
                    ("pattern", Value::String(_)) => total.patterns = total.patterns.saturating_add(1),
                    ("patternProperties", Value::Object(patterns)) => {
                        total.patterns = total.patterns.saturating_add(patterns.len() as u64);
                    }
                    ("uniqueItems", Value::Bool(true)) => total.uniques = total.uniques.saturating_add(1),
                    _ => {}
                }
            }
            // These keywords visit the schemas beside them once more.
            if members.contains_key("unevaluatedProperties") || members.contains_key("unevaluatedItems") {
                total = total.times(2);
            }
        }
        _ => {}
    }
    Ok(total)
}

fn reference(
    root: &Value,
    target: &str,
    costs: &mut HashMap<String, Option<Cost>>,
    depth: usize,
) -> Result<Cost, String> {
    if depth > REFERENCES_DEEP_MAX {
        return Err(format!("more than {REFERENCES_DEEP_MAX} references lead from one to the next"));
    }
    let Some(pointer) = target.strip_prefix('#').filter(|rest| rest.is_empty() || rest.starts_with('/')) else {
        return Err(format!("`$ref` must refer to this schema, as in `#/$defs/name`, found `{target}`"));
    };
    match costs.get(pointer) {
        Some(Some(known)) => return Ok(*known),
        Some(None) => return Err(format!("`{target}` refers to itself; recursive schemas are not supported")),
        None => {}
    }
    costs.insert(pointer.to_owned(), None);
    let part = root.pointer(pointer).ok_or_else(|| format!("`{target}` refers to nothing"))?;
    let total = cost(root, part, costs, depth)?;
    costs.insert(pointer.to_owned(), Some(total));
    Ok(total)
}

/// The size of a value, as far as checking it takes work.
#[derive(Default)]
struct Weight {
    values: u64,
    text_bytes: u64,
    /// The pairs of items of one list.
    pairs: u64,
}

impl Weight {
    fn add(&mut self, value: &Value) {
        self.values += 1;
        match value {
            Value::String(text) => self.text_bytes += text.len() as u64,
            Value::Array(items) => {
                let count = items.len() as u64;
                self.pairs = self.pairs.saturating_add(count.saturating_mul(count));
                items.iter().for_each(|item| self.add(item));
            }
            Value::Object(members) => members.iter().for_each(|(name, value)| {
                self.text_bytes += name.len() as u64;
                self.add(value);
            }),
            _ => {}
        }
    }
}

impl Schema {
    /// The work of having compiled the schema.
    pub(crate) fn compile_work(&self) -> u64 {
        self.cost.parts.saturating_mul(COMPILE_WORK)
    }

    /// The most work of checking a value.
    pub(crate) fn work(&self, value: &Value) -> u64 {
        let mut weight = Weight::default();
        weight.add(value);
        let Cost { parts, patterns, uniques } = self.cost;
        let matches = patterns.saturating_mul(weight.text_bytes).saturating_mul(MATCH_WORK);
        let pairs = uniques.saturating_mul(weight.pairs);
        parts.saturating_mul(weight.values).saturating_add(matches).saturating_add(pairs)
    }

    #[cfg(test)]
    fn is_valid(&self, value: &Value) -> bool {
        self.validator.is_valid(value)
    }
}

/// An error of a value, with the pointer to it.
pub(crate) struct SchemaError {
    pub(crate) pointer: String,
    pub(crate) message: String,
    /// Whether the error remains if a value below it changes.
    pub(crate) is_about_keys: bool,
}

/// Returns the errors of a value whose check takes `work`. Of a large value, only one error is reported.
pub(crate) fn errors(schema: &Schema, value: &Value, work: u64) -> Vec<SchemaError> {
    let whole =
        |message: &str| vec![SchemaError { pointer: String::new(), message: message.to_owned(), is_about_keys: false }];
    if work > WORK_MAX {
        return whole("the value is too large for its schema");
    }
    if schema.validator.is_valid(value) {
        return Vec::new();
    }
    if work > LISTED_WORK_MAX {
        return whole("the value does not match its schema, and is too large to say where");
    }
    let about_keys = ["required", "additionalProperties", "unevaluatedProperties", "type"];
    let errors = schema.validator.iter_errors(value).take(ERRORS_MAX).map(|error| SchemaError {
        pointer: error.instance_path().as_str().to_owned(),
        is_about_keys: about_keys.contains(&error.kind().keyword()),
        // The value may be long, or an expression's place.
        message: cut(&error.masked_with("the value").to_string()),
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
        let error = compile(&json!({"$ref": "#/$defs/a0", "$defs": defs})).err().unwrap();
        assert!(error.contains("parts"), "{error}");
        for schema in
            [json!({"$ref": "https://example.com/s"}), json!({"$id": "x"}), json!({"type": 1}), json!({"pattern": "("})]
        {
            assert!(compile(&schema).is_err(), "{schema}");
        }
        let shared = json!({"properties": {"a": {"$ref": "#/$defs/t"}, "b": {"$ref": "#/$defs/t"}}, "$defs": {"t": {"type": "string"}}});
        assert!(compile(&shared).unwrap().is_valid(&json!({"a": "x", "b": "y"})));
    }

    #[test]
    fn recursive_references_are_refused() {
        let doubles = json!([{"items": {"$ref": "#/$defs/a"}}, {"items": {"$ref": "#/$defs/a"}}]);
        for schema in [
            json!({"type": "object", "properties": {"inner": {"$ref": "#"}}}),
            json!({"$ref": "#"}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": doubles}}}),
            json!({"$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"items": {"$ref": "#/$defs/a"}}}}),
        ] {
            let error = compile(&schema).err().unwrap();
            assert!(error.contains("recursive"), "{error}");
        }
    }

    #[test]
    fn a_large_value_has_one_error() {
        let schema = compile(&json!({"items": {"anyOf": vec![json!({"type": "string"}); 30]}})).unwrap();
        let count = |items: usize| {
            let value = json!(vec![Value::Null; items]);
            errors(&schema, &value, schema.work(&value)).len()
        };
        assert_eq!((count(10), count(100), count(19_000), count(1_000_000)), (10, ERRORS_MAX, 1, 1));
    }

    #[test]
    fn patterns_and_unique_items_count_for_what_they_read() {
        let work = |schema: Value, value: Value| compile(&schema).unwrap().work(&value);
        assert!(work(json!({"pattern": "a"}), json!("a".repeat(1_000_000))) > WORK_MAX);
        assert!(work(json!({"type": "string"}), json!("a".repeat(1_000_000))) < 10);
        assert!(work(json!({"uniqueItems": true}), json!(vec![1; 4_000])) > WORK_MAX);
        let inner = json!({"unevaluatedProperties": false, "allOf": [{"unevaluatedProperties": false}]});
        assert!(
            work(inner, json!(1))
                > work(json!({"additionalProperties": false, "allOf": [{"additionalProperties": false}]}), json!(1))
        );
    }
}
