//! Limits for the patterns of roles and bindings: the number of patterns, the length of a pattern, and the memory of a
//! workspace's compiled patterns.
//!
//! The host checks the limits when a row is saved. A row of an earlier release, which had no limits, stays in force
//! until it is saved again. `doctor` lists such rows.

use std::time::Duration;

use monstrum_guardian::compiled_bytes_max;
use monstrum_store::{BindingRow, BotRow, RoleRow};
use monstrum_types::WorkspaceId;
use serde_json::Value;
use tokio::time::Instant;

use crate::fair_queue::{FairQueues, Share, Ticket};
use crate::policy::Policy;

/// The default limit, in MiB, for the memory of a workspace's compiled patterns. This memory is enough for about
/// 100 000 bindings with a few patterns each, or for 16 patterns of the most expensive kind.
pub const WORKSPACE_MIB_DEFAULT: u32 = 64;
/// The maximum limit that an operator can set, in MiB. A host has less memory available for one workspace.
pub const WORKSPACE_MIB_MAX: u32 = 4096;
/// The maximum time for which a change waits for other changes of patterns in its workspace. The maximum wait of a call
/// for admission is equally long.
const SAVE_WAIT_MAX: Duration = Duration::from_secs(5);
/// The maximum length of a pattern in bytes, which is also the maximum length of a value that is compared with
/// patterns.
pub const PATTERN_BYTES_MAX: usize = 4096;
/// The maximum number of patterns in one list. The host compares each value with all patterns of a list.
pub const LIST_PATTERNS_MAX: usize = 200;

/// The maximum memory, in bytes, of the compiled patterns of each workspace.
#[derive(Clone, Default)]
pub(super) struct PatternBytes(imbl::HashMap<WorkspaceId, u128>);

impl PatternBytes {
    pub(super) fn of(&self, workspace: WorkspaceId) -> u64 {
        let sum = self.0.get(&workspace).copied().unwrap_or_default();
        u64::try_from(sum).unwrap_or(u64::MAX)
    }

    pub(super) fn add(&mut self, workspace: WorkspaceId, bytes: u64) {
        *self.0.entry(workspace).or_default() += u128::from(bytes);
    }

    /// Subtracts `bytes`. An earlier call of `add` must have added them.
    pub(super) fn remove(&mut self, workspace: WorkspaceId, bytes: u64) {
        let sum = self.0.entry(workspace).or_default();
        *sum = sum.saturating_sub(bytes.into());
    }
}

/// Returns the pattern lists of a role, each with its JSON pointer.
pub fn lists_of_role(row: &RoleRow) -> Vec<(String, &Value)> {
    let own = [("allowed_operations", &row.allowed_operations), ("allowed_tools", &row.allowed_tools)];
    let own = own.into_iter().filter_map(|(name, list)| Some((format!("/{name}"), list.as_ref()?)));
    let scopes = lists_of_scopes("/scope_constraints", Some(&row.scope_constraints));
    own.chain(scopes).chain(lists_of_gates("/gates", row.gates.as_ref())).collect()
}

/// Returns the pattern lists of a bot, each with its JSON pointer.
pub fn lists_of_bot(row: &BotRow) -> Vec<(String, &Value)> {
    lists_of_gates("/gates", row.gates.as_ref()).collect()
}

/// Returns the pattern lists of a binding, each with its JSON pointer.
pub fn lists_of_binding(row: &BindingRow) -> Vec<(String, &Value)> {
    let (permissions, delegate) = (row.permissions.as_ref(), row.delegate.as_ref());
    let own = [
        ("/permissions/allowed_operations", permissions.and_then(|own| own.get("allowed_operations"))),
        ("/permissions/allowed_tools", permissions.and_then(|own| own.get("allowed_tools"))),
        ("/delegate/allowed_tools", delegate.and_then(|link| link.get("allowed_tools"))),
        ("/allow_calls", Some(&row.allow_calls)),
    ];
    let own = own.into_iter().filter_map(|(path, list)| Some((path.to_owned(), list?)));
    let of_link =
        lists_of_scopes("/delegate/scope_constraints", delegate.and_then(|link| link.get("scope_constraints")));
    let gates = lists_of_gates("/gates", row.gates.as_ref());
    let gates_of_link = lists_of_gates("/delegate/gates", delegate.and_then(|link| link.get("gates")));
    let scopes = lists_of_scopes("/scope_constraints", Some(&row.scope_constraints));
    own.chain(scopes).chain(of_link).chain(gates).chain(gates_of_link).collect()
}

/// Returns the pattern lists of gates, each with its JSON pointer.
fn lists_of_gates<'v>(path: &'static str, gates: Option<&'v Value>) -> impl Iterator<Item = (String, &'v Value)> {
    let gates = gates.and_then(Value::as_array).into_iter().flatten().enumerate();
    gates.flat_map(move |(index, gate)| {
        let at = |name: &str| format!("{path}/{index}/{name}");
        let globs = ["tools", "operations"].map(|name| gate.get(name).map(|list| (at(name), list)));
        let conditions = ["when", "unless"].map(|name| lists_of_scopes(&at(name), gate.get(name)).collect::<Vec<_>>());
        globs.into_iter().flatten().chain(conditions.into_iter().flatten())
    })
}

/// Returns the pattern lists of a link without gates, each with its JSON pointer below `path`.
pub fn lists_of_link<'v>(path: &str, link: &'v Value) -> Vec<(String, &'v Value)> {
    let tools = link.get("allowed_tools").map(|list| (format!("{path}/allowed_tools"), list));
    let scopes =
        lists_of_scopes(&format!("{path}/scope_constraints"), link.get("scope_constraints")).collect::<Vec<_>>();
    tools.into_iter().chain(scopes).collect()
}

fn lists_of_scopes<'v>(path: &str, scopes: Option<&'v Value>) -> impl Iterator<Item = (String, &'v Value)> {
    let scopes = scopes.and_then(Value::as_object).into_iter().flatten();
    scopes.map(move |(key, list)| (format!("{path}/{}", pointer_token(key)), list))
}

/// Escapes a key as a token of a JSON pointer (RFC 6901).
pub fn pointer_token(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// The maximum number of keys in one set of scopes. The resource types of a host have fewer scope dimensions.
pub const SCOPE_KEYS_MAX: usize = 200;

/// Returns the validation error of the scopes at `path` if they have more than [`SCOPE_KEYS_MAX`] keys.
pub fn scopes_error(path: &str, scopes: &Value) -> Option<(String, String)> {
    let keys = scopes.as_object().map_or(0, serde_json::Map::len);
    let message = || format!("the object has {keys} scope dimensions; at most {SCOPE_KEYS_MAX} are allowed");
    (keys > SCOPE_KEYS_MAX).then(|| (path.to_owned(), message()))
}

/// Returns the sets of scopes of a binding, each with its JSON pointer.
pub fn scopes_of_binding(row: &BindingRow) -> Vec<(&'static str, &Value)> {
    let of_link = row.delegate.as_ref().and_then(|link| link.get("scope_constraints"));
    let own = ("/scope_constraints", &row.scope_constraints);
    [own].into_iter().chain(of_link.map(|scopes| ("/delegate/scope_constraints", scopes))).collect()
}

/// Returns the validation errors of the list at `path`, each with its JSON pointer and message.
pub fn list_errors(path: &str, list: &Value) -> Vec<(String, String)> {
    let patterns = list.as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut errors = Vec::new();
    let mut number = 0;
    for (index, pattern) in patterns.enumerate() {
        number += 1;
        if pattern.len() > PATTERN_BYTES_MAX {
            let message = format!("the pattern is too long; at most {PATTERN_BYTES_MAX} bytes are allowed");
            errors.push((format!("{path}/{index}"), message));
        }
    }
    if number > LIST_PATTERNS_MAX {
        let message = format!(
            "the list has {number} patterns; at most {LIST_PATTERNS_MAX} are allowed; use fewer, more general \
             patterns, or split the list into several roles"
        );
        errors.push((path.to_owned(), message));
    }
    errors
}

/// Returns the maximum memory of the compiled patterns in these lists, in bytes.
pub fn compiled_bytes<'v>(lists: impl IntoIterator<Item = (String, &'v Value)>) -> u64 {
    let lists = lists.into_iter().filter_map(|(_, list)| list.as_array());
    lists.flatten().filter_map(Value::as_str).map(compiled_bytes_max).fold(0, u64::saturating_add)
}

/// The memory limit of a workspace's compiled patterns, which the host checks when patterns are saved.
pub struct PatternRoom {
    bytes_max: u64,
    /// A queue for each workspace. It allows one change at a time, so that each change is checked against the result of
    /// the previous change.
    saving: FairQueues<WorkspaceId, (), ()>,
}

/// The reservation for a change of patterns. The caller holds it until the saved patterns are in force.
pub struct Saving {
    _turn: Option<Ticket<(), ()>>,
}

/// The reason why patterns cannot be saved.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPatternRoom {
    #[error(
        "the compiled patterns of this workspace would need up to {} MiB; at most {} MiB are allowed; use fewer \
         patterns with `?` or `[...]`, or ask the operator to raise --workspace-patterns-mib",
        mib(*bytes),
        mib(*bytes_max)
    )]
    Full { bytes: u64, bytes_max: u64 },
    #[error("the server is saving other changes of this workspace's patterns; try again")]
    Busy,
}

/// Formats bytes in MiB, rounded up to a tenth.
fn mib(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10).div_ceil(1 << 20);
    if tenths.is_multiple_of(10) { (tenths / 10).to_string() } else { format!("{}.{}", tenths / 10, tenths % 10) }
}

impl PatternRoom {
    /// Creates a limit of `mib_max` MiB for each workspace.
    pub fn new(mib_max: u32) -> PatternRoom {
        PatternRoom { bytes_max: u64::from(mib_max) << 20, saving: FairQueues::default() }
    }

    /// Returns an error if patterns of this size, in bytes, exceed the limit.
    pub fn over(&self, bytes: u64) -> Option<NoPatternRoom> {
        (bytes > self.bytes_max).then_some(NoPatternRoom::Full { bytes, bytes_max: self.bytes_max })
    }

    /// Checks that a workspace may replace patterns of `replaced` bytes with patterns of `bytes` bytes. A change that
    /// does not increase the size is always allowed, even if the workspace exceeds the limit.
    pub async fn reserve(
        &self,
        policy: &Policy,
        workspace: WorkspaceId,
        replaced: u64,
        bytes: u64,
    ) -> Result<Saving, NoPatternRoom> {
        if bytes <= replaced {
            return Ok(Saving { _turn: None });
        }
        let turn = self.saving.queue(&workspace, 1).enter(&(), (), Share::Whole, Instant::now() + SAVE_WAIT_MAX).await;
        let turn = turn.ok_or(NoPatternRoom::Busy)?;
        // After the renewal, the snapshot also includes changes by other hosts and by cancelled requests.
        policy.renew_if_behind().await.map_err(|_| NoPatternRoom::Busy)?;
        let bytes = policy.load().pattern_bytes(workspace).saturating_sub(replaced).saturating_add(bytes);
        self.over(bytes).map_or(Ok(Saving { _turn: Some(turn) }), Err)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_has_200_patterns_of_4_kib_at_most() {
        let list = |number: usize, bytes: usize| json!(vec!["x".repeat(bytes); number]);
        assert_eq!(list_errors("/allow_calls", &list(200, 4096)), []);
        let paths =
            |list: &Value| list_errors("/allow_calls", list).into_iter().map(|(path, _)| path).collect::<Vec<_>>();
        assert_eq!(paths(&list(201, 1)), ["/allow_calls"]);
        assert_eq!(paths(&json!(["x", "x".repeat(4097)])), ["/allow_calls/1"]);
    }

    #[test]
    fn sizes_are_rounded_up() {
        assert_eq!([64 << 20, (64 << 20) + 1, 1, 0].map(mib), ["64", "64.1", "0.1", "0"]);
    }
}
