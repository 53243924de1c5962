//! Rules in the form in which they are decided: immutable, shared, and compiled when a decision first needs them.

use std::collections::BTreeMap;
use std::sync::Arc;

use monstrum_manifest::{MatchMode, ScopeDimension};
use monstrum_types::{Effort, Overrun, ToolName};
use serde::{Deserialize, Serialize};

use crate::matching::{PatternList, match_glob};

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

/// The lists of a [`Grant`].
#[derive(Debug)]
pub(crate) struct GrantRules {
    operations: Option<PatternList>,
    tools: Option<PatternList>,
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

/// What a role grants and how it constrains. Every binding to the role shares it.
#[derive(Clone, Debug)]
pub struct RoleRules {
    grant: Arc<GrantRules>,
    set: Arc<ConstraintSet>,
}

/// What a binding grants and how it is constrained.
#[derive(Clone, Debug)]
pub struct BindingRules {
    pub(crate) grants: Vec<(GrantSource, Arc<GrantRules>)>,
    pub(crate) sets: Vec<(SetSource, Arc<ConstraintSet>)>,
    /// The keys of the dimensions of the resource's type, and how each is matched.
    modes: Box<[(String, MatchMode)]>,
}

/// A [`Delegation`] in the form in which it is decided.
#[derive(Debug)]
pub struct DelegationRules {
    pub(crate) tools: Option<PatternList>,
    pub(crate) set: ConstraintSet,
}

/// A set of constraints. A value must match in every set that has its key.
#[derive(Debug)]
pub(crate) struct ConstraintSet {
    pub(crate) constraints: Vec<Constraint>,
    /// The set as JSON, for the plugin.
    pub(crate) json: String,
}

/// The patterns of one key.
#[derive(Debug)]
pub(crate) struct Constraint {
    pub(crate) key: String,
    pub(crate) patterns: PatternList,
}

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

impl GrantRules {
    fn new(grant: &Grant) -> Self {
        let list = |texts: &Option<Vec<String>>| texts.as_ref().map(PatternList::new);
        GrantRules { operations: list(&grant.allowed_operations), tools: list(&grant.allowed_tools) }
    }

    pub(crate) fn allows_operation(&self, operation: &str, effort: &Effort) -> Result<bool, Overrun> {
        let Some(operations) = &self.operations else { return Ok(true) };
        operations.matches(MatchMode::Pattern, operation, effort)
    }

    pub(crate) fn allows_tool(&self, tool: &ToolName, effort: &Effort) -> Result<bool, Overrun> {
        let Some(tools) = &self.tools else { return Ok(true) };
        tools.matches(MatchMode::Pattern, tool.as_str(), effort)
    }

    pub(crate) fn has_a_list(&self) -> bool {
        self.operations.is_some() || self.tools.is_some()
    }

    fn lists(&self) -> impl Iterator<Item = &PatternList> {
        self.operations.iter().chain(&self.tools)
    }
}

impl RoleRules {
    /// Takes over what a role says.
    #[must_use]
    pub fn new(grant: &Grant, scopes: &ScopeConstraints) -> RoleRules {
        RoleRules { grant: Arc::new(GrantRules::new(grant)), set: Arc::new(ConstraintSet::new(scopes)) }
    }

    /// How many roles and bindings share these lists.
    #[must_use]
    pub fn references(&self) -> usize {
        Arc::strong_count(&self.set)
    }

    /// Whether a decision has needed any of its patterns, so that they take memory.
    #[must_use]
    pub fn is_compiled(&self) -> bool {
        let scopes = self.set.constraints.iter().map(|constraint| &constraint.patterns);
        self.grant.lists().chain(scopes).any(PatternList::is_compiled)
    }
}

impl BindingRules {
    /// Takes over what a binding says. Every grant must permit a call and every set must be satisfied; where no grant
    /// has a list, nothing is permitted. `dimensions` are those of the resource's type.
    #[must_use]
    pub fn new(
        grants: &[(GrantSource, Grant)],
        sets: &[(SetSource, ScopeConstraints)],
        dimensions: &[ScopeDimension],
    ) -> BindingRules {
        let modes = dimensions.iter().map(|dimension| (dimension.key.clone(), dimension.match_mode));
        BindingRules {
            grants: grants.iter().map(|(source, grant)| (*source, Arc::new(GrantRules::new(grant)))).collect(),
            sets: sets.iter().map(|(source, set)| (*source, Arc::new(ConstraintSet::new(set)))).collect(),
            modes: modes.collect(),
        }
    }

    /// The same with what a role says besides, which comes first and is shared, not copied.
    #[must_use]
    pub fn under(mut self, role: &RoleRules) -> BindingRules {
        self.grants.insert(0, (GrantSource::Role, Arc::clone(&role.grant)));
        self.sets.insert(0, (SetSource::Role, Arc::clone(&role.set)));
        self
    }

    /// Whether the type of the resource matches the dimension of this key in this mode.
    pub(crate) fn matches_in(&self, key: &str, mode: MatchMode) -> bool {
        self.modes.iter().any(|(known, of_type)| known == key && *of_type == mode)
    }
}

impl DelegationRules {
    /// Takes over a link. It may be asked about tools of any type.
    #[must_use]
    pub fn new(link: &Delegation) -> DelegationRules {
        DelegationRules {
            tools: link.allowed_tools.as_ref().map(PatternList::new),
            set: ConstraintSet::new(&link.scope_constraints),
        }
    }
}

impl ConstraintSet {
    fn new(set: &ScopeConstraints) -> Self {
        let constraints =
            set.iter().map(|(key, texts)| Constraint { key: key.clone(), patterns: PatternList::new(texts) });
        ConstraintSet { constraints: constraints.collect(), json: serde_json::json!(set).to_string() }
    }

    pub(crate) fn constraint(&self, key: &str) -> Option<&Constraint> {
        self.constraints.iter().find(|constraint| constraint.key == key)
    }
}
