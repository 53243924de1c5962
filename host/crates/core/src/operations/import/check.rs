//! Checks the lines of one workspace against the objects that exist, and plans what to write. Nothing is written here.
//! The checks are the same as in the operations on single objects.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use monstrum_api::bindings::NewBinding;
use monstrum_api::bots::NewBot;
use monstrum_api::export::{BindingLine, BotLine, ResourceLine, RoleLine};
use monstrum_api::import::ImportedState;
use monstrum_api::resources::NewResource;
use monstrum_api::roles::NewRole;
use monstrum_manifest::ScopeDimension;
use monstrum_store::{BindingRow, RoleRow, StoreError};
use monstrum_types::{BindingId, BotId, ResourceId, ResourceTypeId, RoleId, UtcMillis, WorkspaceId};
use serde_json::{Map, Value};

use super::existing::Existing;
use super::faults::Faults;
use super::lines::{Lines, Numbered};
use super::permissions::{GrantOf, Listing};
use super::plan::{Plan, Row, compared};
use crate::operations::resources::{NOT_SERVED, check_network, configuration_errors};
use crate::operations::{InputErrors, OperationError, bindings, bots, gates, resources, roles};
use crate::plugins::built_in;
use crate::policy::Snapshot;

/// The state of a role before and after the import.
struct RoleState {
    before: Option<RoleRow>,
    after: RoleRow,
}

/// The check of one workspace. The maps contain the existing objects and the objects of the lines that were already
/// checked.
pub(super) struct Check {
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) workspace: WorkspaceId,
    pub(super) now: UtcMillis,
    existing: Existing,
    plan: Plan,
    roles: HashMap<String, RoleState>,
    /// The names of all existing roles.
    role_names: HashMap<RoleId, String>,
    bots: HashMap<String, BotId>,
    resources: HashMap<String, (ResourceId, ResourceTypeId)>,
    /// The scope dimensions of the resources in the lines whose configuration defines them.
    own_dimensions: HashMap<ResourceId, Vec<ScopeDimension>>,
    /// The bindings in the lines whose grants have already been added.
    added: HashSet<BindingId>,
}

impl Check {
    pub(super) fn new(
        snapshot: Arc<Snapshot>,
        workspace: WorkspaceId,
        now: UtcMillis,
        mut existing: Existing,
        listing: Listing,
    ) -> Self {
        let (bots, resources) = (std::mem::take(&mut existing.bots), std::mem::take(&mut existing.resources));
        let role_names = existing.roles.values().map(|row| (row.id, row.name.clone())).collect();
        let state = |(name, row): (String, RoleRow)| (name, RoleState { before: Some(row.clone()), after: row });
        let roles = std::mem::take(&mut existing.roles).into_iter().map(state).collect();
        let (plan, added) = (Plan::new(listing), HashSet::new());
        let own_dimensions = HashMap::new();
        Check { snapshot, workspace, now, existing, plan, roles, role_names, bots, resources, own_dimensions, added }
    }

    /// Checks all lines and returns what to write. The plan may be used only if there are no faults.
    pub(super) fn run(mut self, lines: Lines, faults: &mut Faults) -> Result<Plan, OperationError> {
        for line in unique(lines.roles, faults, |line| line.name.clone(), "role") {
            self.role(line, faults)?;
        }
        for line in unique(lines.bots, faults, |line| line.name.clone(), "bot") {
            self.bot(line, faults)?;
        }
        for line in unique(lines.resources, faults, |line| line.name.clone(), "resource") {
            self.resource(line, faults)?;
        }
        let pair = |line: &BindingLine| (line.bot.clone(), line.resource.clone());
        for line in unique(lines.bindings, faults, pair, "bot and resource") {
            self.binding(line, faults)?;
        }
        self.add_grants_of_roles();
        Ok(self.plan)
    }

    fn role(
        &mut self,
        Numbered { number, line }: Numbered<RoleLine>,
        faults: &mut Faults,
    ) -> Result<(), OperationError> {
        let RoleLine { workspace: _, name, allowed_operations, allowed_tools, scope_constraints, gates } = line;
        let new = NewRole { name: name.clone(), allowed_operations, allowed_tools, scope_constraints, gates };
        let mut row = roles::row(new, self.workspace, self.now);
        let before = self.roles.remove(&name).and_then(|state| state.before);
        match compared(&mut row, before.as_ref(), self.now) {
            ImportedState::Unchanged => self.plan.keep::<RoleRow>(),
            ImportedState::Created | ImportedState::Changed => {
                faults.add_errors(number, roles::check(&row, before.as_ref()))?;
                self.write(number, &row, before.as_ref(), faults)?;
            }
        }
        self.roles.insert(name, RoleState { before, after: row });
        Ok(())
    }

    fn bot(&mut self, Numbered { number, line }: Numbered<BotLine>, faults: &mut Faults) -> Result<(), OperationError> {
        let before = self.existing.bot_rows.remove(&line.name);
        let use_agent_sandbox = line.use_agent_sandbox;
        let mut row = bots::row(new_bot(line), self.workspace, self.now);
        // Like keys, the subjects say who may use the bot on this host, so exports do not contain them.
        row.mcp_subjects = before.as_ref().and_then(|before| before.mcp_subjects.clone());
        let state = compared(&mut row, before.as_ref(), self.now);
        self.bots.insert(row.name.clone(), row.id);
        if state == ImportedState::Unchanged {
            self.plan.keep::<monstrum_store::BotRow>();
            return Ok(());
        }
        faults.add_errors(number, bots::check(&row, before.as_ref()))?;
        self.plan.permissions.add_gates(&row, before.as_ref());
        let had_sandbox = before.as_ref().is_some_and(|before| before.use_agent_sandbox);
        if had_sandbox != use_agent_sandbox {
            let (lost, gained) = (GrantOf::switch(had_sandbox), GrantOf::switch(use_agent_sandbox));
            self.plan.permissions.add(&row.name, lost, gained);
        }
        self.write(number, &row, before.as_ref(), faults)
    }

    fn resource(
        &mut self,
        Numbered { number, line }: Numbered<ResourceLine>,
        faults: &mut Faults,
    ) -> Result<(), OperationError> {
        let ResourceLine { workspace: _, resource_type, name, config: written, network, labels } = line;
        let before = self.existing.resource_rows.remove(&name);
        let stored = before.as_ref().map(|before| &before.config);
        let mut errors = InputErrors::default();
        let config = self.settled(&resource_type, &written, stored, &mut errors);
        let new = NewResource { resource_type: resource_type.clone(), name, config, network, labels };
        if before.as_ref().is_some_and(|before| before.resource_type != resource_type) {
            errors.add("/resource_type", "the resource exists with another type, which cannot be changed");
        }
        if before.is_none() {
            crate::operations::rules::name(&mut errors, "/name", &new.name);
        }
        check_network(&mut errors, &new.network);
        gates::check_labels(&mut errors, "/labels", &new.labels);
        let mut row = resources::row(new, self.workspace, self.now);
        let state = compared(&mut row, before.as_ref(), self.now);
        self.resources.insert(row.name.clone(), (row.id, resource_type.clone()));
        if let Some(plugin) = self.snapshot.resource_type(&resource_type).filter(|plugin| plugin.has_remote_tools()) {
            self.own_dimensions.insert(row.id, bindings::input::dimensions(plugin, &row.config).into_owned());
        }
        if state == ImportedState::Unchanged {
            self.plan.keep::<monstrum_store::ResourceRow>();
            return Ok(());
        }
        if before.as_ref().is_none_or(|before| before.config != row.config) {
            match self.snapshot.resource_type(&resource_type) {
                Some(plugin) => errors.add_under("", configuration_errors(plugin, &row.name, written)),
                None => errors.add("/resource_type", NOT_SERVED),
            }
        }
        faults.add_errors(number, errors.check())?;
        self.plan.permissions.add_labels(&row, before.as_ref());
        self.write(number, &row, before.as_ref(), faults)
    }

    /// Returns the configuration in the form in which it is stored. For a resource of the built-in type `bot`, the name
    /// of the bot is replaced with its id. A stored id is kept if its bot no longer exists.
    fn settled(
        &self,
        resource_type: &ResourceTypeId,
        written: &Map<String, Value>,
        stored: Option<&Value>,
        errors: &mut InputErrors,
    ) -> Map<String, Value> {
        let mut config = written.clone();
        let is_of_bot = resource_type.as_str() == built_in::BOT;
        let Some(Value::String(bot)) = config.get_mut(built_in::BOT).filter(|_| is_of_bot) else { return config };
        let is_kept = stored.and_then(|stored| stored.get(built_in::BOT)?.as_str()) == Some(bot.as_str());
        match self.bots.get(bot) {
            Some(id) => *bot = id.to_string(),
            None if is_kept => {}
            None => errors.add("/config/bot", NO_BOT),
        }
        config
    }

    fn binding(
        &mut self,
        Numbered { number, line }: Numbered<BindingLine>,
        faults: &mut Faults,
    ) -> Result<(), OperationError> {
        let (bot_name, resource_name, role_name) = (line.bot.clone(), line.resource.clone(), line.role.clone());
        let bot = self.bots.get(&bot_name).copied();
        let resource = self.resources.get(&resource_name).cloned();
        let role = role_name.as_ref().map(|name| self.roles.get(name).map(|state| state.after.id));
        let mut is_known = true;
        for (is_missing, path, message) in [
            (bot.is_none(), "/bot", NO_BOT),
            (resource.is_none(), "/resource", "no such resource in this workspace or in the import"),
            (role == Some(None), "/role", "no such role in this workspace or in the import"),
        ] {
            if is_missing {
                faults.add(number, path, message);
                is_known = false;
            }
        }
        let (true, Some(bot), Some((resource, resource_type))) = (is_known, bot, resource) else { return Ok(()) };
        let before = self.existing.bindings.remove(&(bot, resource));
        let mut row = bindings::input::row(new_binding(line, resource, role.flatten()), self.workspace, bot, self.now);
        if compared(&mut row, before.as_ref(), self.now) == ImportedState::Unchanged {
            self.plan.keep::<BindingRow>();
            return Ok(());
        }
        let checked =
            bindings::input::check_whole(&row, before.as_ref(), self.dimensions(resource, &resource_type).as_deref());
        faults.add_errors(number, checked)?;
        self.added.insert(row.id);
        let before_name = before.as_ref().and_then(|before| self.role_names.get(&before.role_id?));
        let role_before = before_name.and_then(|name| self.roles.get(name)?.before.as_ref());
        let role_after = role_name.and_then(|name| self.roles.get(&name)).map(|state| &state.after);
        // Every field of a binding except its switch is part of the grant, so the grants of two rows are equal only if
        // the rows are equal.
        let lost = before.as_ref().and_then(|row| GrantOf::binding(row, &resource_name, role_before, self.now));
        let gained = GrantOf::binding(&row, &resource_name, role_after, self.now);
        self.plan.permissions.add(&bot_name, lost, gained);
        self.write(number, &row, before.as_ref(), faults)
    }

    /// Returns the scope dimensions of a resource, or `None` if no plugin serves its type.
    fn dimensions(&self, resource: ResourceId, resource_type: &ResourceTypeId) -> Option<Cow<'_, [ScopeDimension]>> {
        let of_type = &self.snapshot.resource_type(resource_type)?.manifest.resource_type.scope_dimensions;
        if let Some(own) = self.own_dimensions.get(&resource) {
            return Some(Cow::Borrowed(own));
        }
        let known = self.snapshot.resource(self.workspace, resource).map(|known| known.dimensions());
        Some(Cow::Borrowed(known.unwrap_or(of_type)))
    }

    /// Adds the changed grants of all other bindings whose role changes, including bindings that the import does not
    /// describe.
    fn add_grants_of_roles(&mut self) {
        let mut roles: Vec<&RoleState> = self.roles.values().collect();
        roles.sort_by(|a, b| a.after.name.cmp(&b.after.name));
        for RoleState { before, after } in roles {
            let Some(before) = before.as_ref().filter(|before| *before != after) else { continue };
            for binding in self.snapshot.bindings_of_role(self.workspace, after.id) {
                let Some(bot) = self.snapshot.bot(self.workspace, binding.row.bot_id) else { continue };
                if self.added.contains(&binding.row.id) {
                    continue;
                }
                let row = binding.row.unpacked();
                let grant = |role| GrantOf::binding(&row, &binding.resource.row.name, Some(role), self.now);
                self.plan.permissions.add(&bot.row.name, grant(before), grant(after));
            }
        }
    }

    fn write<R: Row>(
        &mut self,
        number: usize,
        row: &R,
        before: Option<&R>,
        faults: &mut Faults,
    ) -> Result<(), OperationError> {
        match self.plan.write(number, row, before) {
            Err(error @ StoreError::Nul) => {
                faults.add(number, "", error.to_string());
                Ok(())
            }
            other => Ok(other?),
        }
    }
}

const NO_BOT: &str = "no such bot in this workspace or in the import";

fn new_bot(line: BotLine) -> NewBot {
    NewBot {
        name: line.name,
        description: line.description,
        system_prompt: line.system_prompt,
        model: line.model,
        use_agent_sandbox: line.use_agent_sandbox,
        monthly_token_budget: line.monthly_token_budget,
        gates: line.gates,
        mcp_subjects: Vec::new(),
        model_fallbacks: line.model_fallbacks,
        task_limits: line.task_limits,
        session_idle_s: line.session_idle_s,
        client_tools: line.client_tools,
    }
}

fn new_binding(line: BindingLine, resource_id: ResourceId, role_id: Option<RoleId>) -> NewBinding {
    NewBinding {
        resource_id,
        role_id,
        permissions: line.permissions,
        scope_constraints: line.scope_constraints,
        delegate: line.delegate,
        gates: line.gates,
        allow_calls: line.allow_calls,
        allow_subscribe: line.allow_subscribe,
        limits: line.limits,
        calls_per_minute: line.calls_per_minute,
        enabled: line.enabled,
        expires_at: line.expires_at,
    }
}

/// Returns the first line for each object. Each further line for the same object is a fault.
pub(super) fn unique<T, Key: Hash + Eq>(
    lines: Vec<Numbered<T>>,
    faults: &mut Faults,
    key: impl Fn(&T) -> Key,
    what: &str,
) -> Vec<Numbered<T>> {
    let mut first: HashMap<Key, usize> = HashMap::with_capacity(lines.len());
    let mut kept = Vec::with_capacity(lines.len());
    for line in lines {
        match first.get(&key(&line.line)) {
            Some(earlier) => faults.add(line.number, "", format!("line {earlier} has the same {what}")),
            None => {
                first.insert(key(&line.line), line.number);
                kept.push(line);
            }
        }
    }
    kept
}
