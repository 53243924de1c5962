//! The gates of bots, roles, bindings and delegations, and the labels of resources, which gates name.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use monstrum_guardian::{Gate, ScopeConstraints};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{InputErrors, OperationError, rules};

/// The maximum number of gates of one holder. The host examines every gate of a call's holders at each call.
const GATES_MAX: usize = 20;
/// The maximum number of labels of a resource or of a gate. A resource with more properties is better split.
const LABELS_MAX: usize = 4;
const LABEL_CHARS_MAX: usize = 32;
/// The time in seconds after which an approval may expire: a person needs at least a minute to decide, and a request is
/// outdated after a week.
const EXPIRES_S: RangeInclusive<u32> = 60..=604_800;
/// The maximum size of a reason, which an approver reads with each request.
const REASON_BYTES_MAX: usize = 1024;

/// Returns gates or labels in the form in which they are stored: `None` for an empty list.
pub(super) fn stored<T: Serialize>(list: &[T]) -> Option<Value> {
    (!list.is_empty()).then(|| json!(list))
}

/// Returns stored gates or labels as the API shows them.
pub(super) fn shown(stored: Option<Value>) -> Value {
    stored.unwrap_or_else(|| json!([]))
}

/// Checks the gates at `path` as they would be stored. Gates that equal `before` are not checked. Call this function
/// before any work that is done for each pattern.
pub(super) fn check(
    errors: &mut InputErrors,
    path: &str,
    gates: Option<&Value>,
    before: Option<&Value>,
) -> Result<(), OperationError> {
    let Some(stored) = gates.filter(|gates| before != Some(*gates)) else { return Ok(()) };
    let gates =
        Vec::<Gate>::deserialize(stored).map_err(|error| OperationError::invalid_at(path, error.to_string()))?;
    if gates.len() > GATES_MAX {
        return Err(OperationError::invalid_at(path, format!("must have at most {GATES_MAX} entries")));
    }
    for (index, gate) in stored.as_array().into_iter().flatten().enumerate() {
        for name in ["when", "unless"] {
            if let Some(set) = gate.get(name) {
                rules::scope_keys(&format!("{path}/{index}/{name}"), set, None)?;
            }
        }
    }
    for (index, gate) in gates.iter().enumerate() {
        check_gate(errors, &format!("{path}/{index}"), gate);
    }
    Ok(())
}

fn check_gate(errors: &mut InputErrors, path: &str, gate: &Gate) {
    for (name, globs) in [("tools", &gate.tools), ("operations", &gate.operations)] {
        let Some(globs) = globs else { continue };
        if globs.is_empty() {
            errors.add(format!("{path}/{name}"), EMPTY);
        }
        for (index, _) in globs.iter().enumerate().filter(|(_, glob)| glob.is_empty()) {
            errors.add(format!("{path}/{name}/{index}"), EMPTY);
        }
    }
    for (name, set) in [("when", &gate.when), ("unless", &gate.unless)] {
        if let Some(set) = set {
            check_conditions(errors, &format!("{path}/{name}"), set);
        }
    }
    if let Some(labels) = &gate.after {
        let path = format!("{path}/after");
        if labels.is_empty() {
            errors.add(path.as_str(), EMPTY);
        }
        check_labels(errors, &path, labels);
    }
    if let Some(approvers) = &gate.approvers {
        let path = format!("{path}/approvers");
        if approvers.is_empty() {
            errors.add(path.as_str(), EMPTY);
        }
        duplicates(errors, &path, approvers);
    }
    if gate.expires_s.is_some_and(|seconds| !EXPIRES_S.contains(&seconds)) {
        let (least, most) = (EXPIRES_S.start(), EXPIRES_S.end());
        errors.add(format!("{path}/expires_s"), format!("must be from {least} to {most}"));
    }
    if gate.reason.as_ref().is_some_and(|reason| reason.len() > REASON_BYTES_MAX) {
        errors.add(format!("{path}/reason"), format!("must have at most {REASON_BYTES_MAX} bytes"));
    }
}

const EMPTY: &str = "must not be empty";

/// Rejects empty conditions, because it would not be clear whether they always or never hold.
fn check_conditions(errors: &mut InputErrors, path: &str, set: &ScopeConstraints) {
    if set.is_empty() {
        errors.add(path, EMPTY);
    }
    for (key, _) in set.iter().filter(|(_, patterns)| patterns.is_empty()) {
        errors.add(format!("{path}/{}", rules::pointer_token(key)), EMPTY);
    }
}

/// Checks the labels with which a caller starts a task.
///
/// # Errors
///
/// A label is not a name of a-z and `-`, or there are too many.
pub fn check_task_labels(labels: &[String]) -> Result<(), OperationError> {
    let mut errors = InputErrors::default();
    check_labels(&mut errors, "/labels", labels);
    errors.check()
}

/// Checks the labels at `path`.
pub(super) fn check_labels(errors: &mut InputErrors, path: &str, labels: &[String]) {
    if labels.len() > LABELS_MAX {
        errors.add(path, format!("must have at most {LABELS_MAX} entries"));
        return;
    }
    for (index, label) in labels.iter().enumerate() {
        let is_fit = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
        if label.is_empty() || label.len() > LABEL_CHARS_MAX || !label.bytes().all(is_fit) {
            let message = format!("must have 1 to {LABEL_CHARS_MAX} characters, each of which is a-z or `-`");
            errors.add(format!("{path}/{index}"), message);
        }
    }
    duplicates(errors, path, labels);
}

fn duplicates<T: Ord>(errors: &mut InputErrors, path: &str, list: &[T]) {
    let mut seen = BTreeSet::new();
    for (index, _) in list.iter().enumerate().filter(|(_, entry)| !seen.insert(*entry)) {
        errors.add(format!("{path}/{index}"), "duplicate entry");
    }
}

/// Returns the scope keys in the conditions of stored gates at `path`, each with its JSON pointer.
pub(super) fn keys<'v>(path: &str, gates: Option<&'v Value>) -> Vec<(String, &'v str)> {
    let mut keys = Vec::new();
    for (index, gate) in gates.and_then(Value::as_array).into_iter().flatten().enumerate() {
        for name in ["when", "unless"] {
            let set = gate.get(name).and_then(Value::as_object).into_iter().flatten();
            keys.extend(
                set.map(|(key, _)| (format!("{path}/{index}/{name}/{}", rules::pointer_token(key)), key.as_str())),
            );
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(gates: &Value) -> Vec<String> {
        // The types of the API have no other form.
        let parsed: Vec<monstrum_api::gates::Gate> = serde_json::from_value(gates.clone()).unwrap();
        assert_eq!(stored(&parsed).as_ref(), Some(gates).filter(|gates| **gates != json!([])), "stored as it was set");
        let mut errors = InputErrors::default();
        match check(&mut errors, "/gates", Some(gates), None) {
            Ok(()) => errors.paths().into_iter().map(str::to_owned).collect(),
            Err(OperationError::Invalid(errors)) => errors.into_iter().map(|error| error.path).collect(),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn every_fault_of_a_gate_is_named_by_its_path() {
        let whole = json!({
            "tools": ["github_*"], "operations": ["issue.*"], "when": {"repos": ["acme/*"]}, "unless": {"paths": ["/a"]},
            "after": ["untrusted"], "action": "ask", "approvers": ["admin", "operator", "approver"],
            "allow_starter": true, "expires_s": 60, "reason": "x".repeat(1024),
        });
        assert_eq!(faults(&json!([whole, {"action": "deny"}])), [""; 0]);
        let cases = [
            (json!({"tools": []}), "/tools"),
            (json!({"tools": ["a", ""]}), "/tools/1"),
            (json!({"operations": []}), "/operations"),
            (json!({"when": {}}), "/when"),
            (json!({"when": {"a/b": []}}), "/when/a~1b"),
            (json!({"unless": {"repos": []}}), "/unless/repos"),
            (json!({"after": []}), "/after"),
            (json!({"after": ["a", "b", "c", "d", "e"]}), "/after"),
            (json!({"after": ["ok", "Not"]}), "/after/1"),
            (json!({"after": ["x".repeat(33)]}), "/after/0"),
            (json!({"approvers": []}), "/approvers"),
            (json!({"approvers": ["admin", "admin"]}), "/approvers/1"),
            (json!({"expires_s": 59}), "/expires_s"),
            (json!({"expires_s": 604_801}), "/expires_s"),
            (json!({"reason": "x".repeat(1025)}), "/reason"),
        ];
        for (mut gate, path) in cases {
            gate["action"] = json!("ask");
            assert_eq!(faults(&json!([{"action": "ask"}, gate])), [format!("/gates/1{path}")]);
        }
        assert_eq!(faults(&json!(vec![json!({"action": "ask"}); 20])), [""; 0]);
        assert_eq!(faults(&json!(vec![json!({"action": "ask"}); 21])), ["/gates"]);
        let many: ScopeConstraints = (0..201).map(|number| (number.to_string(), vec!["x".to_owned()])).collect();
        assert_eq!(faults(&json!([{"action": "ask", "when": many}])), ["/gates/0/when"]);
    }

    #[test]
    fn stored_gates_are_not_checked_again() {
        let gates = json!(vec![json!({"action": "ask"}); 21]);
        let mut errors = InputErrors::default();
        assert!(check(&mut errors, "/gates", Some(&gates), Some(&gates)).is_ok());
        assert!(errors.check().is_ok());
    }
}
