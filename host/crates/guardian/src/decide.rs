//! The decision function for the tool list, the call and the access check.
//!
//! The rules run in a fixed order: first the roles, then the constraints that deny without examining values (and
//! therefore hide the tool from the list), then the values of the call, and finally the gates. The first rule that denies determines
//! the response. Further denials are collected, so that an administrator sees all necessary changes at once.

use std::ops::ControlFlow;
use std::sync::Arc;

use monstrum_manifest::MatchMode;
use monstrum_types::{Effort, Labels, Overrun};
use serde_json::{Map, Value};

use crate::denial::{Denial, Holder, Refusal};
use crate::gates::{self, Asked, Gated, Gates};
use crate::policy::{BindingRules, Constraint, ConstraintSet, DelegationRules, Dimension, ToolRules};
use crate::values::{Found, Stop, paid, visit};

/// Maximum length, in bytes, of a value that is compared with patterns. The patterns of roles and bindings have the
/// same limit. The time of a match grows with the lengths of the value and of the pattern.
pub const VALUE_BYTES_MAX: usize = 4096;
/// The cost, in steps, of comparing one key of a constraint set with one dimension of the tool.
const KEY_STEPS: u64 = 8;
/// Maximum number of refusals collected for one response. A hostile call can cause thousands of refusals.
pub(crate) const REFUSALS_MAX: usize = 8;

/// The rules that apply to a bot and a tool.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The rules of the manifest for the tool.
    pub tool: &'a ToolRules,
    /// The rules of the binding to the tool's resource.
    pub binding: &'a BindingRules,
    /// The links of the delegation under which the bot acts, outermost first. The list is empty if the bot acts for
    /// itself.
    pub delegation: &'a [Arc<DelegationRules>],
    /// The gates of the bot.
    pub bot_gates: &'a Gates,
    /// The labels that the call carries. A caller of which the host cannot know what it has read carries every label.
    pub labels: &'a Labels,
}

/// The question to decide.
#[derive(Clone, Copy)]
pub enum Question<'a> {
    /// Whether the bot's tool list contains the tool.
    List,
    /// Whether the bot may call the tool with these parameters, which satisfy its `input_schema` and include its
    /// defaults.
    Call(&'a Map<String, Value>),
}

/// The decision on a [`Question`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The tool is listed, or the call is allowed.
    Allow,
    /// All rules allow the call, but gates require that a person approves it. A tool list never has this decision.
    Ask(Asked),
    /// The tool is hidden, or the call is denied, with the reason.
    Deny(Denial),
}

/// Answers a question. A tool that the bot may call is always listed.
#[must_use]
pub fn decide(subject: &Subject<'_>, question: Question<'_>) -> Decision {
    decide_within(subject, question, &Effort::of(u64::MAX)).expect("an unlimited budget cannot be exhausted")
}

/// Like [`decide()`], but limited by a budget of steps.
///
/// # Errors
/// Fails if the budget is exhausted before the decision is known. The caller must then not run the call.
pub fn decide_within(subject: &Subject<'_>, question: Question<'_>, effort: &Effort) -> Result<Decision, Overrun> {
    let refusals = refusals_of(subject, question, effort)?;
    if let Some((first, others)) = refusals.split_first() {
        return Ok(Decision::Deny(Denial::new(subject.tool, question, first, others)));
    }
    Ok(match gates::judge(subject, question, effort)? {
        Gated::Passed => Decision::Allow,
        Gated::Asks(asked) => Decision::Ask(asked),
        Gated::Denied { holder, reason } => Decision::Deny(Denial::by_gate(subject.tool, holder, reason.as_deref())),
    })
}

/// Returns the refusals of all rules except gates, at most [`REFUSALS_MAX`].
pub(crate) fn refusals_of<'a>(
    subject: &Subject<'a>,
    question: Question<'a>,
    effort: &Effort,
) -> Result<Vec<Refusal<'a>>, Overrun> {
    let mut refusals = Refusals(Vec::new());
    match examine(subject, question, effort, &mut refusals) {
        ControlFlow::Break(Stop::Overrun(overrun)) => Err(overrun),
        // The examination has collected the maximum number of refusals, or has applied all rules. In both cases, the
        // refusals determine the answer.
        ControlFlow::Break(Stop::Found(())) | ControlFlow::Continue(()) => Ok(refusals.0),
    }
}

/// The control flow of an examination, which ends early when enough refusals are collected or the budget is exhausted.
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
            // Empty lists have already been refused in `sets_alone`.
            .filter(|(_, constraint)| !constraint.patterns.is_empty())
            .collect();
        let Some((first, _)) = constraints.first() else { continue };
        if !dimension.is_declared {
            refusals.add(Refusal::Undeclared { holder: *first, dimension })?;
        } else if let Question::Call(params) = question {
            // If the binding's version of the resource type has no dimension with this key and match mode, the
            // constraint sets of the role and the binding do not permit any value.
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

/// The result of comparing a value with the patterns of one list.
enum Match {
    Yes,
    No,
    /// The value exceeds the length limit and was not compared.
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
    for (index, link) in restricting(subject).iter().enumerate() {
        let Some(tools) = &link.tools else { continue };
        if !paid(tools.matches(MatchMode::Pattern, tool.as_str(), effort))? {
            refusals.add(Refusal::Tool(Holder::Delegation(index)))?;
        }
    }
    ControlFlow::Continue(())
}

/// Applies the rules that do not depend on values: keys that the manifest does not declare, and empty lists. Both rules
/// deny all tools of the binding, for all operations.
fn sets_alone<'a>(subject: &Subject<'a>, effort: &Effort, refusals: &mut Refusals<'a>) -> Flow {
    let dimensions = subject.tool.dimensions.len() as u64;
    for (holder, set) in sets(subject) {
        // The cost covers looking up each key among the dimensions, and each dimension among the keys.
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

/// Checks that every value at every path matches in every set.
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

/// Returns the links whose lists restrict the tool. See [`ToolRules::own_step`].
fn restricting<'a>(subject: &Subject<'a>) -> &'a [Arc<DelegationRules>] {
    if subject.tool.is_own_step { &[] } else { subject.delegation }
}

pub(crate) fn sets<'a>(subject: &Subject<'a>) -> impl Iterator<Item = (Holder, &'a ConstraintSet)> {
    let own = subject.binding.sets.iter().map(|(source, set)| (Holder::from(*source), &**set));
    own.chain(restricting(subject).iter().enumerate().map(|(index, link)| (Holder::Delegation(index), &link.set)))
}
