//! Finds the values of a call at a parameter path.
//!
//! All interpretations of a path are followed: `a.b` is both the key `a.b` and the key `b` of the object `a`. Therefore
//! a caller cannot hide a value from the check by nesting it differently.

use std::borrow::Cow;
use std::ops::ControlFlow;

use monstrum_types::{Effort, Overrun};
use serde_json::{Map, Value};

/// The cost, in steps, of looking up one key in an object.
const KEY_STEPS: u64 = 32;

/// A value at a parameter path.
pub(crate) enum Found<'p> {
    /// A string, or the JSON text of a number or boolean.
    Text(Cow<'p, str>),
    /// A value that cannot be compared with a pattern: an object, a list in a list, a null in a list, or a list or a
    /// scalar in the middle of the path.
    Unfit(&'p Value),
}

/// The reason why a visit ended before it reached the last value.
pub(crate) enum Stop<T> {
    /// The budget is exhausted.
    Overrun(Overrun),
    /// The visitor needs no further values.
    Found(T),
}

/// Converts a result into control flow. An exhausted budget ends the visit.
pub(crate) fn paid<T, V>(result: Result<V, Overrun>) -> ControlFlow<Stop<T>, V> {
    match result {
        Ok(value) => ControlFlow::Continue(value),
        Err(overrun) => ControlFlow::Break(Stop::Overrun(overrun)),
    }
}

/// Calls `visitor` with every value at `path`. A null is treated as absent, and a list is treated as its elements.
///
/// The recursion is as deep as the parameters, whose depth the parser limits. Keys with dots can give a path
/// exponentially many interpretations, so each interpretation spends steps.
pub(crate) fn visit<'p, T>(
    params: &'p Map<String, Value>,
    path: &str,
    effort: &Effort,
    visitor: &mut impl FnMut(Found<'p>) -> ControlFlow<Stop<T>>,
) -> ControlFlow<Stop<T>> {
    paid(effort.spend(KEY_STEPS * (1 + path.matches('.').count() as u64) + path.len() as u64))?;
    if let Some(value) = params.get(path) {
        leaf(value, visitor)?;
    }
    for (dot, _) in path.match_indices('.') {
        match params.get(&path[..dot]) {
            Some(Value::Object(inner)) => visit(inner, &path[dot + 1..], effort, visitor)?,
            Some(Value::Null) | None => {}
            Some(other) => visitor(Found::Unfit(other))?,
        }
    }
    ControlFlow::Continue(())
}

fn leaf<'p, T>(value: &'p Value, visitor: &mut impl FnMut(Found<'p>) -> ControlFlow<Stop<T>>) -> ControlFlow<Stop<T>> {
    match value {
        Value::Null => ControlFlow::Continue(()),
        Value::Array(elements) => elements.iter().try_for_each(|element| visitor(scalar(element))),
        _ => visitor(scalar(value)),
    }
}

fn scalar(value: &Value) -> Found<'_> {
    match value {
        Value::String(text) => Found::Text(Cow::Borrowed(text)),
        Value::Number(_) | Value::Bool(_) => Found::Text(Cow::Owned(value.to_string())),
        Value::Null | Value::Array(_) | Value::Object(_) => Found::Unfit(value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(path: &str, params: &Value) -> Vec<String> {
        let mut texts = Vec::new();
        let effort = Effort::of(10_000);
        let end = visit(params.as_object().unwrap(), path, &effort, &mut |found| {
            texts.push(match found {
                Found::Text(text) => text.into_owned(),
                Found::Unfit(value) => format!("unfit {value}"),
            });
            ControlFlow::<Stop<()>>::Continue(())
        });
        assert!(end.is_continue());
        texts
    }

    #[test]
    fn values_at_a_path() {
        for (path, params, expected) in [
            ("a", json!({"a": "x"}), vec!["x"]),
            ("a", json!({"a": ""}), vec![""]),
            ("a", json!({"a": 1.50}), vec!["1.5"]),
            ("a", json!({"a": -7}), vec!["-7"]),
            ("a", json!({"a": true}), vec!["true"]),
            ("a", json!({"a": null}), vec![]),
            ("a", json!({"b": "x"}), vec![]),
            ("a", json!({"a": []}), vec![]),
            ("a", json!({"a": ["x", 1, false]}), vec!["x", "1", "false"]),
            (
                "a",
                json!({"a": ["x", null, ["y"], {"b": 1}]}),
                vec!["x", "unfit null", r#"unfit ["y"]"#, r#"unfit {"b":1}"#],
            ),
            ("a", json!({"a": {"b": "x"}}), vec![r#"unfit {"b":"x"}"#]),
            ("a.b", json!({"a": {"b": "x"}}), vec!["x"]),
            ("a.b", json!({"a": {"b": ["x", "y"]}}), vec!["x", "y"]),
            ("a.b", json!({"a.b": "x", "a": {"b": "y"}}), vec!["x", "y"]),
            ("a.b", json!({"a": null}), vec![]),
            ("a.b", json!({"a": {"c": "x"}}), vec![]),
            ("a.b", json!({"a": "x"}), vec![r#"unfit "x""#]),
            ("a.b", json!({"a": [{"b": "x"}]}), vec![r#"unfit [{"b":"x"}]"#]),
            ("a.b.c", json!({"a": {"b.c": "x"}, "a.b": {"c": "y"}}), vec!["x", "y"]),
            ("a.b.c", json!({"a": {"b": {"c": 3}}}), vec!["3"]),
            ("", json!({"": "x"}), vec!["x"]),
        ] {
            assert_eq!(found(path, &params), expected, "{path} in {params}");
        }
    }

    #[test]
    fn every_reading_of_a_path_spends_steps() {
        // Each object has the keys `a` and `a.a`, so the number of interpretations doubles every other level.
        let params = (0..16).fold(json!({}), |inner, _| json!({"a": inner, "a.a": inner}));
        let path = vec!["a"; 40].join(".");
        let none = |_: Found<'_>| ControlFlow::<Stop<()>>::Continue(());
        let visited = visit(params.as_object().unwrap(), &path, &Effort::of(1 << 20), &mut { none });
        assert!(matches!(visited, ControlFlow::Break(Stop::Overrun(Overrun::Steps))));
        assert!(visit(params.as_object().unwrap(), "a.a.a", &Effort::of(1 << 20), &mut { none }).is_continue());
    }
}
