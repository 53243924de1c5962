//! Tests that the work of a check is bounded for all schemas and values.

use std::time::{Duration, Instant};

use monstrum_types::Halt;
use serde_json::json;

use super::*;

/// Returns a pattern that the engine cannot convert to an automaton. The match time for each byte of text grows with
/// `count`.
fn slow(count: usize) -> String {
    format!("^[ab]*a[ab]{{{count}}}$")
}

/// Returns random letters `a` and `b`, followed by a `c`.
fn text(length: usize) -> String {
    let mut state = 88_172_645_463_325_252_u64;
    let mut letter = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if state & (1 << 33) == 0 { 'a' } else { 'b' }
    };
    std::iter::repeat_with(&mut letter).take(length - 1).chain(['c']).collect()
}

fn compile(value: &Value, limits: SchemaLimits) -> Result<InputSchema, String> {
    InputSchema::compile(value.as_object().unwrap(), limits, &Effort::of(MANIFEST_STEPS_MAX))
}

fn stored(value: &Value) -> InputSchema {
    compile(value, SchemaLimits::Stored).unwrap()
}

fn output(value: &Value, limits: SchemaLimits) -> Result<OutputSchema, String> {
    OutputSchema::compile(value.as_object().unwrap(), limits)
}

fn of_a(schema: &Value) -> Value {
    json!({"properties": {"a": schema}})
}

#[test]
fn patterns_of_an_output_schema_are_bounded() {
    let branch = |count: usize| json!({"pattern": slow(count), "maxLength": 1_000_000});
    let schema = of_a(&json!({"anyOf": vec![branch(400); 4]}));
    let refused = output(&schema, SchemaLimits::Current).unwrap_err();
    assert!(refused.contains("at `/properties/a/anyOf/pattern`: the pattern has more than 10240 bytes"), "{refused}");
    assert!(
        refused.contains("at `/properties/a/anyOf/maxLength`: next to a `pattern`, maxLength must be at most"),
        "{refused}"
    );

    let schema = output(&schema, SchemaLimits::Stored).unwrap();
    assert_eq!(schema.exceeds().len(), 2, "{:?}", schema.exceeds());
    let started = Instant::now();
    let answer = json!({"a": text(200_000)});
    assert_eq!(schema.matches(&answer, &Effort::of(CHECK_STEPS_MAX)), Err(Overrun::Steps));
    assert!(started.elapsed() < Duration::from_secs(1), "a match does not fit into the budget");

    let implied = output(&of_a(&json!({"pattern": slow(400)})), SchemaLimits::Stored).unwrap();
    assert_eq!(implied.matches(&answer, &Effort::of(CHECK_STEPS_MAX)), Ok(false));
}

#[test]
fn a_match_over_the_budget_is_not_made() {
    for schema in [
        json!({"pattern": slow(100)}),
        // Skipping a pattern must not make a value valid.
        json!({"not": {"pattern": slow(100)}}),
        json!({"if": {"pattern": slow(100)}, "then": {"type": "integer"}}),
    ] {
        let schema = of_a(&schema);
        let (input, output) = (super::schema(&schema), output(&schema, SchemaLimits::Current).unwrap());
        let params = json!({"a": text(4_096)});
        assert_eq!(input.check(&Params::new(params.clone()), &Effort::of(1 << 20)), Err(Overrun::Steps), "{schema}");
        assert_eq!(output.matches(&params, &Effort::of(1 << 20)), Err(Overrun::Steps), "{schema}");
        assert!(output.matches(&params, &Effort::of(CHECK_STEPS_MAX)).is_ok(), "{schema}");
    }
}

#[test]
fn a_check_ends_at_its_deadline_and_when_it_is_cancelled() {
    let schema = super::schema(&of_a(&json!({"type": "string"})));
    let late = Halt::at(Instant::now());
    assert_eq!(schema.check(&Params::new(json!({"a": "x"})), &Effort::until(1 << 20, late)), Err(Overrun::Deadline));
    let cancelled = Halt::at(Instant::now() + Duration::from_secs(3600));
    cancelled.cancel();
    // A cancelled check returns no validation errors.
    assert_eq!(
        schema.check(&Params::new(json!({"a": 1})), &Effort::until(1 << 20, cancelled)),
        Err(Overrun::Cancelled)
    );
}

#[test]
fn a_text_with_a_pattern_has_at_most_4096_characters_by_default() {
    let pattern = |more: Value| {
        let mut schema = json!({"pattern": "^ä*$"});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        of_a(&schema)
    };
    let told = |schema: &Value, length: usize| {
        let errors = checked(&stored(schema), json!({"a": "ä".repeat(length)})).err().unwrap_or_default();
        errors.into_iter().map(|error| error.message).collect::<Vec<_>>().join("; ")
    };
    let implied = pattern(json!({}));
    assert_eq!(told(&implied, 4_096), "");
    assert_eq!(
        told(&implied, 4_097),
        "must not be longer than 4096 characters, the limit for texts with a `pattern`; the schema may set a \
         maxLength of up to 65536"
    );
    assert_eq!(told(&pattern(json!({"maxLength": 10})), 11), "\"äääääääääää\" is longer than 10 characters");
    assert_eq!(told(&pattern(json!({"maxLength": 5_000})), 5_000), "");
    assert_eq!(
        told(&pattern(json!({"maxLength": 5_000})), 5_001),
        "the value is longer than 5000 characters; must not be longer than 5000 characters"
    );
    assert_eq!(told(&pattern(json!({"maxLength": 65_536})), 65_536), "");
    assert!(compile(&pattern(json!({"maxLength": 65_536.0})), SchemaLimits::Current).is_ok());
    for stated in [json!(65_537), json!(65_537.0), json!(1e300)] {
        let refused = compile(&pattern(json!({"maxLength": stated})), SchemaLimits::Current).unwrap_err();
        assert_eq!(
            refused,
            "at `/properties/a/maxLength`: next to a `pattern`, maxLength must be at most 65536, because the work of a \
             match grows with the text"
        );
    }
    assert_eq!(told(&pattern(json!({"maxLength": 100_000})), 100_000), "", "of a stored version");
    assert!(compile(&of_a(&json!({"maxLength": 100_000})), SchemaLimits::Current).is_ok(), "without a pattern");
}

#[test]
fn a_compiled_pattern_has_at_most_ten_kibibytes() {
    let largest =
        (1..400).take_while(|count| compile(&of_a(&json!({"pattern": slow(*count)})), SchemaLimits::Current).is_ok());
    let largest = largest.last().unwrap();
    assert!((100..200).contains(&largest), "{largest}");
    for over in [json!({"pattern": slow(largest + 1)}), json!({"patternProperties": {slow(largest + 1): {}}})] {
        let refused = compile(&of_a(&over), SchemaLimits::Current).unwrap_err();
        assert!(
            refused.contains("the pattern has more than 10240 bytes after compilation; use minLength"),
            "{refused}"
        );
        let stored = stored(&of_a(&over));
        assert_eq!(stored.exceeds(), [refused]);
        assert!(checked(&stored, json!({"a": "ab"})).is_err() == over.get("pattern").is_some());
    }
    // An expression that the validator compares as plain text is not compiled.
    let names = (0..400).map(|n| format!("name-{n}")).collect::<Vec<_>>().join("|");
    let names = super::schema(&of_a(&json!({"pattern": format!("^({names})$")})));
    assert_eq!(check(&names, json!({"a": "name-399"})), r#"{"a":"name-399"}"#);
    assert!(checked(&names, json!({"a": "name-400"})).is_err());
}

#[test]
fn defaults_are_checked_within_the_budget_of_the_manifest() {
    let six = |more: Value| {
        let mut one = json!({"pattern": slow(100)});
        one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        of_a(&json!({"type": "string", "default": text(60_000), "allOf": vec![one; 6]}))
    };
    let started = Instant::now();
    let refused = refusal(&six(json!({})));
    assert!(
        refused.starts_with("the default at `/a` is not valid: must not be longer than 4096 characters"),
        "{refused}"
    );
    let schema = six(json!({"maxLength": 65_536}));
    let refused =
        InputSchema::compile(schema.as_object().unwrap(), SchemaLimits::Current, &Effort::of(1 << 24)).unwrap_err();
    assert_eq!(
        refused,
        "the defaults cannot be checked: the check exceeded its work limit; shorten the defaults or the \
         patterns that apply to them"
    );
    assert!(started.elapsed() < Duration::from_secs(5));
    // The host still accepts a stored version with these defaults.
    assert_eq!(stored(&six(json!({}))).exceeds().len(), 1);
}

#[test]
fn schemas_with_too_many_visits_of_a_value_are_refused() {
    let nested = |levels: usize, keyword: &str| {
        (0..levels).fold(json!({"properties": {"a": {}}}), |inner, _| json!({"anyOf": [inner], keyword: false}))
    };
    for keyword in ["unevaluatedProperties", "unevaluatedItems"] {
        assert!(compile(&of_a(&nested(6, keyword)), SchemaLimits::Current).is_ok(), "{keyword}");
        let endless = of_a(&nested(24, keyword));
        let refused = compile(&endless, SchemaLimits::Current).unwrap_err();
        assert!(refused.starts_with("checking one value may exceed 1048576 steps"), "{refused}");
        let stored = stored(&endless);
        assert_eq!(stored.exceeds().len(), 1);
        for params in [json!({"a": {"a": 1}}), json!({"a": [1]})] {
            assert_eq!(
                stored.check(&Params::new(params), &Effort::of(CHECK_STEPS_MAX)),
                Err(Overrun::Steps),
                "{keyword}"
            );
        }
    }
}

#[test]
fn names_are_matched_within_the_budget() {
    let schema = super::schema(&json!({"patternProperties": {"^x-[a-z]+$": {"type": "string"}}}));
    assert_eq!(check(&schema, json!({"x-a": "b"})), r#"{"x-a":"b"}"#);
    assert_eq!(check(&schema, json!({"x-a": 1})), "/x-a: 1 is not of type \"string\"");
    assert_eq!(check(&schema, json!({"y": 1})), "/y: undeclared parameter");
    let many: Value = (0..40_000)
        .map(|n| (format!("x-{}", format!("{n:0100b}").replace('0', "a").replace('1', "b")), json!("z")))
        .collect();
    assert_eq!(schema.check(&Params::new(many.clone()), &Effort::of(CHECK_STEPS_MAX)), Err(Overrun::Steps));

    let nested = super::schema(&of_a(&json!({"patternProperties": {"^x-[a-z]+$": {"type": "string"}}})));
    assert_eq!(nested.check(&Params::new(json!({"a": many})), &Effort::of(CHECK_STEPS_MAX)), Err(Overrun::Steps));
    let longest = "x".repeat(4_096);
    assert!(checked(&nested, json!({"a": [{longest: 1}]})).is_ok());
    let errors = checked(&nested, json!({"a": [{}, {"x".repeat(4_097): 1}]})).unwrap_err();
    let [error] = errors.as_slice() else { panic!("one error: {errors:?}") };
    assert!(error.path.starts_with("/a/1/xxx") && error.path.len() <= 1_100, "{}", error.path);
    assert_eq!(error.message, "the name is longer than 4096 bytes, the limit for names with patternProperties");
}

#[test]
fn lists_of_unique_items_take_linear_time() {
    // Lists with different nesting to which the validator assigns the same hash.
    let nested = |n: u32| {
        (0..16).fold(json!([]), |inner, bit| if n & (1 << bit) == 0 { json!([inner]) } else { json!([[], inner]) })
    };
    let mut items: Vec<Value> = (0..3_000).map(nested).collect();
    let schema = super::schema(&of_a(&json!({"uniqueItems": true})));
    assert!(checked(&schema, json!({"a": items})).is_ok());
    items.push(items[17].clone());
    assert_eq!(check(&schema, json!({"a": items})), "/a: the value has non-unique elements");
    let effort = Effort::of(3_000 * 256);
    assert_eq!(schema.check(&Params::new(json!({"a": items})), &effort), Err(Overrun::Steps));

    // The keyword gives the same results as the validator's built-in keyword.
    let own = jsonschema::validator_for(&json!({"uniqueItems": true})).unwrap();
    let values = [
        json!(1),
        json!(1.0),
        json!(-1),
        json!(0),
        json!(-0.0),
        json!(1.5),
        json!(1e300),
        json!(u64::MAX),
        json!(18_446_744_073_709_551_616.0),
        json!(9_007_199_254_740_993_u64),
        json!(9_007_199_254_740_992.0),
        json!(true),
        json!("1"),
        json!(null),
        json!([]),
        json!([[]]),
        json!([1, 2]),
        json!([1.0, 2]),
        json!({"a": 1, "b": [2]}),
        json!({"b": [2.0], "a": 1}),
        json!({"a": 1}),
        json!({}),
        json!(""),
    ];
    for (a, b) in values.iter().flat_map(|a| values.iter().map(move |b| (a, b))) {
        let pair = json!([a, b]);
        assert_eq!(checked(&schema, json!({"a": pair})).is_ok(), own.is_valid(&pair), "{pair}");
    }
    let allowed = super::schema(&of_a(&json!({"uniqueItems": false})));
    assert!(checked(&allowed, json!({"a": [1, 1]})).is_ok());
}

#[test]
fn listing_errors_is_bounded() {
    let branch = |n: usize| json!({"type": "object", "required": [format!("p{n}")]});
    let schema = super::schema(&of_a(&json!({"items": {"anyOf": (0..100).map(branch).collect::<Vec<_>>()}})));
    let few = checked(&schema, json!({"a": [1]})).unwrap_err();
    assert_eq!(few[0].path, "/a/0", "{few:?}");
    let too_many = json!({"a": vec![1; 10_000]});
    assert_eq!(check(&schema, too_many), ": does not match the schema; listing the errors would take too much work");
    assert_eq!(check(&schema, json!({"a": vec![1; 10_000], "b": 2})), "/b: undeclared parameter");
}
