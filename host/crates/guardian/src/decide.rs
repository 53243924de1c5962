//! The one decision behind the tool list, the call and the check.
//!
//! The rules run in one order: roles, then what the sets alone rule out (the tool is then not listed either), then the
//! values of the call. The first rule that refuses is the answer; some more are gathered, for an administrator
//! wants to hear at once of all that stands in the way.

use std::ops::ControlFlow;
use std::sync::Arc;

use monstrum_manifest::MatchMode;
use serde_json::{Map, Value};

use crate::denial::{Denial, Holder, Refusal};
use crate::policy::{BindingRules, Constraint, ConstraintSet, DelegationRules, Dimension, ToolRules};
use crate::values::{Found, visit};

/// Refusals that are gathered for one answer: nobody reads more, and a hostile call has thousands.
const REFUSALS_MAX: usize = 8;

/// Who wants which tool: the rules that apply.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// What the manifest says of the tool.
    pub tool: &'a ToolRules,
    /// What the binding to the tool's resource says.
    pub binding: &'a BindingRules,
    /// The links of the delegation under which the bot acts, outermost first; none when it acts for itself.
    pub delegation: &'a [Arc<DelegationRules>],
}

/// What is asked.
#[derive(Clone, Copy)]
pub enum Question<'a> {
    /// Whether the tool is in the bot's list.
    List,
    /// Whether it may be called with these parameters, which satisfy its input_schema and have its defaults filled in.
    Call(&'a Map<String, Value>),
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Yes.
    Allow,
    /// No, and why.
    Deny(Denial),
}

/// Decides. Whatever is allowed to be called is listed too.
#[must_use]
pub fn decide(subject: &Subject<'_>, question: Question<'_>) -> Decision {
    let mut refusals = Refusals(Vec::new());
    // Broken off when enough has been gathered; either way the list is the answer.
    let _: ControlFlow<()> = examine(subject, question, &mut refusals);
    match refusals.0.split_first() {
        None => Decision::Allow,
        Some((first, others)) => Decision::Deny(Denial::new(subject.tool, question, first, others)),
    }
}

struct Refusals<'a>(Vec<Refusal<'a>>);

impl<'a> Refusals<'a> {
    fn add(&mut self, refusal: Refusal<'a>) -> ControlFlow<()> {
        self.0.push(refusal);
        if self.0.len() < REFUSALS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

fn examine<'a>(subject: &Subject<'a>, question: Question<'a>, refusals: &mut Refusals<'a>) -> ControlFlow<()> {
    roles(subject, refusals)?;
    sets_alone(subject, refusals)?;
    for dimension in subject.tool.dimensions.iter().filter(|dimension| dimension.applies) {
        let constraints: Vec<(Holder, &Constraint)> = sets(subject)
            .filter_map(|(holder, set)| Some((holder, set.constraint(&dimension.key)?)))
            // An empty list has been refused already, and once is enough.
            .filter(|(_, constraint)| !constraint.patterns.is_empty())
            .collect();
        let Some((first, _)) = constraints.first() else { continue };
        if !dimension.is_declared {
            refusals.add(Refusal::Undeclared { holder: *first, dimension })?;
        } else if let Question::Call(params) = question {
            // Rules of a binding to another version of the type permit no value.
            let is_of_type = subject.binding.matches_in(&dimension.key, dimension.mode);
            let permits = |holder: Holder, constraint: &Constraint, value: &str| {
                (is_of_type || matches!(holder, Holder::Delegation(_)))
                    && constraint.patterns.matches(dimension.mode, value)
            };
            values(dimension, &constraints, params, permits, refusals)?;
        }
    }
    ControlFlow::Continue(())
}

fn roles<'a>(subject: &Subject<'a>, refusals: &mut Refusals<'a>) -> ControlFlow<()> {
    let ToolRules { tool, operation, .. } = subject.tool;
    let grants = &subject.binding.grants;
    if !grants.iter().any(|(_, grant)| grant.has_a_list()) {
        refusals.add(Refusal::NoGrant)?;
    }
    for (source, grant) in grants {
        if !grant.allows_operation(operation) {
            refusals.add(Refusal::Operation(*source))?;
        }
        if !grant.allows_tool(tool) {
            refusals.add(Refusal::Tool(Holder::from(*source)))?;
        }
    }
    for (index, link) in subject.delegation.iter().enumerate() {
        if link.tools.as_ref().is_some_and(|tools| !tools.matches(MatchMode::Pattern, tool.as_str())) {
            refusals.add(Refusal::Tool(Holder::Delegation(index)))?;
        }
    }
    ControlFlow::Continue(())
}

/// What needs no values: keys that the manifest does not have, and lists that permit nothing. Either refuses every tool
/// of the binding, whatever its operation.
fn sets_alone<'a>(subject: &Subject<'a>, refusals: &mut Refusals<'a>) -> ControlFlow<()> {
    for (holder, set) in sets(subject) {
        if subject.tool.forwards && matches!(holder, Holder::Delegation(_)) {
            continue;
        }
        for Constraint { key, .. } in set.constraints.iter().filter(|constraint| !subject.tool.knows(&constraint.key)) {
            refusals.add(Refusal::UnknownKey { holder, key })?;
        }
    }
    for (holder, set) in sets(subject) {
        for constraint in set.constraints.iter().filter(|constraint| constraint.patterns.is_empty()) {
            if let Some(dimension) = subject.tool.dimension(&constraint.key) {
                refusals.add(Refusal::EmptyList { holder, dimension })?;
            }
        }
    }
    ControlFlow::Continue(())
}

/// Every value at every path must match in every set.
fn values<'a>(
    dimension: &'a Dimension,
    constraints: &[(Holder, &Constraint)],
    params: &'a Map<String, Value>,
    permits: impl Fn(Holder, &Constraint, &str) -> bool,
    refusals: &mut Refusals<'a>,
) -> ControlFlow<()> {
    let mut is_missing = true;
    for path in &dimension.param_paths {
        visit(params, path, &mut |found| {
            is_missing = false;
            match found {
                Found::Unfit(value) => refusals.add(Refusal::Unfit { dimension, value })?,
                Found::Text(value) => {
                    for (holder, constraint) in constraints {
                        if !permits(*holder, constraint, &value) {
                            refusals.add(Refusal::Unmatched { holder: *holder, dimension, value: value.clone() })?;
                        }
                    }
                }
            }
            ControlFlow::Continue(())
        })?;
    }
    if is_missing {
        refusals.add(Refusal::Missing { dimension })?;
    }
    ControlFlow::Continue(())
}

fn sets<'a>(subject: &Subject<'a>) -> impl Iterator<Item = (Holder, &'a ConstraintSet)> {
    let own = subject.binding.sets.iter().map(|(source, set)| (Holder::from(*source), &**set));
    own.chain(subject.delegation.iter().enumerate().map(|(index, link)| (Holder::Delegation(index), &link.set)))
}
