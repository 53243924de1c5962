//! A minimal set of rules for tests to extend: one resource type with a dimension `repos` like the GitHub plugin's.

use std::sync::Arc;

use monstrum_guardian::{
    BindingRules, Decision, Delegation, DelegationRules, Denial, DimensionModes, Gate, Gates, Grant, GrantSource,
    Question, RoleRules, ScopeConstraints, SetSource, Subject, ToolRules, decide,
};
use monstrum_manifest::{MatchMode, ScopeDimension};
use monstrum_types::Labels;
use serde_json::Value;

pub(crate) fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

pub(crate) fn dimension(key: &str, param_paths: &[&str], match_mode: MatchMode) -> ScopeDimension {
    ScopeDimension {
        key: key.to_owned(),
        param_paths: texts(param_paths),
        match_mode,
        operation_filter: None,
        error_template: String::new(),
    }
}

/// Returns the dimension `repos`, which checks the parameter `repo` and its alias `owner_repo`.
pub(crate) fn repos() -> ScopeDimension {
    ScopeDimension {
        error_template: "Repository {value} is not authorized".to_owned(),
        ..dimension("repos", &["repo", "owner_repo"], MatchMode::Pattern)
    }
}

pub(crate) fn operations(list: &[&str]) -> Grant {
    Grant { allowed_operations: Some(texts(list)), allowed_tools: None }
}

pub(crate) fn tools(list: &[&str]) -> Grant {
    Grant { allowed_operations: None, allowed_tools: Some(texts(list)) }
}

pub(crate) fn set(entries: &[(&str, &[&str])]) -> ScopeConstraints {
    entries.iter().map(|(key, patterns)| ((*key).to_owned(), texts(patterns))).collect()
}

/// The rules for a tool, by default `github_list_issues`, whose operation is `issue.read`. By default, all operations are
/// granted, no values are constrained, and there are no gates.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) tool: &'static str,
    pub(crate) operation: &'static str,
    pub(crate) dimensions: Vec<ScopeDimension>,
    /// Parameter paths that the tool declares.
    pub(crate) declared: Vec<&'static str>,
    pub(crate) grants: Vec<(GrantSource, Grant)>,
    pub(crate) sets: Vec<(SetSource, ScopeConstraints)>,
    pub(crate) delegation: Vec<Delegation>,
    /// Whether the tool only forwards to another call, which is checked separately.
    pub(crate) forwards: bool,
    /// Whether the tool is a step of the bot itself.
    pub(crate) is_own_step: bool,
    pub(crate) bot_gates: Vec<Gate>,
    pub(crate) role_gates: Vec<Gate>,
    /// The gates of the binding.
    pub(crate) gates: Vec<Gate>,
    /// The labels that the call carries; by default every label.
    pub(crate) labels: Labels,
}

impl World {
    pub(crate) fn new() -> Self {
        World {
            tool: "github_list_issues",
            operation: "issue.read",
            dimensions: vec![repos()],
            declared: vec!["repo"],
            grants: vec![(GrantSource::Role, operations(&["*"]))],
            sets: Vec::new(),
            delegation: Vec::new(),
            forwards: false,
            is_own_step: false,
            bot_gates: Vec::new(),
            role_gates: Vec::new(),
            gates: Vec::new(),
            labels: Labels::all(),
        }
    }

    /// Adds a constraint set of the binding.
    pub(crate) fn constrained(mut self, entries: &[(&str, &[&str])]) -> Self {
        self.sets.push((SetSource::Binding, set(entries)));
        self
    }

    pub(crate) fn granted(mut self, grants: &[(GrantSource, Grant)]) -> Self {
        self.grants = grants.to_vec();
        self
    }

    pub(crate) fn with_subject<R>(&self, ask: impl FnOnce(&Subject<'_>) -> R) -> R {
        let tool = ToolRules::new(self.tool.parse().unwrap(), self.operation.to_owned(), &self.dimensions, |path| {
            self.declared.contains(&path)
        });
        let tool = if self.forwards { tool.forwarding() } else { tool };
        let tool = if self.is_own_step { tool.own_step() } else { tool };
        let binding = BindingRules::new(&self.grants, &self.sets, &DimensionModes::of(&self.dimensions));
        let role = RoleRules::new(&Grant::default(), &ScopeConstraints::new()).with_gates(&self.role_gates);
        let binding = binding.with_gates(&self.gates).under(&role);
        let bot_gates = Gates::new(&self.bot_gates);
        let delegation: Vec<Arc<DelegationRules>> =
            self.delegation.iter().map(|link| Arc::new(DelegationRules::new(link))).collect();
        let (delegation, labels) = (&delegation[..], &self.labels);
        ask(&Subject { tool: &tool, binding: &binding, delegation, bot_gates: &bot_gates, labels })
    }

    pub(crate) fn list(&self) -> Decision {
        self.with_subject(|subject| decide(subject, Question::List))
    }

    pub(crate) fn call(&self, params: &Value) -> Decision {
        self.with_subject(|subject| decide(subject, Question::Call(params.as_object().unwrap())))
    }

    /// Returns the denial of a call. Panics if the call is allowed.
    pub(crate) fn refusal(&self, params: &Value) -> Denial {
        denial(self.call(params))
    }
}

pub(crate) fn denial(decision: Decision) -> Denial {
    match decision {
        Decision::Deny(denial) => denial,
        other => panic!("expected a denial, but the decision was {other:?}"),
    }
}
