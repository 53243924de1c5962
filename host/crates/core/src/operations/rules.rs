//! Rules that several inputs share.

use std::collections::HashMap;

use monstrum_types::WorkspaceId;
use serde_json::Value;

use super::{InputErrors, OperationError};
use crate::app::App;
pub(super) use crate::policy::pattern_limits::pointer_token;
use crate::policy::pattern_limits::{NoPatternRoom, Saving, list_errors, scopes_error};

/// Checks the name of a role, bot, resource or workspace. The name must have 1 to 128 characters and no control
/// characters.
pub(super) fn name(errors: &mut InputErrors, path: &str, name: &str) {
    const CHARS_MAX: usize = 128;
    if name.trim().is_empty() {
        errors.add(path, "must not be empty");
    } else if name.chars().count() > CHARS_MAX {
        errors.add(path, format!("must have at most {CHARS_MAX} characters"));
    } else if name.chars().any(char::is_control) {
        errors.add(path, "must not contain control characters");
    }
}

/// Checks that a text has at most `chars_max` characters.
pub(super) fn length(errors: &mut InputErrors, path: &str, text: &str, chars_max: usize) {
    if text.chars().count() > chars_max {
        errors.add(path, format!("must have at most {chars_max} characters"));
    }
}

/// Checks the number and the length of the patterns in each list. A list that equals its list in `stored` is not
/// checked, because it may have been saved before a limit was introduced.
pub(super) fn patterns<'v>(
    errors: &mut InputErrors,
    lists: impl IntoIterator<Item = (String, &'v Value)>,
    stored: Vec<(String, &Value)>,
) {
    let stored: HashMap<String, &Value> = stored.into_iter().collect();
    for (path, list) in lists.into_iter().filter(|(path, list)| stored.get(path) != Some(list)) {
        for (at, message) in list_errors(&path, list) {
            errors.add(at, message);
        }
    }
}

/// Checks the number of keys in scopes. Scopes that equal `stored` are not checked. Call this function before any work
/// that is done for each key.
pub(super) fn scope_keys(path: &str, scopes: &Value, stored: Option<&Value>) -> Result<(), OperationError> {
    match scopes_error(path, scopes).filter(|_| stored != Some(scopes)) {
        Some((path, message)) => Err(OperationError::invalid_at(path, message)),
        None => Ok(()),
    }
}

/// Reserves memory of the workspace for the compiled patterns of a row that will be saved. The caller must hold the
/// result until the row is in force.
pub(super) async fn pattern_room(
    app: &App,
    workspace: WorkspaceId,
    replaced: u64,
    bytes: u64,
) -> Result<Saving, OperationError> {
    let reserved = app.pattern_room.reserve(&app.policy, workspace, replaced, bytes).await;
    reserved.map_err(|error| match error {
        NoPatternRoom::Full { .. } => OperationError::invalid_at("", error.to_string()),
        NoPatternRoom::Busy => OperationError::Busy(error.to_string()),
    })
}
