//! Rules in the form that decisions use: immutable, shared, and compiled on first use.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use monstrum_manifest::{MatchMode, ScopeDimension};
use monstrum_types::{Effort, Overrun, ToolName};
use serde::{Deserialize, Serialize};

use crate::gates::{Gate, Gates};
use crate::matching::{PatternList, match_glob};

/// The patterns for each scope key of a role, a binding or a link of a delegation.
pub type ScopeConstraints = BTreeMap<String, Vec<String>>;

/// The permissions of a role or of a binding. An absent list does not restrict the permissions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// Globs for operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_operations: Option<Vec<String>>,
    /// Globs for tool names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<Vec<String>>,
}

/// One link of a delegation: the actions that a calling bot allows the called bot to perform on its behalf. A link only
/// restricts permissions and never grants any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delegation {
    /// Globs for tool names. If absent, the link does not restrict the tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<Vec<String>>,
    /// Constraints that apply in addition to the called bot's constraints.
    #[serde(default)]
    pub scope_constraints: ScopeConstraints,
    /// Gates for the calls that the called bot makes on behalf of the calling bot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<Gate>,
}

/// The source of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantSource {
    /// The binding's role.
    Role,
    /// The binding's own permissions.
    Permissions,
}

/// The source of a constraint set of a binding.
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

/// The rules of the manifest for one tool.
#[derive(Clone, Debug)]
pub struct ToolRules {
    pub(crate) tool: ToolName,
    pub(crate) operation: String,
    pub(crate) dimensions: Vec<Dimension>,
    /// Whether the tool only forwards to another call; see [`ToolRules::forwarding`].
    pub(crate) forwards: bool,
    /// Whether the tool is a step of the bot itself; see [`ToolRules::own_step`].
    pub(crate) is_own_step: bool,
}

/// A scope dimension, evaluated for one tool.
#[derive(Clone, Debug)]
pub(crate) struct Dimension {
    pub(crate) key: String,
    pub(crate) param_paths: Vec<String>,
    pub(crate) mode: MatchMode,
    pub(crate) error_template: String,
    /// Whether the `operation_filter` matches the tool's operation.
    pub(crate) applies: bool,
    /// Whether the tool declares one of the `param_paths`.
    pub(crate) is_declared: bool,
}

/// The grant and constraints of a role, shared by all bindings to the role.
#[derive(Clone, Debug)]
pub struct RoleRules {
    grant: Arc<GrantRules>,
    set: Arc<ConstraintSet>,
    gates: Gates,
}

/// The grants and constraints of a binding.
#[derive(Clone, Debug)]
pub struct BindingRules {
    pub(crate) grants: Vec<(GrantSource, Arc<GrantRules>)>,
    pub(crate) sets: Vec<(SetSource, Arc<ConstraintSet>)>,
    pub(crate) role_gates: Gates,
    pub(crate) gates: Gates,
    modes: DimensionModes,
}

/// The keys and match modes of the dimensions of a resource type, which all bindings to resources of the type share.
#[derive(Clone, Debug, Default)]
pub struct DimensionModes(Arc<[(String, MatchMode)]>);

impl DimensionModes {
    /// Returns the keys and modes of these dimensions.
    #[must_use]
    pub fn of(dimensions: &[ScopeDimension]) -> DimensionModes {
        DimensionModes(dimensions.iter().map(|dimension| (dimension.key.clone(), dimension.match_mode)).collect())
    }
}

/// A [`Delegation`] in the form that decisions use.
#[derive(Debug)]
pub struct DelegationRules {
    pub(crate) tools: Option<PatternList>,
    pub(crate) set: ConstraintSet,
    pub(crate) gates: Gates,
}

/// A set of constraints. A value must match in every set that contains its key.
#[derive(Debug)]
pub(crate) struct ConstraintSet {
    pub(crate) constraints: Vec<Constraint>,
    /// The set as JSON, for the plugin.
    pub(crate) json: String,
}

/// The patterns for one key.
#[derive(Debug)]
pub(crate) struct Constraint {
    pub(crate) key: String,
    pub(crate) patterns: PatternList,
}

impl ToolRules {
    /// Evaluates the dimensions of the manifest for one tool. `declares` returns whether the tool's `input_schema`
    /// declares the parameter at a path.
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
        ToolRules { tool, operation, dimensions, forwards: false, is_own_step: false }
    }

    /// Marks a tool that only forwards to another call. The other call is checked separately with the same delegation.
    /// Link keys that are unknown to the forwarding tool apply only to the other call and do not deny this call.
    #[must_use]
    pub fn forwarding(self) -> ToolRules {
        ToolRules { forwards: true, ..self }
    }

    /// Marks a tool that is a step of the bot itself, such as a round with a model. The lists of a delegation restrict
    /// what the bot does for another bot, not how it thinks, so they do not apply to such a tool. The gates of a
    /// delegation apply, and every link must be in force. Any gate must name such a tool or its operation exactly.
    #[must_use]
    pub fn own_step(self) -> ToolRules {
        ToolRules { is_own_step: true, ..self }
    }

    /// Returns the tool's name.
    #[must_use]
    pub fn tool(&self) -> &ToolName {
        &self.tool
    }

    /// Returns the tool's operation.
    #[must_use]
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// Returns whether the manifest has a dimension with this key, for any operation.
    pub(crate) fn knows(&self, key: &str) -> bool {
        self.dimensions.iter().any(|dimension| dimension.key == key)
    }

    /// Returns the dimension with this key, preferably a dimension that applies to the tool.
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
    /// Creates the rules of a role.
    #[must_use]
    pub fn new(grant: &Grant, scopes: &ScopeConstraints) -> RoleRules {
        RoleRules {
            grant: Arc::new(GrantRules::new(grant)),
            set: Arc::new(ConstraintSet::new(scopes)),
            gates: Gates::default(),
        }
    }

    /// Sets the gates of the role.
    #[must_use]
    pub fn with_gates(self, gates: &[Gate]) -> RoleRules {
        RoleRules { gates: Gates::new(gates), ..self }
    }

    /// Returns the number of roles and bindings that share these lists.
    #[must_use]
    pub fn references(&self) -> usize {
        Arc::strong_count(&self.set)
    }

    /// Returns whether any of the patterns is compiled and therefore uses memory.
    #[must_use]
    pub fn is_compiled(&self) -> bool {
        let scopes = self.set.constraints.iter().map(|constraint| &constraint.patterns);
        self.grant.lists().chain(scopes).any(PatternList::is_compiled)
    }
}

impl BindingRules {
    /// Creates the rules of a binding. A call is permitted only if all grants permit it and all sets are satisfied. If
    /// no grant has a list, no call is permitted. `modes` are those of the resource's type.
    #[must_use]
    pub fn new(
        grants: &[(GrantSource, Grant)],
        sets: &[(SetSource, ScopeConstraints)],
        modes: &DimensionModes,
    ) -> BindingRules {
        BindingRules {
            grants: grants.iter().map(|(source, grant)| (*source, Arc::new(GrantRules::new(grant)))).collect(),
            sets: sets.iter().map(|(source, set)| (*source, ConstraintSet::shared(set))).collect(),
            role_gates: Gates::default(),
            gates: Gates::default(),
            modes: modes.clone(),
        }
    }

    /// Sets the gates of the binding.
    #[must_use]
    pub fn with_gates(self, gates: &[Gate]) -> BindingRules {
        BindingRules { gates: Gates::new(gates), ..self }
    }

    /// Adds the rules of a role before the rules of the binding. The role's rules are shared, not copied.
    #[must_use]
    pub fn under(mut self, role: &RoleRules) -> BindingRules {
        self.grants.insert(0, (GrantSource::Role, Arc::clone(&role.grant)));
        self.sets.insert(0, (SetSource::Role, Arc::clone(&role.set)));
        self.role_gates = role.gates.clone();
        self
    }

    /// Returns whether the resource's type has a dimension with this key and match mode.
    pub(crate) fn matches_in(&self, key: &str, mode: MatchMode) -> bool {
        self.modes.0.iter().any(|(known, of_type)| known == key && *of_type == mode)
    }
}

impl DelegationRules {
    /// Creates the rules of a link. The rules apply to tools of any resource type.
    #[must_use]
    pub fn new(link: &Delegation) -> DelegationRules {
        DelegationRules {
            tools: link.allowed_tools.as_ref().map(PatternList::new),
            set: ConstraintSet::new(&link.scope_constraints),
            gates: Gates::new(&link.gates),
        }
    }

    /// Like [`DelegationRules::new`], but all links without a restriction share one object.
    #[must_use]
    pub fn shared(link: &Delegation) -> Arc<DelegationRules> {
        static UNRESTRICTED: LazyLock<Arc<DelegationRules>> =
            LazyLock::new(|| Arc::new(DelegationRules::new(&Delegation::default())));
        if *link == Delegation::default() { Arc::clone(&UNRESTRICTED) } else { Arc::new(DelegationRules::new(link)) }
    }
}

impl ConstraintSet {
    fn new(set: &ScopeConstraints) -> Self {
        let constraints =
            set.iter().map(|(key, texts)| Constraint { key: key.clone(), patterns: PatternList::new(texts) });
        ConstraintSet { constraints: constraints.collect(), json: serde_json::json!(set).to_string() }
    }

    /// Like [`ConstraintSet::new`], but all empty sets share one object.
    fn shared(set: &ScopeConstraints) -> Arc<ConstraintSet> {
        static EMPTY: LazyLock<Arc<ConstraintSet>> =
            LazyLock::new(|| Arc::new(ConstraintSet::new(&ScopeConstraints::new())));
        if set.is_empty() { Arc::clone(&EMPTY) } else { Arc::new(ConstraintSet::new(set)) }
    }

    pub(crate) fn constraint(&self, key: &str) -> Option<&Constraint> {
        self.constraints.iter().find(|constraint| constraint.key == key)
    }
}
