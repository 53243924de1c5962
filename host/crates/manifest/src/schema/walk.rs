//! Functions that walk through a schema. They terminate because `shape` rejects recursive schemas.

use serde_json::{Map, Value};

/// Keywords whose value is a schema for the same value.
pub(super) const SAME_VALUE: [&str; 3] = ["if", "then", "else"];
/// Keywords whose value is a list of schemas for the same value.
pub(super) const SAME_VALUE_LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// Returns the schema that a local reference points to.
pub(super) fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(reference.strip_prefix('#')?)
}

/// Returns all object schemas that may apply to the same value as `schema`, starting with `schema` itself. The schemas
/// come from references, `allOf`, `anyOf`, `oneOf`, conditions and dependent schemas.
pub(super) fn parts<'a>(root: &'a Value, schema: &'a Value) -> Vec<&'a Map<String, Value>> {
    let mut found = Vec::new();
    add_parts(root, schema, true, &mut found);
    found
}

/// Returns the object schemas that always apply to the same value as `schema`: like [`parts`], but excluding `anyOf`,
/// `oneOf`, conditions and dependent schemas.
pub(super) fn certain_parts<'a>(root: &'a Value, schema: &'a Value) -> Vec<&'a Map<String, Value>> {
    let mut found = Vec::new();
    add_parts(root, schema, false, &mut found);
    found
}

fn add_parts<'a>(root: &'a Value, schema: &'a Value, alternatives: bool, found: &mut Vec<&'a Map<String, Value>>) {
    let Value::Object(map) = schema else { return };
    found.push(map);
    let target = map.get("$ref").and_then(Value::as_str).and_then(|reference| resolve(root, reference));
    let mut same_value: Vec<&Value> = target.into_iter().collect();
    if alternatives {
        same_value.extend(SAME_VALUE_LISTS.iter().filter_map(|keyword| map.get(*keyword)?.as_array()).flatten());
        same_value.extend(SAME_VALUE.iter().filter_map(|keyword| map.get(*keyword)));
        for keyword in ["dependentSchemas", "dependencies"] {
            same_value.extend(map.get(keyword).and_then(Value::as_object).into_iter().flat_map(Map::values));
        }
    } else {
        same_value.extend(map.get("allOf").and_then(Value::as_array).into_iter().flatten());
    }
    for schema in same_value {
        add_parts(root, schema, alternatives, found);
    }
}

/// Returns whether `schema` declares the property at `path`.
pub(super) fn declares_in(root: &Value, schema: &Value, path: &str) -> bool {
    parts(root, schema).iter().any(|part| {
        let in_properties = part.get("properties").and_then(Value::as_object).is_some_and(|properties| {
            properties.iter().any(|(name, property)| match path.strip_prefix(name.as_str()) {
                Some("") => true,
                Some(rest) => rest.strip_prefix('.').is_some_and(|rest| declares_in(root, property, rest)),
                None => false,
            })
        });
        let entries = ["items", "prefixItems"].iter().filter_map(|keyword| part.get(*keyword));
        in_properties || entries.flat_map(one_or_many).any(|entry| declares_in(root, entry, path))
    })
}

/// Returns the schemas of a keyword whose value is a schema or a list of schemas.
pub(super) fn one_or_many(value: &Value) -> &[Value] {
    match value {
        Value::Array(list) => list,
        one => std::slice::from_ref(one),
    }
}
