//! Properties of the parser: it never panics, rejects unknown fields, and reports the position of each error.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use monstrum_manifest::{Manifest, ManifestErrors, parse};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

const FULL: &str = include_str!("corpus/full.yaml");
const HOSTILE: &str = include_str!("corpus/hostile.jsonl");

/// A path into a manifest: keys and indices.
type Path = Vec<String>;

/// Returns the valid manifest as JSON. JSON is a subset of YAML, so tests can change the value and parse its text.
fn full() -> Value {
    serde_json::to_value(parse("full.yaml", FULL).unwrap()).unwrap()
}

fn places(value: &Value, at: &Path, found: &mut Vec<Path>) {
    found.push(at.clone());
    let children: Vec<(String, &Value)> = match value {
        Value::Object(members) => members.iter().map(|(key, value)| (key.clone(), value)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect(),
        _ => Vec::new(),
    };
    for (step, child) in children {
        let mut path = at.clone();
        path.push(step);
        places(child, &path, found);
    }
}

fn all_places() -> Vec<Path> {
    let mut found = Vec::new();
    places(&full(), &Path::new(), &mut found);
    found
}

fn at<'v>(value: &'v mut Value, path: &Path) -> &'v mut Value {
    path.iter().fold(value, |value, step| match value {
        Value::Object(members) => members.get_mut(step).unwrap(),
        Value::Array(items) => items.get_mut(step.parse::<usize>().unwrap()).unwrap(),
        _ => panic!("no value at {path:?}"),
    })
}

/// Checks the errors of a rejected manifest.
fn check_errors(errors: &ManifestErrors, text: &str) {
    assert!(!errors.0.is_empty(), "the manifest was rejected without an error: {text}");
    for error in &errors.0 {
        assert_eq!(error.file, "m");
        assert!(!error.message.is_empty() && error.message.chars().count() <= 400, "{error} for {text}");
        let lines = text.lines().count().max(1);
        assert!(error.line.is_none_or(|line| (1..=lines + 1).contains(&line)), "{error} for {text}");
        assert!(!error.to_string().contains(monstrum_types::is_invisible), "{error:?}");
    }
}

/// Checks that an accepted manifest does not change when it is serialized and parsed again.
fn check_accepted(manifest: &Manifest) {
    let text = serde_json::to_string(manifest).unwrap();
    assert_eq!(parse("m", &text).as_ref(), Ok(manifest));
}

fn check(text: &str) {
    match parse("m", text) {
        Ok(manifest) => check_accepted(&manifest),
        Err(errors) => check_errors(&errors, text),
    }
}

#[test]
fn the_full_manifest_is_accepted() {
    check_accepted(&parse("m", FULL).unwrap());
}

#[test]
fn the_hostile_corpus_is_refused_with_a_place() {
    for line in HOSTILE.lines() {
        let text: String = serde_json::from_str(line).unwrap();
        let errors = parse("m", &text).expect_err(&text);
        check_errors(&errors, &text);
    }
}

/// Returns whether unknown keys are rejected at a path. JSON Schemas and default values accept unknown keys.
fn is_closed(path: &Path) -> bool {
    !path.iter().any(|step| matches!(step.as_str(), "input_schema" | "output_schema" | "default"))
}

#[test]
fn unknown_fields_are_refused_everywhere() {
    let mut refused = 0;
    for path in all_places().into_iter().filter(is_closed) {
        let mut manifest = full();
        if !at(&mut manifest, &path).is_object() {
            continue;
        }
        for unknown in ["unknown", "Name", "name ", "$schema", "_x", "X-note", ""] {
            let mut manifest = full();
            at(&mut manifest, &path)[unknown] = json!("x");
            let text = manifest.to_string();
            let errors = parse("m", &text).expect_err(&format!("{unknown:?} at {path:?}"));
            check_errors(&errors, &text);
            let error = &errors.0[0];
            // Inside an injection rule, the error names the whole rule.
            let named =
                path.iter().map(String::as_str).filter(|step| step.parse::<usize>().is_err() && *step != "basic");
            let known: Vec<&str> = named.collect();
            assert!(error.line.is_some(), "{error} for {unknown:?} at {path:?}");
            assert!(known.iter().all(|step| error.field.contains(step)), "{error} for {unknown:?} at {path:?}");
            refused += 1;
        }
        // Keys that start with `x-` are allowed.
        let mut manifest = full();
        at(&mut manifest, &path)["x-own"] = json!({ "a": [1] });
        assert!(parse("m", &manifest.to_string()).is_ok(), "x- at {path:?}");
    }
    assert!(refused > 150, "{refused}");
}

fn replacements() -> impl Strategy<Value = Value> {
    prop_oneof![
        select(vec![json!(null), json!(true), json!(-1), json!(1.5), json!(u64::MAX), json!([]), json!({}), json!("")]),
        select(vec![
            json!([[]]),
            json!({ "a": 1 }),
            json!("../x"),
            json!("https://*.com"),
            json!("{x}"),
            json!("a\0b")
        ]),
        ".{0,20}".prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::collection::vec(".{0,4}", 0..3).prop_map(Value::from),
    ]
}

/// One change to a valid manifest.
#[derive(Clone, Debug)]
enum Change {
    Replace(Index, Value),
    Remove(Index),
    /// Copies the value of one place to another.
    Copy(Index, Index),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (any::<Index>(), replacements()).prop_map(|(at, value)| Change::Replace(at, value)),
        1 => any::<Index>().prop_map(Change::Remove),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Change::Copy(from, to)),
    ]
}

fn apply(manifest: &mut Value, change: &Change) {
    let mut found = Vec::new();
    places(manifest, &Path::new(), &mut found);
    match change {
        Change::Replace(index, value) => *at(manifest, index.get(&found)) = value.clone(),
        Change::Remove(index) => {
            let Some((last, parent)) = index.get(&found).split_last() else { return };
            match at(manifest, &parent.to_vec()) {
                Value::Object(members) => _ = members.shift_remove(last),
                Value::Array(items) => _ = items.remove(last.parse().unwrap()),
                _ => {}
            }
        }
        Change::Copy(from, to) => {
            let value = at(manifest, from.get(&found)).clone();
            *at(manifest, to.get(&found)) = value;
        }
    }
}

proptest! {
    #[test]
    fn a_changed_manifest_is_refused_with_a_place_or_round_trips(changes in prop::collection::vec(change(), 1..4)) {
        let mut manifest = full();
        changes.iter().for_each(|change| apply(&mut manifest, change));
        let text = manifest.to_string();
        match parse("m", &text) {
            Ok(manifest) => check_accepted(&manifest),
            Err(errors) => {
                check_errors(&errors, &text);
                let has_place = |field: &str, line: Option<usize>| !field.is_empty() || line.is_some();
                let all = errors.0.iter().all(|error| has_place(&error.field, error.line) || error.message.starts_with("and "));
                prop_assert!(all || !manifest.is_object(), "{} for {}", errors, text);
            }
        }
    }

    #[test]
    fn changed_text_is_refused_or_round_trips(at in 0..FULL.len(), length in 0..40_usize, by in "(\\PC|\n|\t|\0){0,8}") {
        let mut bytes = FULL.as_bytes().to_vec();
        let end = (at + length).min(bytes.len());
        bytes.splice(at..end, by.bytes());
        check(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn hostile_text_inside_a_manifest_is_refused_or_round_trips(line in any::<Index>(), into in any::<Index>(), indent in 0..6_usize) {
        let hostile: Vec<&str> = HOSTILE.lines().collect();
        let text: String = serde_json::from_str(hostile[line.index(hostile.len())]).unwrap();
        let mut lines: Vec<String> = FULL.lines().map(str::to_owned).collect();
        let at = into.index(lines.len());
        lines.splice(at..at, text.lines().map(|line| format!("{}{line}", " ".repeat(indent))));
        check(&lines.join("\n"));
    }
}
