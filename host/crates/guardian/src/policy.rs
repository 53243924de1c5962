//! Rules in the form in which they are decided: compiled once, immutable, cheap to share.

use std::collections::BTreeMap;

use monstrum_manifest::{MatchMode, ScopeDimension};
use monstrum_types::ToolName;
use serde::{Deserialize, Serialize};

use crate::matching::{PatternSet, match_glob};

/// Scope key -> patterns, as a role, a binding or a delegation states them.
pub type ScopeConstraints = BTreeMap<String, Vec<String>>;

/// What a role, or a binding's own permissions, allow. A list that is absent does not restrict.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// Globs over operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_operations: Option<Vec<String>>,
    /// Globs over tool names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<Vec<String>>,
}

/// One link of a delegation: what a bot that calls another lets it do on its behalf. It narrows and never grants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delegation {
    /// Globs over tool names; absent, the link does not restrict them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<Vec<String>>,
    /// Constraints in addition to those of the called bot.
    #[serde(default)]
    pub scope_constraints: ScopeConstraints,
}

/// Where a grant is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantSource {
    /// The binding's role.
    Role,
    /// The binding's own permissions.
    Permissions,
}

/// Where a set of constraints of a binding is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetSource {
    /// The binding's role.
    Role,
    /// The binding itself.
    Binding,
}

/// A compiled [`Grant`].
#[derive(Clone, Debug)]
pub struct CompiledGrant {
    operations: Option<PatternSet>,
    tools: Option<PatternSet>,
}

/// What the manifest says of one tool.
#[derive(Clone, Debug)]
pub struct ToolRules {
    pub(crate) tool: ToolName,
    pub(crate) operation: String,
    pub(crate) dimensions: Vec<Dimension>,
    /// See [`ToolRules::forwarding`].
    pub(crate) forwards: bool,
}

/// A scope dimension as it concerns one tool.
#[derive(Clone, Debug)]
pub(crate) struct Dimension {
    pub(crate) key: String,
    pub(crate) param_paths: Vec<String>,
    pub(crate) mode: MatchMode,
    pub(crate) error_template: String,
    /// The operation_filter matches the tool's operation.
    pub(crate) applies: bool,
    /// The tool declares one of the param_paths.
    pub(crate) is_declared: bool,
}

/// What a binding grants and how it is constrained.
#[derive(Clone, Debug)]
pub struct BindingRules {
    pub(crate) grants: Vec<(GrantSource, CompiledGrant)>,
    pub(crate) sets: Vec<(SetSource, ConstraintSet)>,
}

/// A compiled [`Delegation`].
#[derive(Clone, Debug)]
pub struct DelegationRules {
    pub(crate) tools: Option<PatternSet>,
    pub(crate) set: ConstraintSet,
}

/// A compiled set of constraints. A value must match in every set that has its key.
#[derive(Clone, Debug)]
pub(crate) struct ConstraintSet {
    pub(crate) constraints: Vec<Constraint>,
    /// The set as JSON, for the plugin.
    pub(crate) json: String,
}

/// The patterns of one key, compiled for each match mode that may be asked for.
#[derive(Clone, Debug)]
pub(crate) struct Constraint {
    pub(crate) key: String,
    pub(crate) is_empty: bool,
    by_mode: Vec<(MatchMode, PatternSet)>,
}

const EVERY_MODE: [MatchMode; 3] = [MatchMode::Pattern, MatchMode::Path, MatchMode::Exact];

impl ToolRules {
    /// Compiles the dimensions of the manifest for one tool. `declares` tells whether the tool's input_schema declares
    /// the parameter at a path.
    #[must_use]
    pub fn new(
        tool: ToolName,
        operation: String,
        dimensions: &[ScopeDimension],
        declares: impl Fn(&str) -> bool,
    ) -> ToolRules {
        let dimensions = dimensions
            .iter()
            .map(|dimension| Dimension {
                key: dimension.key.clone(),
                param_paths: dimension.param_paths.clone(),
                mode: dimension.match_mode,
                error_template: dimension.error_template.clone(),
                applies: dimension.operation_filter.as_deref().is_none_or(|filter| match_glob(&operation, filter)),
                is_declared: dimension.param_paths.iter().any(|path| declares(path)),
            })
            .collect();
        ToolRules { tool, operation, dimensions, forwards: false }
    }

    /// The same for a tool that does nothing but have another call made, which is judged itself under the same links. A
    /// link's keys that the tool does not know are for that other call, and do not refuse this one.
    #[must_use]
    pub fn forwarding(self) -> ToolRules {
        ToolRules { forwards: true, ..self }
    }

    /// The tool's name.
    #[must_use]
    pub fn tool(&self) -> &ToolName {
        &self.tool
    }

    /// The tool's operation.
    #[must_use]
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// Whether the manifest has a dimension of this key, for whatever operation.
    pub(crate) fn knows(&self, key: &str) -> bool {
        self.dimensions.iter().any(|dimension| dimension.key == key)
    }

    /// The dimension of this key, one that applies to the tool before one that does not.
    pub(crate) fn dimension(&self, key: &str) -> Option<&Dimension> {
        self.dimensions.iter().filter(|dimension| dimension.key == key).max_by_key(|dimension| dimension.applies)
    }
}

impl CompiledGrant {
    /// Compiles the lists.
    #[must_use]
    pub fn new(grant: &Grant) -> Self {
        let compile = |list: &Option<Vec<String>>| list.as_ref().map(|list| PatternSet::new(MatchMode::Pattern, list));
        CompiledGrant { operations: compile(&grant.allowed_operations), tools: compile(&grant.allowed_tools) }
    }

    pub(crate) fn allows_operation(&self, operation: &str) -> bool {
        self.operations.as_ref().is_none_or(|operations| operations.matches(operation))
    }

    pub(crate) fn allows_tool(&self, tool: &ToolName) -> bool {
        self.tools.as_ref().is_none_or(|tools| tools.matches(tool.as_str()))
    }

    pub(crate) fn has_a_list(&self) -> bool {
        self.operations.is_some() || self.tools.is_some()
    }
}

impl BindingRules {
    /// Compiles a binding. Every grant must permit a call and every set must be satisfied; where no grant has
    /// a list, nothing is permitted. `dimensions` are those of the resource's type.
    #[must_use]
    pub fn new(
        grants: &[(GrantSource, Grant)],
        sets: &[(SetSource, ScopeConstraints)],
        dimensions: &[ScopeDimension],
    ) -> BindingRules {
        let modes = |key: &str| -> Vec<MatchMode> {
            EVERY_MODE
                .into_iter()
                .filter(|mode| dimensions.iter().any(|dimension| dimension.key == key && dimension.match_mode == *mode))
                .collect()
        };
        BindingRules {
            grants: grants.iter().map(|(source, grant)| (*source, CompiledGrant::new(grant))).collect(),
            sets: sets.iter().map(|(source, set)| (*source, ConstraintSet::new(set, modes))).collect(),
        }
    }
}

impl DelegationRules {
    /// Compiles a link. It may be asked about tools of any type, so every match mode is made ready.
    #[must_use]
    pub fn new(link: &Delegation) -> DelegationRules {
        DelegationRules {
            tools: link.allowed_tools.as_ref().map(|tools| PatternSet::new(MatchMode::Pattern, tools)),
            set: ConstraintSet::new(&link.scope_constraints, |_| EVERY_MODE.to_vec()),
        }
    }
}

impl ConstraintSet {
    fn new(set: &ScopeConstraints, modes: impl Fn(&str) -> Vec<MatchMode>) -> Self {
        let constraints = set
            .iter()
            .map(|(key, patterns)| Constraint {
                key: key.clone(),
                is_empty: patterns.is_empty(),
                by_mode: modes(key).into_iter().map(|mode| (mode, PatternSet::new(mode, patterns))).collect(),
            })
            .collect();
        ConstraintSet { constraints, json: serde_json::json!(set).to_string() }
    }

    pub(crate) fn constraint(&self, key: &str) -> Option<&Constraint> {
        self.constraints.iter().find(|constraint| constraint.key == key)
    }
}

impl Constraint {
    /// Whether a pattern matches. A mode that was not compiled belongs to another manifest: nothing matches.
    pub(crate) fn permits(&self, mode: MatchMode, value: &str) -> bool {
        self.by_mode.iter().any(|(compiled, patterns)| *compiled == mode && patterns.matches(value))
    }
}
