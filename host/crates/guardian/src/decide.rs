//! The one decision behind the tool list, the call and the check.
//!
//! The rules run in one order: roles, then what the sets alone rule out (the tool is then not listed either), then the
//! values of the call. The first rule that refuses is the answer; some more are gathered, for an administrator
//! wants to hear at once of all that stands in the way.

use std::ops::ControlFlow;
use std::sync::Arc;

use monstrum_manifest::MatchMode;
use monstrum_types::{Effort, Overrun};
use serde_json::{Map, Value};

use crate::denial::{Denial, Holder, Refusal};
use crate::policy::{BindingRules, Constraint, ConstraintSet, DelegationRules, Dimension, ToolRules};
use crate::values::{Found, Stop, paid, visit};

/// The longest value that is compared with patterns, in bytes. No pattern of a role or binding is longer, and matching
/// takes time in proportion to both.
pub const VALUE_BYTES_MAX: usize = 4096;
/// Steps to compare a key of a set with one of the tool.
const KEY_STEPS: u64 = 8;
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
    decide_within(subject, question, &Effort::of(u64::MAX)).expect("an effort without a bound is never used up")
}

/// The same, paying for each comparison before it is made.
///
/// # Errors
/// The budget of steps is used up before a decision, so nothing may run.
pub fn decide_within(subject: &Subject<'_>, question: Question<'_>, effort: &Effort) -> Result<Decision, Overrun> {
    let mut refusals = Refusals(Vec::new());
    match examine(subject, question, effort, &mut refusals) {
        ControlFlow::Break(Stop::Overrun(overrun)) => return Err(overrun),
        // Broken off when enough has been gathered; either way the list is the answer.
        ControlFlow::Break(Stop::Found(())) | ControlFlow::Continue(()) => {}
    }
    Ok(match refusals.0.split_first() {
        None => Decision::Allow,
        Some((first, others)) => Decision::Deny(Denial::new(subject.tool, question, first, others)),
    })
}

/// The way of an examination: on, or ended with enough refusals or without effort.
type Flow = ControlFlow<Stop<()>>;

struct Refusals<'a>(Vec<Refusal<'a>>);

impl<'a> Refusals<'a> {
    fn add(&mut self, refusal: Refusal<'a>) -> Flow {
        self.0.push(refusal);
        if self.0.len() < REFUSALS_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(Stop::Found(())) }
    }
}

fn examine<'a>(subject: &Subject<'a>, question: Question<'a>, effort: &Effort, refusals: &mut Refusals<'a>) -> Flow {
    roles(subject, effort, refusals)?;
    sets_alone(subject, effort, refusals)?;
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
            let matches = |holder: Holder, constraint: &Constraint, value: &str| {
                if !is_of_type && !matches!(holder, Holder::Delegation(_)) {
                    return Ok(Match::No);
                }
                if value.len() > VALUE_BYTES_MAX && !constraint.patterns.matches_everything(dimension.mode) {
                    return Ok(Match::TooLong);
                }
                let matches = constraint.patterns.matches(dimension.mode, value, effort)?;
                Ok(if matches { Match::Yes } else { Match::No })
            };
            values(dimension, &constraints, params, matches, effort, refusals)?;
        }
    }
    ControlFlow::Continue(())
}

/// What became of comparing a value with the patterns of one list.
enum Match {
    Yes,
    No,
    /// The value is longer than what is compared.
    TooLong,
}

fn roles<'a>(subject: &Subject<'a>, effort: &Effort, refusals: &mut Refusals<'a>) -> Flow {
    let ToolRules { tool, operation, .. } = subject.tool;
    let grants = &subject.binding.grants;
    if !grants.iter().any(|(_, grant)| grant.has_a_list()) {
        refusals.add(Refusal::NoGrant)?;
    }
    for (source, grant) in grants {
        if !paid(grant.allows_operation(operation, effort))? {
            refusals.add(Refusal::Operation(*source))?;
        }
        if !paid(grant.allows_tool(tool, effort))? {
            refusals.add(Refusal::Tool(Holder::from(*source)))?;
        }
    }
    for (index, link) in subject.delegation.iter().enumerate() {
        let Some(tools) = &link.tools else { continue };
        if !paid(tools.matches(MatchMode::Pattern, tool.as_str(), effort))? {
            refusals.add(Refusal::Tool(Holder::Delegation(index)))?;
        }
    }
    ControlFlow::Continue(())
}

/// What needs no values: keys that the manifest does not have, and lists that permit nothing. Either refuses every tool
/// of the binding, whatever its operation.
fn sets_alone<'a>(subject: &Subject<'a>, effort: &Effort, refusals: &mut Refusals<'a>) -> Flow {
    let dimensions = subject.tool.dimensions.len() as u64;
    for (holder, set) in sets(subject) {
        // Each key is looked for among the dimensions, and each dimension among the keys.
        paid(effort.spend(KEY_STEPS * (1 + set.constraints.len() as u64 * (1 + 2 * dimensions))))?;
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
    matches: impl Fn(Holder, &Constraint, &str) -> Result<Match, Overrun>,
    effort: &Effort,
    refusals: &mut Refusals<'a>,
) -> Flow {
    let mut is_missing = true;
    for path in &dimension.param_paths {
        visit(params, path, effort, &mut |found| {
            is_missing = false;
            paid(effort.spend(KEY_STEPS))?;
            match found {
                Found::Unfit(value) => refusals.add(Refusal::Unfit { dimension, value })?,
                Found::Text(value) => {
                    for (holder, constraint) in constraints {
                        match paid(matches(*holder, constraint, &value))? {
                            Match::Yes => {}
                            Match::No => {
                                refusals.add(Refusal::Unmatched {
                                    holder: *holder,
                                    dimension,
                                    value: value.clone(),
                                })?;
                            }
                            Match::TooLong => refusals.add(Refusal::TooLong { dimension, bytes: value.len() })?,
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
