//! What a schema may look like: how large, how deep, and where its references lead.
//!
//! Checking a value against a schema that refers to itself can take time that doubles with each level of the value, and
//! so can compiling a chain of references that each name the next one twice. So recursion is refused, and the schema is
//! measured as if every reference were written out.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::error::cut;

use super::walk::{SAME_VALUE, SAME_VALUE_LISTS, one_or_many, resolve};

/// Schemas within a schema, every reference written out: a tool has some ten parameters, the largest known a few
/// hundred.
const SCHEMAS_MAX: usize = 5_000;
/// Levels of schemas, every reference written out.
const LEVELS_MAX: usize = 64;
/// Bytes of defaults, every reference written out: what an empty input may grow to.
const DEFAULT_BYTES_MAX: usize = 65_536;
/// Values of one `enum`: all time zones or currencies fit; each entry of a list is compared with each.
const ENUM_VALUES_MAX: usize = 1_000;
/// Regular expressions of one schema: each may take some hundred KiB once compiled.
const PATTERNS_MAX: usize = 100;

const DRAFTS: [&str; 4] = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
];

/// Keywords whose value is a schema, or a list of schemas.
const SCHEMA_KEYWORDS: [&str; 10] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "items",
    "not",
    "prefixItems",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose value is an object of schemas.
const SCHEMA_MAPS: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];

/// How large a schema is.
#[derive(Clone, Copy, Default)]
struct Size {
    schemas: usize,
    levels: usize,
    default_bytes: usize,
    patterns: usize,
}

impl Size {
    fn add(&mut self, inner: Size) {
        self.schemas = self.schemas.saturating_add(inner.schemas);
        self.levels = self.levels.max(inner.levels);
        self.default_bytes = self.default_bytes.saturating_add(inner.default_bytes);
        self.patterns = self.patterns.saturating_add(inner.patterns);
    }
}

/// Checks a schema; answers how many regular expressions it holds.
pub(super) fn check(root: &Value) -> Result<usize, String> {
    let mut measure = Measure { root, targets: HashMap::new() };
    let size = measure.schema(root, &mut String::new(), 0)?;
    if size.schemas > SCHEMAS_MAX {
        return Err(format!("more than {SCHEMAS_MAX} schemas once every $ref is written out"));
    }
    if size.default_bytes > DEFAULT_BYTES_MAX {
        return Err(format!("more than {DEFAULT_BYTES_MAX} bytes of defaults once every $ref is written out"));
    }
    if size.patterns > PATTERNS_MAX {
        return Err(format!("more than {PATTERNS_MAX} patterns once every $ref is written out"));
    }
    Ok(size.patterns)
}

struct Measure<'a> {
    root: &'a Value,
    /// The size of what a reference names; None while it is being measured.
    targets: HashMap<&'a str, Option<Size>>,
}

impl<'a> Measure<'a> {
    fn schema(&mut self, schema: &'a Value, at: &mut String, level: usize) -> Result<Size, String> {
        let mut size = Size { schemas: 1, levels: 1, ..Size::default() };
        let Value::Object(map) = schema else { return Ok(size) };
        if level >= LEVELS_MAX {
            return Err(too_deep());
        }
        check_keywords(map, at)?;
        if let Some(default) = map.get("default") {
            size.default_bytes = default.to_string().len();
        }
        size.patterns = usize::from(map.contains_key("pattern"));
        if let Some(Value::Object(properties)) = map.get("patternProperties") {
            size.patterns += properties.len();
        }
        let mut inner = Size::default();
        for keyword in SCHEMA_KEYWORDS.iter().chain(&SAME_VALUE).chain(&SAME_VALUE_LISTS) {
            for schema in map.get(*keyword).map(one_or_many).unwrap_or_default() {
                inner.add(self.at_key(schema, at, keyword, level)?);
            }
        }
        for keyword in SCHEMA_MAPS {
            for (name, schema) in map.get(keyword).and_then(Value::as_object).into_iter().flatten() {
                inner.add(self.at_key(schema, at, &format!("{keyword}/{name}"), level)?);
            }
        }
        if let Some(reference) = map.get("$ref") {
            inner.add(self.target(reference, at, level)?);
        }
        inner.levels += 1;
        size.levels = 0;
        size.add(inner);
        // Stopping early keeps a schema that doubles at every step from being counted to its end.
        if size.levels > LEVELS_MAX {
            return Err(too_deep());
        }
        Ok(size)
    }

    fn at_key(&mut self, schema: &'a Value, at: &mut String, key: &str, level: usize) -> Result<Size, String> {
        let length = at.len();
        at.push('/');
        at.push_str(key);
        let size = self.schema(schema, at, level + 1);
        at.truncate(length);
        size
    }

    fn target(&mut self, reference: &'a Value, at: &str, level: usize) -> Result<Size, String> {
        let here = cut(at, 128);
        let Some(reference) = reference.as_str() else {
            return Err(format!("at `{here}/$ref`: expected a string such as `#/$defs/name`"));
        };
        let shown = cut(reference, 128);
        // An escape would be one more spelling of the same place.
        if !(reference == "#" || reference.starts_with("#/")) || reference.contains('%') {
            return Err(format!(
                "at `{here}/$ref`: `{shown}` leads out of the schema; only references such as `#/$defs/name` are allowed"
            ));
        }
        match self.targets.get(reference) {
            Some(Some(size)) => return Ok(*size),
            Some(None) => return Err(recursive(&here, &shown)),
            None => {}
        }
        let schema = resolve(self.root, reference)
            .filter(|schema| schema.is_object() || schema.is_boolean())
            .ok_or_else(|| format!("at `{here}/$ref`: `{shown}` names no schema"))?;
        // A reference to what encloses it comes by here again, sooner or later, with the same text.
        self.targets.insert(reference, None);
        let size = self.schema(schema, &mut reference.trim_start_matches('#').to_owned(), level + 1)?;
        self.targets.insert(reference, Some(size));
        Ok(size)
    }
}

fn too_deep() -> String {
    format!("deeper than {LEVELS_MAX} levels once every $ref is written out")
}

fn recursive(here: &str, reference: &str) -> String {
    format!("at `{here}/$ref`: `{reference}` leads back to itself; recursive schemas are not supported")
}

/// Keywords that are checked by themselves.
fn check_keywords(map: &Map<String, Value>, at: &str) -> Result<(), String> {
    let here = cut(at, 128);
    for keyword in ["$dynamicRef", "$recursiveRef"] {
        if map.contains_key(keyword) {
            return Err(format!("at `{here}/{keyword}`: only `$ref` is supported"));
        }
    }
    // Either would give the references below it another meaning.
    for keyword in ["$id", "$schema"] {
        if !at.is_empty() && map.contains_key(keyword) {
            return Err(format!("at `{here}/{keyword}`: only the schema as a whole may have it"));
        }
    }
    if let Some(draft) = map.get("$schema") {
        let known = draft.as_str().map(|draft| draft.trim_end_matches('#'));
        if !known.is_some_and(|draft| DRAFTS.contains(&draft)) {
            return Err("at `/$schema`: expected JSON Schema 2020-12, 2019-09, draft-07 or draft-06".to_owned());
        }
    }
    if map.get("enum").and_then(Value::as_array).is_some_and(|values| values.len() > ENUM_VALUES_MAX) {
        return Err(format!("at `{here}/enum`: at most {ENUM_VALUES_MAX} values are allowed"));
    }
    Ok(())
}
