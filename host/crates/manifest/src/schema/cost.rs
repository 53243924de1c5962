//! The cost of a schema for each value, by the kind of the value.
//!
//! The bound applies to each single value in the parameters or the result; a check spends the steps for all values in
//! advance. Every schema that describes a value visits the value. `unevaluatedProperties` and `unevaluatedItems` visit
//! the value again with the adjacent schemas, so that nesting these keywords doubles the visits at each level. Matches
//! of `pattern` and `uniqueItems` are not included: they spend their steps when they run.
//!
//! The constants are about three times the values that were measured with an optimised build. In these measurements, a
//! step took 0.1 to 0.3 nanoseconds in visits, and nearly one nanosecond in `multipleOf`, content keywords and matches.

use serde_json::{Map, Value};

use super::weight::Weight;

/// The cost, in steps, of visiting a value with one schema.
const VISIT: u64 = 8;
/// The cost, in steps, of a keyword for which this module has no other constant.
const KEYWORD: u64 = 4;
/// The cost, in steps, of looking up one name in an object.
const LOOKUP: u64 = 16;
/// The cost, in steps, of starting to match one name with one pattern of patternProperties.
const NAME_MATCH: u64 = 64;
/// The cost, in steps, of the exact division of floating-point numbers for `multipleOf`.
const MULTIPLE_OF: u64 = 256;
/// The cost, in steps, of decoding or parsing 64 bytes of text.
const CONTENT: u64 = 2_560;

/// The cost of one value in steps, by the kind of the value, and the cost of each byte of a member's name in quarter
/// steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Steps {
    pub(super) object: u64,
    pub(super) array: u64,
    pub(super) scalar: u64,
    pub(super) name_quarter: u64,
}

impl Steps {
    fn any(steps: u64) -> Steps {
        Steps { object: steps, array: steps, scalar: steps, name_quarter: 0 }
    }

    fn object(steps: u64) -> Steps {
        Steps { object: steps, ..Steps::default() }
    }

    fn with(self, other: Steps, join: impl Fn(u64, u64) -> u64) -> Steps {
        Steps {
            object: join(self.object, other.object),
            array: join(self.array, other.array),
            scalar: join(self.scalar, other.scalar),
            name_quarter: join(self.name_quarter, other.name_quarter),
        }
    }

    fn add(&mut self, other: Steps) {
        *self = self.with(other, u64::saturating_add);
    }

    fn or(self, other: Steps) -> Steps {
        self.with(other, u64::max)
    }

    fn times(self, factor: u64) -> Steps {
        self.with(self, |steps, _| steps.saturating_mul(factor))
    }

    /// Returns the largest number of steps for a single value.
    pub(super) fn most(&self) -> u64 {
        self.object.max(self.array).max(self.scalar)
    }

    /// Returns the total number of steps for all values that `weight` counts.
    pub(super) fn of(&self, weight: &Weight) -> u64 {
        let names = self.name_quarter.saturating_mul(weight.name_bytes) / 4;
        let kinds =
            [(self.object, weight.objects), (self.array, weight.arrays), (self.scalar, weight.scalars), (names, 1)];
        kinds.iter().fold(0, |sum: u64, (steps, count)| sum.saturating_add(steps.saturating_mul(*count)))
    }
}

/// The cost of one walk through a value: the steps for the value itself, and the steps for each value inside it.
#[derive(Clone, Copy, Debug, Default)]
struct Walk {
    here: Steps,
    below: Steps,
}

impl Walk {
    fn add(&mut self, other: Walk) {
        self.here.add(other.here);
        self.below.add(other.below);
    }
}

/// The cost of a schema in steps, with all references expanded.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    /// The cost of validating a value.
    valid: Walk,
    /// The cost of finding the members or items that the schema has evaluated, which an enclosing `unevaluated…`
    /// keyword needs.
    mark: Walk,
}

impl Cost {
    /// Returns the cost of a boolean schema.
    pub(super) fn of_boolean() -> Cost {
        Cost { valid: Walk { here: Steps::any(VISIT), below: Steps::default() }, mark: Walk::default() }
    }

    /// Returns an upper bound of the steps for each value.
    pub(super) fn steps(&self) -> Steps {
        self.valid.here.or(self.valid.below)
    }
}

/// The costs of the keywords and subschemas of one schema.
#[derive(Default)]
pub(super) struct Parts {
    own: Steps,
    /// The cost of the subschemas that apply to the same value as the schema.
    same: Cost,
    property: Steps,
    patterns: Steps,
    additional: Steps,
    item: Steps,
    contains: Steps,
    names: Steps,
    unevaluated: Steps,
    unevaluated_keywords: u32,
}

impl Parts {
    /// Returns the cost of the schema itself, without its subschemas. `name_quarter` is the cost of its
    /// patternProperties.
    pub(super) fn of(schema: &Map<String, Value>, name_quarter: u64) -> Parts {
        let list = |keyword: &str| schema.get(keyword).map_or(0, length);
        let mut own = Steps::any(VISIT + KEYWORD * schema.len() as u64);
        let lookups = ["properties", "required", "dependentSchemas", "dependencies", "dependentRequired"];
        own.add(Steps::object(LOOKUP * lookups.into_iter().map(list).sum::<u64>()));
        for keyword in ["dependentRequired", "dependencies"] {
            let names = schema.get(keyword).and_then(Value::as_object).into_iter().flat_map(Map::values);
            own.add(Steps::object(LOOKUP * names.map(length).sum::<u64>()));
        }
        let listed = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
        for value in listed.chain(schema.get("const")) {
            own.add(comparison(value));
        }
        if schema.contains_key("multipleOf") {
            own.scalar += MULTIPLE_OF;
        }
        if schema.contains_key("contentMediaType") || schema.contains_key("contentEncoding") {
            own.scalar += CONTENT;
        }
        own.name_quarter = name_quarter;
        Parts { own, ..Parts::default() }
    }

    /// Adds the cost of a subschema of `keyword`.
    pub(super) fn add(&mut self, keyword: &str, schema: &Value, cost: Cost) {
        let steps = cost.steps();
        match keyword {
            "$ref" => {
                self.same.valid.add(cost.valid);
                self.same.mark.add(cost.mark);
            }
            "not" => self.same.valid.add(cost.valid),
            "allOf" | "anyOf" | "oneOf" | "if" | "then" | "else" | "dependentSchemas" | "dependencies" => {
                self.same.valid.add(cost.valid);
                self.same.mark.add(cost.valid);
                self.same.mark.add(cost.mark);
            }
            "properties" => self.property = self.property.or(steps),
            "patternProperties" => {
                self.patterns.add(steps);
                self.patterns.add(Steps::any(2 * NAME_MATCH));
            }
            "additionalProperties" => self.additional = steps,
            "items" | "prefixItems" | "additionalItems" => self.item = self.item.or(steps),
            // minContains and maxContains each check the items once more.
            "contains" => self.contains = steps.times(3),
            "propertyNames" => self.names = Steps::any(steps.scalar),
            "unevaluatedProperties" if *schema == Value::Bool(true) => {}
            "unevaluatedProperties" | "unevaluatedItems" => {
                self.unevaluated.add(steps);
                self.unevaluated_keywords += 1;
            }
            // Definitions cost steps only where they are referenced; contentSchema is an annotation.
            _ => {}
        }
    }

    /// Returns the cost of the whole schema.
    pub(super) fn cost(self) -> Cost {
        let mut member = self.property;
        member.add(self.patterns);
        member = member.or(self.additional);
        member.add(self.names);
        let mut item = self.item;
        item.add(self.contains);
        let mut below = member.or(item);
        below.add(self.unevaluated);
        below.add(Steps::any(LOOKUP));
        let mut mark = self.same.mark;
        mark.here.add(self.own);
        for steps in [Steps::any(2 * LOOKUP), self.patterns, self.contains, self.unevaluated] {
            mark.below.add(steps);
        }
        let mut valid = Walk { here: self.own, below };
        valid.add(self.same.valid);
        for _ in 0..self.unevaluated_keywords {
            valid.add(mark);
        }
        Cost { valid, mark }
    }
}

fn length(value: &Value) -> u64 {
    match value {
        Value::Array(list) => list.len() as u64,
        Value::Object(map) => map.len() as u64,
        _ => 0,
    }
}

/// Returns the cost of comparing a value with a value that `enum` or `const` lists.
fn comparison(listed: &Value) -> Steps {
    let text = |divisor: u64| 4 + (listed.to_string().len() as u64) / divisor;
    match listed {
        Value::Array(_) => Steps { array: 8 * text(1), ..Steps::default() },
        Value::Object(_) => Steps { object: 8 * text(1), ..Steps::default() },
        Value::String(_) => Steps { scalar: text(32), ..Steps::default() },
        Value::Null | Value::Bool(_) | Value::Number(_) => Steps { scalar: 4, ..Steps::default() },
    }
}
