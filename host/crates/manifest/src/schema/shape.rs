//! Limits on the size, depth and references of a schema.
//!
//! A recursive schema can take time exponential in the depth of a value. Compiling a chain of schemas, in which each
//! schema refers to the next schema twice, can also take exponential time. Therefore recursive schemas are rejected,
//! and a schema is measured with all references expanded.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::error::cut;

use super::cost::{Cost, Parts};
use super::limits::VALUE_STEPS_MAX;
use super::pattern::{Patterns, stated_exceeds};
use super::walk::{SAME_VALUE, SAME_VALUE_LISTS, one_or_many, resolve};

/// Maximum number of subschemas in a schema, with all references expanded. A typical tool has ten parameters, and the
/// largest tools have a few hundred.
const SCHEMAS_MAX: usize = 5_000;
/// Maximum nesting depth of schemas, with all references expanded.
const LEVELS_MAX: usize = 64;
/// Maximum size of the defaults in bytes, with all references expanded. Defaults can expand an empty input to this
/// size.
const DEFAULT_BYTES_MAX: usize = 65_536;
/// Maximum number of values of one `enum`: enough for all time zones or currencies. A check compares a value with each
/// of these values.
const ENUM_VALUES_MAX: usize = 1_000;
/// Maximum number of regular expressions in one schema. Compiling and storing an expression takes time and memory.
const PATTERNS_MAX: usize = 100;

const DRAFTS: [&str; 4] = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
];

/// Keywords whose value is a schema or a list of schemas.
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

/// Keywords with alternative schemas for a value.
const CHOICES: [&str; 5] = ["anyOf", "oneOf", "if", "unevaluatedItems", "unevaluatedProperties"];

/// The size of a schema.
#[derive(Clone, Copy, Default)]
struct Size {
    schemas: usize,
    levels: usize,
    default_bytes: usize,
    patterns: usize,
    /// Nesting depth of `anyOf` and similar keywords. When errors are listed, each level visits its schemas once more.
    choices: u64,
    cost: Cost,
}

impl Size {
    fn add(&mut self, inner: Size) {
        self.schemas = self.schemas.saturating_add(inner.schemas);
        self.levels = self.levels.max(inner.levels);
        self.default_bytes = self.default_bytes.saturating_add(inner.default_bytes);
        self.patterns = self.patterns.saturating_add(inner.patterns);
        self.choices = self.choices.max(inner.choices);
    }
}

/// The properties of a schema that are known before it is compiled.
pub(super) struct Shape {
    /// The number of regular expressions, with all references expanded.
    pub(super) pattern_count: usize,
    pub(super) patterns: Patterns,
    /// An upper bound of the cost for each value.
    pub(super) cost: Cost,
    pub(super) choices: u64,
    /// The exceeded limits, each as a sentence.
    pub(super) exceeds: Vec<String>,
}

/// Checks a schema and compiles its regular expressions.
pub(super) fn check(root: &Value) -> Result<Shape, String> {
    let mut measure = Measure { root, targets: HashMap::new(), patterns: Patterns::default(), exceeds: Vec::new() };
    let size = measure.schema(root, &mut String::new(), 0)?;
    if size.schemas > SCHEMAS_MAX {
        return Err(format!("the schema has more than {SCHEMAS_MAX} subschemas after all $refs are expanded"));
    }
    if size.default_bytes > DEFAULT_BYTES_MAX {
        return Err(format!("the defaults have more than {DEFAULT_BYTES_MAX} bytes after all $refs are expanded"));
    }
    if size.patterns > PATTERNS_MAX {
        return Err(too_many_patterns());
    }
    let Measure { patterns, mut exceeds, .. } = measure;
    if size.cost.steps().most() > VALUE_STEPS_MAX {
        exceeds.push(format!(
            "checking one value may exceed {VALUE_STEPS_MAX} steps after all $refs are expanded: use fewer schemas in \
             anyOf, oneOf and allOf, especially inside unevaluatedProperties and unevaluatedItems"
        ));
    }
    Ok(Shape { pattern_count: size.patterns, patterns, cost: size.cost, choices: size.choices, exceeds })
}

struct Measure<'a> {
    root: &'a Value,
    /// The size of each referenced schema; `None` while the schema is being measured.
    targets: HashMap<&'a str, Option<Size>>,
    patterns: Patterns,
    exceeds: Vec<String>,
}

impl<'a> Measure<'a> {
    fn schema(&mut self, schema: &'a Value, at: &mut String, level: usize) -> Result<Size, String> {
        let mut size = Size { schemas: 1, levels: 1, cost: Cost::of_boolean(), ..Size::default() };
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
        let mut parts = Parts::of(map, self.compile_patterns(map, at)?);
        let mut inner = Size::default();
        for keyword in SCHEMA_KEYWORDS.iter().chain(&SAME_VALUE).chain(&SAME_VALUE_LISTS) {
            for schema in map.get(*keyword).map(one_or_many).unwrap_or_default() {
                let size = self.at_key(schema, at, keyword, level)?;
                parts.add(keyword, schema, size.cost);
                inner.add(size);
            }
        }
        for keyword in SCHEMA_MAPS {
            for (name, schema) in map.get(keyword).and_then(Value::as_object).into_iter().flatten() {
                let size = self.at_key(schema, at, &format!("{keyword}/{name}"), level)?;
                parts.add(keyword, schema, size.cost);
                inner.add(size);
            }
        }
        if let Some(reference) = map.get("$ref") {
            let size = self.target(reference, at, level)?;
            parts.add("$ref", reference, size.cost);
            inner.add(size);
        }
        inner.levels += 1;
        inner.choices += u64::from(CHOICES.iter().any(|keyword| map.contains_key(*keyword)));
        size.levels = 0;
        size.add(inner);
        size.cost = parts.cost();
        // The measurement stops early, so that a schema that doubles at each reference is not measured completely.
        if size.levels > LEVELS_MAX {
            return Err(too_deep());
        }
        Ok(size)
    }

    /// Compiles the regular expressions of one schema. Returns the cost of its patternProperties, in quarter steps for
    /// each byte of a member's name.
    fn compile_patterns(&mut self, map: &Map<String, Value>, at: &str) -> Result<u64, String> {
        if let Some(text) = map.get("pattern").and_then(Value::as_str) {
            let pattern = self.patterns.add(&format!("{at}/pattern"), text)?;
            self.exceed(&format!("{at}/pattern"), pattern.exceeds());
            self.exceed(&format!("{at}/maxLength"), stated_exceeds(map));
        }
        let mut quarters = 0_u64;
        for text in map.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(Map::keys) {
            let at = format!("{at}/patternProperties/{text}");
            let pattern = self.patterns.add(&at, text)?;
            self.exceed(&at, pattern.exceeds());
            // additionalProperties matches the names once more.
            quarters = quarters.saturating_add(pattern.quarter_steps().saturating_mul(2));
        }
        // If the limit is exceeded, the remaining patterns are not compiled.
        if self.patterns.len() > PATTERNS_MAX { Err(too_many_patterns()) } else { Ok(quarters) }
    }

    /// Records an exceeded limit. A referenced schema is also visited at its own location and produces the same
    /// sentence, which is recorded only once.
    fn exceed(&mut self, at: &str, why: Option<String>) {
        let Some(why) = why else { return };
        let sentence = format!("at `{}`: {why}", cut(at, 128));
        if !self.exceeds.contains(&sentence) {
            self.exceeds.push(sentence);
        }
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
        // Escapes are rejected, because they would allow several spellings of the same location.
        if !(reference == "#" || reference.starts_with("#/")) || reference.contains('%') {
            return Err(format!(
                "at `{here}/$ref`: `{shown}` is outside the schema; only references such as `#/$defs/name` are allowed"
            ));
        }
        match self.targets.get(reference) {
            Some(Some(size)) => return Ok(*size),
            Some(None) => return Err(recursive(&here, &shown)),
            None => {}
        }
        let schema = resolve(self.root, reference)
            .filter(|schema| schema.is_object() || schema.is_boolean())
            .ok_or_else(|| format!("at `{here}/$ref`: `{shown}` does not refer to a schema"))?;
        // A recursive reference reaches this function again with the same text.
        self.targets.insert(reference, None);
        let size = self.schema(schema, &mut reference.trim_start_matches('#').to_owned(), level + 1)?;
        self.targets.insert(reference, Some(size));
        Ok(size)
    }
}

fn too_many_patterns() -> String {
    format!("the schema has more than {PATTERNS_MAX} patterns after all $refs are expanded")
}

fn too_deep() -> String {
    format!("the schema is nested deeper than {LEVELS_MAX} levels after all $refs are expanded")
}

fn recursive(here: &str, reference: &str) -> String {
    format!("at `{here}/$ref`: `{reference}` refers to itself; recursive schemas are not supported")
}

/// Rejects keywords that are not supported, or not allowed at this location.
fn check_keywords(map: &Map<String, Value>, at: &str) -> Result<(), String> {
    let here = cut(at, 128);
    for keyword in ["$dynamicRef", "$recursiveRef"] {
        if map.contains_key(keyword) {
            return Err(format!("at `{here}/{keyword}`: only `$ref` is supported"));
        }
    }
    // These keywords would change the meaning of references in their subschemas.
    for keyword in ["$id", "$schema"] {
        if !at.is_empty() && map.contains_key(keyword) {
            return Err(format!("at `{here}/{keyword}`: only the root of the schema may have this keyword"));
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
