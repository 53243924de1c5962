use std::borrow::Cow;

use serde_json::{Value, json};

use super::*;
use crate::fault::Spot;
use crate::measure::processor_time;

fn parse(source: &str) -> Result<Expression, String> {
    Expression::parse(source, &Spot::default()).map_err(|fault| fault.message)
}

fn scope() -> Scope<'static> {
    let mut scope = Scope::default();
    let input = json!({
        "repo": "o/r", "n": 3, "big": u64::MAX, "half": 0.5, "list": [1, 2, 3], "map": {"b": 1, "a": [true]},
        "none": null, "long": "x".repeat(300_000), "many": vec![7; 1_000], "page": "x".repeat(40_000),
        "dozens": vec![7; 90],
    });
    scope.set("input", Cow::Owned(input));
    let data = Some(Cow::Owned(json!({"number": 7})));
    scope.set_step(
        "a",
        StepView { status: "succeeded", data, error: None, ended_at: Some("2026-01-31T12:00:00Z".into()) },
    );
    let error = Some(json!({"code": "timeout", "message": "m"}));
    scope.set_step("b", StepView { status: "failed", data: None, error, ended_at: None });
    scope
}

fn value(source: &str) -> Result<Value, String> {
    parse(source)?.evaluate(&scope()).map_err(|error| error.message)
}

#[test]
fn expressions_have_the_values_of_cel() {
    for (source, expected) in [
        ("1 + 2 * 3", json!(7)),
        ("7 / 2", json!(3)),
        ("-7 % 4", json!(-3)),
        ("1.5 * 2.0", json!(3.0)),
        ("input.n + 0.5", json!(3.5)),
        ("input.big", json!(u64::MAX)),
        ("input.big > 1 && input.big == 18446744073709551615u", json!(true)),
        ("1 == 1.0 && 1 < 1.5 && 2 > 1.5", json!(true)),
        ("'a' + \"b\"", json!("ab")),
        ("'a' < 'b'", json!(true)),
        ("[1, 2] + [3]", json!([1, 2, 3])),
        ("{'a': 1, 'b': [null]}", json!({"a": 1, "b": [null]})),
        ("input.list[1]", json!(2)),
        ("input.map['b']", json!(1)),
        ("input.map.a[0] ? 'yes' : 'no'", json!("yes")),
        ("2 in input.list && !(9 in input.list) && 'a' in input.map", json!(true)),
        ("input.list.map(x, x * 2)", json!([2, 4, 6])),
        ("input.list.map(x, x > 1, x)", json!([2, 3])),
        ("input.list.filter(x, x % 2 == 1)", json!([1, 3])),
        ("input.list.map(x, input.list.map(y, x * y))", json!([[1, 2, 3], [2, 4, 6], [3, 6, 9]])),
        ("input.list.exists(x, x > 2) && input.list.all(x, x > 0)", json!(true)),
        ("input.list.exists_one(x, x == 2)", json!(true)),
        ("[1, 'a'].exists(x, x + 1 == 2)", json!(true)),
        ("input.map.map(k, k)", json!(["b", "a"])),
        ("has(input.map) && !has(input.other)", json!(true)),
        ("has(steps.a.data.number) && !has(steps.b.data.number)", json!(true)),
        ("steps.a.data.number + 1", json!(8)),
        ("steps.b.status == 'failed' && steps.b.error.code == 'timeout' && steps.b.data == null", json!(true)),
        (
            "steps.a",
            json!({"status": "succeeded", "data": {"number": 7}, "error": null, "ended_at": "2026-01-31T12:00:00Z"}),
        ),
        ("false && input.other", json!(false)),
        ("input.other || true", json!(true)),
        ("size(input.list) + 'äb'.size() + size(input.map)", json!(7)),
        ("'abc'.contains('b') && 'abc'.startsWith('a') && 'abc'.endsWith('c')", json!(true)),
        ("'v1.2'.matches('^v[0-9.]+$')", json!(true)),
        ("matches('x', '^y')", json!(false)),
        ("' Ab '.trim().lowerAscii() + 'c'.upperAscii()", json!("abC")),
        ("'a,b'.split(',').join('-') + ['x'].join()", json!("a-bx")),
        ("'aaa'.replace('a', 'bb')", json!("bbbbbb")),
        ("string(1) + string(true) + string(1.5)", json!("1true1.5")),
        ("int('42') + int(2.9)", json!(44)),
        ("double('1.5') + double(1)", json!(2.5)),
        ("bool('true')", json!(true)),
        ("type(1) == int && type(null) == null_type && type([]) == list", json!(true)),
        ("timestamp(steps.a.ended_at) + duration('1h30m')", json!("2026-01-31T13:30:00Z")),
        ("timestamp('2026-01-31T12:00:00Z').getFullYear()", json!(2026)),
        ("timestamp('2026-01-31T12:00:00Z').getMonth()", json!(0)),
        ("duration('90m').getHours()", json!(1)),
        ("timestamp('2026-01-02T00:00:00Z') - timestamp('2026-01-01T00:00:00Z')", json!("86400s")),
        ("timestamp('2026-01-02T00:00:00Z') > timestamp('2026-01-01T00:00:00+01:00')", json!(true)),
        ("input == input && steps.a.data == {'number': 7.0}", json!(true)),
    ] {
        assert_eq!(value(source), Ok(expected), "{source}");
    }
}

#[test]
fn what_fails_says_why() {
    for (source, message) in [
        ("input.other", "there is no field `other`"),
        ("input.repo.x", "a value of type string has no field `x`"),
        ("input.list[3]", "the list has no item 3"),
        ("input.list[-1]", "the list has no item -1"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("9223372036854775807 * 9223372036854775807", "too large"),
        ("1.0 / 0.0", "not a finite number"),
        ("1 + 'a'", "does not apply"),
        ("1 < 'a'", "no order"),
        ("input.list.all(x, x)", "expected true or false"),
        ("!1", "expected true or false"),
        ("{'a': 1, 'a': 2}", "twice"),
        ("{1: 2}", "a key is a string"),
        ("item", "`item` has no value here"),
        ("steps.c.data", "step `c` has not ended"),
        ("'a'.matches('(')", "not a regular expression"),
        ("int('x')", "not an integer"),
        ("timestamp('now')", "not a time"),
        ("duration('1y')", "not a duration"),
        ("timestamp('9999-12-31T23:59:59Z') + duration('1d')", "out of range"),
    ] {
        let error = value(source).unwrap_err();
        assert!(error.contains(message), "{source}: {error}");
    }
}

#[test]
fn messages_are_short_and_printable_whatever_the_data_is() {
    let mut scope = Scope::default();
    scope.set("input", Cow::Owned(json!({"long": "\u{1b}[2J".repeat(100_000), "map": {}})));
    for source in ["1[input.long]", "input.map[input.long]", "{input.long: 1, input.long: 2}", "'\u{1b}' + 1"] {
        let error = parse(source).unwrap().evaluate(&scope).unwrap_err().to_string();
        assert!(error.len() < 1_000 && !error.contains('\u{1b}'), "{source}: {error}");
    }
}

#[test]
fn what_is_not_an_expression_is_refused() {
    let deep = format!("{}1{}", "(".repeat(33), ")".repeat(33));
    let long = format!("'{}'", "x".repeat(EXPRESSION_BYTES_MAX));
    let sum = ["1"; 40].join("+");
    let references = ["input.n == 1"; 33].join("&&");
    let choices = "true?1:".repeat(33) + "1";
    let not = "!".repeat(1_000) + "(";
    for (source, message) in [
        ("", "empty"),
        ("1 +", "not an expression"),
        ("a b", "not an expression"),
        ("inputs.x", "unknown variable `inputs`"),
        ("now()", "unknown function `now`"),
        ("input.list.sizes()", "unknown function `sizes`"),
        ("size()", "wrong arguments"),
        ("contains('a', 'b')", "wrong arguments"),
        ("input.map(x)", "wrong arguments"),
        ("b'ab'", "bytes"),
        ("Message{a: 1}", "message types"),
        ("input.?a", "not an expression"),
        ("steps", "only read by id"),
        ("steps['a']", "only read by id"),
        ("steps.map(x, x)", "only read by id"),
        ("steps.a.result", "a step has no field `result`"),
        ("has(steps.a)", "always exists"),
        ("input.list.map(input, 1)", "variable of the workflow"),
        ("input.`a`", "backticks"),
        ("input.ä", "only allowed in strings"),
        (&deep, "deeper"),
        (&long, "bytes"),
        (&sum, "deeper"),
        (&references, "references"),
        (&choices, "deeper"),
        (&not, "not an expression"),
    ] {
        let error = parse(source).unwrap_err();
        assert!(error.contains(message), "{source}: {error}");
    }
}

#[test]
fn each_budget_is_reached() {
    let many = "input.many";
    for (source, message) in [
        // A thousand by a hundred items is allowed, a thousand by a thousand is not.
        (format!("{many}.map(x, {many}.map(y, 1))"), "items of lists"),
        (format!("{many}.all(x, {many}.all(y, {many}.all(z, true)))"), "items of lists"),
        (format!("{many}.map(x, input.long.contains('y'))"), "steps"),
        (format!("{many}.map(x, input.long.startsWith(input.long))"), "steps"),
        (format!("{many}.map(x, input.long.endsWith(input.long))"), "steps"),
        (format!("{many}.map(x, input.long == input.long)"), "steps"),
        (format!("{many}.map(x, input.long < input.long)"), "steps"),
        (format!("{many}.map(x, input.long in input.map)"), "steps"),
        (format!("{many}.map(x, {{input.long: 1}}[input.long])"), "steps"),
        (format!("{many}.map(x, size(input.long))"), "steps"),
        (format!("{many}.map(x, type(int(x)) == type(input.long.trim()))"), "bytes of values"),
        ("input.long + input.long + input.long + input.long".to_owned(), "bytes of values"),
        ("['xxxxxxxxxxxxxxxx'].map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x)\
          .map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x)"
            .to_owned(), "bytes of values"),
        ("[input.many].map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x).map(x,x+x)".to_owned(), "bytes of values"),
        ("input.long.replace('x', input.long)".to_owned(), "bytes of values"),
        ("input.long.replace('', 'yyyy')".to_owned(), "bytes of values"),
        ("input.long.split('')".to_owned(), "items of lists"),
        ("[input.long, input.long, input.long, input.long].join(',')".to_owned(), "bytes of values"),
        ("input.long".to_owned(), "the result has more than"),
        ("input.many.map(x, input.many)".to_owned(), "the result has more than"),
        ("input.long.matches('a?'.replace('a', 'a'))".to_owned(), "steps"),
        ("input.page.matches('x$')".to_owned(), "steps"),
        ("input.repo.matches('(a{1000}){1000}')".to_owned(), "too large"),
        ("input.repo.matches('(x+x+)+y{200}[a-z]{900}')".to_owned(), "too large"),
        (format!("{many}.exists(x, input.repo.matches(string(x) + 'x'))"), ""),
        ("'x'.matches(input.long)".to_owned(), "regular expression has more than"),
        // An exhausted budget is not an error that `||` ignores.
        (format!("{many}.all(x, {many}.all(y, true)) || true"), "items of lists"),
    ] {
        let started = processor_time();
        let result = value(&source);
        let time = processor_time() - started;
        assert!(time.as_millis() < 2_000, "{source} took {time:?}");
        if !message.is_empty() {
            let error = result.unwrap_err();
            assert!(error.contains(message), "{source}: {error}");
        }
    }
}

/// The keys of a map are not read to see that another one has fewer.
#[test]
fn maps_of_different_sizes_are_compared_at_once() {
    let mut scope = Scope::default();
    let wide: serde_json::Map<String, Value> = (0..60_000).map(|at| (format!("k{at}"), json!(1))).collect();
    scope.set("input", Cow::Owned(json!({"wide": wide, "many": vec![7; 1_000], "dozens": vec![7; 90]})));
    let started = processor_time();
    for source in [
        "input.many.all(x, input.dozens.all(y, {} != input.wide))",
        "input.many.all(x, input.dozens.all(y, input.wide != {}))",
    ] {
        assert_eq!(parse(source).unwrap().evaluate(&scope), Ok(json!(true)), "{source}");
    }
    let time = processor_time() - started;
    assert!(time.as_secs() < 20, "{time:?}");
    let error = parse("input.many.all(x, input.wide == input.wide)").unwrap().evaluate(&scope).unwrap_err();
    assert!(error.message.contains("steps"), "{error}");
}

#[test]
fn all_expressions_of_a_value_share_a_budget() {
    let text = "${{ input.many.all(x, input.dozens.all(y, true)) }} ".repeat(2);
    let twice = Template::parse(&text, &Spot::default()).unwrap();
    let error = twice.evaluate(&scope()).unwrap_err();
    assert!(error.message.contains("items of lists"), "{error}");
}

#[test]
fn a_text_that_is_one_expression_keeps_the_type() {
    let evaluate = |text: &str| {
        let template = Template::parse(text, &Spot::default()).map_err(|faults| faults[0].message.clone())?;
        template.evaluate(&scope()).map_err(|error| error.message)
    };
    assert_eq!(evaluate("${{ input.list }}"), Ok(json!([1, 2, 3])));
    assert_eq!(evaluate("n=${{ input.n }}, ${{input.list}}!"), Ok(json!("n=3, [1,2,3]!")));
    assert_eq!(evaluate("plain"), Ok(json!("plain")));
    assert_eq!(evaluate(""), Ok(json!("")));
    assert_eq!(evaluate("$${{ input.n }} and ${{ input.n }}"), Ok(json!("${{ input.n }} and 3")));
    assert_eq!(evaluate("${{ '}}' + \"${{\" }}"), Ok(json!("}}${{")));
    assert_eq!(evaluate("${{ {'a': {'b': 1}} }}"), Ok(json!({"a": {"b": 1}})));
    assert_eq!(evaluate("${{ input.n "), Err("`${{` without `}}`".to_owned()));
    assert!(evaluate("${{ }}").unwrap_err().contains("empty"));
}

#[test]
fn what_was_put_in_is_never_read_again() {
    let mut scope = Scope::default();
    scope.set("input", Cow::Owned(json!({"x": "${{ run.id }} $${{ }} }}"})));
    let template = Template::parse("a ${{ input.x }} b", &Spot::default()).unwrap();
    assert_eq!(template.evaluate(&scope).unwrap(), json!("a ${{ run.id }} $${{ }} }} b"));
}

#[test]
fn no_expression_makes_the_parser_panic() {
    use proptest::prelude::*;
    let tokens = prop::sample::select(vec![
        "input", ".", "a", "(", ")", "[", "]", "{", "}", "'", "\"", "\\", "?", ":", "!", "-", "+", "&&", "||", "1",
        "0x", "1e", "u", "map", ",", "x", "has", "r'", "b\"", "ä", "\n", "//", "steps", "`", "@", "in", "\u{0}", "'''",
    ]);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(5_000));
    runner
        .run(&prop::collection::vec(tokens, 0..40), |tokens| {
            if let Ok(expression) = parse(&tokens.concat()) {
                let once = expression.evaluate(&scope());
                prop_assert_eq!(once, expression.evaluate(&scope()));
            }
            Ok(())
        })
        .unwrap();
    runner.run(&".{0,60}", |text| Ok(drop(parse(&text)))).unwrap();
}
