mod bounds;

use serde_json::json;

use super::*;

fn schema(value: &Value) -> InputSchema {
    InputSchema::compile(value.as_object().unwrap(), SchemaLimits::Current, &Effort::of(MANIFEST_STEPS_MAX)).unwrap()
}

fn refusal(value: &Value) -> String {
    InputSchema::compile(value.as_object().unwrap(), SchemaLimits::Current, &Effort::of(MANIFEST_STEPS_MAX))
        .unwrap_err()
}

fn checked(schema: &InputSchema, params: Value) -> Result<Map<String, Value>, Vec<InputError>> {
    let checked = schema.check(&Params::new(params), &Effort::of(CHECK_STEPS_MAX)).unwrap();
    checked.map(|params| params.members().clone())
}

/// Returns the checked parameters or the errors, as text.
fn check(schema: &InputSchema, params: Value) -> String {
    match checked(schema, params) {
        Ok(params) => Value::Object(params).to_string(),
        Err(errors) => {
            let lines: Vec<String> = errors.iter().map(|error| format!("{}: {}", error.path, error.message)).collect();
            lines.join("\n")
        }
    }
}

fn issues() -> InputSchema {
    schema(&json!({
        "type": "object",
        "properties": {
            "repo": {"type": "string", "minLength": 1, "pattern": "^[a-z/]+$"},
            "state": {"type": "string", "enum": ["open", "closed", "all"], "default": "open"},
            "labels": {"type": "array", "items": {"type": "string"}},
            "per_page": {"type": "integer", "default": 30, "maximum": 100},
            "filter": {
                "type": "object",
                "additionalProperties": false,
                "properties": {"by": {"type": "string", "default": "date"}, "a/b~c": {"type": "string"}},
                "required": ["who"],
            },
        },
        "required": ["repo"],
    }))
}

#[test]
fn defaults_are_filled_in() {
    assert_eq!(check(&issues(), json!({"repo": "a/b"})), r#"{"repo":"a/b","state":"open","per_page":30}"#);
    let nested = schema(&json!({"properties": {
        "page": {"type": "object", "properties": {"size": {"default": 5}, "note": {"default": null}}},
        "made": {"default": {}, "properties": {"x": {"default": 1}}},
        "shared": {"$ref": "#/$defs/shared"},
    }, "$defs": {"shared": {"type": "string", "default": "s"}}}));
    assert_eq!(check(&nested, json!({})), r#"{"made":{"x":1},"shared":"s"}"#);
    assert_eq!(
        check(&nested, json!({"page": {}, "made": {"x": 2}, "shared": "t"})),
        r#"{"page":{"size":5},"made":{"x":2},"shared":"t"}"#
    );
}

#[test]
fn every_error_has_its_pointer() {
    let cases = [
        json!([]),
        json!({}),
        json!({"repo": 5, "state": "shut", "labels": ["a", 1, null], "per_page": 1.5, "extra": 1, "a/b": 2}),
        json!({"repo": "A"}),
        json!({"repo": ""}),
        json!({"repo": "x", "per_page": 101}),
        json!({"repo": "x", "filter": {"extra": 1, "a/b~c": 5}}),
        json!({"repo": null}),
        json!({"repo": "x", "_resource": "y"}),
    ];
    let said: Vec<String> =
        cases.iter().map(|params| format!("{params}\n{}\n", check(&issues(), params.clone()))).collect();
    insta::assert_snapshot!(said.join("\n"), @r###"
    []
    : expected an object

    {}
    /repo: required parameter is missing

    {"repo":5,"state":"shut","labels":["a",1,null],"per_page":1.5,"extra":1,"a/b":2}
    /extra: undeclared parameter
    /a~1b: undeclared parameter
    /repo: 5 is not of type "string"
    /state: "shut" is not one of "open", "closed" or "all"
    /labels/1: 1 is not of type "string"
    /labels/2: null is not of type "string"
    /per_page: 1.5 is not of type "integer"

    {"repo":"A"}
    /repo: "A" does not match "^[a-z/]+$"

    {"repo":""}
    /repo: "" is shorter than 1 character
    /repo: "" does not match "^[a-z/]+$"

    {"repo":"x","per_page":101}
    /per_page: 101 is greater than the maximum of 100

    {"repo":"x","filter":{"extra":1,"a/b~c":5}}
    /filter/a~1b~0c: 5 is not of type "string"
    /filter/extra: undeclared parameter
    /filter/who: required parameter is missing

    {"repo":null}
    /repo: null is not of type "string"

    {"repo":"x","_resource":"y"}
    /_resource: undeclared parameter
    "###);
}

#[test]
fn errors_are_few_and_short() {
    let open = schema(&json!({"properties": {"list": {"type": "array", "items": {"type": "string"}}}}));
    let errors = checked(&open, json!({"list": vec![1; 500]})).unwrap_err();
    assert_eq!(errors.len(), 100);
    let errors = checked(&open, json!({"list": vec![1; 100_000]})).unwrap_err();
    assert_eq!(errors.len(), 1);
    let errors = checked(&open, Value::Object((0..500).map(|n| (n.to_string(), Value::Null)).collect())).unwrap_err();
    assert_eq!(errors.len(), 100);
    let long = "X".repeat(100_000);
    for params in
        [json!({"repo": long}), json!({"repo": "a", "state": long}), json!({"repo": "a", "filter": {long: 1}})]
    {
        let errors = checked(&issues(), params).err();
        assert!(errors.is_some());
        for error in errors.unwrap_or_default() {
            assert!(error.message.chars().count() <= 200 && error.path.len() < 1_100, "{}", error.message);
        }
    }
}

#[test]
fn a_schema_is_closed_unless_it_says_otherwise() {
    let a = json!({"a": {"type": "string"}});
    for (value, open) in [
        (json!({"properties": a}), false),
        (json!({"properties": a, "additionalProperties": false}), false),
        (json!({"properties": a, "unevaluatedProperties": false}), false),
        (json!({"properties": a, "additionalProperties": true}), true),
        (json!({"properties": a, "additionalProperties": {"type": "integer"}}), true),
        (json!({"properties": a, "unevaluatedProperties": {}}), true),
        (json!({"$schema": "http://json-schema.org/draft-07/schema#", "properties": a}), false),
    ] {
        let schema = schema(&value);
        assert_eq!(schema.is_open(), open, "{value}");
        let said = check(&schema, json!({"a": "x", "extra": 1}));
        assert_eq!(said, if open { r#"{"a":"x","extra":1}"# } else { "/extra: undeclared parameter" }, "{value}");
        // Reserved parameters are rejected even if the schema is open.
        assert_eq!(check(&schema, json!({"_resource": 1})), "/_resource: undeclared parameter", "{value}");
    }
    let typed = schema(&json!({"additionalProperties": {"type": "integer"}}));
    assert_eq!(check(&typed, json!({"a": "x"})), "/a: \"x\" is not of type \"integer\"");
}

#[test]
fn a_closed_schema_accepts_parameters_of_its_subschemas() {
    let schema = schema(&json!({
        "properties": {"a": {}},
        "allOf": [{"properties": {"b": {}}}],
        "anyOf": [{"properties": {"c": {}}}, {"$ref": "#/$defs/d"}],
        "patternProperties": {"^p[0-9]$": {}},
        "$defs": {"d": {"properties": {"d": {}}}, "e": {"properties": {"e": {}}}},
    }));
    assert_eq!(check(&schema, json!({"a": 1, "b": 1, "c": 1, "d": 1, "p1": 1})), r#"{"a":1,"b":1,"c":1,"d":1,"p1":1}"#);
    assert_eq!(check(&schema, json!({"e": 1, "px": 1})), "/e: undeclared parameter\n/px: undeclared parameter");
}

#[test]
fn declared_parameters_are_found() {
    let schema = schema(&json!({
        "properties": {
            "repo": {"type": "string"},
            "a.b": {"type": "string"},
            "target": {"properties": {"repo": {}, "deep": {"$ref": "#/$defs/deep"}}},
            "list": {"type": "array", "items": {"properties": {"name": {}}}},
            "either": {"oneOf": [{"type": "null"}, {"properties": {"x": {}}}]},
        },
        "allOf": [{"properties": {"also": {}}}],
        "$defs": {"deep": {"properties": {"er": {}}}},
    }));
    for path in ["repo", "a.b", "target", "target.repo", "target.deep.er", "list", "list.name", "either.x", "also"] {
        assert!(schema.declares(path), "{path}");
    }
    for path in
        ["", "a", "b", "target.name", "repo.x", "list.x", "deep", "er", "target.", ".repo", "$defs", "properties"]
    {
        assert!(!schema.declares(path), "{path}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases or one whole answer")]
fn schemas_over_a_limit_are_refused() {
    let long_chain: Map<String, Value> =
        (0..100).map(|n| (format!("d{n}"), json!({"$ref": format!("#/$defs/d{}", n + 1)}))).collect();
    let doubling: Map<String, Value> = (0..40)
        .map(|n| (format!("d{n}"), json!({"allOf": vec![json!({"$ref": format!("#/$defs/d{}", n + 1)}); 2]})))
        .chain([("d40".to_owned(), json!({}))])
        .collect();
    let doubling_wide: Map<String, Value> = (0..20)
        .map(|n| (format!("d{n}"), json!({"allOf": vec![json!({"$ref": format!("#/$defs/d{}", n + 1)}); 2]})))
        .chain([("d20".to_owned(), json!({}))])
        .collect();
    let mut deep = json!({});
    for _ in 0..70 {
        deep = json!({"properties": {"a": deep}});
    }
    let patterns: Map<String, Value> = (0..101).map(|n| (format!("p{n}"), json!({"pattern": "x"}))).collect();
    let cases = [
        json!({"properties": {"a": {"$ref": "https://example.com/x.json"}}}),
        json!({"properties": {"a": {"$ref": "file:///etc/passwd"}}}),
        json!({"properties": {"a": {"$ref": "other.json#/x"}}}),
        json!({"properties": {"a": {"$ref": "#anchor"}}}),
        json!({"properties": {"a": {"$ref": "#/%24defs/a"}}}),
        json!({"properties": {"a": {"$ref": 5}}}),
        json!({"properties": {"a": {"$ref": "#/$defs/none"}}}),
        json!({"properties": {"a": {"$ref": "#/type"}}, "type": "object"}),
        json!({"properties": {"a": {"$ref": "#"}}}),
        json!({"properties": {"a": {"$ref": "#/properties/a"}}}),
        json!({"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"$ref": "#/$defs/a"}}}),
        json!({"properties": {"a": {"$dynamicRef": "#a"}}}),
        json!({"properties": {"a": {"$id": "https://example.com/a"}}}),
        json!({"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#"}}}),
        json!({"$schema": "https://example.com/my-schema"}),
        json!({"$schema": "http://json-schema.org/draft-04/schema#"}),
        json!({"$ref": "#/$defs/d0", "$defs": long_chain}),
        json!({"$ref": "#/$defs/d0", "$defs": doubling}),
        json!({"$ref": "#/$defs/d0", "$defs": doubling_wide}),
        deep,
        json!({"properties": patterns}),
        json!({"properties": {"a": {"enum": (0..1_001).collect::<Vec<_>>()}}}),
        json!({"properties": {"a": {"default": "x".repeat(70_000)}}}),
        json!({"properties": {"a": {"pattern": "(a)\\1"}}}),
        json!({"properties": {"a": {"pattern": "(?<!a)b"}}}),
        json!({"properties": {"a": {"pattern": "(\\w{100}){100}"}}}),
        json!({"patternProperties": {"(": {}}}),
        json!({"properties": {"a": {"type": "strin"}}}),
        json!({"properties": []}),
        json!({"required": "a"}),
        json!({"type": ["object", "null"]}),
        json!({"type": "array"}),
        json!({"properties": {"_a": {}}}),
        json!({"anyOf": [{"properties": {"_a": {}}}]}),
        json!({"properties": {"a": {"type": "string", "default": 5}}}),
        json!({"properties": {"a": {"enum": ["x"], "default": "y"}}}),
    ];
    let said: Vec<String> = cases
        .into_iter()
        .map(|value| {
            let shown = crate::error::cut(&value.to_string(), 90);
            format!("{shown}\n    {}", refusal(&value))
        })
        .collect();
    insta::assert_snapshot!(said.join("\n"), @r###"
    {"properties":{"a":{"$ref":"https://example.com/x.json"}}}
        at `/properties/a/$ref`: `https://example.com/x.json` is outside the schema; only references such as `#/$defs/name` are allowed
    {"properties":{"a":{"$ref":"file:///etc/passwd"}}}
        at `/properties/a/$ref`: `file:///etc/passwd` is outside the schema; only references such as `#/$defs/name` are allowed
    {"properties":{"a":{"$ref":"other.json#/x"}}}
        at `/properties/a/$ref`: `other.json#/x` is outside the schema; only references such as `#/$defs/name` are allowed
    {"properties":{"a":{"$ref":"#anchor"}}}
        at `/properties/a/$ref`: `#anchor` is outside the schema; only references such as `#/$defs/name` are allowed
    {"properties":{"a":{"$ref":"#/%24defs/a"}}}
        at `/properties/a/$ref`: `#/%24defs/a` is outside the schema; only references such as `#/$defs/name` are allowed
    {"properties":{"a":{"$ref":5}}}
        at `/properties/a/$ref`: expected a string such as `#/$defs/name`
    {"properties":{"a":{"$ref":"#/$defs/none"}}}
        at `/properties/a/$ref`: `#/$defs/none` does not refer to a schema
    {"properties":{"a":{"$ref":"#/type"}},"type":"object"}
        at `/properties/a/$ref`: `#/type` does not refer to a schema
    {"properties":{"a":{"$ref":"#"}}}
        at `/properties/a/$ref`: `#` refers to itself; recursive schemas are not supported
    {"properties":{"a":{"$ref":"#/properties/a"}}}
        at `/properties/a/$ref`: `#/properties/a` refers to itself; recursive schemas are not supported
    {"properties":{"a":{"$ref":"#/$defs/a"}},"$defs":{"a":{"items":{"$ref":"#/$defs/b"}},"b":…
        at `/$defs/a/items/$ref`: `#/$defs/b` refers to itself; recursive schemas are not supported
    {"properties":{"a":{"$dynamicRef":"#a"}}}
        at `/properties/a/$dynamicRef`: only `$ref` is supported
    {"properties":{"a":{"$id":"https://example.com/a"}}}
        at `/properties/a/$id`: only the root of the schema may have this keyword
    {"properties":{"a":{"$schema":"http://json-schema.org/draft-07/schema#"}}}
        at `/properties/a/$schema`: only the root of the schema may have this keyword
    {"$schema":"https://example.com/my-schema"}
        at `/$schema`: expected JSON Schema 2020-12, 2019-09, draft-07 or draft-06
    {"$schema":"http://json-schema.org/draft-04/schema#"}
        at `/$schema`: expected JSON Schema 2020-12, 2019-09, draft-07 or draft-06
    {"$ref":"#/$defs/d0","$defs":{"d0":{"$ref":"#/$defs/d1"},"d1":{"$ref":"#/$defs/d2"},"d2":…
        the schema is nested deeper than 64 levels after all $refs are expanded
    {"$ref":"#/$defs/d0","$defs":{"d0":{"allOf":[{"$ref":"#/$defs/d1"},{"$ref":"#/$defs/d1"}]…
        the schema is nested deeper than 64 levels after all $refs are expanded
    {"$ref":"#/$defs/d0","$defs":{"d0":{"allOf":[{"$ref":"#/$defs/d1"},{"$ref":"#/$defs/d1"}]…
        the schema has more than 5000 subschemas after all $refs are expanded
    {"properties":{"a":{"properties":{"a":{"properties":{"a":{"properties":{"a":{"properties"…
        the schema is nested deeper than 64 levels after all $refs are expanded
    {"properties":{"p0":{"pattern":"x"},"p1":{"pattern":"x"},"p2":{"pattern":"x"},"p3":{"patt…
        the schema has more than 100 patterns after all $refs are expanded
    {"properties":{"a":{"enum":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23…
        at `/properties/a/enum`: at most 1000 values are allowed
    {"properties":{"a":{"default":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…
        the defaults have more than 65536 bytes after all $refs are expanded
    {"properties":{"a":{"pattern":"(a)\\1"}}}
        not a JSON Schema: at `/properties/a/pattern`: `(a)\1` is not a regular expression, is too large, or has look-around or back-references
    {"properties":{"a":{"pattern":"(?<!a)b"}}}
        not a JSON Schema: at `/properties/a/pattern`: `(?<!a)b` is not a regular expression, is too large, or has look-around or back-references
    {"properties":{"a":{"pattern":"(\\w{100}){100}"}}}
        not a JSON Schema: at `/properties/a/pattern`: `(\w{100}){100}` is not a regular expression, is too large, or has look-around or back-references
    {"patternProperties":{"(":{}}}
        not a JSON Schema: at `/patternProperties/(`: `(` is not a regular expression, is too large, or has look-around or back-references
    {"properties":{"a":{"type":"strin"}}}
        not a JSON Schema: at `/properties/a/type`: expected array, boolean, integer, null, number, object or string, or a list of these
    {"properties":[]}
        not a JSON Schema: at `/properties`: the value is not of type "object"
    {"required":"a"}
        not a JSON Schema: at `/required`: "a" is not of type "array"
    {"type":["object","null"]}
        at `/type`: parameters are an object, so the type must be `object`
    {"type":"array"}
        at `/type`: parameters are an object, so the type must be `object`
    {"properties":{"_a":{}}}
        parameter `_a`: names that start with `_` are reserved for the platform
    {"anyOf":[{"properties":{"_a":{}}}]}
        parameter `_a`: names that start with `_` are reserved for the platform
    {"properties":{"a":{"type":"string","default":5}}}
        the default at `/a` is not valid: 5 is not of type "string"
    {"properties":{"a":{"enum":["x"],"default":"y"}}}
        the default at `/a` is not valid: "y" is not one of "x"
    "###);
}

#[test]
fn properties_may_be_named_like_keywords() {
    let schema = schema(&json!({"properties": {
        "$ref": {"type": "string"}, "$id": {"type": "string"}, "$schema": {}, "enum": {}, "default": {}, "pattern": {},
    }}));
    assert_eq!(
        check(&schema, json!({"$ref": "https://x.example", "$id": "y"})),
        r#"{"$ref":"https://x.example","$id":"y"}"#
    );
}

#[test]
fn patterns_run_in_linear_time() {
    let schema = schema(&json!({"properties": {"a": {"pattern": "^(a+)+$"}}}));
    let started = std::time::Instant::now();
    assert!(checked(&schema, json!({"a": format!("{}b", "a".repeat(100_000))})).is_err());
    assert!(started.elapsed().as_secs() < 5);
}

#[test]
fn output_schemas_check_results() {
    let compile = |value: Value| OutputSchema::compile(value.as_object().unwrap(), SchemaLimits::Current);
    let schema = compile(json!({"type": "array", "items": {"type": "object", "required": ["id"]}})).unwrap();
    let matches = |answer: Value| schema.matches(&answer, &Effort::of(CHECK_STEPS_MAX)).unwrap();
    assert!(matches(json!([{"id": 1, "more": 2}])));
    assert!(!matches(json!([{}])));
    assert!(!matches(json!({"id": 1})));
    assert!(compile(json!({"$ref": "https://example.com/x"})).is_err());
}
