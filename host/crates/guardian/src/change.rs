//! The changes of rules that would allow a call, in a form that a program can make.

use std::borrow::Cow;
use std::ops::ControlFlow;

use monstrum_manifest::MatchMode;
use monstrum_types::{Effort, Overrun};
use serde_json::{Map, Value};

use crate::decide::{Question, REFUSALS_MAX, Subject, VALUE_BYTES_MAX, refusals_of, sets};
use crate::denial::{Holder, Refusal};
use crate::gates::{self, Gated};
use crate::matching::{escape_glob, match_path};
use crate::policy::{Dimension, GrantSource};
use crate::values::{Found, Stop, visit};

/// Maximum number of changes that are suggested for one call.
const CHANGES_MAX: usize = 16;

/// What is done to a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeAction {
    /// An entry is added to a list. An absent list is created.
    Add,
    /// An entry is removed from a list, or a key from a map.
    Remove,
}

/// The object whose field changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeHolder {
    /// The role of the binding.
    Role,
    /// The permissions of the binding, which are a part of it.
    Permissions,
    /// The binding.
    Binding,
}

/// A change of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleChange {
    /// What is done.
    pub action: ChangeAction,
    /// Where it is done.
    pub holder: ChangeHolder,
    /// The path of the field in the object, with dots between its names.
    pub field: String,
    /// The entry that is added, or the entry or key that is removed.
    pub entry: String,
}

/// Returns the changes that, together, would allow a call with these parameters. The list is empty if the call is allowed
/// already, or if no change of a role or a binding allows it: for example, because a value is missing, a gate denies the
/// call, or a delegation does.
///
/// # Errors
/// Fails if the budget is exhausted.
pub fn changes_within(
    subject: &Subject<'_>,
    params: &Map<String, Value>,
    effort: &Effort,
) -> Result<Vec<RuleChange>, Overrun> {
    let question = Question::Call(params);
    let refusals = refusals_of(subject, question, effort)?;
    // More refusals may exist than were collected.
    if refusals.len() >= REFUSALS_MAX {
        return Ok(Vec::new());
    }
    let mut changes: Vec<RuleChange> = Vec::new();
    for refusal in &refusals {
        let Some(needed) = needed(refusal, subject, params, effort)? else { return Ok(Vec::new()) };
        for change in needed {
            if !changes.contains(&change) {
                changes.push(change);
            }
        }
    }
    let is_gated = matches!(gates::judge(subject, question, effort)?, Gated::Denied { .. });
    Ok(if is_gated || changes.len() > CHANGES_MAX { Vec::new() } else { changes })
}

/// Returns the changes that remove a refusal, or `None` if no change does.
fn needed(
    refusal: &Refusal<'_>,
    subject: &Subject<'_>,
    params: &Map<String, Value>,
    effort: &Effort,
) -> Result<Option<Vec<RuleChange>>, Overrun> {
    let tool = subject.tool;
    let one = |change: Option<RuleChange>| change.map(|change| vec![change]);
    Ok(match refusal {
        Refusal::NoGrant => one(granted(Holder::Permissions, "allowed_tools", tool.tool.to_string())),
        Refusal::Operation(source) => {
            one(granted(holder_of(*source), "allowed_operations", escape_glob(&tool.operation)))
        }
        Refusal::Tool(holder) => one(granted(*holder, "allowed_tools", tool.tool.to_string())),
        Refusal::UnknownKey { holder, key } => one(unconstrained(*holder, key)),
        // Every set with the key refuses the tool, but only the first one is told.
        Refusal::Undeclared { dimension, .. } => sets(subject)
            .filter(|(_, set)| set.constraint(&dimension.key).is_some())
            .map(|(holder, _)| unconstrained(holder, &dimension.key))
            .collect(),
        Refusal::EmptyList { holder, dimension } => filled(*holder, dimension, subject, params, effort)?,
        // The rules come from another version of the type, so no entry permits the value.
        Refusal::Unmatched { dimension, .. } if !subject.binding.matches_in(&dimension.key, dimension.mode) => None,
        Refusal::Unmatched { holder, dimension, value } => one(permitting(*holder, dimension, value)),
        Refusal::Missing { .. } | Refusal::Unfit { .. } | Refusal::TooLong { .. } => None,
    })
}

/// Adds entries to a list that permits no value, one for each value of the call. An empty list of a scope that the tool
/// has no parameter for, or that does not apply to the tool, stays: without it, the binding would permit calls of other
/// tools.
fn filled(
    holder: Holder,
    dimension: &Dimension,
    subject: &Subject<'_>,
    params: &Map<String, Value>,
    effort: &Effort,
) -> Result<Option<Vec<RuleChange>>, Overrun> {
    let of_key = |other: &&Dimension| other.key == dimension.key && other.applies;
    let mut needed = Vec::new();
    for dimension in subject.tool.dimensions.iter().filter(of_key) {
        if !dimension.is_declared || !subject.binding.matches_in(&dimension.key, dimension.mode) {
            return Ok(None);
        }
        let Some(values) = values(dimension, params, effort)? else { return Ok(None) };
        for value in &values {
            let Some(change) = permitting(holder, dimension, value) else { return Ok(None) };
            needed.push(change);
        }
    }
    Ok(Some(needed).filter(|needed| !needed.is_empty()))
}

fn holder_of(source: GrantSource) -> Holder {
    Holder::from(source)
}

/// Adds an entry to a list of a role or of the permissions of a binding.
fn granted(holder: Holder, list: &str, entry: String) -> Option<RuleChange> {
    let (holder, field) = match holder {
        Holder::Role => (ChangeHolder::Role, list.to_owned()),
        Holder::Permissions => (ChangeHolder::Permissions, format!("permissions.{list}")),
        Holder::Bot | Holder::Binding | Holder::Delegation(_) => return None,
    };
    Some(RuleChange { action: ChangeAction::Add, holder, field, entry })
}

fn constraining(holder: Holder) -> Option<ChangeHolder> {
    match holder {
        Holder::Role => Some(ChangeHolder::Role),
        Holder::Binding => Some(ChangeHolder::Binding),
        Holder::Bot | Holder::Permissions | Holder::Delegation(_) => None,
    }
}

/// Removes a key from the scope constraints of a role or a binding.
fn unconstrained(holder: Holder, key: &str) -> Option<RuleChange> {
    let (action, field) = (ChangeAction::Remove, "scope_constraints".to_owned());
    constraining(holder).map(|holder| RuleChange { action, holder, field, entry: key.to_owned() })
}

/// Adds the narrowest entry that permits `value`.
fn permitting(holder: Holder, dimension: &Dimension, value: &str) -> Option<RuleChange> {
    if value.len() > VALUE_BYTES_MAX {
        return None;
    }
    let entry = match dimension.mode {
        MatchMode::Pattern | MatchMode::Path => escape_glob(value),
        MatchMode::Exact => value.to_owned(),
    };
    if entry.len() > VALUE_BYTES_MAX || (dimension.mode == MatchMode::Path && !match_path(value, &entry)) {
        return None;
    }
    let field = format!("scope_constraints.{}", dimension.key);
    constraining(holder).map(|holder| RuleChange { action: ChangeAction::Add, holder, field, entry })
}

/// Returns all values of the call for a dimension, or `None` if it has none, or one that cannot be compared.
fn values<'p>(
    dimension: &Dimension,
    params: &'p Map<String, Value>,
    effort: &Effort,
) -> Result<Option<Vec<Cow<'p, str>>>, Overrun> {
    let mut values = Vec::new();
    for path in &dimension.param_paths {
        let visited = visit(params, path, effort, &mut |found| match found {
            Found::Text(value) if values.len() < CHANGES_MAX => {
                values.push(value);
                ControlFlow::Continue(())
            }
            Found::Text(_) | Found::Unfit(_) => ControlFlow::Break(Stop::Found(())),
        });
        match visited {
            ControlFlow::Continue(()) => {}
            ControlFlow::Break(Stop::Found(())) => return Ok(None),
            ControlFlow::Break(Stop::Overrun(overrun)) => return Err(overrun),
        }
    }
    Ok(Some(values).filter(|values| !values.is_empty()))
}
