//! Compares expected and found values, and describes each difference in one line.

use serde_json::Value;

/// The maximum number of differences in a report. Values with more differences have little in common.
const LINES_MAX: usize = 20;
/// The maximum length of a value in a report. Longer values are truncated, because the beginning identifies a value.
const VALUE_CHARS_MAX: usize = 200;

/// The strictness of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closeness {
    Same,
    /// Objects may have more members than expected.
    Within,
}

/// Returns the differences, each with its path below `name`.
pub(super) fn differences(name: &str, expected: &Value, found: &Value, closeness: Closeness) -> Vec<String> {
    let mut lines = Vec::new();
    compare(name, expected, found, closeness, &mut lines);
    if lines.len() > LINES_MAX {
        let more = lines.len() - LINES_MAX;
        lines.truncate(LINES_MAX);
        lines.push(format!("{name}: and {more} more differences"));
    }
    lines
}

fn compare(at: &str, expected: &Value, found: &Value, closeness: Closeness, lines: &mut Vec<String>) {
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => {
            for (key, value) in expected {
                let at = format!("{at}/{key}");
                match found.get(key) {
                    Some(found) => compare(&at, value, found, closeness, lines),
                    None => lines.push(format!("{at}: expected {}, found nothing", shown(value))),
                }
            }
            if closeness == Closeness::Same {
                for (key, value) in found.iter().filter(|(key, _)| !expected.contains_key(*key)) {
                    lines.push(format!("{at}/{key}: expected nothing, found {}", shown(value)));
                }
            }
        }
        (Value::Array(expected), Value::Array(found)) => {
            for (index, (value, found)) in expected.iter().zip(found).enumerate() {
                compare(&format!("{at}/{index}"), value, found, closeness, lines);
            }
            if expected.len() != found.len() {
                lines.push(format!("{at}: expected {} items, found {}", expected.len(), found.len()));
            }
        }
        (Value::Number(a), Value::Number(b)) if a == b || a.as_f64() == b.as_f64() => {}
        _ if expected == found => {}
        _ => lines.push(format!("{at}: expected {}, found {}", shown(expected), shown(found))),
    }
}

/// Formats a value as JSON, truncated to the maximum length.
pub(super) fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_difference_has_its_place() {
        let expected = json!({ "a": 1, "b": { "c": [1, 2] }, "d": "x", "gone": null });
        let found = json!({ "a": 1.0, "b": { "c": [1, 3, 4] }, "d": 5, "new": true });
        assert_eq!(
            differences("data", &expected, &found, Closeness::Same),
            [
                "data/b/c/1: expected 2, found 3",
                "data/b/c: expected 2 items, found 3",
                "data/d: expected \"x\", found 5",
                "data/gone: expected null, found nothing",
                "data/new: expected nothing, found true",
            ]
        );
        assert!(differences("data", &expected, &expected, Closeness::Same).is_empty());
    }

    #[test]
    fn a_part_may_be_enough() {
        let found = json!({ "a": { "b": 1, "more": 2 }, "more": [] });
        assert!(differences("body", &json!({ "a": { "b": 1 } }), &found, Closeness::Within).is_empty());
        assert_eq!(
            differences("body", &json!({ "a": { "b": 2 } }), &found, Closeness::Within),
            ["body/a/b: expected 2, found 1"]
        );
        assert_eq!(
            differences("body", &json!([1]), &json!([1, 2]), Closeness::Within),
            ["body: expected 1 items, found 2"]
        );
    }

    #[test]
    fn a_flood_is_cut() {
        let many: Vec<Value> = (0..50).map(|_| json!("x".repeat(1_000))).collect();
        let lines = differences("data", &json!(many), &json!(vec![0; 50]), Closeness::Same);
        assert_eq!((lines.len(), lines[20].as_str()), (21, "data: and 30 more differences"));
        assert!(lines[0].len() < 300);
    }
}
