//! Gates. A gate makes a call that all other rules allow wait for a person, or denies it.
//!
//! Bots, roles, bindings and the links of a delegation have gates. All gates that apply to a call count together: one
//! gate that denies is enough, and a person who approves must satisfy every gate that asks.

use std::ops::ControlFlow;
use std::sync::Arc;

use monstrum_manifest::MatchMode;
use monstrum_types::{Effort, Overrun};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::decide::{Question, Subject, VALUE_BYTES_MAX};
use crate::denial::Holder;
use crate::matching::PatternList;
use crate::policy::{Dimension, ScopeConstraints, ToolRules};
use crate::values::{Found, Stop, paid, visit};

/// The time, in seconds, after which an approval expires if the gate does not set one.
pub const EXPIRES_S_DEFAULT: u32 = 3600;

/// A gate as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// Globs for tool names. If absent, the gate applies to tools of any name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Globs for operations. If absent, the gate applies to any operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operations: Option<Vec<String>>,
    /// For each of these scope keys, the gate applies only if some value of the call matches, or the call has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<ScopeConstraints>,
    /// The gate does not apply if, for each of these scope keys, the call has values and all of them match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unless: Option<ScopeConstraints>,
    /// The gate applies only to calls whose context has one of these labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Vec<String>>,
    /// What happens to a call to which the gate applies.
    pub action: GateAction,
    /// The kinds of keys that may decide; `admin` if absent. A root key may always decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approvers: Option<Vec<Approver>>,
    /// Whether the key that made the call may decide about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_starter: Option<bool>,
    /// The time in seconds after which an approval expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u32>,
    /// The reason, which the approver reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a gate does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateAction {
    /// The call waits for a person.
    Ask,
    /// The call is denied.
    Deny,
}

/// A kind of key that may decide about approvals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Approver {
    /// Admin keys.
    Admin,
    /// Operator keys.
    Operator,
    /// Keys that only decide about approvals.
    Approver,
}

impl Gate {
    /// Creates a gate that applies to every call.
    #[must_use]
    pub fn of(action: GateAction) -> Gate {
        Gate {
            tools: None,
            operations: None,
            when: None,
            unless: None,
            after: None,
            action,
            approvers: None,
            allow_starter: None,
            expires_s: None,
            reason: None,
        }
    }
}

impl Approver {
    /// All kinds.
    pub const ALL: [Approver; 3] = [Approver::Admin, Approver::Operator, Approver::Approver];
}

/// The gates of one holder, in the form that decisions use. Holders without gates need no memory for them.
#[derive(Clone, Debug, Default)]
pub struct Gates(Option<Arc<Vec<GateRules>>>);

/// A holder without gates.
pub static NO_GATES: Gates = Gates(None);

#[derive(Debug)]
struct GateRules {
    gate: Gate,
    tools: Option<PatternList>,
    operations: Option<PatternList>,
    when: Vec<(String, PatternList)>,
    unless: Vec<(String, PatternList)>,
}

/// The gates that ask for a call, and what they require together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The gates, in the order bot, role, binding, links.
    pub gates: Vec<AskingGate>,
    /// The kinds of keys that every gate accepts. Only a root key may decide if the list is empty.
    pub approvers: Vec<Approver>,
    /// Whether every gate lets the key that made the call decide.
    pub allow_starter: bool,
    /// The shortest time, in seconds, after which the approval expires.
    pub expires_s: u32,
}

/// A gate that asks for a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskingGate {
    /// The holder of the gate: `bot`, `role`, `binding` or `delegation`.
    pub holder: String,
    /// The reason of the gate.
    pub reason: Option<String>,
}

/// The result of judging the gates.
pub(crate) enum Gated {
    Passed,
    Asks(Asked),
    Denied { holder: Holder, reason: Option<String> },
}

impl Gates {
    /// Compiles the gates of one holder on first use.
    #[must_use]
    pub fn new(gates: &[Gate]) -> Gates {
        if gates.is_empty() {
            return Gates(None);
        }
        let list = |texts: &Option<Vec<String>>| texts.as_ref().map(PatternList::new);
        let lists = |set: &Option<ScopeConstraints>| {
            let lists = set.iter().flatten().map(|(key, texts)| (key.clone(), PatternList::new(texts)));
            lists.collect()
        };
        let rules = gates.iter().map(|gate| GateRules {
            tools: list(&gate.tools),
            operations: list(&gate.operations),
            when: lists(&gate.when),
            unless: lists(&gate.unless),
            gate: gate.clone(),
        });
        Gates(Some(Arc::new(rules.collect())))
    }

    /// Returns the gates for a holder whose gates cannot be read. They deny every call.
    #[must_use]
    pub fn unreadable() -> Gates {
        Gates::new(&[Gate::of(GateAction::Deny)])
    }

    /// Returns whether these are the same compiled gates, or both holders have none.
    #[must_use]
    pub fn is_same(&self, other: &Gates) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }

    fn iter(&self) -> impl Iterator<Item = &GateRules> {
        self.0.iter().flat_map(|gates| gates.iter())
    }
}

/// Returns whether a gate may ask before a call of the tool. The answer does not depend on parameters.
///
/// # Errors
/// Fails if the budget is exhausted before the answer is known.
pub fn may_ask(subject: &Subject<'_>, effort: &Effort) -> Result<bool, Overrun> {
    for (_, gate) in gates(subject) {
        if gate.gate.action == GateAction::Ask && gate.is_for(subject.tool, effort)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Judges the gates of a call that all other rules allow. Without parameters, only a gate without conditions denies.
pub(crate) fn judge(subject: &Subject<'_>, question: Question<'_>, effort: &Effort) -> Result<Gated, Overrun> {
    let mut asking: Vec<(Holder, &GateRules)> = Vec::new();
    for (holder, gate) in gates(subject) {
        let applies = gate.is_for(subject.tool, effort)?
            && match question {
                Question::List => gate.gate.action == GateAction::Deny && gate.is_unconditional(),
                Question::Call(params) => gate.conditions_hold(subject, params, effort)?,
            };
        match gate.gate.action {
            _ if !applies => {}
            GateAction::Deny => return Ok(Gated::Denied { holder, reason: gate.gate.reason.clone() }),
            GateAction::Ask => asking.push((holder, gate)),
        }
    }
    Ok(if asking.is_empty() { Gated::Passed } else { Gated::Asks(Asked::of(&asking)) })
}

fn gates<'a>(subject: &Subject<'a>) -> impl Iterator<Item = (Holder, &'a GateRules)> {
    let of_bot = subject.bot_gates.iter().map(|gate| (Holder::Bot, gate));
    let of_role = subject.binding.role_gates.iter().map(|gate| (Holder::Role, gate));
    let of_binding = subject.binding.gates.iter().map(|gate| (Holder::Binding, gate));
    let links = subject.delegation.iter().enumerate();
    let of_links = links.flat_map(|(index, link)| link.gates.iter().map(move |gate| (Holder::Delegation(index), gate)));
    of_bot.chain(of_role).chain(of_binding).chain(of_links)
}

impl Asked {
    /// Returns the rule that the audit records, such as `role.gates`: that of the first gate that asks.
    #[must_use]
    pub fn rule(&self) -> String {
        let holder = self.gates.first().map_or("gate", |gate| gate.holder.as_str());
        format!("{holder}.gates")
    }

    fn of(asking: &[(Holder, &GateRules)]) -> Asked {
        let accepts = |approver: &Approver| {
            asking.iter().all(|(_, gate)| match &gate.gate.approvers {
                Some(approvers) => approvers.contains(approver),
                None => *approver == Approver::Admin,
            })
        };
        let gates = asking
            .iter()
            .map(|(holder, gate)| AskingGate { holder: holder.word().to_owned(), reason: gate.gate.reason.clone() });
        let expires = asking.iter().map(|(_, gate)| gate.gate.expires_s.unwrap_or(EXPIRES_S_DEFAULT));
        Asked {
            gates: gates.collect(),
            approvers: Approver::ALL.into_iter().filter(accepts).collect(),
            allow_starter: asking.iter().all(|(_, gate)| gate.gate.allow_starter == Some(true)),
            expires_s: expires.min().unwrap_or(EXPIRES_S_DEFAULT),
        }
    }
}

impl GateRules {
    /// Returns whether the gate names the tool. A step of the bot itself must be named exactly, so that a gate for all
    /// tools of a bot does not stop the bot's own thinking. The name of a tool does not make it such a step, because
    /// plugins and servers choose the names of their tools.
    fn is_for(&self, tool: &ToolRules, effort: &Effort) -> Result<bool, Overrun> {
        let (name, operation) = (tool.tool.as_str(), tool.operation.as_str());
        if tool.is_own_step {
            let names = |texts: &Option<Vec<String>>, word: &str| {
                texts.as_ref().is_some_and(|texts| texts.iter().any(|text| text == word))
            };
            let by_tool = self.gate.tools.is_none() || names(&self.gate.tools, name);
            let by_operation = self.gate.operations.is_none() || names(&self.gate.operations, operation);
            let has_a_list = self.gate.tools.is_some() || self.gate.operations.is_some();
            return Ok(has_a_list && by_tool && by_operation);
        }
        for (list, word) in [(&self.tools, name), (&self.operations, operation)] {
            if let Some(list) = list
                && !list.matches(MatchMode::Pattern, word, effort)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_unconditional(&self) -> bool {
        self.when.is_empty() && self.unless.is_empty() && self.gate.after.is_none()
    }

    /// Returns whether the conditions of the gate hold for a call.
    fn conditions_hold(
        &self,
        subject: &Subject<'_>,
        params: &Map<String, Value>,
        effort: &Effort,
    ) -> Result<bool, Overrun> {
        if self.gate.after.as_ref().is_some_and(|after| !subject.labels.has_any(after)) {
            return Ok(false);
        }
        for (key, patterns) in &self.when {
            let mut may_match = false;
            let mut has_dimension = false;
            for dimension in dimensions(subject, key) {
                has_dimension = true;
                may_match |= compared(dimension, params, patterns, effort)?.may_match();
            }
            if has_dimension && !may_match {
                return Ok(false);
            }
        }
        if self.unless.is_empty() {
            return Ok(true);
        }
        for (key, patterns) in &self.unless {
            let mut has_dimension = false;
            for dimension in dimensions(subject, key) {
                has_dimension = true;
                if !compared(dimension, params, patterns, effort)?.all_match() {
                    return Ok(true);
                }
            }
            if !has_dimension {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Returns the dimensions with this key that apply to the tool and that the binding's resource type has.
fn dimensions<'a>(subject: &Subject<'a>, key: &str) -> impl Iterator<Item = &'a Dimension> {
    let binding = subject.binding;
    subject.tool.dimensions.iter().filter(move |dimension| {
        dimension.key == key
            && dimension.applies
            && dimension.is_declared
            && binding.matches_in(&dimension.key, dimension.mode)
    })
}

/// The number of values of a call by the result of their comparison with the patterns of a gate.
#[derive(Default)]
struct Compared {
    matching: usize,
    different: usize,
    /// Values that cannot be compared, because they are no scalars or too long.
    unknown: usize,
}

impl Compared {
    /// Returns whether a value matches or may match. A call without values counts as matching.
    fn may_match(&self) -> bool {
        self.matching + self.unknown > 0 || self.different == 0
    }

    /// Returns whether the call has values and all of them match.
    fn all_match(&self) -> bool {
        self.matching > 0 && self.different + self.unknown == 0
    }
}

fn compared(
    dimension: &Dimension,
    params: &Map<String, Value>,
    patterns: &PatternList,
    effort: &Effort,
) -> Result<Compared, Overrun> {
    let mut compared = Compared::default();
    for path in &dimension.param_paths {
        let visited: ControlFlow<Stop<()>> = visit(params, path, effort, &mut |found| {
            match found {
                Found::Text(value) if value.len() <= VALUE_BYTES_MAX => {
                    if paid(patterns.matches(dimension.mode, &value, effort))? {
                        compared.matching += 1;
                    } else {
                        compared.different += 1;
                    }
                }
                Found::Text(_) | Found::Unfit(_) => compared.unknown += 1,
            }
            ControlFlow::Continue(())
        });
        if let ControlFlow::Break(Stop::Overrun(overrun)) = visited {
            return Err(overrun);
        }
    }
    Ok(compared)
}
