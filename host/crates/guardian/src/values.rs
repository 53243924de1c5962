//! The values that a call puts at a parameter path.
//!
//! Every way in which a plugin could read the path is followed: `a.b` is the key `a.b` as well as the key `b` in the object `a`,
//! so that no spelling carries a value past the check.

use std::borrow::Cow;
use std::ops::ControlFlow;

use serde_json::{Map, Value};

/// Something that stands at a parameter path.
pub(crate) enum Found<'p> {
    /// A text, or a number or boolean as its JSON text.
    Text(Cow<'p, str>),
    /// What no pattern can be compared with: an object, a list in a list, a null in a list, or a
    /// text where the path leads on.
    Unfit(&'p Value),
}

/// Hands every value at `path` to `visit`. Null is absent, and a list stands for its elements.
///
/// Recursion goes as deep as the parameters do, which their parser limits.
pub(crate) fn visit<'p, B>(
    params: &'p Map<String, Value>,
    path: &str,
    visitor: &mut impl FnMut(Found<'p>) -> ControlFlow<B>,
) -> ControlFlow<B> {
    if let Some(value) = params.get(path) {
        leaf(value, visitor)?;
    }
    for (dot, _) in path.match_indices('.') {
        match params.get(&path[..dot]) {
            Some(Value::Object(inner)) => visit(inner, &path[dot + 1..], visitor)?,
            Some(Value::Null) | None => {}
            Some(other) => visitor(Found::Unfit(other))?,
        }
    }
    ControlFlow::Continue(())
}

fn leaf<'p, B>(value: &'p Value, visitor: &mut impl FnMut(Found<'p>) -> ControlFlow<B>) -> ControlFlow<B> {
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
        let end = visit(params.as_object().unwrap(), path, &mut |found| {
            texts.push(match found {
                Found::Text(text) => text.into_owned(),
                Found::Unfit(value) => format!("unfit {value}"),
            });
            ControlFlow::<()>::Continue(())
        });
        assert!(end.is_continue());
        texts
    }

    #[test]
    fn what_stands_at_a_path() {
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
}
