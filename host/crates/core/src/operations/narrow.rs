//! What the starter of a task narrows: one more link, which restricts all calls of the task.

use monstrum_api::tasks::Narrow;
use serde_json::json;

use super::{InputErrors, OperationError, rules};
use crate::policy::pattern_limits::{compiled_bytes, lists_of_link};

/// The maximum memory of the compiled patterns of a task, in bytes. Many tasks run at once, and each compiles its own
/// patterns.
const COMPILED_BYTES_MAX: u64 = 1 << 20;

/// Checks what an input narrows in its field `path`, by the rules for the delegations of bindings.
///
/// # Errors
///
/// A list or a pattern is too long, or the patterns need too much memory.
pub fn check(path: &str, narrow: &Narrow) -> Result<(), OperationError> {
    let shown = json!(narrow);
    if let Some(scopes) = shown.get("scope_constraints") {
        rules::scope_keys(&format!("{path}/scope_constraints"), scopes, None)?;
    }
    let mut errors = InputErrors::default();
    let lists = lists_of_link(path, &shown);
    rules::patterns(&mut errors, lists.clone(), Vec::new());
    if compiled_bytes(lists) > COMPILED_BYTES_MAX {
        errors.add(path, "the patterns need too much memory; use fewer patterns with `?` or `[...]`");
    }
    errors.check()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn errors(narrow: Value) -> Vec<String> {
        match check("/narrow", &serde_json::from_value(narrow).unwrap()) {
            Ok(()) => Vec::new(),
            Err(OperationError::Invalid(errors)) => errors.into_iter().map(|error| error.path).collect(),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn every_fault_has_a_pointer() {
        let long = "x".repeat(4097);
        // One such pattern needs some hundred KiB.
        let sets: String = (0x4e00..0x4e00 + 600).filter_map(char::from_u32).map(|one| format!("[{one}x]")).collect();
        let scopes: serde_json::Map<String, Value> = (0..201).map(|key| (key.to_string(), json!([]))).collect();
        for (narrow, at) in [
            (json!({}), None),
            (json!({ "allowed_tools": [], "scope_constraints": { "unknown": ["x"] } }), None),
            (json!({ "allowed_tools": ["a", long] }), Some("/narrow/allowed_tools/1")),
            (json!({ "allowed_tools": vec!["a"; 201] }), Some("/narrow/allowed_tools")),
            (json!({ "scope_constraints": { "a/b": [long] } }), Some("/narrow/scope_constraints/a~1b/0")),
            (json!({ "scope_constraints": scopes }), Some("/narrow/scope_constraints")),
            (json!({ "allowed_tools": vec![sets; 10] }), Some("/narrow")),
        ] {
            assert_eq!(errors(narrow.clone()), at.into_iter().collect::<Vec<_>>(), "{narrow}");
        }
    }
}
